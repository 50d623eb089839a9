"""Draw tables and folded lines on a terminal, a pipe or a file."""

from typing import TYPE_CHECKING, Literal, TextIO

from zerowiz.core.flags import spell
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


def say(stream: TextIO, *lines: str, hang: int = 0) -> None:
    """Lines, folded to the terminal; what would steer it is shown as `?`.

    A setting that a line names is spelled as its option.
    """
    plain = ("".join(c if c.isprintable() else "?" for c in spell(line)) for line in lines)
    stream.writelines(fold(line, stream, hang=hang) + "\n" for line in plain)
