"""Say what typer says in zerowiz's own form: the help and the errors."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

from zerowiz.cli.examples import EXAMPLES
from zerowiz.core.settings import Panel
from zerowiz.errors import UsageError

# typer vendors click in newer releases; either way its own error is the ancestor of all of them.
TyperError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


# Rule: options stand in the order in which people come to need them.
_PANELS = ("Arguments", "Run", *Panel, "Other")


def _place(panel: str) -> int:
    return _PANELS.index(panel)


class PlainCommand(TyperCommand):
    """A command whose help is plain lines under headings, in a pipe as in a terminal."""

    # click's context and formatter are typer's own or click's, by typer's release.
    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """The options under their panels' names, in the order they are declared."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            kind = "Arguments" if param.param_type_name == "argument" else "Other"
            panel = getattr(param, "rich_help_panel", None) or kind
            panels.setdefault(panel, []).append(record)
        for panel in sorted(panels, key=_place):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """Examples, a line each: no line is broken that is there to be pasted."""
        del ctx
        with formatter.section("Examples"):
            for line, what in EXAMPLES.get(self.name or "", ()):
                formatter.write(f"  {line}\n      {what}\n")


# Rule: what typer writes, and how it is said here; the first words of a choice or a number are
# pydantic's, passed on by newer typer.
_WORDS = (
    (re.compile(r"^Invalid value for '([^']+)'(?: / '[^']+')*: "), r"`\1`: "),
    (re.compile(r"Value error, "), ""),
    (re.compile(r"Input should be a valid integer.*"), "it takes a whole number"),
    (re.compile(r"Input should be a valid number.*"), "it takes a number"),
    (re.compile(r"'[^']*' is not a valid (int|integer)\b.*"), "it takes a whole number"),
    (re.compile(r"'[^']*' is not a valid (number|float)\b.*"), "it takes a number"),
    (re.compile(r" \(Possible options: .*\)$"), ""),
    (re.compile(r"No such option: (\S+)"), r"there is no option `\1`"),
    (re.compile(r"No such command"), "there is no command"),
    (re.compile(r"\.? Did you mean .*\?$"), ""),
    (re.compile(r"'([^'\s]*)'"), r"`\1`"),
)


def _command(error: Exception, commands: Iterable[str]) -> str:
    """The command whose help lists what could have been said."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    said = next((word for word in sys.argv[1:] if word in set(commands)), None)
    return "zerowiz" if said is None else f"zerowiz {said}"


_NO_COMMAND = re.compile(r"No such command '([^']*)'")
# What other tools call it.
_OTHER_COMMANDS = {
    **dict.fromkeys(("run", "train", "start", "deepspeed", "torchrun", "accelerate"), "launch"),
    **dict.fromkeys(("estimate", "memory", "fit", "choose", "recommend"), "plan"),
    **dict.fromkeys(("config", "wizard", "setup", "new", "create"), "init"),
    **dict.fromkeys(("gpu", "gpus", "info", "env", "nodes"), "machine"),
    **dict.fromkeys(("lint", "validate", "fix"), "check"),
    **dict.fromkeys(("bench", "benchmark", "profile", "test"), "measure"),
    **dict.fromkeys(("preflight", "diagnose"), "doctor"),
    **dict.fromkeys(("version",), "--version"),
    **dict.fromkeys(("help",), "--help"),
    **dict.fromkeys(("completion", "completions"), "--show-completion"),
}


def _meant(word: str, commands: Iterable[str]) -> tuple[str, ...]:
    """What may have been meant by a first word that is no command."""
    from difflib import get_close_matches  # noqa: PLC0415 - few words are wrong

    if word.endswith((".py", ".sh")):
        return (f"launch {word}",)
    other = _OTHER_COMMANDS.get(word.lower())
    return (other,) if other else tuple(get_close_matches(word.lower(), list(commands), n=2))


def as_usage_error(error: Exception, commands: Iterable[str]) -> UsageError:
    """An error of typer as one of ours: one line, literals in backticks, what to do next."""
    said = getattr(error, "format_message", error.__str__)()
    message = " ".join(str(said).split()).rstrip(".")
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    near = getattr(error, "possibilities", None) or ()
    hints = [f"did you mean `{name}`?" for name in sorted(near)[:2]]
    if (unknown := _NO_COMMAND.search(str(said))) is not None:
        hints = [f"did you mean `zerowiz {line}`?" for line in _meant(unknown[1], commands)]
    hints.append(f"see `{_command(error, commands)} --help`")
    return UsageError(message[:1].lower() + message[1:], *hints)
