"""Evaluate each strategy on the machine: what it needs, what there is, and a verdict."""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache, partial

from msgspec import Struct

from zerowiz.core.decision.job import Job, RanOut
from zerowiz.core.decision.uncertainty import Interval, find_interval
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.allocations import PART_OF, MemoryKind, MemoryPart, Moment, Phase
from zerowiz.core.memory.buffers import Buffers, margin, outside_bytes
from zerowiz.core.memory.estimate import (
    Estimate,
    VllmShare,
    estimate_full,
    estimate_fullest,
    floor_bytes,
    rule_of_thumb_estimate,
    vllm_share,
)
from zerowiz.core.memory.host import HostNeed, HostPhase, predict_host, training_alone
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.memory.rank_sizes import RankSizes, StrategyRow, cut_weights, rank_sizes
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import COSTS, StepTime
from zerowiz.core.speed.step_time import predict_step_time, wire_bytes_per_step
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload, ZeroKey
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import Accounting, Workload

# docs/accuracy.md, Host memory: the worst of the runs at stage 3; with offload it is 1.2 %.
_HOST_ERROR_FRACTION = 0.06


class Verdict(StrEnum):
    """Whether a strategy fits on this machine, the best first.

    Each bound has a margin of its own (`Margin`): the expected peak the slack without which a run
    dies, its upper bound the one with which none died, and the expected peak, again, that of speed:
    that a run never flushes is no promise.
    """

    FITS = "fits"
    """The upper bound fits with its margin, and the expected peak with that of speed."""
    TIGHT = "tight"
    """The upper bound fits with its margin; near the limit, steps may be slower."""
    UNCERTAIN = "uncertain"
    """The expected peak fits; its upper bound does not, or something is not counted."""
    DOES_NOT_FIT = "does_not_fit"


@shows(
    "strategy.name",
    "verdict",
    "device_bytes",
    "budget_bytes",
    "host_bytes",
    "step_time.expected_seconds",
)
class StrategyEstimate(Struct, frozen=True, kw_only=True):
    """One strategy on one machine."""

    estimate: Estimate
    interval: Interval | None
    """Of the peak; None for the rule of thumb, which predicts no run."""
    verdict: Verdict
    device_bytes: int
    """The predicted peak and what else the job takes on the device."""
    high_device_bytes: int
    """The same where the peak is at its upper bound, whatever the model is of a size."""
    budget_bytes: int | None
    host: HostNeed
    """Of all ranks of one node together."""
    host_budget_bytes: int | None
    wire_bytes_per_step: int
    step_time: StepTime | None = None
    """None where the rates of the GPU are not known."""
    vllm: VllmShare | None = None
    """What a vLLM takes of the same GPU; `device_bytes` has it."""
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
        """Whether it can be chosen: a tight one can, and so can an uncertain one."""
        return self.verdict is not Verdict.DOES_NOT_FIT

    @property
    def is_sure(self) -> bool:
        """Whether it runs, as far as anything was measured."""
        return self.verdict in {Verdict.FITS, Verdict.TIGHT}

    @property
    def doubted(self) -> Interval | None:
        """The interval for which it is uncertain; None where it lacks host memory to save alone."""
        interval = self.interval
        if self.verdict is not Verdict.UNCERTAIN or interval is None or self.budget_bytes is None:
            return None
        return (
            interval if interval.uncounted or self.high_device_bytes > self.budget_bytes else None
        )

    @property
    def headroom_bytes(self) -> int | None:
        """Left on the tightest GPU; negative when it lacks."""
        return None if self.budget_bytes is None else self.budget_bytes - self.device_bytes

    @property
    def host_bytes(self) -> int:
        """The most that all ranks of one node ever hold."""
        return self.host.peak_bytes

    @property
    def needs_known_host(self) -> bool:
        """Whether a host that nobody knows could be too small: offload lives there."""
        return self.strategy.offload is not Offload.NONE

    @property
    def host_headroom_bytes(self) -> int | None:
        """Left in host memory; negative when it lacks, None when that is unknown.

        Saving is left out: a job can do without, and is uncertain where it lacks that alone.
        """
        if self.host.running_bytes == 0:
            return 0
        budget_bytes = self.host_budget_bytes
        return None if budget_bytes is None else budget_bytes - self.host.running_bytes

    @property
    def is_host_unknown(self) -> bool:
        """Whether the GPU has room, and nobody knows whether the host has."""
        room = self.headroom_bytes
        on_gpu = self.ran_out is None and room is not None and room >= 0
        return on_gpu and self.needs_known_host and self.host_headroom_bytes is None

    @property
    def lacks_to_save(self) -> bool:
        """Whether saving takes more than the host has."""
        budget_bytes = self.host_budget_bytes
        return budget_bytes is not None and self.host_bytes > budget_bytes

    @property
    def nearly_fills_host(self) -> bool:
        """Whether it fits the host, with less headroom than the worst error of a prediction."""
        budget_bytes = self.host_budget_bytes
        if budget_bytes is None or self.lacks_to_save:
            return False
        return budget_bytes - self.host_bytes < _HOST_ERROR_FRACTION * self.host_bytes

    @property
    def lacking_bytes(self) -> int:
        """How much is missing, on the GPU or on the host; 0 when nothing is.

        A host that is unknown has nothing free for what is offloaded; where the GPU lacks memory
        too, that is what is known.
        """
        on_gpu, on_host = self.headroom_bytes, self.host_headroom_bytes
        decides = self.needs_known_host and (on_gpu is None or on_gpu >= 0)
        unknown_bytes = self.host.running_bytes if decides else 0
        return max(
            0 if self.ran_out is None else 1,
            0 if on_gpu is None else -on_gpu,
            unknown_bytes if on_host is None else -on_host,
        )

    def load_bytes(self, job: Job) -> int:
        """What the ranks of a node may hold of its memory in all.

        Below stage 3 every rank may build the whole model there; at stage 3 none does (zero.Init).
        """
        if self.strategy.shards_weights:
            return self.host_bytes
        built_bytes = job.model.params * job.workload.precision.size_bytes * len(job.machine.gpus)
        return max(self.host_bytes, built_bytes)


