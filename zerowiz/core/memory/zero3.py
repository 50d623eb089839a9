"""Predict what DeepSpeed's wrapper of stage 3 holds on the GPU, moment by moment.

Theory: parameters are held in shards. Those of a module are gathered before it runs, with those
that come next as far as DeepSpeed's limit on live parameters allows, and released after it. A
gradient goes into a bucket that is reduced and scattered when it is full, so in backward two
moments more compete: the first full bucket, and the last one. The optimizer steps one sub-group (G)
at a time.
Symbols and sources are as in `zero012.py`; a function that returns an int counts elements.
"""

from zerowiz.core.memory.common import (
    built,
    embedding_gradient,
    first_block,
    forward,
    head_gradient,
    master_weights,
    new_adapters,
    one_block,
    opening,
    optimizer,
    weights,
)
from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment, Moments, Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import FP32_BYTES


def _sharded(r: RankSizes) -> Moment:
    is_on_host = r.strategy.offload is Offload.ALL
    trained_bytes = 0 if is_on_host else r.trained_bytes * r.share
    frozen_bytes = 0 if is_on_host else r.frozen_bytes // r.ranks
    return (
        Allocation(AllocationKind.PARAMETERS_SHARDED, trained_bytes, "w P"),
        Allocation(AllocationKind.FROZEN_PARAMETERS_SHARDED, frozen_bytes, "F / d"),
    )


def _buffers(r: RankSizes) -> Moment:
    # stage3.py, grad_partitions_flat_buffer and __setup_for_real_optimizer: both allocated once.
    gradients_bytes = 0 if r.offloaded else r.weight_bytes * r.share
    bucket_bytes = r.weight_bytes * r.buffers.reduce_bucket_size
    return (
        Allocation(AllocationKind.GRADIENTS_SHARDED, gradients_bytes, "w P"),
        Allocation(AllocationKind.REDUCE_BUCKET, bucket_bytes, "w b"),
    )


def _lasting(r: RankSizes) -> Moment:
    states = () if r.offloaded else optimizer(r, r.share, "P")
    return (*_sharded(r), *_buffers(r), *states)


def _persistent(r: RankSizes) -> int:
    """What is never released; a lone rank releases nothing, and gathers nothing."""
    return r.persistent_parameters if r.ranks > 1 else 0


def _gatherable(r: RankSizes) -> int:
    """What is gathered and released."""
    return r.trainable - _persistent(r) + r.frozen_bytes // r.weight_bytes


def _live(r: RankSizes) -> int:
    """What is gathered while the loss is computed: without prefetch nothing (g1-076, d4-014).

    partitioned_param_coordinator.py, fetch_sub_module: prefetch goes on until max_live.
    """
    if r.ranks == 1:
        return 0
    most = max(r.module, r.buffers.stage3_max_live_parameters)
    # trl 1.16, trainer/utils.py, maybe_gather_lm_head_ctx (tr1-005).
    most = most + r.staying_embedding if r.prefetching else r.gathered_head
    return min(_gatherable(r), r.kept_experts + most)


def _first_bucket(r: RankSizes) -> int:
    """What went through backward when the bucket is full for the first time."""
    return min(r.buffers.reduce_bucket_size, r.trainable)


def _in_flight(r: RankSizes) -> int:
    """What is gathered together exists once more until each tensor is copied out of it (i1-038).

    partition_parameters.py, AllGatherCoalescedHandle; checkpointing does that while it recomputes.
    """
    if r.workload.gradient_checkpointing or r.module >= r.buffers.stage3_max_live_parameters:
        return 0
    return r.buffers.stage3_prefetch_bucket_size + r.block_largest


def _secondary(r: RankSizes, released: int) -> Moment:
    """What a node keeps of parameters that are not gathered, so that no other node is asked.

    partition_parameters.py, _partition_param_sec: made as a parameter is released, dropped when it
    was stepped (h1-024 to h1-027).
    """
    if r.buffers.hpz_partition_size == 1:
        return ()
    size_bytes = r.weight_bytes * released // r.buffers.hpz_partition_size
    formula = "w (N - gathered) / hpz"
    return (Allocation(AllocationKind.SECONDARY_PARAMETERS, size_bytes, formula),)


