"""Figures of a launched job: its prediction, and what its ranks report while they train."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measure.timing import samples_of
from zerowiz.core.outcome.figures import CountedMemory, MeasuredFigures, PredictedFigures

# The first steps of a job are slower (timing.py).
_LEAST_STEPS = 3
_KEYS: Mapping[CountedMemory, str] = {
    CountedMemory.ALLOCATED: "peak_bytes",
    CountedMemory.RESIDENT: "host_peak_rss_bytes",
}


def predict_run(planned: StrategyEstimate, accelerator: Accelerator) -> PredictedFigures:
    """What is compared of a plan with the job that it started.

    Args:
        planned: The strategy that runs.
        accelerator: Where.
    """
    on_cpu = accelerator is Accelerator.CPU
    step = planned.step_time
    return PredictedFigures(
        memory=CountedMemory.RESIDENT if on_cpu else CountedMemory.ALLOCATED,
        peak_bytes=planned.device_bytes if on_cpu else planned.estimate.peak_bytes,
        step_seconds=None if step is None else step.expected_seconds,
        low_step_seconds=None if step is None else step.low_seconds,
        high_step_seconds=None if step is None else step.high_seconds,
    )


def measure_run(
    reports: Collection[Mapping[str, object]], memory: CountedMemory
) -> MeasuredFigures | None:
    """What the ranks have reported; None where none of them took a step.

    Args:
        reports: Of each rank that said something.
        memory: Which memory counts.
    """
    if not reports:
        return None
    peaks = [cast("int | None", report.get(_KEYS[memory])) for report in reports]
    steps = [_usual_step(samples_of(report)) for report in reports]
    return MeasuredFigures(
        ranks=len(reports),
        peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
        step_seconds=max((step for step in steps if step is not None), default=None),
    )


def _usual_step(samples: Sequence[float]) -> float | None:
    """The median of the later half: a checkpoint or an evaluation between two steps is none."""
    if len(samples) < _LEAST_STEPS:
        return None
    return statistics.median(samples[-max(_LEAST_STEPS, len(samples) // 2) :])
