"""A training run to be measured: what it trains, and the config that DeepSpeed gets for it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct, field

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.own_config import read_own_config
from zerowiz.core.dsconfig.write import Handover, autocast_section, write_config
from zerowiz.core.machine.interconnect import without_peer_to_peer
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.speed.costs import GpuRates, StepTime
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import Count, decode, encode, replace
from zerowiz.core.workload import (
    KERNELS,
    OPTIMIZERS,
    SETTINGS,
    SWITCHED,
    Integration,
    Loop,
    Method,
    Optimizer,
    OptimizerKernel,
    StateDtype,
    Workload,
)
from zerowiz.errors import UsageError

# What takes the step.

OPS = {kernel: made.op for kernel, made in KERNELS.items() if made.op is not None}
"""What DeepSpeed compiles at first use, by the class that builds it."""


def stepper_for(optimizer: Optimizer, offload: Offload) -> OptimizerKernel:
    """What a launch would step with; DeepSpeed steps on the CPU under offload."""
    row = OPTIMIZERS[optimizer]
    return next(iter(row.kernels)) if offload is Offload.NONE else row.host_kernel


# What steps took that ran freely, and the prediction of it.

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
    if not samples_by_rank or any(len(sample) < _LEAST_STEPS for sample in samples_by_rank):
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
    """Of torch's allocator on each GPU: stands for a smaller card."""
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
        changed = [n for n in self.workload.changed() if not SETTINGS[n].measurable]
        if changed:
            named = " and ".join(f"`${name}`" for name in changed)
            raise UsageError(
                f"`measure` cannot train with {named}",
                f"remove {named}",
            )
        if self.loop is not Loop.TRAINER:
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
    fields = dict(value) if isinstance(value, Mapping) else {}
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
        optimizer=next(name for name, row in OPTIMIZERS.items() if trial.kernel in row.kernels),
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
    unpredicted: str | None
    """Why there is no prediction."""

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
    rates: GpuRates | None = None,
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
        return PlannedTrial(
            trial=trial, ds_config=ds_config, job=None, strategy=None, unpredicted=model
        )
    chosen = with_gpus(machine, trial.gpus)
    half = trial.bf16.get("bf16_optimizer_states") is True
    job = Job(
        machine=chosen if trial.nccl_p2p else without_peer_to_peer(chosen),
        model=model,
        workload=trial.workload,
        state_dtype=StateDtype.BF16 if half else None,
        budget_bytes=trial.memory_budget_bytes,
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
    return PlannedTrial(
        trial=trial,
        ds_config=config,
        job=replace(job, own_buffers=own_config.buffers, state_dtype=own_config.state_dtype),
        strategy=strategy,
        unpredicted=None if strategy else "no strategy has this stage and offload",
    )


_CPU_COLLECTIVES, _NVME = "ShareMemCommBuilder", "AsyncIOBuilder"


def ops_of(trials: Sequence[Trial], accelerator: Accelerator) -> tuple[str, ...]:
    """The builders of what DeepSpeed compiles for these trials."""
    needed = [OPS[trial.kernel] for trial in trials if trial.kernel in OPS]
    drives = [_NVME] if any(trial.nvme_path is not None for trial in trials) else []
    collectives = [_CPU_COLLECTIVES] if accelerator is Accelerator.CPU else []
    return tuple(dict.fromkeys(collectives + needed + drives))


_LLAMA_KEYS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "tie_word_embeddings": "tied_embeddings",
}


def config_of_size(model: Model) -> dict[str, object]:
    """The config.json of the Llama that stands for a size; empty for a model that has its own."""
    if model.source is not ModelSource.SIZE:
        return {}
    values = {key: getattr(model.architecture, name) for key, name in _LLAMA_KEYS.items()}
    # A toy's vocabulary can be smaller than the ids that LlamaConfig names by default.
    ids: dict[str, object] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **values, **ids}