def _gathered(size_bytes: int, formula: str) -> Allocation:
    return Allocation(AllocationKind.GATHERED_PARAMETERS, size_bytes, formula)


def _gathered_with_the_loss(r: RankSizes) -> Moment:
    gatherable, live = _gatherable(r), _live(r)
    # Adapters in fp32 are gathered as such; the limit counts elements.
    widened_bytes = (r.trained_bytes - r.weight_bytes) * (r.trainable - _persistent(r))
    size_bytes = r.weight_bytes * live + widened_bytes * live // max(1, gatherable)
    return (
        _gathered(size_bytes, "w min(N, max_live + experts)"),
        *_secondary(r, gatherable - live if r.prefetching else gatherable),
    )


def _gathered_midway(r: RankSizes) -> Moment:
    gatherable = _gatherable(r)
    live = max(0, min(_live(r), gatherable - _first_bucket(r)))
    in_flight_bytes = r.weight_bytes * min(live, _in_flight(r))
    formula = "w (prefetch + M of a block)"
    return (
        _gathered(r.weight_bytes * live, "w (N - b)"),
        Allocation(AllocationKind.PARAMETERS_IN_FLIGHT, in_flight_bytes, formula),
        *_secondary(r, gatherable - live),
    )


def _gathered_last(r: RankSizes) -> Moment:
    # By the end all but the embedding is released (i1-024).
    live = min(_live(r), r.embedding)
    return (_gathered(r.weight_bytes * live, "w V h"), *_secondary(r, _gatherable(r) - live))


