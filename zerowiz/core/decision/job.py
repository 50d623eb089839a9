"""Everything that the strategies of a job are evaluated with."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import combinations

from msgspec import Struct

from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.activations import is_fused, masks_all, masks_window, runs_eager
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, fit_buffers
from zerowiz.core.memory.host import HostUse, fit_sub_group
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.memory.rank_sizes import trainable_params
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.speed.costs import Calibration
from zerowiz.core.speed.step_time import why_untimed
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import (
    Accounting,
    Attention,
    Loss,
    Method,
    Precision,
    StateDtype,
    Trainer,
    Uncounted,
    Workload,
)
from zerowiz.errors import UsageError

# Say which settings of a job no measured run had together.
#
# A formula is held to the runs that were measured. Where each of two settings was measured, and
# never both in one run, what they do to each other is unknown: such a job stands in a hole.


class PairedSetting(StrEnum):
    """The settings whose values are looked at in pairs, in the order in which they are named."""

    FAMILY = "family"
    STRATEGY = "strategy"
    ACCUMULATION = "accumulation"
    CHECKPOINTING = "checkpointing"
    METHOD = "method"
    OPTIMIZER = "optimizer"
    GPUS = "gpus"


Point = Mapping[PairedSetting, str]
"""The value of each setting."""
Pair = tuple[tuple[PairedSetting, str], tuple[PairedSetting, str]]
"""Two settings, each with its value."""

# From so many micro-steps on, and from two on: what they do differs by how often, not by how.
_MANY_MICRO_STEPS = 8
_SOME_MICRO_STEPS = 2


def accumulation_of(micro_steps: int) -> str:
    """One, some or many micro-steps, by the least of them."""
    if micro_steps >= _MANY_MICRO_STEPS:
        return str(_MANY_MICRO_STEPS)
    return str(min(micro_steps, _SOME_MICRO_STEPS))


def point_of(family: str, strategy: Strategy, workload: Workload, gpus: int) -> Point:
    """The values of a job or of a run."""
    return {
        PairedSetting.FAMILY: family,
        PairedSetting.STRATEGY: strategy.name,
        PairedSetting.ACCUMULATION: accumulation_of(workload.accumulation_steps),
        PairedSetting.CHECKPOINTING: "on" if workload.gradient_checkpointing else "off",
        PairedSetting.METHOD: workload.method.value,
        PairedSetting.OPTIMIZER: workload.optimizer.value,
        PairedSetting.GPUS: str(min(gpus, 2)),
    }


def find_never_together(point: Point, measured: frozenset[Pair]) -> tuple[Pair, ...]:
    """The pairs that no run had, of values that some run had: one that none had is a doubt itself.

    Args:
        point: The values of a job.
        measured: Every pair that some run had.
    """
    return _missing(tuple((name, point[name]) for name in PairedSetting if name in point), measured)


# A search asks the same of each micro-batch.
@lru_cache(maxsize=256)
def _missing(
    values: tuple[tuple[PairedSetting, str], ...], measured: frozenset[Pair]
) -> tuple[Pair, ...]:
    missing = [pair for pair in combinations(values, 2) if pair not in measured]
    if not missing:
        return ()
    known = {value for pair in measured for value in pair}
    return tuple(pair for pair in missing if known.issuperset(pair))


# Learn from an attempt that ran out of memory, so that the next one does not repeat it.
#
# What ran out with so much memory needs more than that, and so does every strategy that is
# predicted to need as much.


class RanOut(Struct, frozen=True, kw_only=True):
    """An attempt at a job that ran out of memory."""

    strategy: str
    memory: MemoryKind
    """Which memory was too small."""


@shows("machine", "model", "workload.micro_batch", "workload.sequence_tokens")
class Job(Struct, frozen=True, kw_only=True):
    """Everything that a strategy is evaluated with."""

    machine: Machine
    model: Model
    workload: Workload
    accounting: Accounting = Accounting.REAL
    state_dtype: StateDtype | None = None
    """What the user set; None leaves each accounting its own default."""
    budget_bytes: int | None = None
    """Of each GPU; None takes what is free."""
    own_buffers: Buffers | None = None
    """Of the user's own config; None fits them to the model."""
    traced: Traced | None = None
    """A trace of the model, whose activations then replace the analytic ones."""
    expandable_segments: bool = True
    """Whether torch's allocator grows its segments, as the launch asks it to."""
    nvme_path: str | None = None
    """The folder that states are offloaded to; None keeps them in host memory."""
    hpz: bool | None = None
    """Whether each node keeps a copy of the weights (stage 3); None decides by the network."""
    quantized_weights: bool = False
    """Whether stage 3 gathers the weights in int8."""
    host_use: HostUse = HostUse()
    """What the script does with the memory of its nodes, or is assumed to do."""
    ran_out: tuple[RanOut, ...] = ()
    """The runs that ran out of memory here before."""
    uncounted: tuple[Uncounted, ...] = ()
    """What the script, or the person's own config, was seen to hold besides."""
    measured_pairs: frozenset[Pair] = frozenset()
    """The settings that measured runs had together; empty asks nothing of them."""
    rates: GpuModel | None = None
    """Of each GPU; None where no table knows it, and no time is predicted."""
    calibration: Calibration | None = None
    """What was learned from steps that were measured on this machine."""

    def __post_init__(self) -> None:
        """Refuse what the model or the accounting cannot do."""
        refuse_length(self.model, self.workload.sequence_tokens)
        by_rule = self.accounting is Accounting.TEXTBOOK
        if by_rule and self.workload.method is not Method.FULL:
            raise UsageError(
                f"`$accounting textbook` has no rule for `$method {self.workload.method}`",
                "remove `$accounting textbook` to count what DeepSpeed allocates",
            )
        self._refuse_uncounted_step()
        shared = self.workload.sequence_parallel
        reason = None if shared == 1 else why_not_shared(self, shared)
        if reason is not None:
            others = " or ".join(f"`$sequence_parallel {n}`" for n in (list_shared(self) or (1,)))
            raise UsageError(f"`$sequence_parallel {shared}`: {reason}", f"use {others}")
        if self.workload.shares_weights:
            self._refuse_uncut_weights()

    def _refuse_uncounted_step(self) -> None:
        """Some losses and packed rows are counted for some models alone."""
        a, w, counted = self.model.architecture, self.workload, self.is_counted_decoder
        family = FAMILIES.get(a.family)
        asked = {
            f"$loss {w.loss}": (w.loss is not Loss.PLAIN, counted),
            "$loss liger": (LOSS_ROWS[w.loss].has_liger, family is not None and family.liger),
            "$packing": (w.packing, counted and family is not None and family.packable),
        }
        for words, (is_asked, is_known) in asked.items():
            if is_asked and not is_known:
                raise UsageError(
                    f"`{words}` cannot be predicted for `{self.model.name}` ({a.family})",
                    f"remove `{words}` to get an upper bound",
                )

    def _refuse_uncut_weights(self) -> None:
        """Some models alone are cut or dealt out evenly, or have formulas for it.

        deepspeed 0.19.8, module_inject/auto_tp.py and auto_ep_config.py, and transformers 5.23,
        `base_model_tp_plan`: uneven heads are cut so, too, but have no formulas here.
        """
        a, w, ranks = self.model.architecture, self.workload, self.machine.world_size
        cut, dealt = w.tensor_parallel, w.expert_parallel
        key = "tensor_parallel.autotp_size" if cut > 1 else "expert_parallel.autoep_size"
        is_plain = w.method is Method.FULL and w.trainer is Trainer.SFT
        layers = {tensor.name for tensor in self.model.tensors}
        is_known = {"q_proj", "o_proj", "up_proj"} <= layers and not a.experts
        ways = (cut > 1) + (dealt > 1) + (w.sequence_parallel > 1)
        # The first that holds is said.
        reasons = {
            "zerowiz has no formulas for adapters with it, or another trainer": not is_plain,
            "`$accounting textbook` has no rule for it": self.accounting is not Accounting.REAL,
            "zerowiz plans one way to share at a time": ways > 1,
            "zerowiz does not know how `{name}` ({a.family}) is cut": not self.is_counted_decoder
            or (cut > 1 and not is_known),
            "releases of transformers differ on the embedding of `{name}`, which is its head": (
                cut > 1 and a.tied_embeddings
            ),
            "the job has {ranks} ranks": ranks % (cut * dealt),
            "`{name}` has {a.heads} attention and {a.kv_heads} key-value heads": (
                a.heads % cut or a.kv_heads % cut
            ),
            "the layers of `{name}` are {a.intermediate_size} wide": a.intermediate_size % cut,
            "`{name}` has {experts} experts": dealt > 1 and (not a.experts or a.experts % dealt),
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        if reason is not None:
            said = reason.format(name=self.model.name, a=a, ranks=ranks, experts=a.experts or "no")
            raise UsageError(
                f"`{key}` of the config is {max(cut, dealt)}: {said}",
                "write a size that divides them, or remove it from the config",
            )

    @property
    def global_batch(self) -> int:
        """Sequences of an optimizer step, on all ranks together."""
        step = self.workload
        replicas = step.replicas(self.machine.world_size)
        return step.micro_batch * step.accumulation_steps * replicas

    @property
    def own_trace(self) -> Traced | None:
        """The trace, unless it is of another model: a remedy may have put one in its place."""
        if self.traced is not None and self.traced.params == self.model.params:
            return self.traced
        return None

    @property
    def is_counted_decoder(self) -> bool:
        """Whether formulas, and no trace, count a causal model."""
        family = FAMILIES.get(self.model.architecture.family)
        return family is not None and family.causal and self.own_trace is None

    @property
    def counted_workload(self) -> Workload:
        """The step with the optimizer states that DeepSpeed keeps for it."""
        dtype = self.state_dtype or StateDtype.FP32
        return replace(self.workload, optimizer_state_dtype=dtype)

    @property
    def state_format(self) -> str:
        """The number format that the optimizer states are counted in."""
        if self.state_dtype is not None:
            return self.state_dtype.value
        by_rule = self.accounting is Accounting.TEXTBOOK
        return self.workload.precision.value if by_rule else StateDtype.FP32.value

    def buffers(self, strategy: Strategy) -> tuple[Buffers, ...]:
        """The communication buffers that the config may have, the fastest first."""
        if self.own_buffers is not None:
            return (self.own_buffers,)
        trainable = trainable_params(self.model, self.workload)
        fitted = fit_buffers(self.model, trainable, strategy)
        moved = strategy.shards_weights and strategy.offload is not Offload.NONE
        if self.nvme_path is not None and moved:
            group = fit_sub_group(DEEPSPEED_DEFAULTS.sub_group_size, self.machine.world_size)
            fitted = tuple(replace(b, on_nvme=True, sub_group_size=group) for b in fitted)
        ranks_of_a_node = len(self.machine.gpus)
        if ranks_of_a_node == 1 or not self._may_copy(strategy):
            return fitted
        copied = tuple(replace(buffers, hpz_partition_size=ranks_of_a_node) for buffers in fitted)
        return copied if self.hpz else (*copied, *fitted)

    def _may_copy(self, strategy: Strategy) -> bool:
        """Whether each node may keep a copy of the weights; by default, between slow nodes."""
        if not strategy.shards_weights or self.hpz is False:
            return False
        apart = self.machine.nodes > 1 and not self.machine.network.is_fast
        return bool(self.hpz) or (apart and strategy.offload is Offload.NONE)

    @property
    def why_untimed(self) -> str:
        """Why no time of a step is known, where none is."""
        return why_untimed(self.model, self.workload, self.machine, self.rates)

    @property
    def gpu_budget_bytes(self) -> int | None:
        """What a rank may take on its device; never more than is free."""
        free_bytes = self.machine.free_bytes
        if self.budget_bytes is None or free_bytes is None:
            return free_bytes if self.budget_bytes is None else self.budget_bytes
        return min(self.budget_bytes, free_bytes)


def longest_tokens(model: Model) -> int | None:
    """The longest sequence that the model has learned positions for; None where any will do."""
    family = FAMILIES.get(model.architecture.family)
    is_bound = family is not None and family.learned_positions
    return model.architecture.positions if is_bound else None


def refuse_length(model: Model, tokens: int) -> None:
    """See that the model has positions for a sequence.

    Raises:
        UsageError: It has fewer.
    """
    positions = longest_tokens(model)
    if positions is not None and tokens > positions:
        raise UsageError(
            f"`$sequence_tokens {tokens}`: `{model.name}` has only {positions} learned positions",
            f"use at most `$sequence_tokens {positions}`",
        )


def why_not_shared(job: Job, ranks: int) -> str | None:
    """Why so many ranks cannot share each sequence, or have no formulas here; None where they can.

    deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py: the heads, the length, and that it
    drops masks; accelerate 1.15, accelerator.py, _prepare_deepspeed: the kernel, and no recurrent
    layers; transformers 5.23, trainer.py, compute_loss: one trainer. torch 2.13, distributed/nn/
    functional.py: gloo takes the numbers of ranks in a group for those of all.
    """
    a, w, machine, name = job.model.architecture, job.workload, job.machine, job.model.name
    if not job.is_counted_decoder or job.accounting is not Accounting.REAL:
        return f"zerowiz has no formulas for that with `{name}` ({a.family})"
    gpus, tokens, kv_heads = len(machine.gpus), w.sequence_tokens, a.kv_heads
    # The heads of a size are those of a stand-in.
    known = job.model.source is not ModelSource.SIZE
    reasons = {
        f"`$trainer {w.trainer}` cannot compute its loss of parts": w.trainer is not Trainer.SFT,
        f"a node has {gpus} {'GPU' if gpus == 1 else 'GPUs'}": gpus % ranks,
        "on CPUs, all ranks have to share each sequence": (
            machine.accelerator.row.on_host and machine.world_size != ranks
        ),
        f"`{name}` has {a.heads} attention heads": known and a.heads % ranks,
        f"`{name}` has {kv_heads} key-value heads": (
            known and kv_heads % ranks and ranks % kv_heads
        ),
        f"a sequence has {tokens} tokens": tokens % ranks,
        "it does not go with eager attention": runs_eager(a, w),
        f"no fused kernel takes the heads of `{name}` in {w.precision}": not is_fused(a, w),
        "it drops the masks of packed rows and windows, which `$attention flash` does without": (
            masks_all(a, w) or (a.sliding_layers and masks_window(a, w))
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def list_shared(job: Job) -> tuple[int, ...]:
    """How many ranks of a node can share each sequence, the fewest first."""
    return tuple(n for n in range(2, len(job.machine.gpus) + 1) if not why_not_shared(job, n))


def shared_by(workload: Workload, ranks: int) -> Workload:
    """The workload with so many ranks for each sequence, and the global batch that it has."""
    steps = workload.accumulation_steps * ranks // workload.sequence_parallel
    return replace(workload, sequence_parallel=ranks, accumulation_steps=steps)


# Choose the number format of a step by what the machine computes natively.

# deepspeed/accelerator/cuda_accelerator.py, is_fp16_supported (0.19.8).
_FP16_CAPABILITY = (7, 0)


def native_precision(machine: Machine, torch_autocast: Precision | None = None) -> Precision:
    """The precision of a job that names none: bf16, or what the machine computes in its place.

    A GPU without bf16 has fp16, which DeepSpeed refuses on the oldest GPUs and on most CPUs.

    Args:
        machine: What the job runs on.
        torch_autocast: What forward computes in, where that was asked for; weights stay in fp32.
    """
    if torch_autocast is not None:
        return Precision.FP32
    if machine.takes_bf16:
        return Precision.BF16
    lacks_fp16 = (machine.compute_capability or _FP16_CAPABILITY) < _FP16_CAPABILITY
    return Precision.FP32 if machine.accelerator.row.on_host or lacks_fp16 else Precision.FP16


def why_no_bf16(machine: Machine, workload: Workload) -> str:
    """What to add to a default precision that is fp32 because of the CPU; else nothing."""
    lacks = machine.accelerator.row.on_host and not machine.takes_bf16
    chosen = workload.precision is Precision.FP32 and workload.torch_autocast is None
    return ", as this CPU has no bf16 instructions" if lacks and chosen else ""


def bf16_emulated(machine: Machine, workload: Workload) -> str:
    """What becomes of the bf16 of this step, where the machine has none; else nothing."""
    formats = {workload.precision, workload.torch_autocast}
    if machine.takes_bf16 or Precision.BF16 not in formats:
        return ""
    if machine.accelerator.row.on_host:
        return "this CPU has no bf16 instructions: torch emulates bf16, many times slower"
    gpu = min(machine.gpus, key=lambda gpu: gpu.compute_capability or (99, 0))
    return f"`{gpu.name}` has no bf16 units: torch emulates bf16, many times slower"


# What a search may choose, and what it looks for.


class Objective(StrEnum):
    """The values of `--objective`."""

    FLOWCHART = "flowchart"
    """The strategy of the flowchart; the batch is split so that it is fastest."""
    FASTEST = "fastest"
    """The least predicted time of a step, whatever the strategy."""
    SMALLEST = "smallest"
    """The least memory of each device."""


class OpenSettings(Struct, frozen=True, kw_only=True):
    """The settings of a job that nobody decided, and that reach the ranks if they are chosen.

    What is said on a command line, in a config or in a script stays as it is. The global batch is
    never open: micro-batch times accumulation steps stays what it is in the job.
    """

    split: bool = False
    """The micro-batch, and with it the accumulation steps."""
    checkpointing: tuple[bool, ...] = ()
    """Whether gradient checkpointing could be on, or off, instead of as in the job."""
    attention: tuple[Attention, ...] = ()
    """The kernels that could be taken instead of the job's."""
    losses: tuple[Loss, ...] = ()
    """The losses that could be taken instead of the job's."""
    shared: tuple[int, ...] = ()
    """How many ranks could share each sequence, with as many times the micro-steps."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a search may choose, by its names in options and in the step."""
        is_open = {
            "micro_batch": self.split,
            "accumulation_steps": self.split or self.shared,
            "sequence_parallel": self.shared,
            "gradient_checkpointing": self.checkpointing,
            "attention": self.attention,
            "loss": self.losses,
        }
        return tuple(name for name, others in is_open.items() if others)

    def values(self, step: Workload) -> Mapping[str, object]:
        """What a step has of all that may be chosen."""
        return {name: getattr(step, name) for name in self.names}
