"""Turn what ranks reported into a measured row, and hold the prediction against it."""

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from zerowiz.core.decision.evaluate import Verdict, evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.measure.timing import ComparedStep, SteadyStep, samples_of, steady_step
from zerowiz.core.measure.trial import PlannedTrial, Trial, encode_trial
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.ledger import Phase
from zerowiz.core.plan_json import encode_step_time
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import SETTINGS
from zerowiz.words import _

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
        peaks = [peak for each in ranks if (peak := each["peak_bytes"]) is not None]
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


def _settings(trial: Trial) -> dict[str, object]:
    """Of the training step; `optimizer` is what takes the step."""
    flat = encode_trial(trial)
    return {name: flat[name] for name in (*SETTINGS, "quantized") if name in flat}


# Why a case was killed, and how an error says it (worker/batch_files.py, KillReason).
ENDED = {"deadline": _("at the deadline"), "launcher": _("with the launcher")}


def _error(ends: Sequence[TrialEnd]) -> str | None:
    """What went wrong first; a rank that was ended for its peer's sake knows nothing."""
    said = [end.report["error"] for end in ends if end.report.get("error")]
    if said:
        return str(said[0])
    for end in ends:
        if end.killed in ENDED:
            return _("rank {rank} was ended {ended}", rank=end.rank, ended=ENDED[end.killed])
    for end in ends:
        if end.killed is None and end.status != 0:
            how = (
                _("signal {status}", status=-end.status)
                if end.status < 0
                else _("status {status}", status=end.status)
            )
            return _("rank {rank} ended by {how}", rank=end.rank, how=how)
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
    trial = planned.trial
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
        **_settings(trial),
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


def as_capped(job: PlanInput, row: Report) -> PlanInput:
    """The job on the card that the row's cap stands for."""
    cap_bytes = cast("int | None", row["memory_cap_bytes"])
    if cap_bytes is None:
        return job
    return replace(job, machine=_smaller_card(job.machine, cap_bytes, row))


def _smaller_card(machine: Machine, cap_bytes: int, row: Report) -> Machine:
    """The card that a cap stands for: the cap, and what was really taken beside the allocator."""
    taken = row["device_used_outside_allocator_bytes"] or row["context_and_nccl_bytes"] or 0
    card_bytes = cap_bytes + cast("int", taken)
    gpus = (
        replace(
            gpu,
            free_bytes=min(card_bytes, card_bytes if gpu.free_bytes is None else gpu.free_bytes),
        )
        for gpu in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))


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
            "phases": {each.name: each.predicted_bytes for each in comparison.phases},
            "peak_bytes": comparison.peak.predicted_bytes,
            **encode_step_time(step.predicted),
            "why_not": comparison.unpredicted,
        },
        "error": {**{each.name: each.error for each in compared}, "step_seconds": step.error},
    }
