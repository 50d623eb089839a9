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
# What ends a command, or a word with its quotes; else a quote that stays open.
_TOKEN = re.compile(
    r"""(?P<end>[|&;]|\d*[<>])"""
    r"""|(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\|&;<>])+)"""
    r"""|\S"""
)


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
        starts = (words[at:] for words in _split_commands(line) for at in range(len(words)))
        for words in starts:
            name = launcher_words(words)
            if name and _starts_training(words):
                yield ShellCommand(line=number, launcher=" ".join(name), words=words)
                break


def _split_commands(line: str) -> list[tuple[str, ...]]:
    """The words of each command of a line, without quotes; none where a quote ends on a later line.

    What a redirection names is taken for a command, too.
    """
    commands: list[tuple[str, ...]] = [()]
    for token in _TOKEN.finditer(line):
        word = token["word"]
        if token["end"]:
            commands.append(())
        elif word is None:
            return []
        elif word.startswith("#"):
            break
        else:
            commands[-1] += (*shlex.split(word),)
    return commands


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
