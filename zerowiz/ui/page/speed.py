"""Draw the time of a step against the headroom: every candidate, the strategies by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.search.search import Search
from zerowiz.ui.choice import split_of
from zerowiz.ui.page.blocks import table
from zerowiz.ui.page.colours import VERDICTS
from zerowiz.ui.page.plot import Box, LinearAxis, LogAxis, Names
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.units import bare_gib, on_device, seconds
from zerowiz.words import N_, _

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


def picture(found: Search | None, decision: Decision, slots: Slots) -> str:
    """The drawing, and the candidates that are fastest for their headroom as a table."""
    others = _others(decision, found)
    axes = _axes(decision, others)
    why = "" if axes else _("No time is predicted: {why}.", why=decision.job.why_untimed)
    unknown = slots.text("p", on_device(why, decision.job.machine))
    title = _("Seconds of a step, from left to right, against the headroom in GiB, upwards")
    ticks = _ticks(axes, slots)
    dots = _dots(others, axes, slots)
    shapes = "".join(_drawn(each, slots) for each in _points(decision, others, axes))
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
        f'<p class="dim">{_KEY}</p>{small}{_table(found, slots)}</div>'
    )


def _others(decision: Decision, found: Search | None) -> list[Candidate]:
    """The candidates with a time that are not the strategies of the decision."""
    named = [each for each in decision.evaluated if each.step_time is not None]
    evaluated = () if found is None else found.evaluated
    return [
        each
        for each in evaluated
        if each.seconds is not None
        and each.evaluated.headroom_bytes is not None
        and each.evaluated not in named
    ]


def _timed(decision: Decision) -> Iterator[tuple[StrategyEstimate, _Timed]]:
    for each in decision.evaluated:
        if each.step_time is not None and each.headroom_bytes is not None:
            yield each, _Timed(each.step_time.expected_seconds, each.headroom_bytes / 2**30)


def _axes(decision: Decision, others: Sequence[Candidate]) -> _Axes | None:
    found = [timed for _, timed in _timed(decision)]
    found += [_Timed(each.seconds or 0, each.headroom_bytes / 2**30) for each in others]
    if not found:
        return None
    times = [each.seconds for each in found]
    if decision.chosen is not None and decision.chosen.step_time is not None:
        times += [decision.chosen.step_time.low_seconds, decision.chosen.step_time.high_seconds]
    budget = (decision.job.gpu_budget_bytes or 0) / 2**30
    rooms = [each.room_gib for each in found]
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
        places = [_dot(each, axes) for each in others if _DOT_KINDS[_verdict(each)] == kinds]
        drawn += [slots.shape("path", f'class="{kind}"', d="".join(places)) for kind in kinds]
    return "".join(drawn)


def _verdict(candidate: Candidate) -> Verdict:
    return candidate.evaluated.verdict


def _place(candidate: Candidate, axes: _Axes) -> tuple[float, float]:
    return axes.time.at(candidate.seconds or 0), axes.room.at(candidate.headroom_bytes / 2**30)


def _dot(candidate: Candidate, axes: _Axes | None) -> str:
    if axes is None:
        return ""
    x, y = _place(candidate, axes)
    return f"M{x:.0f} {y:.0f}h.01"


def _points(
    decision: Decision, others: Sequence[Candidate], axes: _Axes | None
) -> list[_Point | None]:
    if axes is None:
        return [None] * len(decision.evaluated)
    places = {
        each.strategy.name: (axes.time.at(timed.seconds), axes.room.at(timed.room_gib))
        for each, timed in _timed(decision)
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
    for each in decision.evaluated:
        place = places.get(each.strategy.name)
        if place is None:
            points.append(None)
            continue
        is_below = (each.headroom_bytes or 0) / 2**30 < axes.room.low
        name = f"{each.strategy.name} ↓" if is_below else each.strategy.name
        mark = " chosen" if each is decision.chosen else ""
        points.append(
            _Point(
                *place,
                kind=f"point {VERDICTS[each.verdict]}{mark}",
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


def _table(found: Search | None, slots: Slots) -> str:
    """The fastest for their headroom; as many rows in every plan, the others are off."""
    front = () if found is None else found.pareto[:_MOST_ROWS]
    # The first alone says no more than the answer does.
    shown = front if len(front) > 1 else ()
    choice = None if found is None else found.choice
    rows = [_table_row(each, slots, is_chosen=each == choice) for each in shown]
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
            decisions.verdict(candidate.evaluated),
        ]
        kind = "chosen" if is_chosen else ""
    name, *others = cells
    row = slots.text("th", name, 'scope="row"')
    for heading, cell in zip(_HEADINGS[1:], others, strict=True):
        row += slots.text("td", cell, "class=more" if heading in _MORE else "")
    return f"{slots.opened('tr', kind=kind)}{row}</tr>"