def _host_budget_bytes(machine: Machine, device_bytes: int) -> int | None:
    """What offload may take of one node's memory; some ranks live in it themselves."""
    available_bytes = machine.host.available_bytes
    if available_bytes is None or not machine.lives_on_host:
        return available_bytes
    return max(0, available_bytes - device_bytes * len(machine.gpus))


class _DeviceNeed(Struct, frozen=True, kw_only=True):
    """What a job takes of a device, as it is expected, at most, and with the margin of speed."""

    expected_bytes: int
    high_bytes: int
    roomy_bytes: int
    flattening_bytes: int = 0
    """At most, while the weights are flattened there."""

    def verdict(self, budget_bytes: int | None, *, all_is_counted: bool) -> Verdict:
        """An unknown budget could be nothing at all."""
        if budget_bytes is None or self.expected_bytes > budget_bytes:
            return Verdict.DOES_NOT_FIT
        if self.high_bytes > budget_bytes or not all_is_counted:
            return Verdict.UNCERTAIN
        return Verdict.TIGHT if self.is_near_limit(budget_bytes) else Verdict.FITS

    def is_near_limit(self, budget_bytes: int | None) -> bool:
        """Whether the allocator flushes, if the job runs at all: with less room it does so too."""
        return budget_bytes is None or self.roomy_bytes > budget_bytes


def _device_need(
    job: Job,
    predicted: Estimate,
    interval: Interval | None,
    buffers: Buffers,
    vllm: VllmShare | None,
) -> _DeviceNeed:
    """The rule of thumb, which has no interval, knows tensors alone."""
    peak_bytes = predicted.peak_bytes
    if interval is None:
        return _DeviceNeed(expected_bytes=peak_bytes, high_bytes=peak_bytes, roomy_bytes=peak_bytes)
    near = margin(expandable_segments=job.expandable_segments)
    beside_bytes = outside_bytes(job.machine, buffers)

    def with_room(tensors_bytes: int, fraction: float) -> int:
        training_bytes = tensors_bytes + int(fraction * tensors_bytes)
        if vllm is not None:
            training_bytes = vllm.with_training(training_bytes)
        return training_bytes + beside_bytes

    return _DeviceNeed(
        expected_bytes=with_room(peak_bytes, near.slack_fraction),
        high_bytes=with_room(interval.safe_bytes, near.sure_fraction),
        # The flat copy is gone before the first step.
        roomy_bytes=with_room(predicted.flattened_on_host.peak_bytes, near.tight_fraction),
        flattening_bytes=with_room(
            math.ceil(predicted.flattening_bytes * (1 + interval.rate)), near.sure_fraction
        ),
    )


