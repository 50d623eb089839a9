"""Figures of a launched job: its prediction, and what its ranks report while they train."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate_with
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measure.timing import samples_of, steady_step
from zerowiz.core.outcome.figures import CountedMemory, MeasuredFigures, PredictedFigures
from zerowiz.core.values import replace

_KEYS: Mapping[CountedMemory, str] = {
    CountedMemory.ALLOCATED: "peak_bytes",
    CountedMemory.RESIDENT: "host_peak_rss_bytes",
}


def predict_run(
    job: PlanInput, planned: StrategyEstimate, accelerator: Accelerator
) -> PredictedFigures:
    """What is compared of a plan with the job that it started.

    Args:
        job: What was planned.
        planned: The strategy that runs.
        accelerator: Where.
    """
    on_cpu = accelerator is Accelerator.CPU
    step = planned.step_time
    single = replace(job, workload=replace(job.workload, accumulation_steps=1))
    one = evaluate_with(single, planned.strategy, planned.buffers).step_time
    return PredictedFigures(
        memory=CountedMemory.RESIDENT if on_cpu else CountedMemory.ALLOCATED,
        peak_bytes=planned.device_bytes if on_cpu else planned.estimate.peak_bytes,
        outside_bytes=planned.device_bytes - planned.estimate.peak_bytes if on_cpu else None,
        step_seconds=None if step is None else step.expected_seconds,
        low_step_seconds=None if step is None else step.low_seconds,
        high_step_seconds=None if step is None else step.high_seconds,
        accumulation_steps=job.workload.accumulation_steps,
        one_micro_batch_seconds=None if one is None else one.expected_seconds,
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
    most = max(reports, key=lambda report: _peak_bytes(report, memory) or 0)
    micro_batches = _usual_micro_batches(reports)
    steps = [steady_step([_with_micro_batches(report, micro_batches)]) for report in reports]
    return MeasuredFigures(
        ranks=len(reports),
        peak_bytes=_peak_bytes(most, memory),
        outside_bytes=cast("int | None", most.get("outside_bytes")),
        step_seconds=max((step.seconds for step in steps if step is not None), default=None),
        micro_batches=micro_batches,
    )


def _peak_bytes(report: Mapping[str, object], memory: CountedMemory) -> int | None:
    return cast("int | None", report.get(_KEYS[memory]))


def _usual_micro_batches(reports: Collection[Mapping[str, object]]) -> int | None:
    """Of most steps, the larger number of two that are as frequent; None where none was counted."""
    counts = Counter(count for report in reports for count in _micro_batches(report) if count)
    return max(counts, key=lambda count: (counts[count], count), default=None)


def _micro_batches(report: Mapping[str, object]) -> Sequence[int]:
    return cast("Sequence[int]", report.get("timed_micro_batches") or ())


def _with_micro_batches(report: Mapping[str, object], count: int | None) -> Sequence[float]:
    """The seconds of the steps with so many micro-batches; of all where they were not counted."""
    samples, counted = samples_of(report), _micro_batches(report)
    if count is None or len(counted) != len(samples):
        return samples
    return [seconds for seconds, each in zip(samples, counted, strict=True) if each == count]