def _building(r: RankSizes) -> tuple[Moment, ...]:
    if not r.zero_init:
        return built(r)
    trained, frozen = _sharded(r)
    head_bytes = r.untied_head_bytes // r.ranks
    # partition_parameters.py, Init: each module is built whole, then sharded.
    building = (
        Allocation(AllocationKind.UNTIED_HEAD_SHARDED, head_bytes, "w V h / d"),
        *_secondary(r, r.untied_head_bytes // r.weight_bytes),
        Allocation(AllocationKind.LARGEST_MODULE, r.weight_bytes * r.module, "w M"),
    )
    if not r.frozen_bytes:
        return ((trained, frozen, *_secondary(r, _gatherable(r)), *building),)
    # Adapters are made whole, and sharded by the engine (f3-006).
    return ((frozen, *building), (frozen, new_adapters(r)))


def _init(r: RankSizes) -> tuple[Moment, ...]:
    tensor_bytes = r.weight_bytes * r.largest
    tensor = Allocation(AllocationKind.LARGEST_TENSOR, tensor_bytes, "w M")
    shard = Allocation(AllocationKind.LARGEST_TENSOR_SHARD, tensor_bytes // r.ranks, "w M / d")
    secondary = _secondary(r, _gatherable(r))
    masters = () if r.offloaded else (master_weights(r, r.share, "P"),)
    zeroed_bytes = 0 if r.offloaded else r.master_bytes * r.sub_group
    zeroed = Allocation(AllocationKind.ZERO_GRADIENTS, zeroed_bytes, "master G")
    gathering = (tensor, shard) if r.strategy.offload is Offload.ALL else (tensor,)
    return (
        # partition_parameters.py, _convert_to_zero_parameters: sharded tensor by tensor.
        *(() if r.zero_init else ((*weights(r), shard),)),
        # stage3.py, initialize_optimizer_states: a gradient of the largest sub-group (g1-076).
        (*_sharded(r), *secondary, *masters, zeroed),
        # stage3.py, create_reduce_and_remove_grad_hooks: each tensor is gathered once.
        (*_sharded(r), *_buffers(r), *secondary, *masters, *gathering),
    )


def _slice(r: RankSizes, numel: int) -> Allocation:
    # stage3.py, _offload_grad_partition_at_boundary: the shard of the tensor at hand.
    size_bytes = FP32_BYTES * numel // r.ranks if r.offloaded else 0
    return Allocation(AllocationKind.SLICE_IN_FP32, size_bytes, "4 M/d")


def _running(r: RankSizes) -> Moment:
    # stage3.py, step: what is never released is gathered again when it is done.
    small_bytes, formula = r.trained_bytes * _persistent(r), "4 x those below threshold"
    return (*_lasting(r), Allocation(AllocationKind.SMALL_ADAPTERS, small_bytes, formula))


def _activations_to_come(r: RankSizes) -> Allocation:
    """Those of the blocks behind the first full bucket, whose backward is not done yet."""
    to_come_fraction = (r.trainable - _first_bucket(r)) / r.trainable
    size_bytes = int(r.activations.saved_bytes * to_come_fraction)
    return Allocation(AllocationKind.ACTIVATIONS, size_bytes, "of the blocks to come")


def _backward_unordered(r: RankSizes) -> tuple[Moment, ...]:
    """As modules come in another order than they were seen in: nothing is released (tr1-013).

    parameter_offload.py, _end_of_forward_module_hook: a pass without gradients, as that of the
    reference, resets the step, so backward is held against the order of forward.
    """
    running, with_loss = _running(r), _gathered_with_the_loss(r)
    last_block_bytes = r.activations.saved_bytes // r.layers
    return (
        (*running, *with_loss, *opening(r)),
        (*running, *with_loss, *first_block(r)),
        (
            *running,
            _gathered(r.weight_bytes * _gatherable(r), "w (N + F)"),
            Allocation(AllocationKind.ACTIVATIONS, last_block_bytes, "of the last block"),
            *one_block(r),
        ),
    )


def _backward(r: RankSizes) -> tuple[Moment, ...]:
    if r.workload.is_own_reference:
        return _backward_unordered(r)
    running, with_loss, last = _running(r), _gathered_with_the_loss(r), _gathered_last(r)
    # A head that is tied is the last of them, not the first.
    early_slice = _slice(r, r.block_largest if r.tied else r.largest)
    # coalesced_collectives.py, reduce_scatter_coalesced: the bucket's content once more.
    flush_bytes = r.weight_bytes * _first_bucket(r)
    flush = Allocation(AllocationKind.REDUCE_SCATTER_COPY, flush_bytes, "w min(N, b)")
    midway = (*_gathered_midway(r), _activations_to_come(r), head_gradient(r), *one_block(r))
    one_bytes = r.weight_bytes * r.embedding
    one_gradient = Allocation(AllocationKind.EMBEDDING_GRADIENT, one_bytes, "w V h")
    return (
        (*running, *with_loss, *opening(r)),
        (*running, *with_loss, *first_block(r), early_slice),
        (*running, *midway, flush, early_slice),
        (*running, *last, embedding_gradient(r), _slice(r, r.largest)),
        (*running, *last, one_gradient, flush),
    )


def _step_bytes(r: RankSizes) -> tuple[int, int]:
    """What the optimizer allocates for a sub-group, and for the last one at the first step."""
    if r.offloaded:
        return 0, 0
    group = r.sub_group
    # stage3.py, _prepare_sub_group: gradients flat and in the master's format (d4-015).
    copied_bytes = 0 if r.weight_bytes == FP32_BYTES else r.master_bytes
    stepping_bytes = (copied_bytes or r.weight_bytes) + r.stepping_bytes
    # At the first step the states appear group by group: the last group's, or the one before it.
    last = r.share - (r.share - 1) // group * group
    return (
        max(r.weight_bytes + copied_bytes, stepping_bytes) * group,
        max(stepping_bytes * last, stepping_bytes * group - r.states_bytes(last)),
    )


def _step(r: RankSizes) -> tuple[Moment, ...]:
    lasting = (*_lasting(r), *_secondary(r, _gatherable(r)))
    group_bytes, last_bytes = _step_bytes(r)
    return (
        (*lasting, Allocation(AllocationKind.SUB_GROUP_GRADIENTS, group_bytes, "(w + master) G")),
        (*lasting, Allocation(AllocationKind.LAST_SUB_GROUP, last_bytes, "master G")),
    )


def zero3_moments(r: RankSizes) -> Moments:
    """The moments of stage 3, with or without offload."""
    return {
        Phase.MODEL: _building(r),
        Phase.INIT: _init(r),
        Phase.FORWARD: ((*_running(r), *_gathered_with_the_loss(r), *forward(r)),),
        Phase.BACKWARD: _backward(r),
        Phase.STEP: _step(r),
    }