def evaluate(job: Job, strategy: StrategyRow) -> StrategyEstimate:
    """Predict the strategy and compare it with what the machine has.

    The fastest buffers that leave room are taken; where none do, the leanest.
    """
    *faster, leanest = job.buffers(strategy)
    first = _evaluate_where_it_fits(job, strategy, faster[0]) if faster else None
    if first is not None:
        return first
    last = evaluate_with(job, strategy, leanest)
    if last.verdict is Verdict.FITS:
        for buffers in faster[1:]:
            evaluated = _evaluate_where_it_fits(job, strategy, buffers)
            if evaluated is not None:
                return evaluated
    return last


def _evaluate_where_it_fits(
    job: Job, strategy: StrategyRow, buffers: Buffers
) -> StrategyEstimate | None:
    """The strategy with these buffers where it fits; what else it takes is not asked before."""
    if _lives_on_unknown_host(job, strategy) or not _has_room(job, strategy, buffers):
        return None
    evaluated = evaluate_with(job, strategy, buffers)
    return evaluated if evaluated.verdict is Verdict.FITS else None


def may_run(job: Job, strategy: StrategyRow) -> bool:
    """Whether `evaluate` may find that it runs, known in a fraction of the time.

    Where this says no, it says that the strategy does not fit.
    """
    if is_hopeless(job, strategy):
        return False
    return any(_has_room(job, strategy, buffers) for buffers in reversed(job.buffers(strategy)))


_ON_SLOW_HOST = replace(COSTS, unknown_python_call_seconds=COSTS.slow_python_call_seconds)


def seconds_on_slow_host(job: Job, evaluated: StrategyEstimate) -> float | None:
    """The time of a step on the slowest host that was measured; None where the host is known."""
    time = evaluated.step_time
    if time is None or job.calibration or job.machine.host.python_call_seconds is not None:
        return None
    slow = predict_step_time(
        job.model,
        evaluated.estimate.rank,
        job.machine,
        job.rates,
        near_limit=time.roomy_seconds < time.expected_seconds,
        costs=_ON_SLOW_HOST,
    )
    return None if slow is None else slow.expected_seconds


def is_hopeless(job: Job, strategy: StrategyRow) -> bool:
    """Whether it surely does not fit, by what is known in no time at all.

    That is: its host is unknown, or what a rank always holds is too much with the leanest buffers.
    """
    if _lives_on_unknown_host(job, strategy):
        return True
    budget_bytes = job.gpu_budget_bytes
    if budget_bytes is None or job.accounting is Accounting.TEXTBOOK:
        return False
    *_, leanest = job.buffers(strategy)
    sizes = (job.counted_workload, job.machine.world_size, strategy, leanest)
    return _floor_bytes(job.model, *sizes, job.own_trace) > budget_bytes


def _lives_on_unknown_host(job: Job, strategy: StrategyRow) -> bool:
    """Whether it offloads, and nobody knows what the host has: it does not fit, on any GPU."""
    is_real = job.accounting is not Accounting.TEXTBOOK
    unknown = job.machine.host.available_bytes is None
    # As `_with_host` has it; ranks on CUDA hold some of the host always.
    on_gpu = not job.machine.accelerator.row.on_host
    return is_real and unknown and on_gpu and strategy.offload is not Offload.NONE


def _has_room(job: Job, strategy: StrategyRow, buffers: Buffers) -> bool:
    """Whether the device has room for the tensors alone of one of the ranks that hold most."""
    budget_bytes = job.gpu_budget_bytes
    if budget_bytes is None or job.accounting is Accounting.TEXTBOOK:
        return True
    sizes = (job.counted_workload, job.machine.world_size, strategy, buffers)
    if _floor_bytes(job.model, *sizes, job.own_trace) > budget_bytes:
        return False
    one_bytes = _one_peak_bytes(job.model, *sizes, job.own_trace, job.machine.accelerator)
    return one_bytes <= budget_bytes


