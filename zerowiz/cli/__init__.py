"""The commands, and the one place that prints an error and chooses an exit code."""

import sys
from typing import Annotated, NoReturn

import typer

from zerowiz import __version__
from zerowiz.cli import init, launch, machine, plan
from zerowiz.errors import ExitCode, ZerowizError

app = typer.Typer(
    name="zerowiz",
    help="From a training script, a model and these GPUs to a running DeepSpeed job",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (init, plan, launch, machine):
    command.register(app)

# typer vendors click in newer releases; either way its own error is the ancestor of all of them.
_TyperError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"zerowiz {__version__}\n")
        raise typer.Exit


@app.callback()
def zerowiz(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it")
    ] = False,
) -> None:
    """From a training script, a model and these GPUs to a running DeepSpeed job"""
    del version


def _fail(message: str, hints: tuple[str, ...], code: int) -> NoReturn:
    """Print an error as one line, then what to do next."""
    lines = [f"error: {message}"]
    if hints:
        lines += ["", *(f"hint: {hint}" for hint in hints)]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.exit(code)


def main() -> None:
    """Run the command line; nothing of the user's world ends in a traceback."""
    try:
        code = app(standalone_mode=False)
    except ZerowizError as error:
        _fail(error.message, error.hints, error.exit_code)
    except _TyperError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "zerowiz"
        message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        _fail(message[:1].lower() + message[1:], (f"`{path} --help` lists what there is",), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", (), ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.OK)
