"""Draw the time of a step against the headroom: a point for each strategy, the choice marked."""

from collections.abc import Iterator, Sequence
from math import floor, log10
from typing import NamedTuple

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.ui.page.colours import VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.text.units import on_device

# The drawing in its own units, which are pixels where the page is narrow.
_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 350, 14, 212
_TICKS = 6
# What lacks more than that part of the budget stands at the edge.
_DEEPEST, _BELOW_BEST = 0.5, 1.5
_LETTER, _LINE = 6.4, 13
_RADIUS = 5


_KEY = (
    '<p class="dim">A filled point is the choice, a dashed one does not fit. A line spans the'
    " bounds of the time; ↓ lacks more than there is room to show.</p>"
)


class Box(NamedTuple):
    """Where something is drawn already."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: "Box") -> bool:
        """Whether both have a point in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class _Axis(NamedTuple):
    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self.begin + (inside - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round numbers; no more than there are slots."""
        rough = (self.high - self.low) / (_TICKS - 1)
        power = 10 ** floor(log10(rough))
        step = next(power * n for n in (1, 2, 5, 10, 20) if power * n >= rough)
        first = -floor(-self.low / step)
        found = [step * (first + n) for n in range(_TICKS)]
        return [value for value in found if value <= self.high]


class _Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float
    kind: str
    label: tuple[str, float, float, str]
    """The words, where they stand, and which end of them stands there."""


def picture(decision: Decision, slots: Slots) -> str:
    """The drawing; the table of strategies has its numbers."""
    axes = _axes(decision)
    points = _points(decision, axes)
    why = "" if axes else f"No time is predicted: {decision.job.why_untimed}."
    unknown = slots.text("p", on_device(why, decision.job.machine))
    title = "Seconds of a step, from left to right, against the headroom in GiB, upwards"
    ticks = _ticks(axes, slots)
    shapes = "".join(_drawn(each, slots) for each in points)
    at_zero = f"{_BOTTOM if axes is None else axes[1].at(0):.1f}"
    zero = slots.shape("line", f'x1="{_LEFT}" x2="{_RIGHT}" class="budget"', y1=at_zero, y2=at_zero)
    opened = slots.opened("div", kind="" if axes else "off")
    return (
        f"{unknown}{opened}"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
        f"{zero}{ticks}{shapes}"
        f'<text class="axis-name" x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">'
        "seconds of a step</text>"
        f'<text class="axis-name" x="4" y="10">headroom, GiB</text></svg>{_KEY}</div>'
    )


def _timed(decision: Decision) -> Iterator[tuple[StrategyEstimate, float, float]]:
    for each in decision.evaluated:
        if each.step_time is not None and each.headroom_bytes is not None:
            yield each, each.step_time.expected_seconds, each.headroom_bytes / 2**30


def _axes(decision: Decision) -> tuple[_Axis, _Axis] | None:
    found = list(_timed(decision))
    if not found:
        return None
    slowest = max(seconds for _, seconds, _ in found)
    budget = (decision.job.gpu_budget_bytes or 0) / 2**30
    rooms = [room for _, _, room in found]
    highest = max(0.0, *rooms) or 0.1 * budget
    # The best of them is seen, however much it lacks.
    deepest = min(-_DEEPEST * budget, _BELOW_BEST * max(rooms))
    lowest = max(min(0.0, *rooms), deepest)
    margin = 0.06 * (highest - lowest)
    return (
        _Axis(0, 1.15 * slowest, _LEFT, _RIGHT),
        _Axis(lowest - margin, highest + margin, _BOTTOM, _TOP),
    )


def _points(decision: Decision, axes: tuple[_Axis, _Axis] | None) -> list[_Point | None]:
    if axes is None:
        return [None] * len(decision.evaluated)
    x_axis, y_axis = axes
    places = {
        each.strategy.name: (x_axis.at(seconds), y_axis.at(room))
        for each, seconds, room in _timed(decision)
    }
    taken = [_around(x, y) for x, y in places.values()]
    taken += [
        Box(
            x_axis.at(time.low_seconds),
            places[each.strategy.name][1] - 1,
            x_axis.at(time.high_seconds),
            places[each.strategy.name][1] + 1,
        )
        for each, _, _ in _timed(decision)
        if (time := each.step_time) is not None
    ]
    points: list[_Point | None] = []
    for each in decision.evaluated:
        place = places.get(each.strategy.name)
        if place is None or each.step_time is None:
            points.append(None)
            continue
        is_below = (each.headroom_bytes or 0) / 2**30 < y_axis.low
        name = f"{each.strategy.name} ↓" if is_below else each.strategy.name
        label = (name, *_label(name, place, taken))
        mark = " chosen" if each is decision.chosen else ""
        points.append(
            _Point(
                *place,
                low=x_axis.at(each.step_time.low_seconds),
                high=x_axis.at(each.step_time.high_seconds),
                kind=f"point {VERDICTS[each.verdict]}{mark}",
                label=label,
            )
        )
    return points


def _around(x: float, y: float) -> Box:
    return Box(x - _RADIUS - 1, y - _RADIUS - 1, x + _RADIUS + 1, y + _RADIUS + 1)


def _label(name: str, place: tuple[float, float], taken: list[Box]) -> tuple[float, float, str]:
    """Where a name stands beside its point, clear of what is drawn already."""
    x, y = place
    width = _LETTER * len(name)
    for distance in range(0, 8 * _LINE, _LINE // 2):
        for down in (0, distance, -distance):
            for anchor, left in (
                ("start", x + _RADIUS + 4),
                ("end", x - _RADIUS - 4 - width),
                ("middle", x - width / 2),
            ):
                if anchor == "middle" and not down:
                    continue
                top = y + down - _LINE / 2
                box = Box(left, top, left + width, top + _LINE)
                inside = left > _LEFT and box.right < _WIDTH and top > 0 and box.bottom < _BOTTOM
                if inside and not any(box.touches(each) for each in taken):
                    taken.append(box)
                    at = {"start": left, "end": left + width, "middle": x}[anchor]
                    return at, top + _LINE - 3, anchor
    return x, y, "middle"


def _drawn(point: _Point | None, slots: Slots) -> str:
    if point is None:
        point = _Point(0, 0, 0, 0, "off", ("", 0, 0, "start"))
    x, y = f"{point.x:.1f}", f"{point.y:.1f}"
    words, at, base, anchor = point.label
    spread = slots.shape(
        "line", 'class="spread"', x1=f"{point.low:.1f}", x2=f"{point.high:.1f}", y1=y, y2=y
    )
    circle = slots.shape("circle", f'r="{_RADIUS}"', cx=x, cy=y)
    label = slots.text("text", words, x=f"{at:.1f}", y=f"{base:.1f}", anchor=anchor)
    return f"{slots.opened('g', kind=point.kind)}{spread}{circle}{label}</g>"


def _ticks(axes: tuple[_Axis, _Axis] | None, slots: Slots) -> str:
    x_ticks = [] if axes is None else [(axes[0].at(v), v) for v in axes[0].ticks()]
    y_ticks = [] if axes is None else [(axes[1].at(v), v) for v in axes[1].ticks()]
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