# A plan for many machines asks the same of many, a search of each some hundreds.
_rank_sizes = lru_cache(maxsize=4096)(rank_sizes)


@lru_cache(maxsize=4096)
def _predict(
    model: Model,
    step: Workload,
    ranks: int,
    strategy: StrategyRow,
    buffers: Buffers,
    traced: Traced | None,
    accelerator: Accelerator,
) -> tuple[RankSizes, Estimate]:
    """The first rank and what the fullest one holds: the same on any GPUs, if they are as many."""
    rank = _rank_sizes(model, step, ranks, strategy, buffers, traced)
    return rank, estimate_fullest(cut_weights(model, step, is_dealt=True), rank, accelerator)


@lru_cache(maxsize=4096)
def _floor_bytes(
    model: Model,
    step: Workload,
    ranks: int,
    strategy: StrategyRow,
    buffers: Buffers,
    traced: Traced | None,
) -> int:
    """What a rank surely holds; most of what does not fit is known by this."""
    return floor_bytes(rank_sizes(model, step, ranks, strategy, buffers, traced, is_whole=False))


@lru_cache(maxsize=4096)
def _one_peak_bytes(
    model: Model,
    step: Workload,
    ranks: int,
    strategy: StrategyRow,
    buffers: Buffers,
    traced: Traced | None,
    accelerator: Accelerator,
) -> int:
    """The peak of one of the ranks among which `_predict` finds the fullest, once it runs."""
    rank = _rank_sizes(model, step, ranks, strategy, buffers, traced)
    if len(rank.cuts) > 1:
        dealt = cut_weights(model, step, is_dealt=True)
        return estimate_full(dealt, rank, accelerator).flattened_on_host.peak_bytes
    _, predicted = _predict(model, step, ranks, strategy, buffers, traced, accelerator)
    return predicted.flattened_on_host.peak_bytes


def evaluate_with(
    job: Job, strategy: StrategyRow, buffers: Buffers, *, is_timed: bool = True
) -> StrategyEstimate:
    """The strategy with these buffers; with the time of a step, if that is asked for."""
    machine, budget_bytes = job.machine, job.gpu_budget_bytes
    ranks, step = machine.world_size, job.counted_workload
    job_sizes = (step, ranks, strategy, buffers)
    heaviest = None
    if job.accounting is Accounting.TEXTBOOK:
        rank = rank_sizes(job.model, *job_sizes, job.own_trace)
        predicted = rule_of_thumb_estimate(job.model, rank, job.state_dtype)
        vllm = None
    else:
        rank, predicted = _predict(job.model, *job_sizes, job.own_trace, machine.accelerator)
        vllm = vllm_share(machine, step, predicted)
        other = job.model.heaviest
        # A model of a file has none: what follows is then not asked in each step of a search.
        if other is not None and (
            budget_bytes is None or predicted.flattened_on_host.peak_bytes <= budget_bytes
        ):
            _, heaviest = _predict(other, *job_sizes, None, machine.accelerator)
    interval = find_interval(job, predicted, heaviest)
    need = _device_need(job, predicted, interval, buffers, vllm)
    on_gpu = not machine.accelerator.row.on_host
    if on_gpu and budget_bytes is not None and need.flattening_bytes > budget_bytes:
        predicted = predicted.flattened_on_host
        heaviest = None if heaviest is None else heaviest.flattened_on_host
        interval = find_interval(job, predicted, heaviest)
        need = _device_need(job, predicted, interval, buffers, vllm)
    device_bytes = need.expected_bytes
    host_budget_bytes = _host_budget_bytes(machine, device_bytes)
    host = _host_need(job, predicted, host_budget_bytes)
    all_is_counted = interval is None or not interval.uncounted
    verdict = need.verdict(budget_bytes, all_is_counted=all_is_counted)
    verdict = _with_host(verdict, host, host_budget_bytes, strategy)
    return StrategyEstimate(
        estimate=predicted,
        interval=interval,
        verdict=verdict,
        device_bytes=device_bytes,
        high_device_bytes=need.high_bytes,
        budget_bytes=budget_bytes,
        host=host,
        host_budget_bytes=host_budget_bytes,
        wire_bytes_per_step=wire_bytes_per_step(rank),
        step_time=predict_step_time(
            job.model,
            rank,
            machine,
            job.rates,
            job.calibration,
            near_limit=need.is_near_limit(budget_bytes),
        )
        if is_timed
        else None,
        vllm=vllm,
    )


