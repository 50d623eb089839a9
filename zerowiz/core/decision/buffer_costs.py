"""Say what the sizes in a config cost a GPU, in bytes."""

from collections.abc import Iterator

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import ZeroKey


class Cost(Struct, frozen=True, kw_only=True):
    """One key of `zero_optimization`."""

    key: ZeroKey
    value: int
    """As the config has it: elements, or ranks for `zero_hpz_partition_size`."""
    size_bytes: int
    """The most that it can hold of each GPU at a time."""


def _bucket(r: RankSizes) -> Cost:
    size = r.buffers.reduce_bucket_size
    # stage_1_and_2.py, setup_buckets: two where communication overlaps; stage3.py has one, and
    # copies its content to reduce it.
    copies = 2 if r.strategy.shards_weights else r.buffers.buckets
    size_bytes = copies * r.weight_bytes * size
    return Cost(key=ZeroKey.REDUCE_BUCKET_SIZE, value=size, size_bytes=size_bytes)


def _of_parameters(model: Model, r: RankSizes) -> Iterator[Cost]:
    b, w = r.buffers, r.weight_bytes
    numel = r.trainable + r.frozen_bytes // w
    threshold = b.stage3_param_persistence_threshold
    small = sum(
        tensor.numel * tensor.copies for tensor in model.tensors if tensor.numel <= threshold
    )
    ahead, live, ranks = (
        b.stage3_prefetch_bucket_size,
        b.stage3_max_live_parameters,
        b.hpz_partition_size,
    )
    if not r.offloaded:
        group_bytes = (w + r.master_bytes) * r.sub_group
        yield Cost(key=ZeroKey.SUB_GROUP_SIZE, value=b.sub_group_size, size_bytes=group_bytes)
    yield Cost(key=ZeroKey.PREFETCH_BUCKET_SIZE, value=ahead, size_bytes=w * min(ahead, numel))
    yield Cost(key=ZeroKey.PERSISTENCE_THRESHOLD, value=threshold, size_bytes=w * small)
    yield Cost(key=ZeroKey.MAX_LIVE_PARAMETERS, value=live, size_bytes=w * min(live, numel))
    if ranks > 1:
        yield Cost(key=ZeroKey.HPZ_PARTITION_SIZE, value=ranks, size_bytes=w * numel // ranks)


def buffer_costs(job: PlanInput, evaluated: StrategyEstimate) -> tuple[Cost, ...]:
    """What the buffers of this strategy cost, in the order of the config."""
    r = evaluated.estimate.rank
    if ZeroKey.REDUCE_BUCKET_SIZE not in r.strategy.zero_keys:
        return ()
    sharded = r.strategy.shards_weights
    return (_bucket(r), *(_of_parameters(job.model, r) if sharded else ()))
