"""Evaluate each strategy on the machine: what it needs, what there is, and a verdict."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.decision.oom_history import RanOut, job_key
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.allocator import margin, outside_bytes
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, fit_buffers
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.memory.nvme import fit_sub_group
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes, trainable_params
from zerowiz.core.memory.rule_of_thumb import rule_of_thumb_estimate
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Model
from zerowiz.core.speed.communication import wire_bytes_per_step
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload, Part, Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload import Accounting, Loss, Method, StateDtype, Workload
from zerowiz.errors import UsageError


class Verdict(StrEnum):
    """Whether a strategy fits on this machine."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


class PlanInput(Struct, frozen=True, kw_only=True):
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
    ran_out: tuple[RanOut, ...] = ()
    """The runs that ran out of memory here before."""

    def __post_init__(self) -> None:
        """Refuse what the model or the accounting cannot do."""
        a, tokens = self.model.architecture, self.workload.sequence_tokens
        known = FAMILIES.get(a.family)
        if known is not None and known.learned_positions and tokens > a.positions:
            raise UsageError(
                f"`$sequence_tokens {tokens}`: `{self.model.name}` has {a.positions}"
                " learned positions"
            )
        by_rule = self.accounting is Accounting.TEXTBOOK
        if by_rule and self.workload.method is not Method.FULL:
            raise UsageError(
                f"`$accounting textbook` knows no `$method {self.workload.method}`",
                "drop `$accounting textbook` for what DeepSpeed really allocates",
            )
        self._refuse_uncounted_step()

    def _refuse_uncounted_step(self) -> None:
        """Some losses and packed rows are counted for some models alone."""
        a, w = self.model.architecture, self.workload
        family = FAMILIES.get(a.family)
        decodes = family is not None and family.causal and not a.encoder_layers
        counted = decodes and self.own_trace is None
        asked = {
            f"$loss {w.loss}": (w.loss is not Loss.PLAIN, counted),
            "$loss liger": (w.loss is Loss.LIGER, family is not None and family.liger),
            "$packing": (w.packing, counted and family is not None and family.packable),
        }
        for words, (said, known) in asked.items():
            if said and not known:
                raise UsageError(
                    f"`{words}` is not counted for `{self.model.name}` ({a.family})",
                    f"drop `{words}` for an upper bound",
                )

    @property
    def own_trace(self) -> Traced | None:
        """The trace, unless it is of another model: a remedy may have put one in its place."""
        if self.traced is not None and self.traced.params == self.model.params:
            return self.traced
        return None

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
        moved = Part.PARAMETERS in strategy.sharded and strategy.offload is not Offload.NONE
        if self.nvme_path is not None and moved:
            group = fit_sub_group(DEEPSPEED_DEFAULTS.sub_group_size, self.machine.world_size)
            fitted = tuple(replace(b, on_nvme=True, sub_group_size=group) for b in fitted)
        ranks_of_a_node = len(self.machine.gpus)
        if ranks_of_a_node == 1 or not self._may_copy(strategy):
            return fitted
        copied = tuple(replace(each, hpz_partition_size=ranks_of_a_node) for each in fitted)
        return copied if self.hpz else (*copied, *fitted)

    def _may_copy(self, strategy: Strategy) -> bool:
        """Whether each node may keep a copy of the weights; by default, between slow nodes."""
        if Part.PARAMETERS not in strategy.sharded or self.hpz is False:
            return False
        apart = self.machine.nodes > 1 and not self.machine.network.is_fast
        return bool(self.hpz) or (apart and strategy.offload is Offload.NONE)

    @property
    def key(self) -> str:
        """A hash of everything that decides what a rank holds, except the size of its step."""
        return job_key(self.machine, self.model, self.workload, self.state_dtype)

    @property
    def gpu_budget_bytes(self) -> int | None:
        """What a rank may take on its device; never more than is free."""
        free_bytes = self.machine.free_bytes
        if self.budget_bytes is None or free_bytes is None:
            return free_bytes if self.budget_bytes is None else self.budget_bytes
        return min(self.budget_bytes, free_bytes)


class StrategyEstimate(Struct, frozen=True, kw_only=True):
    """One strategy on one machine."""

    estimate: Estimate
    verdict: Verdict
    device_bytes: int
    """The predicted peak and what else the job takes on the device."""
    budget_bytes: int | None
    host_bytes: int
    """All ranks of one node together, beyond their interpreters."""
    host_budget_bytes: int | None
    wire_bytes_per_step: int
    ran_out: RanOut | None = None
    """The run that showed it not to fit, whatever is predicted."""

    @property
    def strategy(self) -> StrategyRow:
        """The strategy."""
        return self.estimate.strategy

    @property
    def buffers(self) -> Buffers:
        """The communication buffers that it was evaluated with."""
        return self.estimate.rank.buffers

    @property
    def runs(self) -> bool:
        """Whether it can be chosen: a tight one can."""
        return self.verdict is not Verdict.DOES_NOT_FIT

    @property
    def headroom_bytes(self) -> int | None:
        """Left on the tightest GPU; negative when it lacks."""
        return None if self.budget_bytes is None else self.budget_bytes - self.device_bytes

    @property
    def host_headroom_bytes(self) -> int | None:
        """Left in host memory; negative when it lacks, None when that is unknown."""
        if self.host_bytes == 0:
            return 0
        return None if self.host_budget_bytes is None else self.host_budget_bytes - self.host_bytes

    @property
    def lacking_bytes(self) -> int:
        """How much is missing, on the GPU or on the host; 0 when nothing is.

        A host that is unknown has nothing free, as everywhere.
        """
        on_gpu, on_host = self.headroom_bytes, self.host_headroom_bytes
        return max(
            0 if self.ran_out is None else 1,
            0 if on_gpu is None else -on_gpu,
            self.host_bytes if on_host is None else -on_host,
        )

    def load_bytes(self, job: PlanInput) -> int:
        """What the ranks of a node hold of its memory in all: to build the model, then to train.

        Below stage 3 every rank builds the whole model there; at stage 3 none does (zero.Init).
        """
        if Part.PARAMETERS in self.strategy.sharded:
            return self.host_bytes
        built_bytes = job.model.params * job.workload.precision.size_bytes * len(job.machine.gpus)
        return max(self.host_bytes, built_bytes)


