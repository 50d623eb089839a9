"""Turn the rows of the settings into the options that `init`, `plan` and `launch` share."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, get_args

import typer
from msgspec.structs import fields

from zerowiz.app.options import Options, rows
from zerowiz.core.settings import SettingRow


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every field of Options as its own option, gathered into one argument."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[get_args(field.type)[0], option_of(rows()[field.name])],
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


def option_of(row: SettingRow) -> typer.models.OptionInfo:
    """The option of a setting, as its row spells and describes it."""
    spellings = [row.flag] if row.short is None else [row.flag, row.short]
    return typer.Option(  # type: ignore[no-any-return]
        *spellings, help=row.help, rich_help_panel=row.panel.value, show_default=False
    )
