"""Draw memory: a bar for each strategy, or each phase, of what a GPU holds, against the budget.

Example:
    GiB of each GPU               budget 39.4
    zero2  wwwwwwwwwgggooooooooooooooooooooo│ooocc   48.1
    zero3  wwwggooooooooooobc               │        32.2
    w=weights g=gradients o=optimizer b=buffers c=context
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.memory_parts import parts, parts_by_phase
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.ledger import MemoryPart
from zerowiz.ui.text.cells import cells as cells_of
from zerowiz.ui.text.cells import pad, pad_left
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.lines import Line, Picture, Span, wrap
from zerowiz.ui.text.units import bare_gib, on_device
from zerowiz.words import _

SIGNS: Mapping[MemoryPart, tuple[str, Colour]] = {
    MemoryPart.WEIGHTS: ("w", Colour.BLUE),
    MemoryPart.GRADIENTS: ("g", Colour.CYAN),
    MemoryPart.OPTIMIZER: ("o", Colour.MAGENTA),
    MemoryPart.ACTIVATIONS: ("a", Colour.GREEN),
    MemoryPart.LOGITS: ("l", Colour.YELLOW),
    MemoryPart.BUFFERS: ("b", Colour.GREY),
    MemoryPart.CONTEXT: ("c", Colour.DARK),
    MemoryPart.VLLM: ("v", Colour.RED),
}
"""The letter of each part, and the colour behind it."""

# A bar that is longer says no more; one that needs many times the budget would flatten the others.
_WIDEST_COLUMNS, _MOST_BUDGETS = 100, 1.6
# From here on the number of a bar has room beside it.
_WITH_NUMBERS_COLUMNS = 66
_NUMBER_COLUMNS = 7
_FEWEST_CELLS = 8

Sizes = Mapping[MemoryPart, int]


def strategies(job: PlanInput, evaluated: Sequence[StrategyEstimate], columns: int) -> Picture:
    """Every strategy where its device is fullest."""
    return _bars(job, {each.strategy.name: parts(job, each) for each in evaluated}, columns)


def phases(job: PlanInput, evaluated: StrategyEstimate, columns: int) -> Picture:
    """One strategy at the peak of each phase."""
    found = parts_by_phase(job, evaluated)
    return _bars(job, {_(phase.value): sizes for phase, sizes in found.items()}, columns)


def _bars(job: PlanInput, rows: Mapping[str, Sizes], columns: int) -> Picture:
    columns = min(columns, _WIDEST_COLUMNS)
    numbered = columns >= _WITH_NUMBERS_COLUMNS
    label = max(map(cells_of, rows))
    # One column is the budget's.
    cells = columns - label - 2 - (_NUMBER_COLUMNS if numbered else 0)
    cells = max(cells, _FEWEST_CELLS)
    scale = _Scale([sum(sizes.values()) for sizes in rows.values()], job.gpu_budget_bytes, cells)
    lines: list[Line] = [_heading(job, label, scale)]
    for name, sizes in rows.items():
        number = f"{bare_gib(sum(sizes.values())):>{_NUMBER_COLUMNS}}" if numbered else ""
        lines.append(((pad(name, label) + " ", None), *scale.bar(sizes), (number, None)))
    seen = {part for sizes in rows.values() for part in sizes}
    return (*lines, *_legend([part for part in MemoryPart if part in seen], columns))


def widest_bytes(totals: Sequence[int], budget_bytes: int | None) -> int:
    """What a whole bar stands for: the largest size, or some times the budget; 1 at least."""
    most = max(totals)
    if budget_bytes:
        most = max(budget_bytes, min(most, int(_MOST_BUDGETS * budget_bytes)))
    return max(most, 1)


class _Scale:
    """How many cells a size has, and which column the budget is."""

    def __init__(self, totals: Sequence[int], budget_bytes: int | None, cells: int) -> None:
        self.cells = cells
        self._cells_per_byte = cells / widest_bytes(totals, budget_bytes)
        self.budget = None if budget_bytes is None else self.cells_of(budget_bytes)

    def cells_of(self, size_bytes: int) -> int:
        """One more than a bar has, at most: a size may be a billion budgets."""
        return min(round(size_bytes * self._cells_per_byte), self.cells + 1)

    def bar(self, sizes: Sizes) -> Line:
        """The parts, one behind the other, with the column of the budget between them."""
        cells: list[Span] = []
        end_bytes = 0
        for part in MemoryPart:
            end_bytes += sizes.get(part, 0)
            cells += [SIGNS[part]] * (self.cells_of(end_bytes) - len(cells))
        if len(cells) > self.cells:
            cells[self.cells - 1 :] = [("»", Colour.BAD)]
        cells += [(" ", None)] * (self.cells - len(cells))
        cells.insert(self.cells if self.budget is None else self.budget, self._line())
        runs = ((key, len(list(run))) for key, run in groupby(cells))
        return tuple((sign * count, colour) for (sign, colour), count in runs)

    def _line(self) -> Span:
        return (" ", None) if self.budget is None else ("│", Colour.LABEL)


def _heading(job: PlanInput, label: int, scale: _Scale) -> Line:
    title = on_device(_("GiB of each GPU"), job.machine)
    if scale.budget is None:
        return ((title, None),)
    said = _("budget {gpu_budget_bytes}", gpu_budget_bytes=bare_gib(job.gpu_budget_bytes))
    # It ends where its line is.
    room = label + 1 + scale.budget + 1 - cells_of(title)
    return ((title, None), (pad_left(said, max(room, cells_of(said) + 2)), Colour.LABEL))


def _legend(seen: Sequence[MemoryPart], columns: int) -> Iterator[Line]:
    """What the letters mean, in as many lines as it takes."""
    entries = ((SIGNS[part], (f"={_(part.value)}", None)) for part in seen)
    return wrap(entries, " ", columns)
