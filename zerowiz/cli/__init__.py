"""The commands, and the one place that prints an error and chooses an exit code."""

import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from zerowiz import __version__
from zerowiz.cli.usage import TyperError, as_usage_error
from zerowiz.errors import ExitCode, HandEditedError, ZerowizError
from zerowiz.ui import diff, show

# Each is a module of this room with `register(app)`.
COMMANDS = ("init", "plan", "launch", "machine", "measure", "check", "doctor")


def build_app(words: Sequence[str]) -> typer.Typer:
    """The application for this command line.

    A called command is loaded alone: all of them together cost as much time as a whole plan.
    """
    app = typer.Typer(
        name="zerowiz",
        help="From a training script, a model and these GPUs to a running DeepSpeed job",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(zerowiz)
    called = COMMANDS if words[:1] not in [[name] for name in COMMANDS] else words[:1]
    for name in called:
        import_module(f"zerowiz.cli.{name}").register(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"zerowiz {__version__}\n")
        raise typer.Exit


def zerowiz(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it")
    ] = False,
) -> None:
    """From a training script, a model and these GPUs to a running DeepSpeed job"""
    del version
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n\nNew here? Start with `zerowiz init`\n")


def _fail(error: ZerowizError) -> NoReturn:
    """Print an error as one line, then what would be lost, then what to do next."""
    if isinstance(error, HandEditedError):
        diff.error(error, sys.stderr)
    else:
        show.error(error.message, error.hints, sys.stderr)
    sys.exit(error.exit_code)


def _run() -> int:
    """Run one command; the exit code that it ends with."""
    try:
        app = build_app(sys.argv[1:])
        if not gc.isenabled():
            # `__main__.py` put it off until everything is loaded.
            gc.freeze()
            gc.enable()
        code = app(standalone_mode=False, prog_name="zerowiz")
        sys.stdout.flush()
    except ZerowizError as error:
        _fail(error)
    except TyperError as error:
        _fail(as_usage_error(error, COMMANDS))
    except (KeyboardInterrupt, typer.Abort):
        show.error("interrupted", (), sys.stderr)
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


def _mend_streams() -> None:
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
    _mend_streams()
    try:
        code = _run()
    except BrokenPipeError:
        # The reader has what it wanted.
        _close_output()
        code = ExitCode.FAILED
    except OSError as error:
        _close_output()
        what = f"`{error.filename}`" if error.filename else "the output"
        _fail(ZerowizError(f"{what} cannot be used: {(error.strerror or str(error)).lower()}"))
    sys.exit(code)
