"""Tell line by line how a file that is there differs from the one that would be written."""

import difflib
from collections.abc import Iterator
from enum import StrEnum

# A plan of eight GPUs takes 45 kB in 1,700 lines. Texts of few different lines are difflib's worst:
# 125,000 lines against 190 take it 14 s, so many as here 1 s.
_LARGEST_BYTES = 250_000
_MOST_LINES = 10_000


class Incomparable(StrEnum):
    """Why there are no lines to show."""

    NO_TEXT = "no_text"
    """It is not UTF-8, or holds a NUL."""
    TOO_LARGE = "too_large"
    LINE_ENDS = "line_ends"
    """Only its line ends are others, as an editor on Windows leaves them."""


def difference(path: str, there: bytes, wanted: str) -> tuple[str, ...] | Incomparable:
    """A unified diff from what is there to what would be written; line ends are no difference.

    Args:
        path: What its first two lines call the file.
        there: What is in the file.
        wanted: What would be.

    Returns:
        Lines without their ends, of which none steers a terminal.
    """
    if any(map(_is_large, (there, wanted.encode()))):
        return Incomparable.TOO_LARGE
    try:
        text = there.decode()
    except UnicodeDecodeError:
        return Incomparable.NO_TEXT
    if "\0" in text:
        return Incomparable.NO_TEXT
    before, after = _lines(text), _lines(wanted)
    if before == after:
        return Incomparable.LINE_ENDS
    found = difflib.unified_diff(before, after, path, f"{path} (by zerowiz)", lineterm="")
    return tuple(_plain(part) for line in found for part in line.split("\n"))


def _is_large(content: bytes) -> bool:
    return len(content) > _LARGEST_BYTES or content.count(b"\n") > _MOST_LINES


def _lines(text: str) -> list[str]:
    """The lines of a text; a last one without an end says so, as `diff` does."""
    *lines, last = text.replace("\r\n", "\n").split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def _plain(line: str) -> str:
    return "".join(_escaped(line))


def _escaped(line: str) -> Iterator[str]:
    """Nothing that is in a file steers a terminal, or stays unseen."""
    for letter in line:
        yield letter if letter.isprintable() else letter.encode("unicode_escape").decode()
