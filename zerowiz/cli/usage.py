"""Say what typer says in zerowiz's own form: the help and the errors."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from zerowiz.core import shell
from zerowiz.errors import HAS_SITE, ExitCode, UsageError, ZerowizError, did_you_mean, page_of

# typer vendors click in newer releases; either way its own error is the ancestor of all of them.
TyperError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def is_completing() -> bool:
    """Whether a shell asks, by the scripts that typer writes, and nothing runs."""
    return "_ZEROWIZ_COMPLETE" in os.environ


# What stands after a script is its own, and `--compare` says what it lacks.
_MAY_BE_EMPTY = frozenset({"args", "compare"})


def refuse_empty(command: Any, context: Any, words: list[str]) -> None:  # noqa: ANN401 - as said above
    """Refuse an option or an argument without a value, which as a path would be this folder.

    Args:
        command: The command.
        context: Of the command.
        words: After its name, as typed.

    Raises:
        UsageError: There is one.
    """
    if all(word.rpartition("=")[2] for word in words):
        return
    values = command.make_parser(context).parse_args(args=[*words])[0]
    for param in command.params:
        value = values.get(param.name)
        several = value if isinstance(value, (tuple, list)) else (value,)
        if param.name not in _MAY_BE_EMPTY and "" in several:
            is_option = param.param_type_name == "option"
            shown = (param.metavar or param.name).rstrip(".").upper()
            name = f"`{max(param.opts, key=len)}`" if is_option else shown
            raise UsageError(
                f"{name} is empty",
                "leave it out, or set the shell variable that it comes from",
            )


# By command: an option, and another without which it means nothing.
RELATIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "launch": (("max_attempts", "escalate"),),
    "machine": (("force", "save"), ("deadline", "hostfile")),
}


def refuse_meaningless(command: Any, context: Any) -> None:  # noqa: ANN401 - as said above
    """Refuse an option on the command line that would change nothing.

    Raises:
        UsageError: There is one.
    """
    spelled = {param.name: max(param.opts, key=len) for param in command.params}
    for option, other in RELATIONS.get(command.name, ()):
        source = context.get_parameter_source(option)
        is_typed = source is not None and source.name == "COMMANDLINE"
        if is_typed and not context.params[other]:
            raise UsageError(
                f"`{spelled[option]}` has no effect without `{spelled[other]}`",
                f"remove `{spelled[option]}`",
            )


class PlainCommand(TyperCommand):
    """A command whose help is plain lines under headings, in a pipe as in a terminal."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as said above
        """Read the words, and refuse what would change nothing."""
        # Those behind `--compare` are read alone, and change nothing of what the command promised.
        is_whole = ctx.parent is not None
        # Words that cannot be read may be the script's own: then the error is in JSON needlessly.
        if is_whole:
            expect_json(asked="--json" in args)
        refuse_empty(self, ctx, args)
        left: list[str] = super().parse_args(ctx, args)
        if is_whole:
            expect_json(asked=bool(ctx.params.get("as_json")))
        refuse_meaningless(self, ctx)
        return left

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """The options under their panels' names, in the order of use."""
        from zerowiz.cli.help_options import write_options  # noqa: PLC0415 - most runs show no page

        write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """Examples, a line each: no line is broken that is there to be pasted."""
        from zerowiz.cli.help_options import EXAMPLES  # noqa: PLC0415 - as above

        del ctx
        _write_examples(formatter, EXAMPLES.get(self.name or "", ()))


def _write_examples(formatter: Any, examples: Iterable[tuple[str, str]]) -> None:  # noqa: ANN401 - as said above
    with formatter.section("Examples"):
        for line, what in examples:
            formatter.write(f"  {line}\n      {what}\n")


# Rule: those that a person needs first.
_FIRST = ("init", "plan", "launch")


class PlainGroup(TyperGroup):
    """The program: its commands are listed whole, a line or two each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """The commands, in the order of use."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in listed if command])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as said above
        """What people run first, and how a shell completes it."""
        from zerowiz.cli.help_options import EXAMPLES  # noqa: PLC0415 - as above

        del ctx
        _write_examples(formatter, (EXAMPLES[name][0] for name in _FIRST))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.epilog or "")


def _meant_command(word: str, commands: Iterable[str]) -> tuple[str, ...]:
    """What may have been meant by a first word that is no command."""
    from difflib import get_close_matches  # noqa: PLC0415 - few words are wrong

    if word.endswith((".py", ".sh")):
        return (f"launch {word}",)
    return tuple(get_close_matches(word.lower(), list(commands), n=2))


