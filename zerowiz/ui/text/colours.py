"""Colour words at a terminal, where a sign or the word itself says the same."""

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TextIO

from zerowiz.ui.text.canvas import Canvas

# As the wizard's prompts have it (`ui/ask`).
_DUMB = frozenset({"", "dumb", "unknown"})


class Colour(StrEnum):
    """A colour by rich's name; each can be read on a light and on a dark background."""

    GOOD = "green"
    DOUBT = "magenta"
    BAD = "red"
    LABEL = "bold"
    DIM = "dim"
    # Areas: the terminal's own background writes on them.
    BLUE = "reverse blue"
    CYAN = "reverse cyan"
    MAGENTA = "reverse magenta"
    GREEN = "reverse green"
    YELLOW = "reverse yellow"
    GREY = "reverse"
    DARK = "reverse dim"
    RED = "reverse red"


# ECMA-48, section 8.3.117.
SGR: Mapping[Colour, str] = {
    Colour.GOOD: "32",
    Colour.DOUBT: "35",
    Colour.BAD: "31",
    Colour.LABEL: "1",
    Colour.DIM: "2",
    Colour.BLUE: "7;34",
    Colour.CYAN: "7;36",
    Colour.MAGENTA: "7;35",
    Colour.GREEN: "7;32",
    Colour.YELLOW: "7;33",
    Colour.GREY: "7",
    Colour.DARK: "7;2",
    Colour.RED: "7;31",
}
"""What turns each on; `0` turns it off."""


def is_dumb() -> bool:
    """Whether the terminal can only print."""
    return os.environ.get("TERM", "") in _DUMB


def is_coloured(stream: TextIO) -> bool:
    """Whether the stream shows colours; any value of `NO_COLOR` but an empty one forbids them."""
    if isinstance(stream, Canvas):
        return True
    return stream.isatty() and not (os.environ.get("NO_COLOR") or is_dumb())


def paint(text: str, marks: Mapping[str, Colour], stream: TextIO) -> str:
    """The text with the first match of each pattern in its colour, where the stream shows it."""
    if not is_coloured(stream):
        return text
    for pattern, colour in marks.items():
        found = re.search(pattern, text)
        if found is not None:
            word = f"\x1b[{SGR[colour]}m{found[0]}\x1b[0m"
            text = text[: found.start()] + word + text[found.end() :]
    return text
