"""Turn what ranks reported into a measured row, hold the prediction against it, and keep it."""

import hashlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import Cause, JobEnd
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.measured_trial import (
    ComparedStep,
    PlannedTrial,
    SteadyStep,
    Trial,
    encode_trial,
    samples_of,
    steady_step,
)
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.plan_json import encode_step_time
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
from zerowiz.core.workload import SETTINGS

Report = Mapping[str, object]

PHASES = (
    *("model", "init", "first_forward", "first_backward", "first_step"),
    *("steady_forward", "steady_backward", "steady_step"),
)
"""In the order of a run."""


HOST_MEMORY = "host_memory"
"""Why the kernel kills a rank that its host has no memory for, and the `oom_phase` of its run."""


class TrialEnd(Struct, frozen=True, kw_only=True):
    """How a trial ended on one rank."""

    rank: int
    report: Report
    """What the rank said; empty when it said nothing."""
    status: int
    """Its exit status, negative for a signal."""
    killed: str | None
    """Why it was ended from outside: `deadline`, `peer`, `launcher`, `host_memory`."""
    seconds: float | None = None
    """From its begin to its end; None where it was lost with the launcher."""


class Compared(Struct, frozen=True, kw_only=True):
    """A predicted and a measured size."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None

    @property
    def error(self) -> float | None:
        """Signed, as a fraction of what was measured."""
        if not self.measured_bytes or self.predicted_bytes is None:
            return None
        return (self.predicted_bytes - self.measured_bytes) / self.measured_bytes


class Comparison(Struct, frozen=True, kw_only=True):
    """A measured row beside its prediction."""

    row: Report
    verdict: Verdict | None
    """None where nothing was predicted."""
    unpredicted: str | None
    """Why."""
    phases: tuple[Compared, ...]
    peak: Compared
    step: ComparedStep
    """Its time, where nothing waits inside it."""

    @property
    def ok(self) -> bool:
        """Whether the run lived."""
        return self.row["ok"] is True

    @property
    def measured(self) -> bool:
        """Whether the run says something: running out of memory is an answer, failing is none."""
        return self.ok or self.row["oom_phase"] is not None

    @property
    def fullest(self) -> Compared:
        """The peak of the rank that held most; the prediction is of that one."""
        ranks = cast("Sequence[Mapping[str, int | None]]", self.row["rank_peaks"])
        peaks = [peak for rank in ranks if (peak := rank["peak_bytes"]) is not None]
        return replace(self.peak, measured_bytes=max(peaks) if self.ok and peaks else None)


def _phases(report: Report) -> Mapping[str, Mapping[str, int | None]]:
    return cast("Mapping[str, Mapping[str, int | None]]", report.get("phases") or {})


def _peak_bytes(report: Report) -> int | None:
    peaks = [reading["peak_bytes"] for reading in _phases(report).values()]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _sections(trial: Trial, ds_config: Report) -> dict[str, object]:
    """The config beyond the stage and `enabled`; switches that are off say nothing."""
    zero = cast("Report", ds_config.get("zero_optimization") or {})
    bf16 = cast("Report", ds_config.get("bf16") or {})
    return {
        "zero_optimization": {key: value for key, value in zero.items() if key != "stage"},
        "bf16": {key: value for key, value in bf16.items() if key != "enabled" and value},
        "offload": trial.offload.value,
        "zero_init": trial.workload.resolved_zero_init,
    }


# Why a case was killed, and how an error says it (worker/batch_files.py, KillReason).
ENDED = {"deadline": "at the deadline", "launcher": "with the launcher"}


def _error(ends: Sequence[TrialEnd]) -> str | None:
    """What went wrong first; a rank that was ended for its peer's sake knows nothing."""
    errors = [end.report["error"] for end in ends if end.report.get("error")]
    if errors:
        return str(errors[0])
    for end in ends:
        if end.killed in ENDED:
            return f"rank {end.rank} was ended {ENDED[end.killed]}"
    for end in ends:
        if end.killed is None and end.status != 0:
            how = f"signal {-end.status}" if end.status < 0 else f"status {end.status}"
            return f"rank {end.rank} ended by {how}"
    return None


def _memory(first: Report, ends: Sequence[TrialEnd], *, ok: bool) -> dict[str, object]:
    """The sizes of rank 0, and the peak of every rank."""
    names = (
        *("peak_reserved_bytes", "context_bytes", "context_and_nccl_bytes"),
        *("device_used_outside_allocator_bytes", "allocator_retries", "step_seconds"),
        "host_peak_rss_bytes",
    )
    rank_peaks = [
        {
            "rank": end.rank,
            "peak_bytes": _peak_bytes(end.report),
            "peak_reserved_bytes": end.report.get("peak_reserved_bytes"),
            "host_peak_rss_bytes": end.report.get("host_peak_rss_bytes"),
        }
        for end in ends
    ]
    return {
        "phases": dict(_phases(first)),
        "peak_bytes": _peak_bytes(first) if ok else None,
        **{key: first.get(key) for key in names},
        "rank_peaks": rank_peaks,
    }