def _host_need(job: Job, predicted: Estimate, budget_bytes: int | None) -> HostNeed:
    """Of a node; stage 3 collects its weights to save them where the host has the room for it."""
    held, ranks = predicted.host, len(job.machine.gpus)
    if job.accounting is Accounting.TEXTBOOK:
        return training_alone(held, ranks)
    on_cuda = not job.machine.accelerator.row.on_host
    of = partial(predict_host, job.model, predicted.rank, held, ranks, job.host_use)
    of = partial(of, on_cuda=on_cuda, flattens=predicted.flattens_on_host)
    need = of()
    saving_bytes = need.phase_bytes[HostPhase.SAVING]
    has_room = budget_bytes is None or saving_bytes <= budget_bytes
    return need if has_room or not need.gathers else of(gathers=False)


def _with_host(
    verdict: Verdict, host: HostNeed, budget_bytes: int | None, strategy: StrategyRow
) -> Verdict:
    """The verdict on the GPU, unless the host has a worse one.

    A host that is unknown has nothing free for what is offloaded; for the rest it counts as large
    enough, for every machine has some, and the plan says how much it takes.
    """
    if budget_bytes is None:
        lives_there = strategy.offload is not Offload.NONE and host.running_bytes
        return Verdict.DOES_NOT_FIT if lives_there else verdict
    if host.running_bytes > budget_bytes:
        return Verdict.DOES_NOT_FIT
    lacks = host.peak_bytes > budget_bytes and verdict is not Verdict.DOES_NOT_FIT
    return Verdict.UNCERTAIN if lacks else verdict


def evaluate_all(job: Job) -> tuple[StrategyEstimate, ...]:
    """Every strategy, in the order of the table; what ran out of memory does not fit."""
    evaluated = tuple(evaluate(job, strategy) for strategy in STRATEGIES)
    for seen in job.ran_out:
        failed = next(other for other in evaluated if other.strategy.name == seen.strategy)
        without = _without_device if seen.memory is MemoryKind.GPU else _without_host
        evaluated = tuple(without(seen, failed, job, other) for other in evaluated)
    return evaluated


def _without_device(
    seen: RanOut, failed: StrategyEstimate, job: Job, other: StrategyEstimate
) -> StrategyEstimate:
    """A strategy after a run failed: there is less room than was predicted for that run.

    One that shards and offloads no more fails too; another may fit, perhaps with leaner buffers.
    """
    if not other.strategy.shards_or_offloads_more_than(failed.strategy):
        return replace(other, verdict=Verdict.DOES_NOT_FIT, ran_out=seen)
    if other.device_bytes < failed.device_bytes or not other.runs:
        return other
    smaller = evaluate(replace(job, budget_bytes=failed.device_bytes - 1), other.strategy)
    learned = None if smaller.runs else seen
    return replace(smaller, budget_bytes=job.gpu_budget_bytes, ran_out=learned)


def _without_host(
    seen: RanOut, failed: StrategyEstimate, job: Job, other: StrategyEstimate
) -> StrategyEstimate:
    """The same of the host: each strategy that needs as much there would fail as well."""
    if other.load_bytes(job) < failed.load_bytes(job):
        return other
    return replace(other, verdict=Verdict.DOES_NOT_FIT, ran_out=seen)


# Group what a rank holds into the few parts that people tell memory by.


class Outside(Struct, frozen=True, kw_only=True):
    """What a job takes of a device beside its tensors."""

    context_bytes: int
    """CUDA, NCCL and libraries."""
    slack_bytes: int
    """What torch's allocator cannot use."""
    vllm_bytes: int


