"""Lay out the settings around a plan's own, each with its decision."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.model.types import Model
from zerowiz.core.search.search import Search
from zerowiz.core.values import Count, replace

# The powers of two of an axis, and how many of them stand below the plan's own.
_MICRO_BATCHES, _LENGTHS, _BELOW = 6, 7, 2
_SHORTEST_TOKENS = 128


class GridCell(Struct, frozen=True, kw_only=True):
    """A plan with other settings."""

    micro_batch: Count
    sequence_tokens: Count
    decision: Decision | None
    search: Search | None = None
    """What it was chosen among; None where nothing was."""
    refusal: str = ""
    """Why the job cannot be so, where there is no decision."""


class Grid(Struct, frozen=True, kw_only=True):
    """The plan's decision, and those beside it."""

    micro_batch_stops: tuple[int, ...]
    sequence_tokens: tuple[int, ...]
    cells: tuple[GridCell, ...]
    """Of the first micro-batch with each length, then of the next one."""
    own: GridCell
    why_fewer: str = ""
    """Why some stops are left out: none of their plans can be."""


def without_empty(grid: Grid) -> Grid:
    """The grid without the micro-batches, and the lengths, of which no plan can be."""
    decided = [cell for cell in grid.cells if cell.decision is not None]
    batches = {cell.micro_batch for cell in decided}
    lengths = {cell.sequence_tokens for cell in decided}
    kept = [c for c in grid.cells if c.micro_batch in batches and c.sequence_tokens in lengths]
    refusals = [cell.refusal for cell in grid.cells if cell not in kept]
    return replace(
        grid,
        micro_batch_stops=tuple(n for n in grid.micro_batch_stops if n in batches),
        sequence_tokens=tuple(n for n in grid.sequence_tokens if n in lengths),
        cells=tuple(kept),
        why_fewer=next(iter(refusals), grid.why_fewer),
    )


def list_micro_batches(own: int) -> tuple[int, ...]:
    """The plan's own, and powers of two around it.

    Example:
        >>> list_micro_batches(1), list_micro_batches(12)
        ((1, 2, 4, 8, 16, 32), (2, 4, 8, 12, 16, 32, 64))
    """
    return _around(own, 1, _MICRO_BATCHES)


def list_lengths(own: int, model: Model) -> tuple[int, ...]:
    """The same of tokens in a sequence, where the model has positions for them.

    The stand-in for a size has positions of its own, which bind nobody. Images have one length.
    """
    if model.architecture.reads_images:
        return (own,)
    longest = model.made_for_tokens
    lengths = _around(own, _SHORTEST_TOKENS, _LENGTHS)
    return tuple(n for n in lengths if n == own or longest is None or n <= longest)


def _around(own: int, least: int, count: int) -> tuple[int, ...]:
    first = max(least.bit_length(), own.bit_length() - _BELOW) - 1
    return tuple(sorted({own, *(2**power for power in range(first, first + count))}))


def index_of(grid: Grid, cell: GridCell) -> tuple[int, int]:
    """Where the settings of a cell stand on both axes."""
    return _index(grid.micro_batch_stops, cell.micro_batch), _index(
        grid.sequence_tokens, cell.sequence_tokens
    )


def _index(stops: Sequence[int], value: int) -> int:
    return list(stops).index(value)
