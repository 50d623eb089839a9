"""Say what the sizes in a config cost a GPU, in bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

from zerowiz.core.decision.evaluate import PlanInput, StrategyEstimate
from zerowiz.core.memory.rank_sizes import RankSizes, rank_sizes
from zerowiz.core.strategy import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One key of `zero_optimization`."""

    key: str
    value: int
    """As the config has it: elements, or ranks for `zero_hpz_partition_size`."""
    size_bytes: int
    """The most that it can hold of each GPU at a time."""


def _of_gradients(r: RankSizes) -> Iterator[tuple[str, int, int]]:
    b = r.buffers
    bucket_bytes = r.weight_bytes * b.reduce_bucket_size
    # stage_1_and_2.py, setup_buckets: two where communication overlaps; stage3.py has one, and
    # copies its content to reduce it.
    times = 1 + b.overlap_comm if r.strategy.stage in {1, 2} else 2
    yield "reduce_bucket_size", b.reduce_bucket_size, times * bucket_bytes


def _of_parameters(job: PlanInput, r: RankSizes) -> Iterator[tuple[str, int, int]]:
    b, w = r.buffers, r.weight_bytes
    numel = r.trainable + r.frozen_bytes // w
    threshold = b.stage3_param_persistence_threshold
    small = sum(t.numel * t.copies for t in job.model.tensors if t.numel <= threshold)
    ahead, live = b.stage3_prefetch_bucket_size, b.stage3_max_live_parameters
    if not r.offloaded:
        yield "sub_group_size", b.sub_group_size, (w + r.master_bytes) * r.sub_group
    yield "stage3_prefetch_bucket_size", ahead, w * min(ahead, numel)
    yield "stage3_param_persistence_threshold", threshold, w * small
    yield "stage3_max_live_parameters", live, w * min(live, numel)
    if b.hpz_partition_size > 1:
        ranks = b.hpz_partition_size
        yield "zero_hpz_partition_size", ranks, w * numel // ranks


def buffer_costs(job: PlanInput, evaluated: StrategyEstimate) -> tuple[Cost, ...]:
    """What the buffers of this rung cost, in the order of the config."""
    strategy, ranks = evaluated.strategy, job.machine.world_size
    if strategy.stage == 0:
        return ()
    r = rank_sizes(
        job.model, job.counted_workload, ranks, strategy, evaluated.buffers, job.own_trace
    )
    sharded = Part.PARAMETERS in strategy.sharded
    said = [*_of_gradients(r), *(_of_parameters(job, r) if sharded else ())]
    return tuple(Cost(key=key, value=value, size_bytes=size) for key, value, size in said)
