"""The charts of the page, its colours and its shapes."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import floor, log10
from typing import NamedTuple

from zerowiz.core.command_words import spell
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.open_settings import Candidate, Search
from zerowiz.core.memory.allocations import MemoryPart
from zerowiz.translation import N_, _
from zerowiz.ui import sentences
from zerowiz.ui.choice import split_of
from zerowiz.ui.pictures import ANSWER_COLOURS, VERDICT_COLOURS
from zerowiz.ui.text import Colour, bare_gib, escape, on_device, seconds

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "card": "#f5f7f9",
    "text": "#1a1d21",
    "dim": "#565d66",
    "line": "#c9ced6",
    "link": "#0b5cad",
    "good": "#17693b",
    "doubt": "#8f2a84",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "page": "#14181d",
    "card": "#1d232a",
    "text": "#e6e9ee",
    "dim": "#a3abb6",
    "line": "#434b56",
    "link": "#7fb8ff",
    "good": "#6fd08c",
    "doubt": "#e79be0",
    "bad": "#ff8d85",
}

PARTS: Mapping[MemoryPart, str] = {
    MemoryPart.WEIGHTS: "#4c86d8",
    MemoryPart.GRADIENTS: "#1f9aa8",
    MemoryPart.OPTIMIZER: "#b06fd0",
    MemoryPart.ACTIVATIONS: "#3d9a4a",
    MemoryPart.LOGITS: "#c07c1a",
    MemoryPart.BUFFERS: "#858b94",
    MemoryPart.CONTEXT: "#a27b5c",
    MemoryPart.VLLM: "#dd5f5f",
}
"""Seen on a light and on a dark page; a black letter in each can be read."""

_CLASSES: Mapping[Colour, str] = {
    Colour.GOOD: "good",
    Colour.DOUBT: "doubt",
    Colour.BAD: "bad",
}
VERDICTS: Mapping[Verdict, str] = {
    verdict: _CLASSES[colour] for verdict, colour in VERDICT_COLOURS.items()
}
ANSWERS: Mapping[str, str] = {answer: _CLASSES[colour] for answer, colour in ANSWER_COLOURS.items()}


def style_rules() -> str:
    """The colours as CSS variables: by the system's theme, by the page's own, and on paper."""
    light, dark = _variables(LIGHT), _variables(DARK)
    parts = "".join(
        f".{part.name.lower()}{{fill:{colour};background:{colour}}}"
        for part, colour in PARTS.items()
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
        f"{parts}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


# Write HTML whose values can be exchanged: every plan fills the same slots.


class Slots:
    """Collects the values that differ from plan to plan, in the order of their places.

    The page's script puts the values of another plan into the same places; it computes nothing.

    Args:
        exchanged: Whether the HTML says which value stands where.
    """

    def __init__(self, *, exchanged: bool = True) -> None:
        self.values: list[str] = []
        self._exchanged = exchanged

    def text(self, tag: str, value: str, attributes: str = "", **changing: str) -> str:
        """An element whose text may change, and attributes that may.

        The script exchanges text alone, so what is typed is no element, and has no marks either.

        Args:
            tag: Its name.
            value: Its text now.
            attributes: Those that stay, as HTML.
            **changing: The others; `kind` is the class.
        """
        value = value.replace("`", "")
        place = self._keep(value)
        fixed = f" {attributes}" if attributes else ""
        mark = f' data-t="{place}"' if self._exchanged else ""
        return f"<{tag}{fixed}{self._changing(changing)}{mark}>{escape(value)}</{tag}>"

    def shape(self, tag: str, attributes: str = "", **changing: str) -> str:
        """An element without text."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}/>"

    def opened(self, tag: str, attributes: str = "", **changing: str) -> str:
        """The start of an element that has others in it."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}>"

    def _changing(self, attributes: dict[str, str]) -> str:
        if not attributes:
            return ""
        named = {_NAMES.get(name, name): value for name, value in attributes.items()}
        places = " ".join(f"{name}:{self._keep(value)}" for name, value in named.items())
        words = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
        return f'{words} data-a="{places}"' if self._exchanged else words

    def _keep(self, value: str) -> int:
        self.values.append(value)
        return len(self.values) - 1


_NAMES = {"kind": "class", "anchor": "text-anchor"}

# Write the blocks that stand in many places of a page.


def section(name: str, title: str, content: str, opened: str | None = None) -> str:
    """A part of the page under its heading.

    Args:
        name: What ids are made of.
        title: Its heading.
        content: As HTML.
        opened: Its first tag, where that is another one.
    """
    start = opened or f'<section aria-labelledby="h-{name}">'
    return f'{start}<h2 id="h-{name}">{escape(title)}</h2>{content}</section>'


def table(caption: str, head: Iterable[str], rows: str, more: Container[str] = frozenset()) -> str:
    """A table that scrolls by itself where the page is narrow, also by keyboard.

    Args:
        caption: What it shows.
        head: The headings of its columns, in English: they are shown in the person's language.
        rows: As HTML.
        more: The headings of those that a narrow page leaves out; their cells say so, too.
    """
    cells = "".join(
        f'<th scope="col"{" class=more" if heading in more else ""}>{escape(_(heading))}</th>'
        for heading in head
    )
    label = escape(caption)
    return (
        f'<p class="dim" aria-hidden="true">{label}</p>'
        f'<div class="wide" tabindex="0" role="group" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def prose(text: str) -> str:
    """A sentence, what is typed in it as code."""
    typed = re.sub(r"`([^`\s]{1,30})`", r'<code class="word">\1</code>', escape(spell(text)))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", typed)


def bullets(texts: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


# Lay out a drawing: its axes with round numbers, and names that touch nothing.

_LETTER, _LINE, _APART = 6.4, 13, 3


class Box(NamedTuple):
    """Where something is drawn already."""

    left: float
    right: float
    top: float
    bottom: float

    def touches(self, other: "Box") -> bool:
        """Whether both have a point in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def wider(self, by: float) -> "Box":
        """With so much more on each side."""
        return Box(self.left - by, self.right + by, self.top - by, self.bottom + by)


