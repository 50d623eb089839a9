"""Find the line of a shell script that starts a training."""

import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.core.launch.other_launchers import launcher_words, read_command
from zerowiz.errors import UsageError

_SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!\S*\b(env +)?(ba|da|k|z)?sh\b")
_PYTHON = "python"
_ENDS = re.compile(r"[|&;]|\d*[<>]")


class ShellCommand(Struct, frozen=True, kw_only=True):
    """A command of a shell script that another launcher begins."""

    line: int
    """Its first, from 1 on."""
    launcher: str
    words: tuple[str, ...]
    """From the launcher on."""

    @property
    def expands(self) -> bool:
        """Whether the shell puts something else into it."""
        return any("$" in word or "`" in word for word in self.words)


def is_shell_script(path: str, text: str) -> bool:
    """Whether a file is one, by its name or its first line."""
    return path.endswith(_SUFFIXES) or _SHEBANG.match(text) is not None


def find_training_command(text: str) -> ShellCommand | None:
    """The command that starts a training; one of `python` only where no other launcher has one."""
    lines = [*_list_commands(text)]
    launchers = [line for line in lines if not line.launcher.startswith(_PYTHON)]
    return next(iter(launchers), lines[-1] if lines else None)


def _list_commands(text: str) -> Iterator[ShellCommand]:
    for number, line in _join_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote that ends on a later line
        for index in range(len(words)):
            name, own = launcher_words(words[index:]), _until_end(words[index:])
            if name and _starts_training(own):
                yield ShellCommand(line=number, launcher=" ".join(name), words=own)
                break


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with those that a backslash continues, and the number of the first."""
    begun, number = "", 0
    for at, line in enumerate(text.splitlines(), start=1):
        number = number if begun else at
        # A backslash at the end of a comment is a part of it.
        is_comment = not begun and line.lstrip().startswith("#")
        if line.rstrip().endswith("\\") and not is_comment:
            begun += f"{line.rstrip()[:-1]} "
            continue
        yield number, begun + line
        begun = ""
    if begun:
        yield number, begun


def _starts_training(words: Sequence[str]) -> bool:
    """Whether a launcher's words name a script; those of `python` have to show it."""
    try:
        command = read_command(words)
    except UsageError:
        return True  # what is wrong is said when it is launched
    if command is None:
        return False
    if not words[0].rpartition("/")[2].startswith(_PYTHON):
        return True
    return command.target.endswith(".py") or (command.is_module and command.target != "pip")


def _until_end(words: list[str]) -> tuple[str, ...]:
    """The words of one command, without redirections and what follows it."""
    own: list[str] = []
    for word in words:
        if _ENDS.match(word):
            break
        own.append(word.removesuffix(";"))
        if word.endswith(";"):
            break
    return tuple(own)
