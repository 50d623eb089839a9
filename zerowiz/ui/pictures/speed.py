"""Draw speed: the step time of each candidate against its headroom, the choice marked.

Example:
    seconds of a step (logarithmic; lower is faster)
     3.13 │      ╎                     x
          │      ╎
    0.878 │x   xx╎   ◆   3
          └─────────────────────────────
           -19.7 0                  35.5
           GiB of headroom
    ◆ chosen: zero3  3 zero3  x not known to fit
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload
from zerowiz.ui.text.cells import centre
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.lines import Line, Picture, Span, wrap
from zerowiz.ui.text.units import bare_gib, seconds
from zerowiz.words import _

_ROWS, _WIDEST_COLUMNS = 9, 100
_LABEL_COLUMNS = 7
_CHOSEN: Span = ("◆", Colour.GOOD)
# What lacks more than that part of the budget stands at the edge.
_DEEPEST = 0.5
_UNFIT: Mapping[Verdict, tuple[Span, str]] = {
    Verdict.UNCERTAIN: (("?", Colour.DOUBT), _("uncertain")),
    Verdict.DOES_NOT_FIT: (("x", Colour.BAD), _("not known to fit")),
}
# A digit where it is a stage alone, a letter where something is offloaded.
_OFFLOADED = [each.name for each in STRATEGIES if each.offload is not Offload.NONE]
SIGNS: Mapping[str, str] = {
    **{each.name: str(each.stage) for each in STRATEGIES},
    **dict(zip(_OFFLOADED, ascii_lowercase, strict=False)),
}


def speed(candidates: Sequence[Candidate], choice: Candidate, columns: int) -> Picture:
    """Each candidate whose time is predicted; nothing where there are not several.

    Args:
        candidates: In any order, whether they fit or not.
        choice: The one that was taken.
        columns: The most that a line may have.
    """
    timed = [(each.seconds, each) for each in candidates if each.seconds]
    if len(timed) < 2:  # noqa: PLR2004 - one alone has no place
        return ()
    times = [time for time, _ in timed]
    rooms = _Rooms([each for _, each in timed], min(columns, _WIDEST_COLUMNS) - _LABEL_COLUMNS - 2)
    cells: dict[tuple[int, int], Span] = {}
    for time, each in sorted(timed, key=lambda one: _rank(one[1], choice), reverse=True):
        row = _place(math.log(time), math.log(max(times)), math.log(min(times)), _ROWS)
        cells[row, rooms.column(each)] = _CHOSEN if each == choice else _sign(each)
    labels = {0: seconds(max(times)), _ROWS - 1: seconds(min(times))}
    return (
        ((_("seconds of a step (logarithmic; lower is faster)"), None),),
        *(_row(cells, row, rooms, labels.get(row, "")) for row in range(_ROWS)),
        *rooms.axis(),
        *_legend([each for _, each in timed], choice, columns),
    )


def _rank(candidate: Candidate, choice: Candidate) -> tuple[bool, bool, float]:
    """Which stands before others in one cell: the choice, then what fits, then the faster."""
    return candidate != choice, not candidate.evaluated.is_sure, candidate.seconds or 0


def _sign(candidate: Candidate) -> Span:
    verdict = candidate.evaluated.verdict
    if not candidate.evaluated.is_sure:
        return _UNFIT[verdict][0]
    return SIGNS[candidate.strategy.name], Colour.DOUBT if verdict is Verdict.TIGHT else None


def _place(value: float, first: float, last: float, places: int) -> int:
    """Which of so many places between two values one has."""
    if first == last:
        return places - 1
    return round((value - first) / (last - first) * (places - 1))


class _Rooms:
    """The columns of headrooms, and of none."""

    def __init__(self, candidates: Sequence[Candidate], width: int) -> None:
        rooms = [each.headroom_bytes for each in candidates]
        budget_bytes = candidates[0].evaluated.budget_bytes or 0
        self.width = width
        self._most_bytes = max(rooms)
        self._is_cut = min(rooms) < -_DEEPEST * budget_bytes < max(rooms)
        self._least_bytes = -int(_DEEPEST * budget_bytes) if self._is_cut else min(rooms)
        crosses = self._least_bytes < 0 < self._most_bytes
        self.zero = self._column(0) if crosses else None

    def _column(self, room_bytes: int) -> int:
        least_bytes = self._least_bytes
        return _place(max(room_bytes, least_bytes), least_bytes, self._most_bytes, self.width)

    def column(self, candidate: Candidate) -> int:
        """Where it stands; what lacks more than there is room for stands first."""
        return self._column(candidate.headroom_bytes)

    def axis(self) -> Iterator[Line]:
        before = " " * (_LABEL_COLUMNS + 1)
        yield ((f"{before}└{'─' * self.width}", Colour.DIM),)
        least, most = bare_gib(self._least_bytes), bare_gib(self._most_bytes)
        least = "" if least == most else f"{'<' if self._is_cut else ''}{least}"
        line = f"{least}{most:>{self.width - len(least)}}"
        at = self.zero
        if at is not None and not line[max(at - 1, 0) : at + 2].strip():
            line = f"{line[:at]}0{line[at + 1 :]}"
        yield ((f"{before} {line}", None),)
        yield ((f"{before} {centre(_('GiB of headroom'), self.width)}", None),)


def _row(cells: Mapping[tuple[int, int], Span], row: int, rooms: _Rooms, label: str) -> Line:
    empty: dict[int, Span] = {} if rooms.zero is None else {rooms.zero: ("╎", Colour.DIM)}
    marks = (
        cells.get((row, column), empty.get(column, (" ", None))) for column in range(rooms.width)
    )
    return ((f"{label:>{_LABEL_COLUMNS}} ", None), ("│", Colour.DIM), *marks)


def _legend(shown: Sequence[Candidate], choice: Candidate, columns: int) -> Iterator[Line]:
    names = {each.strategy.name for each in shown if each.evaluated.is_sure}
    entries: list[Line] = [
        (_CHOSEN, (_(" chosen: {strategy}", strategy=choice.strategy.name), None))
    ]
    entries += [((f"{SIGNS[s.name]} {s.name}", None),) for s in STRATEGIES if s.name in names]
    verdicts = {each.evaluated.verdict for each in shown}
    unfit = [_UNFIT[verdict] for verdict in _UNFIT if verdict in verdicts]
    entries += [(sign, (f" {words}", None)) for sign, words in unfit]
    return wrap(entries, "  ", columns)
