"""Weigh each rung against the machine: what it needs, what there is, and a verdict."""

from dataclasses import dataclass, replace
from enum import StrEnum

from zerowiz.core.buffers import Buffers, fit_buffers
from zerowiz.core.families import FAMILIES
from zerowiz.core.ledger import Estimate
from zerowiz.core.machine import Accelerator, Machine
from zerowiz.core.memory import estimate
from zerowiz.core.model import Model
from zerowiz.core.rank import trainable_params
from zerowiz.core.strategy import STRATEGIES, Part, Strategy
from zerowiz.core.textbook import textbook_estimate
from zerowiz.core.traced import Traced
from zerowiz.core.traffic import wire_bytes_per_step
from zerowiz.core.workload import Accounting, Method, StateDtype, Workload
from zerowiz.errors import UsageError


class Verdict(StrEnum):
    """Whether a rung lives on this machine."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


# What a job takes on the device beside its tensors: CUDA context, NCCL, library handles.
# device_used_outside_allocator_bytes of tests/measured/h200.jsonl: at most 2.25 GB with NCCL,
# 1.80 GB alone.
_OUTSIDE_BYTES = 2_250_000_000
_OUTSIDE_ALONE_BYTES = 1_800_000_000
# On the CPU accelerator: the resident interpreter with torch, DeepSpeed and transformers, before
# the model; 371 MB under templates/train_deepspeed.py, 353 MB under train_hf.py without the engine.
_CPU_OUTSIDE_BYTES = 400_000_000
# Runs d4-015 to d4-026, capped: with expandable_segments ZeRO-2 and ZeRO-3 lived at 1.03 x their
# allocated peak and died at 1.00 x; without it a model was seen to die at 1.10 x.
# Runs g1-000 to g1-095 (tests/measured/2026-11-capped.jsonl), six models at each stage: with
# expandable_segments all 48 lived at 1.03 x and 1.07 x their peak; without it 12 of 24 died at
# 1.07 x.
_SLACK_FRACTION = 0.03
# Near the cap the allocator flushes. There ZeRO-3 took 1.16 to 1.42 x as long in every one of the
# six models, and still did at 1.10 x (d4-025, d4-026); the other stages mostly did not.
_TIGHT_FRACTION = 0.07
_TIGHT_SHARDED_FRACTION = 0.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything a rung is weighed with."""

    machine: Machine
    model: Model
    workload: Workload
    accounting: Accounting = Accounting.REAL
    state_dtype: StateDtype | None = None
    """What the person said; None leaves each accounting its own default."""
    budget_bytes: int | None = None
    """Of each GPU; None takes what is free."""
    own_buffers: Buffers | None = None
    """Of the person's own config; None fits them to the model."""
    traced: Traced | None = None
    """A trace of the model, whose activations then stand for the analytic ones."""

    def __post_init__(self) -> None:
        """Refuse what the model or the accounting cannot do."""
        a, tokens = self.model.architecture, self.workload.sequence_tokens
        known = FAMILIES.get(a.family)
        if known is not None and known.learned_positions and tokens > a.positions:
            raise UsageError(
                f"`--seq-len {tokens}`: `{self.model.name}` has {a.positions} learned positions"
            )
        told = self.accounting is Accounting.TEXTBOOK
        if told and self.workload.method is not Method.FULL:
            raise UsageError(
                f"`--accounting textbook` knows no `--method {self.workload.method}`",
                "drop `--accounting textbook` for what DeepSpeed really allocates",
            )

    @property
    def own_trace(self) -> Traced | None:
        """The trace, unless it is of another model: a remedy may have put one in its place."""
        if self.traced is not None and self.traced.params == self.model.params:
            return self.traced
        return None

    @property
    def state_format(self) -> str:
        """The number format that the optimizer states are counted in."""
        if self.state_dtype is not None:
            return self.state_dtype.value
        told = self.accounting is Accounting.TEXTBOOK
        return self.workload.precision.value if told else StateDtype.FP32.value

    @property
    def buffers(self) -> Buffers:
        """The communication buffers of the config that the job runs with."""
        if self.own_buffers is not None:
            return self.own_buffers
        return fit_buffers(self.model, trainable_params(self.model, self.workload))

    @property
    def gpu_budget_bytes(self) -> int | None:
        """What a rank may take on its device; never more than is free."""
        free_bytes = self.machine.free_bytes
        if self.budget_bytes is None or free_bytes is None:
            return free_bytes if self.budget_bytes is None else self.budget_bytes
        return min(self.budget_bytes, free_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """One rung against one machine."""

    estimate: Estimate
    verdict: Verdict
    device_bytes: int
    """The predicted peak and what else the job takes on the device."""
    budget_bytes: int | None
    host_bytes: int
    """All ranks of one node together, beyond their interpreters."""
    host_budget_bytes: int | None
    wire_bytes_per_step: int

    @property
    def strategy(self) -> Strategy:
        """The rung."""
        return self.estimate.strategy

    @property
    def runs(self) -> bool:
        """A tight rung counts as a yes."""
        return self.verdict is not Verdict.DOES_NOT_FIT

    @property
    def headroom_bytes(self) -> int | None:
        """Left on the tightest GPU; negative when it lacks."""
        return None if self.budget_bytes is None else self.budget_bytes - self.device_bytes

    @property
    def host_headroom_bytes(self) -> int | None:
        """Left in host memory; negative when it lacks, None when nobody knows."""
        if self.host_bytes == 0:
            return 0
        return None if self.host_budget_bytes is None else self.host_budget_bytes - self.host_bytes

    @property
    def lacking_bytes(self) -> int:
        """How much is known to be missing, on the GPU or on the host; 0 when nothing is."""
        rooms = (self.headroom_bytes, self.host_headroom_bytes)
        return max(0, *(-room for room in rooms if room is not None), 0)


def _outside_bytes(machine: Machine) -> int:
    if machine.accelerator is Accelerator.CPU:
        return _CPU_OUTSIDE_BYTES
    return _OUTSIDE_BYTES if machine.world_size > 1 else _OUTSIDE_ALONE_BYTES


def _host_budget_bytes(machine: Machine, device_bytes: int) -> int | None:
    """What offload may take of one node's memory; some ranks live in it themselves."""
    available_bytes = machine.host.available_bytes
    if available_bytes is None or not machine.lives_on_host:
        return available_bytes
    return max(0, available_bytes - device_bytes * len(machine.gpus))


def _verdict(need_bytes: int, spare_bytes: int, budget_bytes: int | None) -> Verdict:
    """An unknown budget could be nothing at all."""
    if budget_bytes is None or need_bytes > budget_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.FITS if need_bytes + spare_bytes <= budget_bytes else Verdict.TIGHT


def weigh(job: Job, strategy: Strategy) -> Weighed:
    """Predict the rung and compare it with what the machine has."""
    ranks, budget_bytes = job.machine.world_size, job.gpu_budget_bytes
    if job.accounting is Accounting.TEXTBOOK:
        told = textbook_estimate(job.model, job.workload, ranks, strategy, job.state_dtype)
        predicted, device_bytes, spare_bytes = told, told.peak_bytes, 0
    else:
        dtype = job.state_dtype or StateDtype.FP32
        workload = replace(job.workload, optimizer_state_dtype=dtype)
        on = job.machine.accelerator
        predicted = estimate(job.model, workload, ranks, strategy, job.buffers, on, job.own_trace)
        peak_bytes = predicted.peak_bytes
        device_bytes = peak_bytes + int(_SLACK_FRACTION * peak_bytes) + _outside_bytes(job.machine)
        gathers = Part.PARAMETERS in strategy.sharded
        tight = _TIGHT_SHARDED_FRACTION if gathers else _TIGHT_FRACTION
        spare_bytes = int(tight * peak_bytes)
    host_bytes = predicted.host_peak_bytes * len(job.machine.gpus)
    host_budget_bytes = _host_budget_bytes(job.machine, device_bytes)
    verdict = _verdict(device_bytes, spare_bytes, budget_bytes)
    if host_bytes and _verdict(host_bytes, 0, host_budget_bytes) is Verdict.DOES_NOT_FIT:
        verdict = Verdict.DOES_NOT_FIT
    return Weighed(
        estimate=predicted,
        verdict=verdict,
        device_bytes=device_bytes,
        budget_bytes=budget_bytes,
        host_bytes=host_bytes,
        host_budget_bytes=host_budget_bytes,
        wire_bytes_per_step=wire_bytes_per_step(
            job.model, job.workload, ranks, strategy, job.buffers, job.own_trace
        ),
    )


def weigh_all(job: Job) -> tuple[Weighed, ...]:
    """Every strategy, in the order of the ladder."""
    return tuple(weigh(job, strategy) for strategy in STRATEGIES)
