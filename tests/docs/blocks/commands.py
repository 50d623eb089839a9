"""What the page of command help is made of: what each `--help` prints."""

from docs.blocks.desk import empty_desk, run
from docs.blocks.markdown import code

from zerowiz.cli.commands import COMMANDS


def help_of(*words: str) -> str:
    return code(run(*words, "--help").stdout, "text")


def helps() -> str:
    with empty_desk():
        sections = [f"## {name}\n\n{help_of(name)}\n" for name in COMMANDS]
        return "\n".join([f"{help_of()}\n", *sections])
