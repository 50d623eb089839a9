"""Draw tables and folded lines on a terminal, a pipe or a file."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from zerowiz.core.flags import spell
from zerowiz.ui.text.canvas import Canvas
from zerowiz.ui.text.cells import cells
from zerowiz.ui.text.colours import Colour, is_coloured, paint
from zerowiz.ui.text.fold import columns, fold
from zerowiz.ui.text.plain import plain
from zerowiz.words import N_, _

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

# Tables of a file or a pipe are not cut to a terminal that is not there.
_FILE_COLUMNS = 120

_WORDS = frozenset(
    {
        *(N_("A verdict"), N_("B verdict"), N_("strategy"), N_("verdict"), N_("peak in")),
        *(N_("phase"), N_("part"), N_("formula"), N_("machine"), N_("GPU"), N_("rank")),
        *(N_("name"), N_("kernels"), N_("ckpt"), N_("setting"), N_("value"), N_("from"), ""),
    }
)
# The longest word of a label that may be folded.
_LABEL_COLUMNS = len("checkpointing")
# What is a sentence, and no number, may take several lines.
_FOLDED = frozenset({"formula"})


def _table(gap: int, headings: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in _WORDS else "right"
        table.add_column(_text(_(heading)), justify=justify, no_wrap=True)
    return table


Cell = str | tuple[str, Colour]
"""Words, in a colour where they have one."""


def show_rows(
    stream: TextIO,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    leaving: Sequence[str] = (),
) -> tuple[str, ...]:
    """A table of which nothing is cut: where the terminal is too narrow, columns leave.

    The headings of those that left are returned.

    Args:
        stream: Where to; a file or a pipe gets every column.
        headings: Of the columns, in English: they are shown in the person's language.
        rows: Their cells.
        leaving: Headings of the columns that can be done without, in the order in which they leave.
    """
    room = columns(stream)
    widths = [
        max(cells(_(heading)), *(cells(_words(row[place])) for row in rows))
        for place, heading in enumerate(headings)
    ]
    kept = list(range(len(headings)))
    order = iter(leaving)
    while room is not None and _columns(widths, kept, 1) > room:
        gone = next(order, None)
        if gone is None:
            break
        kept = [place for place in kept if headings[place] != gone]
    natural = _columns(widths, kept, 2)
    gap = 2 if room is None or natural <= room else 1
    table = _table(gap, [headings[place] for place in kept])
    if headings[kept[-1]] in _FOLDED:
        table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for row in rows:
        table.add_row(*(_text(row[place]) for place in kept))
    _print(table, stream, max(_FILE_COLUMNS, natural) if room is None else room)
    return tuple(heading for place, heading in enumerate(headings) if place not in kept)


def show_sides(
    stream: TextIO, headings: Sequence[str], rows: Sequence[tuple[str, str, str]]
) -> None:
    """A label and two texts in each row; a text that is long is folded in its column."""
    table = _table(2, headings)
    for column in table.columns:
        column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    room = columns(stream) or _FILE_COLUMNS
    table.columns[0].max_width = max(room // 3, _LABEL_COLUMNS)
    for row in rows:
        table.add_row(*map(_text, row))
    _print(table, stream, room)


def _columns(widths: Sequence[int], kept: Sequence[int], gap: int) -> int:
    """What a table takes with these columns."""
    return sum(widths[place] for place in kept) + gap * (len(kept) - 1)


def _words(cell: Cell) -> str:
    return plain(cell if isinstance(cell, str) else cell[0])


def _text(cell: Cell) -> "Text":
    from rich.text import Text

    return Text(_words(cell), style="" if isinstance(cell, str) else cell[1].value)


def _print(table: "Table", stream: TextIO, width: int) -> None:
    from rich.console import Console

    is_drawn = isinstance(stream, Canvas)
    colours: Literal["auto", "standard"] | None = "auto" if is_coloured(stream) else None
    console = Console(
        file=stream,
        width=width,
        # rich takes a dumb terminal for one of 80 columns unless it knows both.
        height=1,
        highlight=False,
        color_system="standard" if is_drawn else colours,
        # rich before 14 takes an empty NO_COLOR for one that forbids them.
        no_color=False,
    )
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
    folded = (fold(plain(spell(line)), stream, hang=hang) for line in lines)
    stream.writelines(paint(line, marks or {}, stream) + "\n" for line in folded)
