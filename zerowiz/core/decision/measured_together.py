"""Say which settings of a job no measured run had together.

A formula is held to the runs that were measured. Where each of two settings was measured, and never
both in one run, what they do to each other is unknown: such a job stands in a hole.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import combinations

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload.workload import Workload


class PairedSetting(StrEnum):
    """The settings whose values are looked at in pairs, in the order in which they are named."""

    FAMILY = "family"
    STRATEGY = "strategy"
    ACCUMULATION = "accumulation"
    CHECKPOINTING = "checkpointing"
    METHOD = "method"
    OPTIMIZER = "optimizer"
    GPUS = "gpus"


Point = Mapping[PairedSetting, str]
"""The value of each setting."""
Pair = tuple[tuple[PairedSetting, str], tuple[PairedSetting, str]]
"""Two settings, each with its value."""

# From so many micro-steps on, and from two on: what they do differs by how often, not by how.
_MANY_MICRO_STEPS = 8
_SOME_MICRO_STEPS = 2


class MeasuredRuns(Struct, frozen=True, kw_only=True):
    """The settings of every measured run, each combination once."""

    settings: tuple[PairedSetting, ...]
    runs: tuple[tuple[str, ...], ...]
    """A value for each setting."""

    def pairs(self) -> frozenset[Pair]:
        """Every pair that some run had."""
        points = (dict(zip(self.settings, run, strict=True)) for run in self.runs)
        return frozenset(pair for point in points for pair in pairs_of(point))


def decode_measured_runs(value: object) -> MeasuredRuns:
    """The content of `zerowiz/data/measured_runs.json`."""
    return decode(MeasuredRuns, value, "measured_runs")


def accumulation_of(micro_steps: int) -> str:
    """One, some or many micro-steps, by the least of them."""
    if micro_steps >= _MANY_MICRO_STEPS:
        return str(_MANY_MICRO_STEPS)
    return str(min(micro_steps, _SOME_MICRO_STEPS))


def point_of(family: str, strategy: Strategy, workload: Workload, gpus: int) -> Point:
    """The values of a job or of a run."""
    return {
        PairedSetting.FAMILY: family,
        PairedSetting.STRATEGY: strategy.name,
        PairedSetting.ACCUMULATION: accumulation_of(workload.accumulation_steps),
        PairedSetting.CHECKPOINTING: "on" if workload.gradient_checkpointing else "off",
        PairedSetting.METHOD: workload.method.value,
        PairedSetting.OPTIMIZER: workload.optimizer.value,
        PairedSetting.GPUS: str(min(gpus, 2)),
    }


def _values(point: Point) -> tuple[tuple[PairedSetting, str], ...]:
    """The values that are known, in the order in which they are named."""
    return tuple((name, point[name]) for name in PairedSetting if name in point)


def pairs_of(point: Point) -> list[Pair]:
    """All pairs of its values."""
    return list(combinations(_values(point), 2))


def find_never_together(point: Point, measured: frozenset[Pair]) -> tuple[Pair, ...]:
    """The pairs that no run had, of values that some run had: one that none had is a doubt itself.

    Args:
        point: The values of a job.
        measured: Every pair that some run had.
    """
    return _missing(_values(point), measured)


# A search asks the same of each micro-batch.
@lru_cache(maxsize=256)
def _missing(
    values: tuple[tuple[PairedSetting, str], ...], measured: frozenset[Pair]
) -> tuple[Pair, ...]:
    missing = [pair for pair in combinations(values, 2) if pair not in measured]
    if not missing:
        return ()
    known = {value for pair in measured for value in pair}
    return tuple(pair for pair in missing if known.issuperset(pair))