def _times(first: Report, ends: Sequence[TrialEnd]) -> dict[str, object]:
    """What the steps took that ran freely, on every rank; the links, and the host's share of it."""
    names = ("timed_step_seconds", "timed_peak_bytes", "timed_allocator_retries")
    steady = steady_step([samples_of(end.report) for end in ends])
    seconds = [end.seconds for end in ends if end.seconds is not None]
    return {
        **{key: first.get(key) for key in names},
        "steady_step_seconds": None if steady is None else steady.seconds,
        "steady_step_spread": None if steady is None else round(steady.spread_fraction, 4),
        "rank_times": [
            {"rank": end.rank, **{key: end.report.get(key) for key in names}} for end in ends
        ],
        "bus": first.get("bus"),
        "cpu_cores": first.get("cpu_cores"),
        "cpu_threads": first.get("cpu_threads"),
        "cores_bound": first.get("cores_bound"),
        "python_call_seconds": first.get("python_call_seconds"),
        "case_seconds": max(seconds, default=None),
    }


def make_row(planned: PlannedTrial, ends: Sequence[TrialEnd], accelerator: Accelerator) -> Report:
    """One line of measured truth; what nobody could tell is null."""
    trial, flat = planned.trial, encode_trial(planned.trial)
    first = ends[0].report
    ok = all(end.report.get("ok") is True for end in ends)
    died = [end.report["oom_phase"] for end in ends if end.report.get("oom_phase")]
    died += [HOST_MEMORY for end in ends if end.killed == HOST_MEMORY]
    name = trial.model if planned.job is None else planned.job.model.name
    params = None if planned.job is None else planned.job.model.params
    seen = first.get("expandable_segments")
    on_cuda = accelerator is Accelerator.CUDA
    return {
        "id": trial.id,
        "model": name.rstrip("/").rpartition("/")[2],
        "params": first.get("params", params),
        "gpu": first.get("gpu"),
        "gpus": trial.gpus,
        "kind": trial.loop.value,
        "accelerator": accelerator.value,
        "stage": planned.ds_config_stage,
        # Of these `optimizer` is what takes the step.
        **{key: flat[key] for key in (*SETTINGS, "quantized") if key in flat},
        **_sections(trial, planned.ds_config),
        "expandable_segments": (trial.expandable_segments if seen is None else seen) and on_cuda,
        "memory_cap_bytes": trial.memory_cap_bytes if on_cuda else None,
        "nccl_p2p": trial.nccl_p2p if on_cuda else None,
        "versions": first.get("versions"),
        "trainable_params": first.get("trainable_params"),
        "steps": trial.steps,
        "timed_steps": trial.free_steps,
        "ok": ok,
        "oom_phase": died[0] if died else None,
        "error": None if ok or died else _error(ends),
        "wrapper": first.get("wrapper"),
        **_memory(first, ends, ok=ok),
        **_times(first, ends),
    }


def predict_phases(estimate: Estimate) -> dict[str, int]:
    """What is predicted of each phase, by the names that a row has for them."""
    first, steady = estimate.first_iteration_bytes, estimate.phase_bytes()
    once = {phase.value: steady[phase] for phase in (Phase.MODEL, Phase.INIT)}
    iterations = {"first": first, "steady": steady}
    return once | {
        f"{name}_{phase.value}": phases[phase]
        for name, phases in iterations.items()
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
        if phase in phases
    }


def measured_phases(row: Report) -> dict[str, int | None]:
    """The peak of each phase; None where the run did not come so far, or nobody could tell."""
    readings = _phases(row)
    return {name: readings[name]["peak_bytes"] if name in readings else None for name in PHASES}


def as_capped(job: Job, row: Report) -> Job:
    """The job on the card that the row's cap stands for."""
    cap_bytes = cast("int | None", row["memory_cap_bytes"])
    if cap_bytes is None:
        return job
    # The cap, and what was really taken beside the allocator.
    used_bytes = row["device_used_outside_allocator_bytes"] or row["context_and_nccl_bytes"] or 0
    card_bytes = cap_bytes + cast("int", used_bytes)
    gpus = (
        replace(
            gpu,
            free_bytes=min(card_bytes, card_bytes if gpu.free_bytes is None else gpu.free_bytes),
        )
        for gpu in job.machine.gpus
    )
    return replace(job, machine=replace(job.machine, gpus=tuple(gpus)))


