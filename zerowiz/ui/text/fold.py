"""Fold long lines at a terminal's edge: behind a clause, else an item of a list, else a word."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

from zerowiz.ui.text.canvas import Canvas
from zerowiz.ui.text.cells import cells

# Wider lines are hard to follow, however wide the terminal is.
_WIDEST_COLUMNS = 100


def columns(stream: TextIO) -> int | None:
    """How wide the terminal is; None for a file or a pipe, whose lines stay whole."""
    if isinstance(stream, Canvas):
        return stream.columns
    return shutil.get_terminal_size().columns if stream.isatty() else None


def columns_of(stream: TextIO) -> int:
    """How wide a picture may be."""
    return columns(stream) or _WIDEST_COLUMNS


def fold(text: str, stream: TextIO, *, hang: int = 0, in_parts: bool = True) -> str:
    """A line as the stream shows it best.

    A sentence alone is filled with words. What has a label before it is read in parts: each clause
    that is too long for the rest of a line gets one of its own, and so does each item of a list.

    Args:
        text: The line.
        stream: Where it is shown; a file or a pipe gets it whole.
        hang: Spaces before each line but the first, below the label.
        in_parts: Whether what hangs is read in parts; else it is filled with words too.
    """
    width = columns(stream)
    if width is None:
        return text
    width = min(width, _WIDEST_COLUMNS)
    if cells(text) > len(text):
        return "\n".join(fill_wide(text, width, hang=" " * hang))
    if hang and in_parts:
        return "\n".join(_fold_parts(text, width, " " * hang))
    return textwrap.fill(
        text,
        width,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


# What stays on one line: a character of Japanese with the sign that closes after it, or a word.
_WIDE = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60"
_OPENING, _CLOSING = r"(\[「『", r"、。」』・ーっゃゅょァィゥェォッャュョ),.;:?!"
_LETTER = rf"[{_OPENING}]*[{_WIDE}][{_CLOSING}]*"
_ATOM = re.compile(rf" +|{_LETTER}|(?:(?!{_LETTER})[^ {_WIDE}])+[{_CLOSING}]*")


def fill_wide(text: str, width: int, indent: str = "", hang: str = "") -> list[str]:
    """Lines of a text whose language has no spaces between words.

    Args:
        text: The text.
        width: The most columns of a line.
        indent: Before the first line.
        hang: Before the others.
    """
    lines = [indent]
    for atom in _ATOM.findall(text):
        if cells(lines[-1] + atom.rstrip()) <= width or not lines[-1].strip():
            lines[-1] += atom
        elif atom.strip():
            lines.append(hang + atom)
        else:
            lines.append(hang)
    return [line.rstrip() for line in lines if line.strip()]


# Where a line may end, the best first: behind a clause, behind an item or before an option, behind
# a word.
_ENDS = (re.compile(r"(?<=;) "), re.compile(r"(?<=[,:]) | (?=--)"), re.compile(" "))


def _fold_parts(text: str, width: int, hang: str) -> list[str]:
    words = text.lstrip(" ")
    lines = [" " * (len(text) - len(words))]
    _add(lines, words, width, hang)
    return [line.rstrip() for line in lines]


def _add(lines: list[str], part: str, width: int, hang: str, kind: int = 0) -> None:
    """Put a part behind the others, or on a line of its own; or its own parts, one by one."""
    gap = " " if lines[-1].strip() else ""
    line = f"{lines[-1]}{gap}{part}"
    if len(line) <= width:
        lines[-1] = line
    elif len(hang) + len(part) <= width or kind == len(_ENDS):
        lines.append(hang + part)
    else:
        for smaller in _ENDS[kind].split(part):
            _add(lines, smaller, width, hang, kind + 1)


def fold_command(words: Sequence[str], stream: TextIO, *, before: str = "") -> str:
    """A shell line, folded so that it can still be copied; `words` are quoted already."""
    width = columns(stream)
    if width is None:
        return before + " ".join(words)
    lines, line = [], before.rstrip()
    for word in words:
        # Two columns are kept for the backslash.
        if line.strip() and cells(line) + 1 + cells(word) > width - 2:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])