def outside(job: Job, evaluated: StrategyEstimate) -> Outside:
    """What a strategy takes beside its tensors; the rule of thumb knows tensors alone."""
    if job.accounting is Accounting.TEXTBOOK:
        return Outside(context_bytes=0, slack_bytes=0, vllm_bytes=0)
    peak_bytes = evaluated.estimate.peak_bytes
    near = margin(expandable_segments=job.expandable_segments)
    context_bytes = outside_bytes(job.machine, evaluated.buffers)
    slack_bytes = int(near.slack_fraction * peak_bytes)
    return Outside(
        context_bytes=context_bytes,
        slack_bytes=slack_bytes,
        vllm_bytes=evaluated.device_bytes - peak_bytes - slack_bytes - context_bytes,
    )


def group(moment: Moment) -> dict[MemoryPart, int]:
    """Bytes of each part in a moment; parts without any are left out."""
    sizes: dict[MemoryPart, int] = dict.fromkeys(MemoryPart, 0)
    for allocation in moment:
        sizes[PART_OF[allocation.kind]] += allocation.size_bytes
    return {part: size_bytes for part, size_bytes in sizes.items() if size_bytes}


def parts_by_phase(job: Job, evaluated: StrategyEstimate) -> dict[Phase, dict[MemoryPart, int]]:
    """Bytes of each part at the peak of each phase, what torch does not count included."""
    beside = outside(job, evaluated)
    always = {
        MemoryPart.CONTEXT: beside.context_bytes + beside.slack_bytes,
        MemoryPart.VLLM: beside.vllm_bytes,
    }
    constant = {part: size_bytes for part, size_bytes in always.items() if size_bytes}
    return {
        phase: {**group(moment), **constant} for phase, moment in evaluated.estimate.peaks().items()
    }


def parts(job: Job, evaluated: StrategyEstimate) -> dict[MemoryPart, int]:
    """Bytes of each part where the device is fullest; their sum is `device_bytes`."""
    return parts_by_phase(job, evaluated)[evaluated.estimate.peak_phase]


# Say what the sizes in a config cost a GPU, in bytes.


class Cost(Struct, frozen=True, kw_only=True):
    """One key of `zero_optimization`."""

    key: ZeroKey
    value: int
    """As the config has it: elements, or ranks for `zero_hpz_partition_size`."""
    size_bytes: int
    """The most that it can hold of each GPU at a time."""


def _of_parameters(model: Model, r: RankSizes) -> Iterator[Cost]:
    b, w = r.buffers, r.weight_bytes
    numel = r.trainable + r.frozen_bytes // w
    threshold = b.stage3_param_persistence_threshold
    small = (t.numel * t.copies for t in model.tensors if t.numel <= threshold)
    ahead, live, ranks = (
        b.stage3_prefetch_bucket_size,
        b.stage3_max_live_parameters,
        b.hpz_partition_size,
    )
    group_bytes = None if r.offloaded else (w + r.master_bytes) * r.sub_group
    copy_bytes = w * numel // ranks if ranks > 1 else None
    costs: Mapping[ZeroKey, tuple[int, int | None]] = {
        ZeroKey.SUB_GROUP_SIZE: (b.sub_group_size, group_bytes),
        ZeroKey.PREFETCH_BUCKET_SIZE: (ahead, w * min(ahead, numel)),
        ZeroKey.PERSISTENCE_THRESHOLD: (threshold, w * sum(small)),
        ZeroKey.MAX_LIVE_PARAMETERS: (live, w * min(live, numel)),
        ZeroKey.HPZ_PARTITION_SIZE: (ranks, copy_bytes),
    }
    for key, (value, size_bytes) in costs.items():
        if size_bytes is not None:
            yield Cost(key=key, value=value, size_bytes=size_bytes)


def buffer_costs(job: Job, evaluated: StrategyEstimate) -> tuple[Cost, ...]:
    """What the buffers of this strategy cost, in the order of the config."""
    r = evaluated.estimate.rank
    if ZeroKey.REDUCE_BUCKET_SIZE not in r.strategy.zero_keys:
        return ()
    size, sharded = r.buffers.reduce_bucket_size, r.strategy.shards_weights
    # stage_1_and_2.py, setup_buckets: two where communication overlaps; stage3.py has one, and
    # copies its content to reduce it.
    copies = 2 if sharded else r.buffers.buckets
    size_bytes = copies * r.weight_bytes * size
    bucket = Cost(key=ZeroKey.REDUCE_BUCKET_SIZE, value=size, size_bytes=size_bytes)
    return (bucket, *(_of_parameters(job.model, r) if sharded else ()))
