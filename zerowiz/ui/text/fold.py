"""Fold long lines between words at a terminal's edge, and nowhere else."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

from zerowiz.ui.text.canvas import Canvas

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


def fold(text: str, stream: TextIO, *, hang: int = 0) -> str:
    """A line as the stream shows it best; where it is folded, `hang` spaces open the next ones."""
    width = columns(stream)
    if width is None:
        return text
    return textwrap.fill(
        text,
        min(width, _WIDEST_COLUMNS),
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fold_command(words: Sequence[str], stream: TextIO, *, before: str = "") -> str:
    """A shell line, folded so that it can still be copied; `words` are quoted already."""
    width = columns(stream)
    if width is None:
        return before + " ".join(words)
    lines, line = [], before.rstrip()
    for word in words:
        # Two columns are kept for the backslash.
        if line.strip() and len(line) + 1 + len(word) > width - 2:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])
