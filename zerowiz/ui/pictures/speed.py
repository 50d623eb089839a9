"""Draw speed: the step time of each candidate against its headroom, the choice marked.

Example:
    seconds of a step (lower is faster)
     3.13 |          b
          |
    0.928 |  ◆  3
          +-----------------
           7.2          35.5
           GiB of headroom
    ◆ chosen: zero3  3 zero3  b zero3-offload
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.lines import Line, Picture, Span, wrap
from zerowiz.ui.text.units import bare_gib, seconds

_ROWS, _WIDEST_COLUMNS = 9, 100
_LABEL_COLUMNS = 7
_CHOSEN: Span = ("◆", Colour.GOOD)
# A digit where it is a stage alone, a letter where something is offloaded.
_OFFLOADED = [each.name for each in STRATEGIES if each.offload is not Offload.NONE]
SIGNS: Mapping[str, str] = {
    **{each.name: str(each.stage) for each in STRATEGIES},
    **dict(zip(_OFFLOADED, ascii_lowercase, strict=False)),
}


def speed(candidates: Sequence[Candidate], choice: Candidate, columns: int) -> Picture:
    """Each candidate whose time is predicted; nothing where there are not several.

    Args:
        candidates: The fastest first.
        choice: The one that was taken.
        columns: The most that a line may have.
    """
    timed = [(each.seconds, each) for each in candidates if each.seconds]
    if len(timed) < 2:  # noqa: PLR2004 - one alone has no place
        return ()
    times = [time for time, _ in timed]
    rooms = [each.headroom_bytes for _, each in timed]
    width = min(columns, _WIDEST_COLUMNS) - _LABEL_COLUMNS - 2
    cells: dict[tuple[int, int], Span] = {}
    # The fastest is drawn last: it stands before what shares its cell, and the choice before all.
    for time, each in reversed(timed):
        row = _place(math.log(time), math.log(max(times)), math.log(min(times)), _ROWS)
        column = _place(each.headroom_bytes, min(rooms), max(rooms), width)
        at = row, column
        if cells.get(at) != _CHOSEN:
            cells[at] = _CHOSEN if each == choice else _sign(each)
    labels = {0: seconds(max(times)), _ROWS - 1: seconds(min(times))}
    return (
        (("seconds of a step (logarithmic; lower is faster)", None),),
        *(_row(cells, row, width, labels.get(row, "")) for row in range(_ROWS)),
        *_axis(min(rooms), max(rooms), width),
        *_legend([each for _, each in timed], choice, columns),
    )


def _sign(candidate: Candidate) -> Span:
    tight = candidate.evaluated.verdict is Verdict.TIGHT
    return SIGNS[candidate.strategy.name], Colour.DOUBT if tight else None


def _place(value: float, first: float, last: float, places: int) -> int:
    """Which of so many places between two values one has."""
    if first == last:
        return places - 1
    return round((value - first) / (last - first) * (places - 1))


def _row(cells: Mapping[tuple[int, int], Span], row: int, width: int, label: str) -> Line:
    marks = tuple(cells.get((row, column), (" ", None)) for column in range(width))
    return ((f"{label:>{_LABEL_COLUMNS}} ", None), ("│", Colour.DIM), *marks)


def _axis(least_bytes: int, most_bytes: int, width: int) -> Iterator[Line]:
    before = " " * (_LABEL_COLUMNS + 1)
    least, most = bare_gib(least_bytes), bare_gib(most_bytes)
    yield ((f"{before}└{'─' * width}", Colour.DIM),)
    title = "GiB of headroom"
    same = least == most
    room = width - len(least) - len(most)
    between = f"{title:^{room}}" if not same else f"{title:>{room + len(least)}} "
    yield ((f"{before} {'' if same else least}{between}{most}", None),)


def _legend(shown: Sequence[Candidate], choice: Candidate, columns: int) -> Iterator[Line]:
    names = {each.strategy.name for each in shown}
    entries: list[Line] = [(_CHOSEN, (f" chosen: {choice.strategy.name}", None))]
    entries += [((f"{SIGNS[s.name]} {s.name}", None),) for s in STRATEGIES if s.name in names]
    return wrap(entries, "  ", columns)
