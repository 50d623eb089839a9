"""Turn the rows of the settings into the options that `init`, `plan` and `launch` share."""

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, get_args

import typer
from msgspec.structs import fields

from zerowiz.app.options import Options, choices_of, kind_of, rows
from zerowiz.cli.completion import complete_setting
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.settings import SettingRow
from zerowiz.core.synonyms import canonical_choice


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every field of Options as its own option, gathered into one argument."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[
                get_args(field.type)[0],
                option_of(rows()[field.name], kind_of(get_args(field.type)[0])),
            ],
        )
        for field in fields(Options)
    ]

    @functools.wraps(command)
    def gathered(**given: object) -> None:
        said = {p.name: given.pop(p.name) for p in shared}
        command(options=Options(**said), **given)  # type: ignore[arg-type]

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    signature = inspect.Signature([*parameters, *shared])
    gathered.__signature__ = signature  # type: ignore[attr-defined]
    gathered.__annotations__ = {p.name: p.annotation for p in [*parameters, *shared]}
    return gathered


class WrongChoiceError(typer.BadParameter):
    """A word that an option does not take."""

    def __init__(self, message: str, flag: str, word: str, choices: Sequence[str]) -> None:
        """Remember the choices that are like the word."""
        from difflib import get_close_matches  # noqa: PLC0415 - few words are wrong

        super().__init__(message)
        self.possibilities = [f"{flag} {near}" for near in get_close_matches(word, choices)]


def option_of(row: SettingRow, kind: type = object) -> typer.models.OptionInfo:
    """The option of a setting, as its row spells and describes it.

    Args:
        row: The setting's.
        kind: The type of its values.
    """
    spellings = [row.flag] if row.short is None else [row.flag, row.short]
    choices = choices_of(kind, row)
    return typer.Option(  # type: ignore[no-any-return]
        *spellings,
        help=row.help,
        rich_help_panel=row.panel.value,
        show_default=False,
        parser=partial(_choice, row, choices) if choices else None,
        metavar=f"[{'|'.join(choices)}]" if choices else row.value,
        autocompletion=complete_setting(row, choices),
    )


def _choice(row: SettingRow, choices: Sequence[str], said: str) -> str:
    """The choice that a person means.

    Raises:
        BadParameter: There is none.
    """
    word = canonical_choice(row.key, str(said), choices)
    if word in choices:
        return word
    listed = ", ".join(f"'{choice}'" for choice in choices)
    raise WrongChoiceError(f"'{said}' is not one of {listed}.", row.on, word, choices)


def read_options(words: Sequence[str], command: str) -> Options:
    """The options that words say, as a command takes them.

    Args:
        words: Options and their values, nothing else.
        command: Whose options they are, for errors.
    """
    found: list[Options] = []

    @takes_options
    def gather(options: Options) -> None:
        found.append(options)

    app = typer.Typer(add_completion=False)
    app.command(cls=PlainCommand)(gather)
    typer.main.get_command(app).main(list(words), command, standalone_mode=False)
    return found[0]