def _host_budget_bytes(machine: Machine, device_bytes: int) -> int | None:
    """What offload may take of one node's memory; some ranks live in it themselves."""
    available_bytes = machine.host.available_bytes
    if available_bytes is None or not machine.lives_on_host:
        return available_bytes
    return max(0, available_bytes - device_bytes * len(machine.gpus))


def _verdict(need_bytes: int, margin_bytes: int, budget_bytes: int | None) -> Verdict:
    """An unknown budget could be nothing at all."""
    if budget_bytes is None or need_bytes > budget_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.FITS if need_bytes + margin_bytes <= budget_bytes else Verdict.TIGHT


def evaluate(job: PlanInput, strategy: StrategyRow) -> StrategyEstimate:
    """Predict the strategy and compare it with what the machine has.

    The fastest buffers that leave room are taken; where none do, the leanest.
    """
    *faster, leanest = job.buffers(strategy)
    for buffers in faster:
        evaluated = evaluate_with(job, strategy, buffers)
        if evaluated.verdict is Verdict.FITS:
            return evaluated
    return evaluate_with(job, strategy, leanest)


def evaluate_with(job: PlanInput, strategy: StrategyRow, buffers: Buffers) -> StrategyEstimate:
    """The strategy with these buffers."""
    machine, budget_bytes = job.machine, job.gpu_budget_bytes
    ranks, step = machine.world_size, job.counted_workload
    rank = rank_sizes(job.model, step, ranks, strategy, buffers, job.own_trace)
    if job.accounting is Accounting.TEXTBOOK:
        predicted = rule_of_thumb_estimate(job.model, rank, job.state_dtype)
        device_bytes, margin_bytes = predicted.peak_bytes, 0
    else:
        predicted = estimate(job.model, rank, machine.accelerator)
        peak_bytes = predicted.peak_bytes
        near = margin(expandable_segments=job.expandable_segments)
        slack_bytes = int(near.slack_fraction * peak_bytes)
        device_bytes = peak_bytes + slack_bytes + outside_bytes(machine, buffers)
        margin_bytes = int(near.tight_fraction * peak_bytes) - slack_bytes
    host_bytes = predicted.host_peak_bytes * len(machine.gpus)
    host_budget_bytes = _host_budget_bytes(machine, device_bytes)
    verdict = _verdict(device_bytes, margin_bytes, budget_bytes)
    if host_bytes and _verdict(host_bytes, 0, host_budget_bytes) is Verdict.DOES_NOT_FIT:
        verdict = Verdict.DOES_NOT_FIT
    return StrategyEstimate(
        estimate=predicted,
        verdict=verdict,
        device_bytes=device_bytes,
        budget_bytes=budget_bytes,
        host_bytes=host_bytes,
        host_budget_bytes=host_budget_bytes,
        wire_bytes_per_step=wire_bytes_per_step(rank),
    )


def evaluate_all(job: PlanInput) -> tuple[StrategyEstimate, ...]:
    """Every strategy, in the order of the table; what ran out of memory here does not fit."""
    evaluated = tuple(evaluate(job, strategy) for strategy in STRATEGIES)
    for seen in job.ran_out:
        failed = next((one for one in evaluated if one.strategy.name == seen.strategy), None)
        on_gpu = seen.memory is MemoryKind.GPU
        room_bytes = job.gpu_budget_bytes if on_gpu else job.machine.host.available_bytes
        of_this_job = seen.job_key == job.key
        if failed is not None and of_this_job and seen.rules_out(job.workload, room_bytes):
            without = _without_device if on_gpu else _without_host
            evaluated = tuple(without(seen, failed, job, one) for one in evaluated)
    return evaluated


def _without_device(
    seen: RanOut, failed: StrategyEstimate, job: PlanInput, one: StrategyEstimate
) -> StrategyEstimate:
    """A strategy after a run failed: there is less room than was predicted for that run.

    One that shards and offloads no more fails too; another may fit, perhaps with leaner buffers.
    """
    if not one.strategy.shards_or_offloads_more_than(failed.strategy):
        return replace(one, verdict=Verdict.DOES_NOT_FIT, ran_out=seen)
    if one.device_bytes < failed.device_bytes or not one.runs:
        return one
    smaller = evaluate(replace(job, budget_bytes=failed.device_bytes - 1), one.strategy)
    learned = None if smaller.runs else seen
    return replace(smaller, budget_bytes=job.gpu_budget_bytes, ran_out=learned)


def _without_host(
    seen: RanOut, failed: StrategyEstimate, job: PlanInput, one: StrategyEstimate
) -> StrategyEstimate:
    """The same of the host: each strategy that needs as much there would fail as well."""
    if one.load_bytes(job) < failed.load_bytes(job):
        return one
    return replace(one, verdict=Verdict.DOES_NOT_FIT, ran_out=seen)
