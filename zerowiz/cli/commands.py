"""The commands, and the one place that prints an error and chooses an exit code."""

import gc
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from errno import ENOENT
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from zerowiz import __version__
from zerowiz.cli.usage import (
    PlainCommand,
    PlainGroup,
    TyperError,
    as_usage_error,
    is_completing,
    write_error,
)
from zerowiz.errors import (
    DeclinedError,
    ExitCode,
    HandEditedError,
    NothingFitsError,
    UsageError,
    ZerowizError,
    from_system,
)
from zerowiz.translation import LANGUAGE_VARIABLE, LANGUAGES, unknown_language

# Each is a module of this room with a function of its name, and the first line of its help. The
# list of commands needs no more: to load all of them costs as much time as a whole plan.
COMMANDS: Mapping[str, str] = {
    "init": "Ask a few questions, choose a strategy, and launch the job or write its config",
    "template": "Copy a training script that works into a folder, to start from",
    "plan": "Show what each ZeRO strategy needs on this machine, and choose one",
    "launch": "Plan, write the config, and run the script with deepspeed",
    "machine": "Show the GPUs, the links between them, the host, the network and the scheduler",
    "measure": "Run real steps on this machine, and compare them with the prediction",
    "report": "Compare the memory and step time of the last launch with its plan",
    "check": "Find mistakes in DeepSpeed configs, and fix them",
    "doctor": "Find what would make a job fail on this machine, before it starts",
}


def build_app(words: Sequence[str]) -> typer.Typer:
    """The application for this command line: the called command, else a list of all."""
    app = typer.Typer(
        name="zerowiz",
        cls=PlainGroup,
        help="Turn a training script, a model and GPUs into a running DeepSpeed job",
        epilog="Completion for your shell: zerowiz --install-completion",
        # typer's options for completion take long to load.
        add_completion=is_completing() or any("completion" in word for word in words[:1]),
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(zerowiz)
    called = words[0] if words and words[0] in COMMANDS else None
    if called is not None:
        register(app, called)
    if called is None or is_completing():
        for name in (command for command in COMMANDS if command != called):
            app.command(name=name, help=COMMANDS[name])(_listed)
    return app


def register(app: typer.Typer, name: str) -> None:
    """Add a command; from a script on, every word belongs to the script."""
    module = import_module(f"zerowiz.cli.{name}")
    command = getattr(module, name)
    settings = {"allow_interspersed_args": "args" not in signature(command).parameters}
    kind = getattr(module, "PlanCommand", PlainCommand)
    app.command(name=name, cls=kind, context_settings=settings)(command)


# typer's: set by the scripts that it writes for the shells: the words of the line so far.
_LINE = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


def _words() -> list[str]:
    """The words of the command line; while a shell completes one, the words of that."""
    if not is_completing():
        return sys.argv[1:]
    line = next((os.environ[name] for name in _LINE if name in os.environ), "")
    return line.split()[1:]


def _listed() -> None:
    """Stand for a command that is listed and not called."""


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"zerowiz {__version__}\n")
        raise typer.Exit


def zerowiz(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True, help="Show the version"
        ),
    ] = False,
) -> None:
    """Turn a training script, a model and GPUs into a running DeepSpeed job"""
    del version
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n\nNew here? Start with `zerowiz init`\n")


def _fail(error: ZerowizError) -> NoReturn:
    """Print an error as one line, then what would be lost, then what to do next."""
    if isinstance(error, NothingFitsError):
        from zerowiz.cli.output import refuse  # noqa: PLC0415 - few runs end so

        refuse(error)
        sys.exit(error.exit_code)
    write_error(error)
    if isinstance(error, HandEditedError):
        from zerowiz.ui import show  # noqa: PLC0415 - most runs have no such error

        show.hand_edited(error, sys.stderr)
    else:
        _show_error(error.message, error.hints)
    sys.exit(error.exit_code)


def _show_error(message: str, hints: Sequence[str]) -> None:
    from zerowiz.ui import text  # noqa: PLC0415 - `--version` and `--help` show none

    text.error(message, hints, sys.stderr)


def _run() -> int:
    """Run one command; the exit code that it ends with."""
    try:
        unknown = unknown_language(os.environ)
        if unknown is not None:
            raise UsageError(
                f"`{LANGUAGE_VARIABLE}` is `{unknown}`, a language that zerowiz does not speak",
                f"set it to one of: {', '.join(LANGUAGES)}",
            )
        app = build_app(_words())
        if not gc.isenabled():
            # `__main__.py` put it off until everything is loaded. A plan leaves no garbage.
            gc.freeze()
            gc.set_threshold(1_000_000)
            gc.enable()
        code = app(standalone_mode=False, prog_name="zerowiz")
        sys.stdout.flush()
    except DeclinedError as declined:
        from zerowiz.ui import text  # noqa: PLC0415 - as above

        text.note(declined.message, sys.stderr)
        return ExitCode.OK
    except ZerowizError as error:
        _fail(error)
    except TyperError as error:
        _fail(as_usage_error(error, COMMANDS))
    except typer.Abort as ended:
        # What it makes of an EOFError; where zerowiz asks, the end of the input is heard there.
        raise EOFError from ended
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            # What it makes of one is status 1.
            raise ended.__context__ from None
        raise
    except KeyboardInterrupt:
        _show_error("interrupted", ())
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


def _repair_streams() -> None:
    """A closed stream reads and writes nothing; odd bytes of a name never stop an output."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _close_output() -> None:
    """The interpreter flushes what is left once more at exit: into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line; nothing of the user's world ends in a traceback."""
    is_closed = sys.stdout is None
    _repair_streams()
    try:
        if is_closed:
            hint = "write to a file, or drop what is written: `> /dev/null`"
            _fail(ZerowizError("stdout is closed", hint))
        _run_to_the_end()
    finally:
        # Where nobody reads stderr, the interpreter must not end with 120 for what is left in it.
        try:
            sys.stderr.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _run_to_the_end() -> NoReturn:
    """Run it, and exit; what cannot be written any more ends it too."""
    try:
        code = _run()
    except BrokenPipeError:
        # The reader has what it wanted: as of any other tool, the status is that of the signal.
        _close_output()
        code = 128 + signal.SIGPIPE
    except OSError as error:
        without_name = "the current folder" if error.errno == ENOENT else "the output"
        failure = from_system(error, without_name)
        with suppress(OSError):
            write_error(failure)
            sys.stdout.flush()
        _close_output()
        _fail(failure)
    sys.exit(code)
