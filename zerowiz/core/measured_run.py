"""Hold what a measured run took against its plan, and keep it for later plans of the machine."""

import hashlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct, structs

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import (
    Cause,
    JobEnd,
    SteadyStep,
    error_of,
    samples_of,
    steady_step,
)
from zerowiz.core.machine.types import Machine
from zerowiz.core.speed.costs import (
    COSTS,
    Calibration,
    Costs,
    MeasuredStep,
    StepTime,
    Term,
    TermKind,
    calibrate,
)
from zerowiz.core.structs import encode, replace

_OUT_OF_MEMORY = {Cause.CUDA_OOM: "GPU", Cause.HOST_OOM: "host"}


class ScriptMeasurement(Struct, frozen=True, kw_only=True):
    """How a script ran for some steps, beside its plan."""

    name: str
    """Its strategy, and what of its step is not as the options alone would have it."""
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
    def steady(self) -> SteadyStep | None:
        """The time of a step: with whatever the script does between two of them."""
        return steady_step(self.samples)

    @property
    def step_seconds(self) -> tuple[float | None, float | None]:
        """Of a step, predicted and measured."""
        planned, steady = self.planned.step_time, self.steady
        return (
            None if planned is None else planned.expected_seconds,
            None if steady is None else steady.seconds,
        )

    @property
    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Of the rank that held most, predicted and measured."""
        peaks = [peak for rank in self.ranks if (peak := _measured_peak_bytes(rank))]
        measured = max(peaks) if len(peaks) == len(self.ranks) else None
        # It ends with its steps, before it evaluates.
        return self.planned.estimate.training_peak_bytes, measured

    @property
    def on_cpu(self) -> bool:
        """Whether the peak is that of the processes."""
        return any(rank.get("outside_bytes") is not None for rank in self.ranks)

    @property
    def out_of_memory(self) -> str | None:
        """The memory that was too small, `GPU` or `host`."""
        return _OUT_OF_MEMORY.get(self.end.cause)

    @property
    def measured(self) -> bool:
        """Whether the run says something: running out of memory does, failing does not."""
        return self.out_of_memory is not None or (self.end.status == 0 and self.steps > 0)


def _measured_peak_bytes(rank: Mapping[str, object]) -> int | None:
    """Of torch's allocator; of a CPU rank, its process without Python and its libraries."""
    peak, outside = rank.get("peak_bytes"), rank.get("outside_bytes")
    if peak is not None or outside is None:
        return cast("int | None", peak)
    return cast("int", rank["host_peak_rss_bytes"]) - cast("int", outside)


def encode_script_run(run: ScriptMeasurement) -> dict[str, object]:
    """The run as `measure --json` says it."""
    (predicted, measured), times = run.peak_bytes, run.step_seconds
    return {
        "name": run.name,
        "strategy": run.planned.strategy.name,
        "ended": run.end.cause.value,
        "status": run.end.status,
        "steps": run.steps,
        "ranks": [dict(rank) for rank in run.ranks],
        "measured": {"peak_bytes": measured, "step_seconds": times[1]},
        "predicted": {"peak_bytes": predicted, "step_seconds": times[0]},
        "error": {"peak": error_of(predicted, measured), "step_seconds": error_of(*times)},
    }


# Keep what was measured on one machine, so that later plans are calibrated by it.

# More runs of one machine move a calibration by less than a step repeats.
_MOST_RUNS = 100


class KeptRun(Struct, frozen=True, kw_only=True):
    """One measured setting, and what was predicted of it from the machine's data alone."""

    setting: Mapping[str, object]
    """By the names of a measured row."""
    strategy: str
    formulas: str
    """Which predicted the terms, as `formulas_of` names them."""
    measured_seconds: float
    """Of a steady optimizer step."""
    predicted_seconds: Mapping[str, float]
    """Of each kind of term; empty where no time was predicted."""
    python_call_seconds: float | None = None
    """How fast the host ran Python beside these steps."""

    @property
    def step(self) -> MeasuredStep | None:
        """The prediction beside the measured time; None where these formulas had no such terms."""
        kinds = {kind.value for kind in TermKind}
        if not self.predicted_seconds or not kinds.issuperset(self.predicted_seconds):
            return None
        terms = tuple(
            Term(kind=TermKind(kind), exposed_seconds=seconds, formula="")
            for kind, seconds in self.predicted_seconds.items()
        )
        seconds = sum(self.predicted_seconds.values())
        predicted = StepTime(
            terms=terms,
            expected_seconds=seconds,
            low_seconds=seconds,
            high_seconds=seconds,
            tokens=0,
        )
        return MeasuredStep(predicted=predicted, measured_seconds=self.measured_seconds)


