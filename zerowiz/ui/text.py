"""Lines of text at a terminal: cells, colours, folding, tables, numbers with units."""

import io
import os
import re
import shutil
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from zerowiz.translation import N_, _

if TYPE_CHECKING:
    from zerowiz.core.machine.types import Machine
    from zerowiz.core.speed.costs import StepTime


# Take from a text of others what would steer the terminal, or the page, that shows it.


def plain(text: str) -> str:
    """The text with `?` for each character that is not printed: escapes, bells, turns of direction.

    Example: `NVIDIA ?[2J` of a GPU's name with the sequence that clears a screen.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def plain_log(text: str) -> str:
    r"""The lines of a log without their colours, and without what would steer a terminal.

    Example:
        >>> plain_log("\x1b[31merror\x1b[0m: no\nroom\x1b[2J")
        'error: no\nroom?[2J'
    """
    # Colours and bold (ECMA-48, SGR): they steer nothing, and would stay as `?[31m`.
    without_colours = re.sub(r"\x1b\[[0-9;:]*m", "", text)
    return "\n".join(plain(line.expandtabs()) for line in without_colours.split("\n"))


def escape(text: str) -> str:
    r"""The text as a page or a drawing holds it: no markup, and nothing that is not printed.

    Example:
        >>> escape("H200 \x1b[2J <b>")
        'H200 ?[2J &lt;b&gt;'
    """
    from html import escape as escape_markup  # noqa: PLC0415 - 2 ms that only a page needs

    return escape_markup("\n".join(map(plain, text.split("\n"))))


# Count and fill the columns of a terminal: a character of Japanese takes two.


def cells(text: str) -> int:
    """How many columns the text takes.

    Example:
        >>> cells("GPU"), cells("メモリ")
        (3, 6)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """The text and spaces behind it, up to so many columns."""
    return text + " " * (columns - cells(text))


def pad_left(text: str, columns: int) -> str:
    """Spaces up to so many columns, and the text."""
    return " " * (columns - cells(text)) + text


# What begins a line of a plan, a search, a run, a measurement and a machine.
_LABELS = (
    *(N_("Machine"), N_("Model"), N_("Step"), N_("Script"), N_("Unseen"), N_("Chosen"), N_("Peak")),
    *(N_("Time"), N_("Host"), N_("Trainer"), N_("vLLM"), N_("Buffers"), N_("Search"), N_("Why")),
    *(N_("Nodes"), N_("Link"), N_("Driver"), N_("Network"), N_("Job")),
)
LABEL_COLUMNS = max(cells(_(label)) for label in _LABELS) + 2
"""Of a label with the space behind it."""


def labelled(label: str, words: str) -> str:
    """A line that begins with a label, so that the words of all such lines stand in one column.

    Args:
        label: In the person's language.
        words: Behind it.
    """
    return pad(label, LABEL_COLUMNS) + words


# Colour words at a terminal, where a sign or the word itself says the same.

# As the wizard's prompts have it (`ui/prompt_drawn.py`).
_DUMB = frozenset({"", "dumb", "unknown"})


class Colour(StrEnum):
    """A colour as what turns it on (ECMA-48, 8.3.117); each is legible on light and on dark."""

    GOOD = "32"
    DOUBT = "35"
    BAD = "31"
    LABEL = "1"
    DIM = "2"
    # Areas: the terminal's own background writes on them.
    BLUE = "7;34"
    CYAN = "7;36"
    MAGENTA = "7;35"
    GREEN = "7;32"
    YELLOW = "7;33"
    GREY = "7"
    DARK = "7;2"
    RED = "7;31"

    def paint(self, words: str) -> str:
        """The words in this colour."""
        return f"\x1b[{self}m{words}\x1b[0m"


def is_dumb() -> bool:
    """Whether the terminal can only print."""
    return os.environ.get("TERM", "") in _DUMB


def can_redraw() -> bool:
    """Whether stderr is a terminal whose lines can be drawn anew."""
    return sys.stderr.isatty() and not is_dumb()


# What other programs read too; `TTY_COMPATIBLE` is rich's.
_FORCING = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")


def is_coloured(stream: TextIO) -> bool:
    """Whether the stream shows colours; any value of `NO_COLOR` but an empty one forbids them."""
    forced = any(os.environ.get(name, "0") not in {"", "0"} for name in _FORCING)
    return not os.environ.get("NO_COLOR") and (forced or (stream.isatty() and not is_dumb()))


