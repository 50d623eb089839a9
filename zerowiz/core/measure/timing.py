"""What steps took that ran freely, and the prediction of it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from zerowiz.core.speed.terms import StepTime

_LEAST_STEPS = 3
# The first third is slower: kernels are chosen, the allocator fills its cache, ZeRO-3 learns in
# which order it gathers. Of those after it, each counts: on a shared host a step differs from the
# next one by a tenth (a standard deviation of the logarithm), whatever the one before took.
_SLOW_PART = 3
# So much time halves what single steps of half a second say wrong; ranks take longer to start.
_TIMED_SECONDS = 5.0


class SteadyStep(Struct, frozen=True, kw_only=True):
    """An optimizer step once all steps take equally long."""

    seconds: float
    """The median of the steps after the first third."""
    low_seconds: float
    """The shortest of these."""
    high_seconds: float
    """The longest of them."""
    steps: int
    """How many they are."""

    @property
    def spread_fraction(self) -> float:
        """How far they lie apart, of the median."""
        return (self.high_seconds - self.low_seconds) / self.seconds


def count_timed_steps(least: int, most: int, step_seconds: float) -> int:
    """How many steps are timed: as many as take 5 s, within these bounds.

    Args:
        least: So many, however long they take.
        most: No more, however short they are.
        step_seconds: Of a step, roughly.

    Example:
        >>> count_timed_steps(6, 40, 0.5)
        10
    """
    return max(least, min(most, round(_TIMED_SECONDS / max(step_seconds, 1e-3))))


def steady_step(samples_by_rank: Sequence[Sequence[float]]) -> SteadyStep | None:
    """The steady step of the slowest rank; None where some rank took fewer than three.

    Args:
        samples_by_rank: The seconds of every step that ran freely, in order.

    Example:
        >>> steady_step([[0.9, 0.5, 0.3, 0.2, 0.4, 0.3]])
        SteadyStep(seconds=0.3, low_seconds=0.2, high_seconds=0.4, steps=4)
    """
    if not samples_by_rank or any(len(each) < _LEAST_STEPS for each in samples_by_rank):
        return None
    later = [samples[len(samples) // _SLOW_PART :] for samples in samples_by_rank]
    slowest = max(later, key=statistics.median)
    return SteadyStep(
        seconds=statistics.median(slowest),
        low_seconds=min(slowest),
        high_seconds=max(slowest),
        steps=len(slowest),
    )


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