class MachineResults(Struct, frozen=True, kw_only=True):
    """The runs of one machine: of each setting the latest."""

    runs: tuple[KeptRun, ...] = ()

    def mean_call_seconds(self, also: float | None = None) -> float | None:
        """How fast the host runs Python, on average; None where nobody read it.

        Args:
            also: One more reading.
        """
        read = (*(run.python_call_seconds for run in self.runs), also)
        known = [seconds for seconds in read if seconds is not None]
        return statistics.fmean(known) if known else None

    def plus(self, run: KeptRun) -> "MachineResults":
        """The results with one more run in them; beyond a hundred the oldest goes."""
        others = [other for other in self.runs if other.setting != run.setting]
        return MachineResults(runs=(*others, run)[-_MOST_RUNS:])

    def calibration(self, formulas: str) -> Calibration | None:
        """What the runs say of this machine; None where these formulas predicted none of them.

        Args:
            formulas: Those of the plan. Others may have predicted the same runs differently.
        """
        runs = (run.step for run in self.runs if run.formulas == formulas)
        return calibrate([step for step in runs if step is not None], self.mean_call_seconds())


def formulas_of(version: str, costs: Costs = COSTS) -> str:
    """A name for the formulas of a version of zerowiz, which changes with their constants."""
    digest = hashlib.sha256(json.dumps(encode(costs)).encode()).hexdigest()[:8]
    return f"{version}+{digest}"


def machine_key(machine: Machine) -> str:
    """What tells a machine from others with other speeds: its GPUs, how many, and their link."""
    gpus = "+".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    total_bytes = machine.total_bytes or 0
    link = machine.interconnect.link_class.value
    words = f"{machine.nodes}x{len(machine.gpus)} {gpus} {total_bytes >> 30}gib {link}"
    return re.sub(r"[^a-z0-9.+]+", "-", words.lower())


def keep_run(
    job: Job, run: ScriptMeasurement, formulas: str, before: MachineResults
) -> KeptRun | None:
    """What is kept of a run of a model; None where it says nothing of how fast this machine is.

    A run that failed, or that retried its allocations, does not.

    Args:
        job: What ran.
        run: How it ran.
        formulas: Those that predict it.
        before: What is kept of the machine: its host's speed is the mean of all readings.
    """
    step = run.steady
    retried = any(rank.get("allocator_retries") for rank in run.ranks)
    if run.end.status != 0 or step is None or retried:
        return None
    strategy, read = run.planned.strategy, job.machine.host.python_call_seconds
    host = replace(job.machine.host, python_call_seconds=before.mean_call_seconds(read))
    machine = replace(job.machine, host=host)
    bare = replace(job, machine=machine, calibration=None)
    predicted = evaluate(bare, strategy).step_time
    terms: dict[str, float] = {}
    for term in () if predicted is None else predicted.terms:
        # The run flushed nothing, however near it came to its limit.
        if term.kind is not TermKind.ALLOCATOR:
            terms[term.kind.value] = terms.get(term.kind.value, 0.0) + term.exposed_seconds
    said = {
        "model": job.model.name.rstrip("/").rpartition("/")[2],
        "params": job.model.params,
        "strategy": strategy.name,
        "state_dtype": job.state_dtype,
        **structs.asdict(job.workload),
    }
    return KeptRun(
        # As it will be read again: two runs of one setting must be equal.
        setting=json.loads(json.dumps(encode(said))),
        strategy=strategy.name,
        formulas=formulas,
        measured_seconds=step.seconds,
        predicted_seconds=terms,
        python_call_seconds=read,
    )
