"""Draw tables and folded lines on a terminal, a pipe or a file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TextIO

from zerowiz.core.flags import spell
from zerowiz.ui.text.colours import Colour, paint
from zerowiz.ui.text.fold import columns, fold

if TYPE_CHECKING:
    from rich.table import Table

# Tables of a file or a pipe are not cut to a terminal that is not there.
_FILE_COLUMNS, _NARROW_COLUMNS = 120, 80

_WORDS = frozenset(
    {
        *("strategy", "verdict", "peak in", "phase", "part", "formula"),
        *("machine", "GPU", "rank", "name", "checkpointing", ""),
    }
)


def grid(stream: TextIO, *headings: str) -> "Table":
    """A table without lines; words stand left, numbers right."""
    from rich.table import Table

    gap = 2 if has_room(stream) else 1
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in _WORDS else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def has_room(stream: TextIO) -> bool:
    """Whether a wide table fits."""
    return (columns(stream) or _FILE_COLUMNS) > _NARROW_COLUMNS


def print_table(table: "Table", stream: TextIO) -> None:
    """The table, without blanks at the ends of its lines."""
    from rich.console import Console

    console = Console(file=stream, width=columns(stream) or _FILE_COLUMNS, highlight=False)
    with console.capture() as captured:
        console.print(table)
    stream.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def say(
    stream: TextIO, *lines: str, hang: int = 0, marks: Mapping[str, Colour] | None = None
) -> None:
    """Lines, folded to the terminal; what would steer it is shown as `?`.

    A setting that a line names is spelled as its option.

    Args:
        stream: Where to.
        lines: What to say.
        hang: Spaces before a line that was folded.
        marks: The colours of patterns; the first match in each line has it.
    """
    plain = ("".join(c if c.isprintable() else "?" for c in spell(line)) for line in lines)
    folded = (fold(line, stream, hang=hang) for line in plain)
    stream.writelines(paint(line, marks or {}, stream) + "\n" for line in folded)