def measured_step(row: Report) -> SteadyStep | None:
    """The steady step of the row; None for a row that was made before steps ran freely."""
    ranks = cast("Sequence[Report]", row.get("rank_times") or ())
    return steady_step([samples_of(rank) for rank in ranks])


def compare(planned: PlannedTrial, row: Report) -> Comparison:
    """The prediction beside the row, phase by phase."""
    measured = measured_phases(row)
    peak_bytes = cast("int | None", row["peak_bytes"])
    step = measured_step(row)
    if planned.job is None or planned.strategy is None:
        return Comparison(
            row=row,
            verdict=None,
            unpredicted=planned.unpredicted,
            phases=tuple(
                Compared(name=name, predicted_bytes=None, measured_bytes=size)
                for name, size in measured.items()
            ),
            peak=Compared(name="peak", predicted_bytes=None, measured_bytes=peak_bytes),
            step=ComparedStep(predicted=None, measured=step),
        )
    evaluated = evaluate(as_capped(planned.job, row), planned.strategy)
    predicted = predict_phases(evaluated.estimate)
    return Comparison(
        row=row,
        verdict=evaluated.verdict,
        unpredicted=None,
        phases=tuple(
            Compared(name=name, predicted_bytes=predicted.get(name), measured_bytes=size)
            for name, size in measured.items()
        ),
        peak=Compared(
            name="peak", predicted_bytes=evaluated.estimate.peak_bytes, measured_bytes=peak_bytes
        ),
        step=ComparedStep(predicted=evaluated.step_time, measured=step),
    )


def encode_comparison(comparison: Comparison) -> dict[str, object]:
    """The row with the prediction in it, as `measure --json` says it."""
    compared, step = (*comparison.phases, comparison.peak), comparison.step
    return {
        "row": dict(comparison.row),
        "predicted": {
            "verdict": None if comparison.verdict is None else comparison.verdict.value,
            "phases": {phase.name: phase.predicted_bytes for phase in comparison.phases},
            "peak_bytes": comparison.peak.predicted_bytes,
            **encode_step_time(step.predicted),
            "why_not": comparison.unpredicted,
        },
        "error": {**{figure.name: figure.error for figure in compared}, "step_seconds": step.error},
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


# Say what of a measured run is worth keeping for later plans.

# What of a row makes two runs the same setting.
_IDENTITY = (
    *("model", "params", "kind", "stage", "offload", "optimizer", "quantized"),
    *("zero_optimization", "memory_cap_bytes", "expandable_segments"),
    *SETTINGS,
)


def keep_run(
    planned: PlannedTrial, comparison: Comparison, formulas: str, before: MachineResults
) -> KeptRun | None:
    """What is kept of a measured run; None where it says nothing of how fast this machine is.

    A run that failed, or that retried its allocations, does not.

    Args:
        planned: The run, as it was planned.
        comparison: How it ended.
        formulas: Those that predicted it.
        before: What is kept of the machine: its host's speed is the mean of all readings.
    """
    row, step = comparison.row, comparison.step
    retried = row.get("timed_allocator_retries")
    if not comparison.ok or step.measured is None or retried:
        return None
    if planned.strategy is None or planned.job is None:
        return None
    read = cast("float | None", row.get("python_call_seconds"))
    job = as_capped(planned.job, row)
    call_seconds = before.mean_call_seconds(read) or job.machine.host.python_call_seconds
    host = replace(job.machine.host, python_call_seconds=call_seconds)
    job = replace(job, machine=replace(job.machine, host=host))
    predicted = evaluate(job, planned.strategy).step_time
    terms: dict[str, float] = {}
    for term in () if predicted is None else predicted.terms:
        # The run flushed nothing, however near it came to its limit.
        if term.kind is not TermKind.ALLOCATOR:
            terms[term.kind.value] = terms.get(term.kind.value, 0.0) + term.exposed_seconds
    # As it will be read again: two runs of one setting must be equal.
    setting = json.loads(json.dumps(encode({name: row.get(name) for name in _IDENTITY})))
    return KeptRun(
        setting=setting,
        strategy=planned.strategy.name,
        formulas=formulas,
        measured_seconds=step.measured.seconds,
        predicted_seconds=terms,
        python_call_seconds=read,
    )


# Hold the plan of a person's own script against what its ranks measured.

_OUT_OF_MEMORY = {Cause.CUDA_OOM: "GPU", Cause.HOST_OOM: "host"}


class ScriptMeasurement(Struct, frozen=True, kw_only=True):
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
        peaks = [peak for rank in self.ranks if (peak := _measured_peak_bytes(rank))]
        measured = max(peaks) if len(peaks) == len(self.ranks) else None
        # It ends with its steps, before it evaluates.
        predicted = self.planned.estimate.training_peak_bytes
        return Compared(name="peak", predicted_bytes=predicted, measured_bytes=measured)

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