# What `deepspeed` and `torchrun` call it (launcher/runner.py of 0.19.8; torch.distributed.run).
_OF_THE_LAUNCHER = {
    "--num-gpus": "--gpus-per-node",
    "--nproc-per-node": "--gpus-per-node",
    "--num-nodes": "--nodes",
    "--nnodes": "--nodes",
}


def _for_unknown_option(context: Any, option: str, near: Sequence[str]) -> tuple[str, ...]:  # noqa: ANN401 - as said above
    """What may have been meant by an option that a command does not have."""
    # The one alone that other tools write with `_`, or the launcher's for the same.
    dashed = option.lower().replace("_", "-")
    meant = _OF_THE_LAUNCHER.get(dashed, dashed)
    hints = did_you_mean([meant] if meant != dashed or dashed in near else near[:2])
    if all(param.name != "args" for param in context.command.params):
        return hints
    line = f"{context.command_path} train.py {shell.quote(option)}"
    return (*hints, f"if it is an option of your script, put it after the script: `{line}`")


def as_usage_error(error: Any, commands: Iterable[str]) -> UsageError:  # noqa: ANN401 - as said above
    """An error of typer as one of ours: its own sentence, and what to do next.

    Args:
        error: What typer says.
        commands: The names of all.
    """
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    # None for an option of one letter.
    near = getattr(error, "possibilities", None) or ()
    option = getattr(error, "option_name", None)
    if context is not None and param is None and option is not None:
        message = str(error.message)
        hints = _for_unknown_option(context, option, near)
    else:
        message = error.format_message()
        hints = did_you_mean(near)
    if (unknown := re.match(r"No such command '([^']*)'", message)) is not None:
        message = unknown[0]
        hints = did_you_mean(f"zerowiz {line}" for line in _meant_command(unknown[1], commands))
    if param is not None and context is not None:
        source = context.get_parameter_source(param.name)
        if source is not None and source.name == "ENVIRONMENT":
            hints = (*hints, f"`{param.envvar}` is set to `{os.environ[param.envvar]}`")
    called = [word for word in sys.argv[1:2] if word in set(commands)]
    command = " ".join(["zerowiz", *called]) if context is None else context.command_path
    message = " ".join(message.split()).rstrip(".")
    return UsageError(message[:1].lower() + message[1:], *hints, f"see `{command} --help`")


# The one JSON object that `--json` promises on stdout, also where a command fails.

SCHEMA_VERSION = 1
"""Of the object of an error."""
_STDOUT = SimpleNamespace(asked=False, written=False)


def expect_json(*, asked: bool) -> None:
    """A command begins: whether its stdout is to be one JSON object."""
    _STDOUT.asked, _STDOUT.written = asked, False


def expects_json() -> bool:
    """Whether the object is still to be written."""
    return _STDOUT.asked and not _STDOUT.written


def write_json_text(text: str) -> None:
    """The object, as text."""
    _STDOUT.written = True
    sys.stdout.write(text + "\n")


def write_json(content: object) -> None:
    """One value of JSON."""
    write_json_text(json.dumps(content, indent=2))


def write_error(error: ZerowizError) -> None:
    """Where JSON was asked for and nothing else was written: what went wrong.

    A plan that says that nothing fits is an answer: it has been written, and stays the only object.
    """
    if not expects_json():
        return
    from zerowiz.core.command_words import spell  # noqa: PLC0415 - most runs end without an error

    content = {
        "kind": ExitCode(error.exit_code).name.lower(),
        "message": spell(error.message),
        "hints": [spell(hint) for hint in error.hints],
        "exit_code": int(error.exit_code),
        "url": page_of(f"exit-{int(error.exit_code)}"),
    }
    write_json({"schema_version": SCHEMA_VERSION, "error": content})


# The option that says what a code of `check` or `doctor` means, and what to do about it.


def _show_explanation(code: str | None) -> None:
    if code is None:
        return
    from zerowiz.probe.files import (  # noqa: PLC0415 - most runs explain none
        ALL,
        read_explanation,
    )

    address = f"\n{page_of(code)}\n" if HAS_SITE and code.lower() != ALL else ""
    sys.stdout.write(f"{read_explanation(code)}{address}")
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="<code>",
        callback=_show_explanation,
        is_eager=True,
        help="Show an example of a code (ZW101, PF402, exit-4) and the way out; all lists them",
    ),
]