def paint(text: str, marks: Mapping[str, Colour], stream: TextIO) -> str:
    """The text with the first match of each pattern in its colour, where the stream shows it."""
    if not is_coloured(stream):
        return text
    for pattern, colour in marks.items():
        match = re.search(pattern, text)
        if match is not None:
            text = text[: match.start()] + colour.paint(match[0]) + text[match.end() :]
    return text


# Fold long lines at a terminal's edge: behind a clause, else an item of a list, else a word.

# Wider lines are hard to follow, however wide the terminal is.
_WIDEST_COLUMNS = 100


def columns(stream: TextIO) -> int | None:
    """How wide the terminal is; None for a file or a pipe, whose lines stay whole."""
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
    if hang and in_parts and cells(text) == len(text):
        words = text.lstrip(" ")
        lines = [" " * (len(text) - len(words))]
        _add(lines, words, width, " " * hang)
        return "\n".join(line.rstrip() for line in lines)
    return "\n".join(fill_wide(text, width, hang=" " * hang))


# What stays on one line: a character of Japanese with the sign that closes after it, or a word.
_WIDE = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60"
_OPENING, _CLOSING = r"(\[「『", r"、。」』・ーっゃゅょァィゥェォッャュョ),.;:?!"
_LETTER = rf"[{_OPENING}]*[{_WIDE}][{_CLOSING}]*"
# `re` compiles and keeps these as they are first used: few texts need them.
_ATOM = rf" +|{_LETTER}|(?:(?!{_LETTER})[^ {_WIDE}])+[{_CLOSING}]*"


def fill_wide(text: str, width: int, indent: str = "", hang: str = "") -> list[str]:
    """Lines of a text whose language has no spaces between words.

    Args:
        text: The text.
        width: The most columns of a line.
        indent: Before the first line.
        hang: Before the others.
    """
    lines = [indent]
    for atom in re.findall(_ATOM, text):
        if cells(lines[-1] + atom.rstrip()) <= width or not lines[-1].strip():
            lines[-1] += atom
        elif atom.strip():
            lines.append(hang + atom)
        else:
            lines.append(hang)
    return [line.rstrip() for line in lines if line.strip()]


# Where a line may end, the best first: behind a clause, behind an item or before an option, behind
# a word.
_ENDS = (r"(?<=;) ", r"(?<=[,:]) | (?=--)", " ")


def _add(lines: list[str], part: str, width: int, hang: str, kind: int = 0) -> None:
    """Put a part behind the others, or on a line of its own; or its own parts, one by one."""
    gap = " " if lines[-1].strip() else ""
    line = f"{lines[-1]}{gap}{part}"
    if len(line) <= width:
        lines[-1] = line
    elif len(hang) + len(part) <= width or kind == len(_ENDS):
        lines.append(hang + part)
    else:
        for smaller in re.split(_ENDS[kind], part):
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


# Hold a screen to so many lines, with all that stands on it.

_WHOLE_COLUMNS = 80
_NARROW_LINES = 40


def most_lines(stream: TextIO, lines: int) -> int | None:
    """How many lines a screen may have that has so many at 80 columns; None for a file or a pipe.

    Where the terminal is narrower, or can only print, there are more of them.
    """
    width = columns(stream)
    if width is None:
        return None
    return _NARROW_LINES if width < _WHOLE_COLUMNS or is_dumb() else lines


