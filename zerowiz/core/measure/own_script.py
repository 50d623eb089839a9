"""Hold the plan of a person's own script against what its ranks measured."""

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.measure.row import Compared
from zerowiz.core.measure.timing import ComparedStep, samples_of, steady_step
from zerowiz.core.outcome.verdict import Cause, JobEnd

_OUT_OF_MEMORY = {Cause.CUDA_OOM: "GPU", Cause.HOST_OOM: "host"}


class ScriptRun(Struct, frozen=True, kw_only=True):
    """How a script ran for some steps, beside its plan."""

    planned: StrategyEstimate
    end: JobEnd
    ranks: Sequence[Mapping[str, object]]
    """What each rank reported."""
    wanted_steps: int

    @property
    def steps(self) -> int:
        """The optimizer steps that every rank took."""
        return min((cast("int", rank.get("steps", 0)) for rank in self.ranks), default=0)

    @property
    def samples(self) -> list[Sequence[float]]:
        """The seconds of every step after the first, of each rank."""
        return [samples_of(rank) for rank in self.ranks]

    @property
    def step(self) -> ComparedStep:
        """The time of a step: with whatever the script does between two of them."""
        return ComparedStep(predicted=self.planned.step_time, measured=steady_step(self.samples))

    @property
    def peak(self) -> Compared:
        """Of the rank that held most."""
        peaks = [peak for each in self.ranks if (peak := _peak_bytes(each))]
        measured = max(peaks) if len(peaks) == len(self.ranks) else None
        # It ends with its steps, before it evaluates.
        predicted = self.planned.estimate.training_peak_bytes
        return Compared(name="peak", predicted_bytes=predicted, measured_bytes=measured)

    @property
    def on_cpu(self) -> bool:
        """Whether the peak is that of the processes."""
        return any(each.get("outside_bytes") is not None for each in self.ranks)

    @property
    def out_of_memory(self) -> str | None:
        """The memory that was too small, `GPU` or `host`."""
        return _OUT_OF_MEMORY.get(self.end.cause)

    @property
    def measured(self) -> bool:
        """Whether the run says something: running out of memory does, failing does not."""
        return self.out_of_memory is not None or (self.end.status == 0 and self.steps > 0)


def _peak_bytes(rank: Mapping[str, object]) -> int | None:
    """Of torch's allocator; of a CPU rank, its process without Python and its libraries."""
    peak, outside = rank.get("peak_bytes"), rank.get("outside_bytes")
    if peak is not None or outside is None:
        return cast("int | None", peak)
    return cast("int", rank["host_peak_rss_bytes"]) - cast("int", outside)


def encode_script_run(run: ScriptRun) -> dict[str, object]:
    """The run as `measure --json` says it."""
    step = run.step
    return {
        "strategy": run.planned.strategy.name,
        "ended": run.end.cause.value,
        "status": run.end.status,
        "steps": run.steps,
        "ranks": [dict(rank) for rank in run.ranks],
        "measured": {
            "peak_bytes": run.peak.measured_bytes,
            "step_seconds": None if step.measured is None else step.measured.seconds,
        },
        "predicted": {
            "peak_bytes": run.peak.predicted_bytes,
            "step_seconds": None if step.predicted is None else step.predicted.expected_seconds,
        },
        "error": {"peak": run.peak.error, "step_seconds": step.error},
    }
