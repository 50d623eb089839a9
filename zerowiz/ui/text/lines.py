"""Draw lines of coloured words, where the signs alone say as much."""

from collections.abc import Iterable, Iterator
from typing import TextIO

from zerowiz.ui.text.cells import cells
from zerowiz.ui.text.colours import SGR, Colour, is_coloured

Span = tuple[str, Colour | None]
"""Words of one colour."""
Line = tuple[Span, ...]
Picture = tuple[Line, ...]

# What a terminal without Unicode shows instead.
_ASCII = str.maketrans("┃│╎●◆╌┗→»└─", "|||**-`>>+-")


def length(line: Iterable[Span]) -> int:
    """Columns of a line."""
    return sum(cells(words) for words, _ in line)


def wrap(entries: Iterable[Line], gap: str, columns: int) -> Iterator[Line]:
    """Entries one behind the other, in as many lines as it takes.

    Args:
        entries: Each stands in one line, as it is.
        gap: What stands between two of a line.
        columns: The most that a line may have, unless one entry has more.
    """
    line: Line = ()
    for entry in entries:
        if line and length(line) + len(gap) + length(entry) > columns:
            yield line
            line = ()
        line = (*line, (gap, None), *entry) if line else entry
    yield line


def draw(picture: Picture, stream: TextIO) -> None:
    """The lines, in colour where the stream shows it, in ASCII where it knows no other signs."""
    coloured = is_coloured(stream)
    text = "".join(_painted(line, coloured=coloured) + "\n" for line in picture)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text if encoding.lower().startswith("utf") else text.translate(_ASCII))


def _painted(line: Line, *, coloured: bool) -> str:
    plain = "".join(words for words, _ in line).rstrip()
    if not coloured:
        return plain
    return "".join(
        words if colour is None else f"\x1b[{SGR[colour]}m{words}\x1b[0m" for words, colour in line
    )
