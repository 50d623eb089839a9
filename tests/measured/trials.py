"""The runs by which predictions are measured: what each trains, and the row that it becomes.

`measure.py` runs them on real ranks, each in a process of its own. A row can be run again.
"""

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import cast

from msgspec import Struct, field

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.own_config import read_own_config
from zerowiz.core.dsconfig.write import Handover, autocast_section, write_config
from zerowiz.core.job_end import samples_of, steady_step
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import (
    Accelerator,
    Machine,
    with_gpus,
    without_peer_to_peer,
)
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import Count, decode, encode, replace
from zerowiz.core.workload import (
    SETTINGS,
    SWITCHED,
    Integration,
    Loop,
    Method,
    Optimizer,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError

# What takes the step.


class OptimizerKernel(StrEnum):
    """What takes the step, by the names that measured rows have; KERNELS has a row of each."""

    ADAMW_FUSED = "torch AdamW fused=True"
    ADAMW_FOREACH = "torch AdamW foreach=True"
    ADAMW_CONFIG = "torch AdamW via config (torch_adam)"
    FUSED_ADAM = "FusedAdam"
    CPU_ADAM = "DeepSpeedCPUAdam"
    ADAMW_8BIT = "AdamW8bit"
    ADAFACTOR = "Adafactor"
    FUSED_LION = "FusedLion"
    CPU_LION = "DeepSpeedCPULion"
    SGD = "torch SGD"


class KernelRow(Struct, frozen=True, kw_only=True):
    """Whose steps a kernel takes, and who makes it."""

    optimizer: Optimizer
    op: str | None = None
    """What compiles it at first use (deepspeed/ops/op_builder)."""
    by_trainer: bool = True
    """Whether the Trainer can step with it: transformers has a name for it in `optim`."""
    section: Mapping[str, object] | None = None
    """The section of the config by which DeepSpeed makes it, where nobody else can."""


_TORCH_ADAM: dict[str, object] = {"lr": 1e-5, "torch_adam": True}
KERNELS: Mapping[OptimizerKernel, KernelRow] = {
    OptimizerKernel.ADAMW_FUSED: KernelRow(optimizer=Optimizer.ADAMW),
    OptimizerKernel.ADAMW_FOREACH: KernelRow(optimizer=Optimizer.ADAMW),
    OptimizerKernel.ADAMW_CONFIG: KernelRow(
        optimizer=Optimizer.ADAMW,
        section={"type": "AdamW", "params": _TORCH_ADAM},
    ),
    OptimizerKernel.FUSED_ADAM: KernelRow(optimizer=Optimizer.ADAMW, op="FusedAdamBuilder"),
    OptimizerKernel.CPU_ADAM: KernelRow(optimizer=Optimizer.ADAMW, op="CPUAdamBuilder"),
    OptimizerKernel.ADAMW_8BIT: KernelRow(optimizer=Optimizer.ADAMW_8BIT),
    OptimizerKernel.ADAFACTOR: KernelRow(optimizer=Optimizer.ADAFACTOR),
    OptimizerKernel.FUSED_LION: KernelRow(
        optimizer=Optimizer.LION, op="FusedLionBuilder", by_trainer=False
    ),
    OptimizerKernel.CPU_LION: KernelRow(
        optimizer=Optimizer.LION, op="CPULionBuilder", by_trainer=False
    ),
    OptimizerKernel.SGD: KernelRow(optimizer=Optimizer.SGD),
}
"""A launch without offload steps with the first of its optimizer."""
_ON_HOST = {Optimizer.LION: OptimizerKernel.CPU_LION}

OPS = {kernel: made.op for kernel, made in KERNELS.items() if made.op is not None}
"""What DeepSpeed compiles at first use, by the class that builds it."""

NOT_TRAINED = frozenset(
    {
        *("trainer", "reference", "completion_tokens", "generation_batch"),
        *("vllm_memory_fraction", "vllm_sleeps"),
    }
)
"""Settings of a step that the ranks here do not train with."""


def stepper_for(optimizer: Optimizer, offload: Offload) -> OptimizerKernel:
    """What a launch would step with; DeepSpeed steps on the CPU under offload."""
    if offload is not Offload.NONE:
        return _ON_HOST.get(optimizer, OptimizerKernel.CPU_ADAM)
    return next(kernel for kernel, row in KERNELS.items() if row.optimizer is optimizer)


# Rule: so much time halves what single steps of half a second say wrong; ranks take longer to start.
_TIMED_SECONDS = 5.0


def spread_fraction(samples_by_rank: Sequence[Sequence[float]]) -> float:
    """How far the steps of the slowest rank after the first third lie apart, of their median."""
    later = [samples[len(samples) // 3 :] for samples in samples_by_rank]
    slowest = max(later, key=statistics.median)
    return (max(slowest) - min(slowest)) / statistics.median(slowest)


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


Section = Mapping[str, object]


# Rule: enough that those after the first third take equally long. At stage 3 the third step of a
# run still took 0.39 of its second (median of 111 rows of `tests/measured/2026-11-*.jsonl`).
_STEADY, _SLOW_TO_STEADY = 6, 8
_MOST_TIMED_STEPS = 40
_SHARDED_WEIGHTS = 3


class Trial(Struct, frozen=True, kw_only=True):
    """One run to be measured: a training step, and what belongs to the job around it.

    As JSON it is flat, with the names of a measured row, so that a row can be run again.
    """

    model: str
    """What `--model` takes."""
    stage: Count
    workload: Workload = field(default_factory=Workload)
    id: str | None = None
    gpus: Count = 1
    ranks_on_one_gpu: Count = 1
    """That share each GPU: what torch allocates is true then, and no time is."""
    loop: Loop = field(default=Loop.ENGINE, name="kind")
    """A row has it as its kind."""
    kernel: OptimizerKernel = field(default=OptimizerKernel.ADAMW_FUSED, name="optimizer")
    """What takes the step; a row has it where the workload has its optimizer."""
    offload: Offload = Offload.NONE
    nvme_path: str | None = None
    hpz: bool | None = None
    quantized_weights: bool = False
    memory_budget_bytes: Count | None = None
    """What the plan may take of each GPU."""
    expandable_segments: bool = True
    memory_cap_bytes: Count | None = None
    """Of torch's allocator on each GPU: stands for a smaller card, whose free memory NVML still
    shows whole."""
    free_bytes: Count | None = None
    """What another process leaves of each GPU, as NVML shows it: DeepSpeed asks it in places."""
    nccl_p2p: bool = True
    steps: Count = 3
    """Whose memory is measured, phase by phase."""
    timed_steps: Count | None = None
    """That run freely after those; None takes as many as `count_timed_steps` says."""
    zero_optimization: Section | None = None
    """Keys beyond the stage over DeepSpeed's defaults; None takes what zerowiz would write."""
    bf16: Section = field(default_factory=dict)
    """Keys beyond `enabled`."""
    ds_config: Section | None = None
    """A whole config, taken as it is."""
    config: Section = field(default_factory=dict)
    """The content of config.json; empty where a hub id stands for it."""

    @property
    def free_steps(self) -> int:
        """How many steps run freely at least."""
        if self.timed_steps is not None:
            return self.timed_steps
        # ZeRO-3 gathers by the order that it saw in its first steps, and offload fills its buffers.
        slow = self.stage == _SHARDED_WEIGHTS or self.offload is not Offload.NONE
        return _SLOW_TO_STEADY if slow else _STEADY

    @property
    def most_free_steps(self) -> int:
        """How many steps run freely at most."""
        return _MOST_TIMED_STEPS if self.timed_steps is None else self.timed_steps

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, count in (("gpus", self.gpus), ("steps", self.steps)):
            if count < 1:
                raise UsageError(f"`{name}` must be at least 1")
        changed = [n for n in self.workload.changed() if n in NOT_TRAINED]
        if changed:
            named = " and ".join(f"`${name}`" for name in changed)
            raise UsageError(
                f"`measure` cannot train with {named}",
                f"remove {named}",
            )
        if self.loop is not Loop.TRAINER:
            if self.workload.sequence_parallel > 1 or self.workload.eval_batch:
                raise UsageError(
                    "ranks share sequences, and evaluate, with the Trainer only",
                    'add `"kind": "trainer"`',
                )
            return
        if not KERNELS[self.kernel].by_trainer:
            raise UsageError(
                f"the Trainer cannot use `{self.kernel}`",
                "remove `kind` from the case",
            )
        if self.workload.packing:
            raise UsageError(
                "`measure` cannot pack sequences with the Trainer", "remove `$packing`"
            )


class _Adapters(Struct, frozen=True, kw_only=True):
    """How a row says the method: adapters by their rank, and whether their base has 4 bits."""

    lora_rank: Count | None = None
    quantized: bool = False

    def __post_init__(self) -> None:
        if self.quantized and self.lora_rank is None:
            raise UsageError("`quantized` trains LoRA adapters: add a `lora_rank`")


# A row says these in its own way, or not at all.
_NOT_FLAT = frozenset({"optimizer", "optimizer_fused", "optimizer_state_dtype"})
_OF_METHOD = frozenset({"method", "lora_rank"})
_FLAT = tuple(n for n in Workload.__struct_fields__ if n not in _NOT_FLAT | _OF_METHOD)


def decode_trial(value: object, path: str) -> Trial:
    """The trial that JSON values describe; keys it does not know, such as a row's, are left alone.

    Raises:
        UsageError: A key is missing or holds something else.
    """
    known = value.items() if isinstance(value, Mapping) else ()
    fields = {name: each for name, each in known if each is not None}
    step = {name: fields[name] for name in _FLAT if name in fields}
    adapters = decode(_Adapters, fields, path)
    if adapters.lora_rank is not None:
        method = Method.QLORA if adapters.quantized else Method.LORA
        step |= {"method": method.value, "lora_rank": adapters.lora_rank}
    fields.pop("workload", None)
    trial = decode(Trial, fields or value, path)
    workload = decode(Workload, step, path)
    stepped = replace(
        workload,
        optimizer=KERNELS[trial.kernel].optimizer,
        optimizer_fused=trial.kernel is not OptimizerKernel.ADAMW_FOREACH,
    )
    return replace(trial, workload=stepped)


def encode_trial(trial: Trial) -> dict[str, object]:
    """The trial as JSON has it, flat."""
    whole = cast("dict[str, object]", encode(trial))
    step = cast("dict[str, object]", whole.pop("workload"))
    adapters = trial.workload.method is not Method.FULL
    return {
        **whole,
        **{name: step[name] for name in _FLAT},
        "lora_rank": trial.workload.lora_rank if adapters else None,
        "quantized": trial.workload.method is Method.QLORA,
    }


def decode_trials(value: object) -> tuple[Trial, ...]:
    """A list of trials, each with an id; those that need no compiled op first.

    Raises:
        UsageError: It is no list, or one of them is no trial.
    """
    if not isinstance(value, list) or not value:
        raise UsageError(
            "the cases must be a JSON list of objects",
            '`[{"model": "10m", "stage": 2}]`',
        )
    trials = [decode_trial(trial, f"cases[{place}]") for place, trial in enumerate(value)]
    named = [replace(t, id=t.id or f"case-{place}") for place, t in enumerate(trials)]
    return tuple(sorted(named, key=lambda trial: trial.kernel in OPS))


class PlannedTrial(Struct, frozen=True, kw_only=True):
    """A trial with the config that it runs with, and the job that is predicted, if one can be."""

    trial: Trial
    ds_config: Section
    job: Job | None
    strategy: StrategyRow | None

    @property
    def ds_config_stage(self) -> object:
        """The stage that the config says."""
        zero = self.ds_config.get("zero_optimization")
        return zero.get("stage", 0) if isinstance(zero, Mapping) else 0

    def as_case(self) -> dict[str, object]:
        """The trial as the ranks read it."""
        free = {
            "least_timed_steps": self.trial.free_steps,
            "most_timed_steps": self.trial.most_free_steps,
        }
        return {**encode_trial(self.trial), **free, "ds_config": self.ds_config}


def _find_strategy(stage: int | None, offload: str | None) -> StrategyRow | None:
    strategies = (
        strategy
        for strategy in STRATEGIES
        if (strategy.stage, strategy.offload.value) == (stage, offload)
    )
    return next(strategies, None)


def strategy_of(trial: Trial) -> StrategyRow | None:
    """The strategy that the trial's plain fields name; None where zerowiz has none like it."""
    return _find_strategy(trial.stage, trial.offload)


_OFFLOADED: Section = {"device": "cpu", "pin_memory": True}


# The Trainer allows any by itself, and Accelerate swaps it under offload.
_OWN_OPTIMIZER: Section = {
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}


def _bare_config(trial: Trial) -> dict[str, object]:
    """DeepSpeed's own defaults beyond what the trial says."""
    zero: dict[str, object] = {"stage": trial.stage}
    if trial.offload is not Offload.NONE:
        zero["offload_optimizer"] = dict(_OFFLOADED)
    if trial.offload is Offload.ALL:
        zero["offload_param"] = dict(_OFFLOADED)
    autocast = trial.workload.torch_autocast
    return {
        "train_micro_batch_size_per_gpu": trial.workload.micro_batch,
        "gradient_accumulation_steps": trial.workload.accumulation_steps,
        "gradient_clipping": 1.0,
        **{name.value: {"enabled": trial.workload.precision is name} for name in SWITCHED},
        **({} if autocast is None else autocast_section(autocast)),
        "zero_optimization": zero,
        **({} if trial.loop is Loop.TRAINER else _OWN_OPTIMIZER),
    }


def _with_section(config: dict[str, object], key: str, values: Section) -> None:
    there = config.get(key)
    config[key] = {**(there if isinstance(there, Mapping) else {}), **values}


def _own_config(trial: Trial, base: dict[str, object]) -> dict[str, object]:
    """The base with what the trial adds."""
    _with_section(base, "zero_optimization", trial.zero_optimization or {})
    _with_section(base, "bf16", trial.bf16)
    # At DeepSpeed's own 2^16 the first steps overflow and are skipped, so no states appear.
    _with_section(base, "fp16", {"initial_scale_power": 8})
    if section := KERNELS[trial.kernel].section:
        base["optimizer"] = section
    if trial.kernel is OptimizerKernel.FUSED_ADAM and trial.loop is Loop.TRAINER:
        base["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    step = trial.workload
    if step.tensor_parallel > 1:
        base["tensor_parallel"] = {"autotp_size": step.tensor_parallel}
    if step.expert_parallel > 1:
        base["expert_parallel"] = {"enabled": True, "autoep_size": step.expert_parallel}
        # DeepSpeed makes the groups of experts only for an optimizer that it makes itself.
        base["optimizer"] = {"type": "AdamW", "params": _TORCH_ADAM | {"fused": True}}
    return base


# Who hands the config to DeepSpeed.
INTEGRATIONS: Mapping[Loop, Integration] = {
    Loop.ENGINE: Integration.DEEPSPEED,
    Loop.TRAINER: Integration.HF,
}


def plan_trial(
    trial: Trial,
    machine: Machine,
    model: Model | str,
    traced: Traced | None = None,
    rates: GpuModel | None = None,
) -> PlannedTrial:
    """The config of a trial, and the job as the estimator sees it.

    Args:
        trial: What is to be run.
        machine: What it runs on, with as many GPUs or more.
        model: The model as it is counted, or why it cannot be.
        traced: A trace of the model, whose activations are then predicted.
        rates: Of each GPU, where they are known.
    """
    if isinstance(model, str):
        ds_config = trial.ds_config or _own_config(trial, _bare_config(trial))
        return PlannedTrial(trial=trial, ds_config=ds_config, job=None, strategy=None)
    chosen = with_gpus(machine, trial.gpus)
    half = trial.bf16.get("bf16_optimizer_states") is True
    job = Job(
        machine=chosen if trial.nccl_p2p else without_peer_to_peer(chosen),
        model=model,
        workload=trial.workload,
        state_dtype=StateDtype.BF16 if half else None,
        budget_bytes=trial.memory_budget_bytes or trial.free_bytes,
        traced=traced,
        rates=rates,
        expandable_segments=trial.expandable_segments,
        nvme_path=trial.nvme_path,
        hpz=trial.hpz,
        quantized_weights=trial.quantized_weights,
    )
    strategy = strategy_of(trial)
    if strategy is not None and trial.zero_optimization is None:
        # What zerowiz writes for a loop that brings its optimizer.
        integration = INTEGRATIONS[trial.loop]
        base = write_config(job, evaluate(job, strategy), Handover(integration=integration))
    else:
        base = _bare_config(trial)
    config = trial.ds_config or _own_config(trial, base)
    own_config = read_own_config(config)
    strategy = _find_strategy(own_config.stage, own_config.offload)
    if own_config.buffers is not None and own_config.buffers.keeps_gradients:
        strategy = strategy or _find_strategy(2, own_config.offload)
    return PlannedTrial(
        trial=trial,
        ds_config=config,
        job=replace(job, own_buffers=own_config.buffers, state_dtype=own_config.state_dtype),
        strategy=strategy,
    )


_CPU_COLLECTIVES, _NVME = "ShareMemCommBuilder", "AsyncIOBuilder"


def ops_of(trials: Sequence[Trial], accelerator: Accelerator) -> tuple[str, ...]:
    """The builders of what DeepSpeed compiles for these trials."""
    needed = [OPS[trial.kernel] for trial in trials if trial.kernel in OPS]
    drives = [_NVME] if any(trial.nvme_path is not None for trial in trials) else []
    collectives = [_CPU_COLLECTIVES] if accelerator is Accelerator.CPU else []
    return tuple(dict.fromkeys(collectives + needed + drives))


# What the ranks reported becomes a row.

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


# Why a case was killed, and how an error says it (`ranks.py`, KillReason).
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


def _memory(
    first: Report, ends: Sequence[TrialEnd], *, ok: bool, shared: bool
) -> dict[str, object]:
    """The sizes of rank 0, and the peak of every rank."""
    names = (
        *("peak_reserved_bytes", "context_bytes", "context_and_nccl_bytes"),
        *("device_used_outside_allocator_bytes", "allocator_retries", "step_seconds"),
        "host_peak_rss_bytes",
    )
    # CUDA counts what all ranks of a GPU take.
    shown = {name: first.get(name) for name in names}
    if shared:
        shown |= dict.fromkeys(name for name in names if "context" in name or "outside" in name)
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
        **shown,
        "rank_peaks": rank_peaks,
    }


def _times(first: Report, ends: Sequence[TrialEnd]) -> dict[str, object]:
    """What the steps took that ran freely, on every rank, and the host's share of it."""
    names = ("timed_step_seconds", "timed_peak_bytes", "timed_allocator_retries")
    samples = [samples_of(end.report) for end in ends]
    steady = steady_step(samples)
    seconds = [end.seconds for end in ends if end.seconds is not None]
    return {
        **{key: first.get(key) for key in names},
        "steady_step_seconds": steady,
        "steady_step_spread": None if steady is None else round(spread_fraction(samples), 4),
        "rank_times": [
            {"rank": end.rank, **{key: end.report.get(key) for key in names}} for end in ends
        ],
        "cpu_cores": first.get("cpu_cores"),
        "cpu_threads": first.get("cpu_threads"),
        "cores_bound": first.get("cores_bound"),
        "python_call_seconds": first.get("python_call_seconds"),
        "case_seconds": max(seconds, default=None),
    }


_ONLY_IF_SET: Mapping[str, int | None] = {
    "free_bytes": None,
    "ranks_on_one_gpu": 1,
    "tensor_parallel": 1,
    "expert_parallel": 1,
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
        **{key: flat[key] for key in (*SETTINGS, "every_n_layers", "quantized") if key in flat},
        **_sections(trial, planned.ds_config),
        "expandable_segments": (trial.expandable_segments if seen is None else seen) and on_cuda,
        "memory_cap_bytes": trial.memory_cap_bytes if on_cuda else None,
        **{name: flat[name] for name, unset in _ONLY_IF_SET.items() if flat[name] != unset},
        "nccl_p2p": trial.nccl_p2p if on_cuda else None,
        "versions": first.get("versions"),
        "trainable_params": first.get("trainable_params"),
        "steps": trial.steps,
        "timed_steps": trial.free_steps,
        "ok": ok,
        "oom_phase": died[0] if died else None,
        "error": None if ok or died else _error(ends),
        "wrapper": first.get("wrapper"),
        **{name: first.get(name) for name in ("losses", "gradient_norms") if name in first},
        **_memory(first, ends, ok=ok, shared=trial.ranks_on_one_gpu > 1),
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


def measured_step(row: Report) -> float | None:
    """The steady step of the row; None for a row that was made before steps ran freely."""
    ranks = cast("Sequence[Report]", row.get("rank_times") or ())
    return steady_step([samples_of(rank) for rank in ranks])