class CountedLines(io.StringIO):
    """Lines for a stream that are counted before they are shown there."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._shown_on = stream

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._shown_on.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return getattr(self._shown_on, "encoding", None) or "utf-8"

    @property
    def lines(self) -> int:
        """How many there are."""
        return self.getvalue().count("\n")

    def show(self) -> None:
        """Write them where they are shown."""
        self._shown_on.write(self.getvalue())
        self._shown_on.flush()


HANG = 2
"""Spaces below a line that was folded, and before a row that is not marked."""
Paragraph = tuple[str, str, Colour | None]
"""What it begins with, its words, and the colour of all; without one only the beginning is bold."""


def notes(texts: Iterable[str]) -> list[Paragraph]:
    """What a result rests on."""
    return [(_("note: "), text, None) for text in texts]


def paragraphs(
    texts: Sequence[Paragraph], stream: TextIO, lines: int | None, left_out: int | None = 0
) -> tuple[int, int]:
    """The last of the texts for which there is room; how many lines they took, and what has none.

    Args:
        texts: Those on what comes last say most of this job.
        stream: Where to.
        lines: How many lines there are for them; None for as many as it takes.
        left_out: How many more there are elsewhere; None where another says how many.
    """
    screen, gone = CountedLines(stream), 0
    for gone in range(len(texts) + 1):
        screen, shown = CountedLines(stream), [*texts[gone:]]
        if left_out is not None and (count := gone + left_out):
            more = _("hidden notes: {count}, `-v`", count=count)
            mark, text, colour = shown[-1] if shown else (_("note: "), "", None)
            shown[-1:] = [(mark, f"{text} ({more})" if text else more, colour)]
        for mark, text, colour in shown:
            marks = {f"^{re.escape(mark.rstrip())}": Colour.LABEL} if colour is None else {}
            whole = {r"(?s).+": colour} if colour is not None else marks
            say(screen, mark + text, hang=HANG, in_parts=False, marks=whole)
        if lines is None or not stream.isatty() or screen.lines <= lines:
            break
    screen.show()
    return screen.lines, gone


# Draw lines of coloured words, where the signs alone say as much.

Span = tuple[str, Colour | None]
"""Words of one colour."""
Line = tuple[Span, ...]
Picture = tuple[Line, ...]

# What a terminal without Unicode shows instead.
_ASCII = str.maketrans("┃│╎●◆╌┗→»└─■·", "|||**-`>>+-#.")


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


def aligned(
    rows: Sequence[Line], left: Container[int], columns: int | None, leaving: Sequence[int] = ()
) -> list[Line]:
    """The rows with their cells below each other, without empty columns.

    Where they are wider than they may be, columns leave.

    Args:
        rows: Of each its cells, as many in all.
        left: The columns whose cells begin below each other; those of the others end so.
        columns: How wide a row may be; None for as wide as it is.
        leaving: Columns that can be done without, in the order in which they leave.
    """
    widths = [max(cells(words) for words, _ in column) for column in zip(*rows, strict=True)]
    kept = [place for place, width in enumerate(widths) if width]
    room = sum(widths) + 2 * len(widths) if columns is None else columns
    for gone in leaving:
        if gone in kept and sum(widths[place] + 1 for place in kept) - 1 > room:
            kept.remove(gone)
    gap = "  " if sum(widths[place] + 2 for place in kept) - 2 <= room else " "
    lines: list[Line] = []
    for row in rows:
        spans: list[Span] = []
        for place in kept:
            words, colour = row[place]
            filled = (pad if place in left else pad_left)(words, widths[place])
            spans.append((f"{gap}{filled}" if spans else filled, colour))
        lines.append(tuple(spans))
    return lines


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
    return "".join(words if colour is None else colour.paint(words) for words, colour in line)


# Draw tables and folded lines on a terminal, a pipe or a file.

_WORDS = frozenset(
    {
        *(N_("A verdict"), N_("B verdict"), N_("strategy"), N_("verdict"), N_("peak in")),
        *(N_("phase"), N_("part"), N_("formula"), N_("machine"), N_("GPU"), N_("rank")),
        *(N_("name"), N_("kernels"), N_("ckpt"), N_("setting"), N_("value"), N_("from"), ""),
    }
)
# What is a sentence, and no number, may take several lines.
_FOLDED = frozenset({"formula"})

Cell = str | tuple[str, Colour]
"""Words, in a colour where they have one."""


def show_rows(
    stream: TextIO,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    leaving: Sequence[str] = (),
) -> None:
    """A table of which nothing is cut: where the terminal is too narrow, columns leave.

    Args:
        stream: Where to; a file or a pipe gets every column.
        headings: Of the columns, in English: they are shown in the person's language.
        rows: Their cells.
        leaving: Headings of the columns that can be done without, in the order in which they leave.
    """
    room = columns(stream)
    places = [place for gone in leaving for place, name in enumerate(headings) if name == gone]
    left = {place for place, heading in enumerate(headings) if heading in _WORDS}
    named = [tuple((_(heading), None) for heading in headings), *(map(_line, rows))]
    if headings[-1] in _FOLDED and room is not None:
        # It has what the others leave of a line.
        others = aligned([row[:-1] for row in named], left, None)
        width = max(room - max(map(length, others)) - 2, _FEWEST_COLUMNS)
        named = [folded for row in named for folded in _folded(row, width)]
    draw(tuple(aligned(named, left, room, places)), stream)


_FEWEST_COLUMNS = 12


def _line(row: Sequence[Cell]) -> Line:
    """Cells as spans; what would steer a terminal is shown as `?`."""
    spans = ((cell, None) if isinstance(cell, str) else cell for cell in row)
    return tuple((plain(words), colour) for words, colour in spans)


def _folded(row: Line, width: int) -> Iterator[Line]:
    """The row, and below it what its last cell has more."""
    *others, (words, colour) = row
    first, *more = fill_wide(words, width) or [""]
    yield (*others, (first, colour))
    yield from ((*(("", None) for _ in others), (part, colour)) for part in more)


def show_sides(
    stream: TextIO, headings: Sequence[str], rows: Sequence[tuple[str, str, str]]
) -> None:
    """A label and two texts in each row; a text that is long is folded in its column."""
    room = columns_of(stream) - max(cells(label) for label, *_ in rows) - 4
    first = max(cells(text) for _, text, _ in rows)
    second = max(cells(text) for *_, text in rows)
    word = max(cells(word) for _, text, _ in rows for word in text.split())
    first = min(first, max(room // 2, room - second, word))
    lines: list[Line] = [tuple((heading, None) for heading in headings)]
    for label, *texts in rows:
        sides = [
            fill_wide(text, width) or [""]
            for text, width in zip(texts, (first, room - first), strict=True)
        ]
        for place, (one, other) in enumerate(zip_longest(*sides, fillvalue="")):
            lines.append(((label if place == 0 else "", None), (one, None), (other, None)))
    draw(tuple(aligned(lines, {0, 1, 2}, None)), stream)


def say(
    stream: TextIO,
    *lines: str,
    hang: int = 0,
    in_parts: bool = True,
    marks: Mapping[str, Colour] | None = None,
) -> None:
    """Lines, folded to the terminal; what would steer it is shown as `?`.

    A setting that a line names is spelled as its option.

    Args:
        stream: Where to.
        lines: What to say.
        hang: Spaces before a line that was folded.
        in_parts: Whether what hangs is read in parts; else it is filled with words too.
        marks: The colours of patterns; the first match in each line has it.
    """
    from zerowiz.core.command_words import spell  # noqa: PLC0415 - a list of commands needs none

    folded = (fold(plain(spell(line)), stream, hang=hang, in_parts=in_parts) for line in lines)
    stream.writelines(paint(line, marks or {}, stream) + "\n" for line in folded)


def note(text: str, stream: TextIO) -> None:
    """What a result rests on."""
    _say_marked(_("note: "), [text], Colour.LABEL, stream)


def error(message: str, hints: Sequence[str], stream: TextIO) -> None:
    """What went wrong in one line, then what to do next."""
    _say_marked(_("error: "), [message], Colour.BAD, stream)
    what_next(hints, stream)


def what_next(hints: Sequence[str], stream: TextIO) -> None:
    """What to do, after an empty line."""
    if hints:
        stream.write("\n")
        _say_marked(_("hint: "), hints, Colour.GOOD, stream)


def _say_marked(mark: str, texts: Sequence[str], colour: Colour, stream: TextIO) -> None:
    """Lines that begin with a word in a colour."""
    marks = {f"^{re.escape(mark.rstrip())}": colour}
    say(stream, *(mark + text for text in texts), hang=cells(mark), marks=marks)


# Write sizes and counts as people read them; GiB lives only here.

OF = _(" of ")
"""Between what is needed and what there is."""


# Below, one decimal of a GiB says nothing.
_SMALL_BYTES = 2**30 // 10


def gib(size_bytes: int | None) -> str:
    """Binary gigabytes with one decimal: `47.3 GiB`; what rounds to nothing in its own unit."""
    if size_bytes is None:
        return _("unknown")
    return small(size_bytes) if 0 < size_bytes < _SMALL_BYTES else f"{size_bytes / 2**30:.1f} GiB"


def mib(size_bytes: int | None) -> str:
    """Whole binary megabytes, as `nvidia-smi` lists what processes hold: `20998 MiB`."""
    return _("unknown") if size_bytes is None else f"{size_bytes // 2**20} MiB"


def percent(error: float | None) -> str:
    """How far off a prediction is: `-8.6 %`; empty where it is not known."""
    return "" if error is None else f"{100 * error:+.1f} %"


def bare_gib(size_bytes: int | None) -> str:
    """As `gib`, for a column whose heading says GiB; what rounds to nothing shows its digits."""
    if size_bytes is None:
        return "?"
    size = size_bytes / 2**30
    # Rounded up: no need is nothing.
    return f"{max(size, 0.01):.2f}" if 0 < size_bytes < _SMALL_BYTES else f"{size:.1f}"


def whole_gib(size_bytes: int) -> str:
    """So many that nothing is lacking, as one types them: `166GiB`."""
    return f"{-(-size_bytes // 2**30)}GiB"


def with_bounds(expected_bytes: int, low_bytes: int, high_bytes: int) -> tuple[str, str, str]:
    """A size with its unit, and its bounds in the same one: `310 MiB`, `301`, `318`."""
    if high_bytes < 2**30:
        low, high = (f"{size / 2**20:.0f}" for size in (low_bytes, high_bytes))
        return f"{expected_bytes / 2**20:.0f} MiB", low, high
    return gib(expected_bytes), bare_gib(low_bytes), bare_gib(high_bytes)


def decimal_gb(size_bytes: int | None) -> str:
    """Decimal gigabytes without idle decimals, as textbooks write them: `28.5 GB`."""
    return _("unknown") if size_bytes is None else f"{round(size_bytes / 1e9, 2):g} GB"


def size_of(need_bytes: int | None, have_bytes: int | None) -> str:
    """What is needed of what there is, in the unit that shows the difference: `594 of 590 MiB`."""
    known = [size for size in (need_bytes, have_bytes) if size is not None]
    if max(known, default=0) >= 2**30:
        return f"{bare_gib(need_bytes)}{OF}{bare_gib(have_bytes)} GiB"
    need, have = ("?" if b is None else f"{b / 2**20:.0f}" for b in (need_bytes, have_bytes))
    return f"{need}{OF}{have} MiB"


def range_of(low_bytes: int, high_bytes: int, have_bytes: int) -> str:
    """As `size_of`, for what is not known better: `38.2 to 41.0 of 39.4 GiB`."""
    low, _of, _have = size_of(low_bytes, have_bytes).partition(OF)
    return _("{low} to {high}", low=low, high=size_of(high_bytes, have_bytes))


def decimal_size_of(need_bytes: int | None, have_bytes: int | None) -> str:
    """As `size_of`, in textbook units: `28.5 of 42.29 GB`."""
    return f"{decimal_gb(need_bytes).removesuffix(' GB')}{OF}{decimal_gb(have_bytes)}"


def small(size_bytes: int) -> str:
    """A size of any magnitude: `0 B`, `12.0 MiB`, `3.1 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - the unit itself
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def seconds(value: float) -> str:
    """A time of three digits, without its unit: `0.0124`, `1.24`, `124`."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3  # noqa: PLR2004
    return f"{value:.{digits}f}"


def rate_of(time: "StepTime | None") -> str:
    """How much all GPUs together train in a second, in the job's `rate_unit`: `11,538`."""
    if time is None:
        return "-"
    rate = (time.images or time.tokens) / time.expected_seconds
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"  # noqa: PLR2004 - two digits


def rate_unit(times: "Iterable[StepTime | None]") -> str:
    """What `rate_of` counts: a model of images trains no tokens."""
    return _("images/s") if any(each and each.images for each in times) else _("tokens/s")


# Below, one decimal says too little.
_AS_TIMES = 1.5


def times_faster(slow_seconds: float, fast_seconds: float) -> str:
    """How much faster one is: `1.8 times`, or `12 %`."""
    ratio = slow_seconds / fast_seconds
    return (
        _("{ratio:.1f} times", ratio=ratio) if ratio >= _AS_TIMES else f"{100 * (ratio - 1):.0f} %"
    )


def count(params: int) -> str:
    """A count in words: `6.74 B`, `10.5 M`, `2,500 T`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        # What rounds to a thousand of one unit is one of the next.
        if params >= 0.9995 * size:
            number = params / size
            # Three digits, without an exponent where the last unit has more than a thousand.
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"  # noqa: PLR2004 - a thousand
    return str(params)


def gpus(machine: "Machine") -> str:
    """The machine's devices in words: `2 nodes of 4 x NVIDIA H200`."""
    count = len(machine.gpus)
    if machine.accelerator.row.on_host:
        node = _("1 CPU rank") if count == 1 else _("{count} CPU ranks", count=count)
    else:
        names = list(dict.fromkeys(_(gpu.name) for gpu in machine.gpus))
        node = f"{count} x {' + '.join(names)}"
    return (
        node if machine.nodes == 1 else _("{nodes} nodes of {node}", nodes=machine.nodes, node=node)
    )


def on_device(text: str, machine: "Machine") -> str:
    """The text for the machine's devices: what a GPU is to a job is a rank on the CPU."""
    if not machine.accelerator.row.on_host:
        return text
    # Not in a path or a name.
    return re.sub(r"(?<![\w/.-])GPU(?=s?\b)", _("CPU rank"), text)


def money(dollars: float) -> str:
    """Dollars as people plan with them: `$704`, `$17.60`, `$0.0123`."""
    digits = 0 if dollars >= 100 else 2 if dollars >= 0.1 or not dollars else 4  # noqa: PLR2004 - three digits
    return f"${dollars:,.{digits}f}"