class LinearAxis(NamedTuple):
    """Values between two ends of a drawing."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands; at an end where it lies beyond."""
        inside = min(max(value, self.low), self.high)
        return self.begin + (inside - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        """Round numbers in equal steps.

        Example:
            >>> LinearAxis(-25, 38, 0, 1).ticks(6)
            [-20, 0, 20]
        """
        rough = (self.high - self.low) / (most - 1)
        power = 10 ** floor(log10(rough))
        step = next(power * n for n in (1, 2, 5, 10, 20) if power * n >= rough)
        first = -floor(-self.low / step)
        ticks = [step * (first + n) for n in range(most)]
        return [value for value in ticks if value <= self.high]


# The first digits of ticks, from many to few.
_DIGITS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))


class LogAxis(NamedTuple):
    """Positive values between two ends of a drawing, equal ratios at equal distances."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands; at an end where it lies beyond."""
        inside = min(max(value, self.low), self.high)
        part = log10(inside / self.low) / log10(self.high / self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        """Round numbers, as many as there may be.

        Example:
            >>> LogAxis(0.7, 3.7, 0, 1).ticks(6)
            [0.7, 1, 1.5, 2, 3]
        """
        powers = range(floor(log10(self.low)), floor(log10(self.high)) + 1)
        for digits in _DIGITS:
            # The power as a divisor keeps 0.7 what it is.
            ticks = [
                digit * 10**power if power >= 0 else digit / 10**-power
                for power in powers
                for digit in digits
            ]
            inside = [value for value in ticks if self.low <= value <= self.high]
            if len(inside) <= most:
                return inside
        return []


class Names:
    """Places for names beside their points.

    Args:
        inside: Where they may stand.
    """

    def __init__(self, inside: Box) -> None:
        self._inside = inside
        self._taken: list[Box] = []

    def keep_off(self, box: Box) -> None:
        """Nothing is written there."""
        self._taken.append(box)

    def place(self, name: str, x: float, y: float, gap: float) -> tuple[float, float, str]:
        """Where a name stands: across, its line, and which end of it stands there.

        Args:
            name: Its letters.
            x: Of its point.
            y: Of its point.
            gap: How far from the point it begins.
        """
        width = _LETTER * len(name)
        starts = {"start": x + gap, "end": x - gap - width, "middle": x - width / 2}
        for distance in range(0, 8 * _LINE, _LINE // 2):
            for down in (0, distance, -distance):
                for anchor, left in starts.items():
                    if anchor == "middle" and not down:
                        continue
                    top = y + down - _LINE / 2
                    box = Box(left, left + width, top, top + _LINE)
                    if self._is_free(box):
                        # A sign of another font is wider than a letter.
                        self._taken.append(box.wider(_APART))
                        at = {"start": left, "end": left + width, "middle": x}[anchor]
                        return at, top + _LINE - 3, anchor
        return x, y, "middle"

    def _is_free(self, box: Box) -> bool:
        inside = self._inside
        fits = box.left > inside.left and box.right < inside.right
        fits = fits and box.top > inside.top and box.bottom < inside.bottom
        return fits and not any(box.touches(other) for other in self._taken)


# Draw the time of a step against the headroom: every candidate, the strategies by name.

# The drawing in its own units, which are pixels where the page is narrow.
_WIDTH, _HEIGHT = 360, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 350, 16, 252
_TICKS = 6
# What lacks more than that part of the budget stands at the edge.
_DEEPEST, _BELOW_BEST = 0.5, 1.5
_RADIUS, _DOT_RADIUS = 5, 3
# How far the name of the upward axis reaches.
_AXIS_NAME = 90

_KEY = _(
    "Each strategy has a large point: the filled one is the choice, with the bounds of its time, a"
    " dashed one does not fit; ↓ lacks more than there is room to show."
)
_SMALL = _(
    "Small points are other settings that were open, such as the split of the batch: dots fit,"
    " squares are tight or uncertain, rings do not fit."
)


class _Axes(NamedTuple):
    time: LogAxis
    room: LinearAxis


class _Timed(NamedTuple):
    """What has a place in the drawing."""

    seconds: float
    room_gib: float


class _Point(NamedTuple):
    x: float
    y: float
    kind: str
    label: tuple[str, float, float, str]
    """The words, where they stand, and which end of them stands there."""


def picture(searched: Search | None, decision: Decision, slots: Slots) -> str:
    """The drawing, and the candidates that are fastest for their headroom as a table."""
    others = _others(decision, searched)
    axes = _axes(decision, others)
    why = "" if axes else _("No time is predicted: {why}.", why=decision.job.why_untimed)
    unknown = slots.text("p", on_device(why, decision.job.machine))
    title = _("Seconds of a step, from left to right, against the headroom in GiB, upwards")
    ticks = _ticks(axes, slots)
    dots = _dots(others, axes, slots)
    shapes = "".join(_drawn(point, slots) for point in _points(decision, others, axes))
    at_zero = f"{_BOTTOM if axes is None else axes.room.at(0):.1f}"
    zero = slots.shape("line", f'x1="{_LEFT}" x2="{_RIGHT}" class="budget"', y1=at_zero, y2=at_zero)
    bounds = Box(0, 0, 0, 0) if axes is None else _bounds(decision, axes)
    spread = slots.shape(
        "line",
        'class="spread"',
        x1=f"{bounds.left:.1f}",
        x2=f"{bounds.right:.1f}",
        **dict.fromkeys(("y1", "y2"), f"{bounds.top:.1f}"),
    )
    choice = _mark(decision, axes, slots)
    opened = slots.opened("div", kind="" if axes else "off")
    small = slots.text("p", _SMALL if others else "", kind="dim" if others else "off")
    return (
        f"{unknown}{opened}"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
        f"{zero}{ticks}{spread}{dots}{shapes}{choice}"
        f'<text class="axis-name" x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">'
        f"{_('seconds of a step, logarithmic')}</text>"
        f'<text class="axis-name" x="4" y="10">{_("headroom, GiB")}</text></svg>'
        f'<p class="dim">{_KEY}</p>{small}{_table(searched, slots)}</div>'
    )


def _others(decision: Decision, searched: Search | None) -> list[Candidate]:
    """The candidates with a time that are not the strategies of the decision."""
    named = [estimate for estimate in decision.evaluated if estimate.step_time is not None]
    evaluated = () if searched is None else searched.evaluated
    return [
        candidate
        for candidate in evaluated
        if candidate.seconds is not None
        and candidate.evaluated.headroom_bytes is not None
        and candidate.evaluated not in named
    ]


def _timed(decision: Decision) -> Iterator[tuple[StrategyEstimate, _Timed]]:
    for evaluated in decision.evaluated:
        if evaluated.step_time is not None and evaluated.headroom_bytes is not None:
            yield (
                evaluated,
                _Timed(evaluated.step_time.expected_seconds, evaluated.headroom_bytes / 2**30),
            )


def _axes(decision: Decision, others: Sequence[Candidate]) -> _Axes | None:
    points = [timed for _, timed in _timed(decision)]
    points += [_Timed(other.seconds or 0, other.headroom_bytes / 2**30) for other in others]
    if not points:
        return None
    times = [point.seconds for point in points]
    if decision.chosen is not None and decision.chosen.step_time is not None:
        times += [decision.chosen.step_time.low_seconds, decision.chosen.step_time.high_seconds]
    budget = (decision.job.gpu_budget_bytes or 0) / 2**30
    rooms = [point.room_gib for point in points]
    highest = max(0.0, *rooms) or 0.1 * budget
    # The best of them is seen, however much it lacks.
    deepest = min(-_DEEPEST * budget, _BELOW_BEST * max(rooms))
    lowest = max(min(0.0, *rooms), deepest)
    margin = 0.06 * (highest - lowest)
    return _Axes(
        LogAxis(min(times) / 1.1, 1.1 * max(times), _LEFT, _RIGHT),
        LinearAxis(lowest - margin, highest + margin, _BOTTOM, _TOP),
    )


# A path of points without length: its line's ends are what is seen. What does not fit is hollow.
_DOT_KINDS: Mapping[Verdict, tuple[str, ...]] = {
    Verdict.FITS: ("dots good",),
    Verdict.TIGHT: ("dots square doubt",),
    Verdict.UNCERTAIN: ("dots square doubt",),
    Verdict.DOES_NOT_FIT: ("dots bad", "dots hollow"),
}


def _dots(others: Sequence[Candidate], axes: _Axes | None, slots: Slots) -> str:
    drawn = []
    for kinds in dict.fromkeys(_DOT_KINDS.values()):
        same = [other for other in others if _DOT_KINDS[other.evaluated.verdict] == kinds]
        places = [] if axes is None else [_place(other, axes) for other in same]
        path = "".join(f"M{x:.0f} {y:.0f}h.01" for x, y in places)
        drawn += [slots.shape("path", f'class="{kind}"', d=path) for kind in kinds]
    return "".join(drawn)


def _place(candidate: Candidate, axes: _Axes) -> tuple[float, float]:
    return axes.time.at(candidate.seconds or 0), axes.room.at(candidate.headroom_bytes / 2**30)


def _points(
    decision: Decision, others: Sequence[Candidate], axes: _Axes | None
) -> list[_Point | None]:
    if axes is None:
        return [None] * len(decision.evaluated)
    places = {
        evaluated.strategy.name: (axes.time.at(timed.seconds), axes.room.at(timed.room_gib))
        for evaluated, timed in _timed(decision)
    }
    names = Names(Box(_LEFT, _WIDTH, 0, _BOTTOM))
    zero = axes.room.at(0)
    names.keep_off(Box(0, _AXIS_NAME, 0, 12))
    names.keep_off(Box(_LEFT, _RIGHT, zero - 1, zero + 1))
    names.keep_off(_bounds(decision, axes).wider(1))
    for x, y in places.values():
        names.keep_off(Box(x, x, y, y).wider(_RADIUS + 1))
    for candidate in others:
        x, y = _place(candidate, axes)
        names.keep_off(Box(x, x, y, y).wider(_DOT_RADIUS))
    points: list[_Point | None] = []
    for evaluated in decision.evaluated:
        place = places.get(evaluated.strategy.name)
        if place is None:
            points.append(None)
            continue
        is_below = (evaluated.headroom_bytes or 0) / 2**30 < axes.room.low
        name = f"{evaluated.strategy.name} ↓" if is_below else evaluated.strategy.name
        mark = " chosen" if evaluated is decision.chosen else ""
        points.append(
            _Point(
                *place,
                kind=f"point {VERDICTS[evaluated.verdict]}{mark}",
                label=(name, *names.place(name, *place, _RADIUS + 4)),
            )
        )
    return points


def _bounds(decision: Decision, axes: _Axes) -> Box:
    """A line through the choice, as long as the bounds of its time; nothing without one."""
    chosen = decision.chosen
    if chosen is None or chosen.step_time is None:
        return Box(0, 0, 0, 0)
    time, y = chosen.step_time, axes.room.at((chosen.headroom_bytes or 0) / 2**30)
    return Box(axes.time.at(time.low_seconds), axes.time.at(time.high_seconds), y, y)


def _mark(decision: Decision, axes: _Axes | None, slots: Slots) -> str:
    """The point of the choice, before all others."""
    chosen, (x, y) = decision.chosen, (0.0, 0.0)
    kind = "off"
    if chosen is not None and chosen.step_time is not None and axes is not None:
        x = axes.time.at(chosen.step_time.expected_seconds)
        y = axes.room.at((chosen.headroom_bytes or 0) / 2**30)
        kind = f"mark {VERDICTS[chosen.verdict]}"
    return slots.shape("circle", f'r="{_RADIUS}"', cx=f"{x:.1f}", cy=f"{y:.1f}", kind=kind)


def _drawn(point: _Point | None, slots: Slots) -> str:
    if point is None:
        point = _Point(0, 0, "off", ("", 0, 0, "start"))
    x, y = f"{point.x:.1f}", f"{point.y:.1f}"
    words, at, base, anchor = point.label
    circle = slots.shape("circle", f'r="{_RADIUS}"', cx=x, cy=y)
    label = slots.text("text", words, x=f"{at:.1f}", y=f"{base:.1f}", anchor=anchor)
    return f"{slots.opened('g', kind=point.kind)}{circle}{label}</g>"


def _ticks(axes: _Axes | None, slots: Slots) -> str:
    x_ticks = [] if axes is None else [(axes.time.at(v), v) for v in axes.time.ticks(_TICKS)]
    y_ticks = [] if axes is None else [(axes.room.at(v), v) for v in axes.room.ticks(_TICKS)]
    along = "".join(
        slots.text(
            "text",
            words,
            f'y="{_BOTTOM + 16}" text-anchor="middle"',
            x=f"{at:.1f}",
            kind=kind,
        )
        for at, words, kind in _filled(x_ticks)
    )
    up = "".join(
        slots.text(
            "text", words, f'x="{_LEFT - 6}" text-anchor="end"', y=f"{at + 4:.1f}", kind=kind
        )
        for at, words, kind in _filled(y_ticks)
    )
    return along + up


def _filled(ticks: Sequence[tuple[float, float]]) -> list[tuple[float, str, str]]:
    """As many as there are slots; those that are not used are off."""
    shown = [(at, f"{value:g}", "tick-name") for at, value in ticks]
    return [*shown, *[(0.0, "", "off")] * (_TICKS - len(shown))]


_HEADINGS = ("strategy", "batch", N_("checkpointing"), "kernels", "headroom", "time", "verdict")
_MORE = frozenset({"checkpointing", "kernels"})
_MOST_ROWS = 12


def _table(searched: Search | None, slots: Slots) -> str:
    """The fastest for their headroom; as many rows in every plan, the others are off."""
    front = () if searched is None else searched.pareto[:_MOST_ROWS]
    # The first alone says no more than the answer does.
    shown = front if len(front) > 1 else ()
    choice = None if searched is None else searched.choice
    rows = [_table_row(candidate, slots, is_chosen=candidate == choice) for candidate in shown]
    rows += [_table_row(None, slots) for _row in range(_MOST_ROWS - len(shown))]
    caption = _("Of those that fit, the fastest for their headroom: GiB, and seconds of a step")
    return (
        f"{slots.opened('details', kind='' if shown else 'off')}"
        f"<summary>{_('The fastest for their headroom, as a table')}</summary>"
        f"{table(caption, _HEADINGS, ''.join(rows), _MORE)}</details>"
    )


def _table_row(candidate: Candidate | None, slots: Slots, *, is_chosen: bool = False) -> str:
    cells = [""] * len(_HEADINGS)
    kind = "off"
    if candidate is not None:
        step = candidate.workload
        cells = [
            f"{candidate.strategy.name}{_(', chosen') if is_chosen else ''}",
            split_of(step),
            _("yes") if step.gradient_checkpointing else _("no"),
            f"{step.attention} {step.loss}",
            bare_gib(candidate.evaluated.headroom_bytes),
            seconds(candidate.seconds or 0),
            sentences.verdict(candidate.evaluated),
        ]
        kind = "chosen" if is_chosen else ""
    name, *others = cells
    row = slots.text("th", name, 'scope="row"')
    for heading, cell in zip(_HEADINGS[1:], others, strict=True):
        row += slots.text("td", cell, "class=more" if heading in _MORE else "")
    return f"{slots.opened('tr', kind=kind)}{row}</tr>"
