"""Say what typer says in zerowiz's own form: the help and the errors."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand

from zerowiz.errors import UsageError

# typer vendors click in newer releases; either way its own error is the ancestor of all of them.
TyperError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


class PlainCommand(TyperCommand):
    """A command whose help is plain lines under headings, in a pipe as in a terminal."""

    # click's context and formatter are typer's own or click's, by typer's release.
    def split_words(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:  # noqa: ANN401 - as said above
        """The words up to the script, and the script with the words after it."""
        params: list[Any] = self.get_params(ctx)
        takes_value = {
            name: not param.is_flag
            for param in params
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            place += 2 if takes_value.get(args[place], False) else 1
        return args[:place], args[place:]

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
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


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
    (re.compile(r"'([^'\s]*)'"), r"`\1`"),
)


def _command(error: Exception, commands: Iterable[str]) -> str:
    """The command whose help lists what could have been said."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    said = next((word for word in sys.argv[1:] if word in set(commands)), None)
    return "zerowiz" if said is None else f"zerowiz {said}"


def as_usage_error(error: Exception, commands: Iterable[str]) -> UsageError:
    """An error of typer as one of ours: one line, literals in backticks, what to do next."""
    said = getattr(error, "format_message", error.__str__)()
    message = " ".join(str(said).split()).rstrip(".")
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    near = sorted(getattr(error, "possibilities", None) or ())
    hints = [f"did you mean `{name}`?" for name in near[:2]]
    hints.append(f"see `{_command(error, commands)} --help`")
    return UsageError(message[:1].lower() + message[1:], *hints)
