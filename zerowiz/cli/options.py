"""Turn the rows of the settings into the options that `init`, `plan` and `launch` share."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from msgspec.structs import fields

from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    as_words,
    choices_of,
    kinds,
    read_value,
    rows,
    variable_of,
)
from zerowiz.cli.usage import PlainCommand, is_completing
from zerowiz.core.launch.secrets import join_words
from zerowiz.core.settings import Origin, SettingRow, SettingValue
from zerowiz.core.structs import replace
from zerowiz.errors import NoGpuHereError, ZerowizError
from zerowiz.probe.files import find_answers_files
from zerowiz.ui.reporter import TerminalReporter


def takes_options(use: FileUse | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every field of Options as its own option, gathered into one argument.

    Args:
        use: What it does with an answers file; None reads neither that nor the environment.
    """
    return lambda command: _with_options(command, use)


_GATHERED = frozenset({"options", "layers"})


def _with_options(command: Callable[..., None], use: FileUse | None) -> Callable[..., None]:
    wanted = inspect.signature(command).parameters
    visible = [p for p in wanted.values() if p.name not in _GATHERED]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            # typer reads an `Annotated` in twice the time.
            default=option_of(
                rows()[field.name],
                kinds()[field.name],
                None if use is None else variable_of(field.name),
                field.default,
            ),
            annotation=field.type,
        )
        for field in fields(Options)
    ]

    @functools.wraps(command)
    def gathered(context: typer.Context, **given: object) -> None:
        options = Options(**{p.name: given.pop(p.name) for p in shared})  # type: ignore[arg-type]
        if use is None:
            command(options=options, **given)
            return
        layers = _join(context, options, given, use)
        given |= {"script": layers.script, "args": [*layers.script_args]}
        given |= {"layers": layers} if "layers" in wanted else {}
        try:
            command(options=layers.options, **given)
        except ZerowizError as error:
            typed = join_words(["zerowiz", *sys.argv[1:]])
            error.hints = layers.hints(error, context.command_path, typed)
            raise

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in visible]
    signature = inspect.Signature([context, *parameters, *shared])
    gathered.__signature__ = signature  # type: ignore[attr-defined]
    gathered.__annotations__ = {p.name: p.annotation for p in [context, *parameters, *shared]}
    return gathered


# What typer calls where a value comes from.
_ORIGINS = {"COMMANDLINE": Origin.OPTION, "ENVIRONMENT": Origin.ENVIRONMENT}


def _join(
    context: typer.Context, options: Options, given: Mapping[str, object], use: FileUse
) -> Layers:
    """What was said on the command line, in the environment and in the answers file."""
    values = {}
    for name, row in rows().items():
        kind = context.get_parameter_source(name)
        if kind is None or kind.name not in _ORIGINS:
            continue
        origin = _ORIGINS[kind.name]
        values[name] = SettingValue(
            name=name,
            value=getattr(options, name),
            origin=origin,
            source=row.on if origin is Origin.OPTION else str(variable_of(name)),
        )
    script, args = given.get("script"), given.get("args")
    typed = Layers(
        options=options,
        values=values,
        script=None if script is None else str(script),
        script_args=tuple(args) if isinstance(args, list) else (),
    )
    layers = join_layers(typed, use)
    if options.dry_run and layers.planned_for is not None:
        layers = _planned_elsewhere(layers, layers.planned_for)
    reporter = TerminalReporter(quiet=options.quiet, with_waits=False)
    for note in layers.notes:
        reporter.note(note)
    return layers


def _planned_elsewhere(layers: Layers, machine: SettingValue) -> Layers:
    """The layers of a dry run with the machine of the answers file, where no GPU is here."""
    from zerowiz.app.machines.machine import find_machine  # noqa: PLC0415 - most dry runs ask once

    try:
        find_machine(layers.options, os.environ)
    except NoGpuHereError:
        note = f"no GPU is here: this is the plan for `{machine.value}` of {machine.source}"
        options = replace(layers.options, machine=str(machine.value))
        return replace(layers, options=options, notes=(note, *layers.notes))
    except ZerowizError:
        # The command says it.
        pass
    return layers


def join_layers(typed: Layers, use: FileUse) -> Layers:
    """What is said now, with what the answers file says, where nothing else does.

    What is said first counts: an option, a variable `ZEROWIZ_...`, the file; then what the script
    or the machine shows, then a default.

    Args:
        typed: What is said on the command line, and by variables of the environment.
        use: What the command does with a file.

    Raises:
        ZerowizError: There is a file, and it cannot be used.
    """
    by_variable = [v for v in typed.values.values() if v.origin is Origin.ENVIRONMENT]
    words = as_words(Options(**{value.name: value.value for value in by_variable}))  # type: ignore[arg-type]
    if words:
        names = ", ".join(value.source for value in by_variable)
        typed = replace(typed, notes=(f"from {names}: `{join_words(words)}`",))
    options = typed.options
    path = next(find_answers_files(typed.script, options.output_dir), None)
    if path is None or options.isolated:
        return typed
    from zerowiz.app.answers_file import (  # noqa: PLC0415 - most folders have none
        read_answers_file,
        with_file,
    )

    return with_file(typed, read_answers_file(path), use)


def option_of(
    row: SettingRow, kind: type = object, variable: str | None = None, *default: object
) -> typer.models.OptionInfo:
    """The option of a setting, as its row spells and describes it.

    Args:
        row: The setting's.
        kind: The type of its values.
        variable: Of the environment, where one sets it too.
        default: Its default, where it is one itself; else it stands in an `Annotated`.
    """
    declared: list[Any] = [*default, row.flag, *([row.short] if row.short else [])]
    choices = choices_of(kind, row)
    complete = None
    if is_completing():
        from zerowiz.cli.completion import complete_setting  # noqa: PLC0415 - only a shell asks

        complete = complete_setting(row, choices)
    return typer.Option(  # type: ignore[no-any-return]
        *declared,
        help=row.help,
        rich_help_panel=row.panel.value,
        show_default=False,
        envvar=variable,
        show_envvar=False,
        parser=_parser_of(row, kind) if choices or kind is int else None,
        metavar=f"[{'|'.join(choices)}]"
        if choices
        else row.value or ("<int>" if kind is int else None),
        # typer reads the signature of each.
        autocompletion=complete,
    )


def _parser_of(row: SettingRow, kind: type) -> Callable[[str], object]:
    """What reads a value: a function, since older typer asks a parser for its name."""

    def read(text: str) -> object:
        try:
            return read_value(kind, row, str(text).strip())
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def read_options(words: Sequence[str], command: str) -> Options:
    """The options that words say, as a command takes them.

    Args:
        words: Options and their values, nothing else.
        command: Whose options they are, for errors.

    Raises:
        typer.Exit: They asked for its help, which was shown.
    """
    instances: list[Options] = []

    @takes_options(None)
    def gather(options: Options) -> None:
        instances.append(options)

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=PlainCommand, help="The options of the other plan")(gather)
    typer.main.get_command(app).main(list(words), command, standalone_mode=False)
    if not instances:
        raise typer.Exit
    return instances[0]
