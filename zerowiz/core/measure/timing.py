"""What steps took that ran freely, and the prediction of it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from zerowiz.core.speed.terms import StepTime

# Those before are slower: kernels are chosen, the allocator fills its cache, ZeRO-3 learns in which
# order it gathers.
_STEADY_STEPS = 3


class SteadyStep(Struct, frozen=True, kw_only=True):
    """An optimizer step once all steps take equally long."""

    seconds: float
    """The median of the last three."""
    spread_fraction: float
    """How far these three lie apart, of the median."""


def steady_step(samples_by_rank: Sequence[Sequence[float]]) -> SteadyStep | None:
    """The steady step of the slowest rank; None where some rank took fewer than three.

    Args:
        samples_by_rank: The seconds of every step that ran freely, in order.
    """
    if not samples_by_rank or any(len(each) < _STEADY_STEPS for each in samples_by_rank):
        return None
    last = [samples[-_STEADY_STEPS:] for samples in samples_by_rank]
    slowest = max(last, key=statistics.median)
    median = statistics.median(slowest)
    return SteadyStep(seconds=median, spread_fraction=(max(slowest) - min(slowest)) / median)


def samples_of(report: Mapping[str, object]) -> Sequence[float]:
    """The seconds of every step that ran freely, as a rank reported them; empty if none did."""
    return cast("Sequence[float]", report.get("timed_step_seconds") or ())


class ComparedStep(Struct, frozen=True, kw_only=True):
    """A predicted and a measured time of an optimizer step."""

    predicted: StepTime | None
    measured: SteadyStep | None

    @property
    def error(self) -> float | None:
        """Signed, as a fraction of what was measured."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.expected_seconds / self.measured.seconds - 1
