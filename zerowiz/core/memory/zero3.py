"""Predict what DeepSpeed's wrapper of stage 3 holds on the GPU, moment by moment.

Theory: parameters are held in shards. Those of a module are gathered before it runs, with those
that come next as far as DeepSpeed's limit on live parameters allows, and released after it. A
gradient goes into a bucket that is reduced and scattered when it is full, so in backward two
moments more compete: the first full bucket, and the last one. The optimizer steps one sub-group (G)
at a time.
Symbols and sources are as in `zero012.py`; a function that returns an int counts elements.
"""

from collections.abc import Iterator
from typing import NamedTuple

from zerowiz.core.memory.allocations import (
    Allocation,
    AllocationKind,
    Moment,
    Moments,
    Phase,
    moment_bytes,
)
from zerowiz.core.memory.gathering import Gathered, Gathering, Limits, replay
from zerowiz.core.memory.rank_sizes import (
    RankSizes,
    built,
    embedding_gradient,
    forward,
    head_gradient,
    kept_blocks,
    master_weights,
    new_adapters,
    one_block,
    opening,
    optimizer,
    some_blocks,
    weights,
)
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.workload import FP32_BYTES
from zerowiz.translation import N_

# stage3.py, _constant_buffered_norm2.
_NORM_BYTES, _NORM_ELEMENTS = 8, 250_000_000


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
    # A bucket for each format in which gradients are reduced; under torch_autocast that of the
    # linear layers is its 16 bits (j3-007).
    halved = r.workload.torch_autocast
    reduced_bytes = r.reduced_bytes + (halved.size_bytes if halved else 0)
    bucket_bytes = reduced_bytes * r.buffers.reduce_bucket_size
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


def _gathering(r: RankSizes) -> Gathering:
    buffers = r.buffers
    live = buffers.stage3_max_live_parameters
    # zerowiz writes `stage3_max_reuse_distance` 0 for NVMe (core/dsconfig/write.py).
    reuse = 0 if buffers.on_nvme and buffers.nvme is None else live
    limits = Limits(buffers.stage3_prefetch_bucket_size, live, reuse)
    return replay(
        r.layout,
        # Where the order is not known, each module is released behind it.
        limits if r.prefetching else Limits(0, 0, 0),
        # What a lone rank has on its GPU is gathered; what is on the host is copied there
        # (partition_parameters.py, NoGatherHandle; m3-005).
        alone=not r.gathers and r.strategy.offload is not Offload.ALL,
        checkpointing=r.workload.checkpointed_each,
        known=r.prefetching,
    )


def _first_bucket(r: RankSizes) -> int:
    """What went through backward when the bucket is full for the first time."""
    return min(r.buffers.reduce_bucket_size, r.trainable)


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


def _gathered(r: RankSizes, gathered: Gathered) -> Moment:
    """What is whole of the parameters, and what their gathering takes beside them."""
    # Adapters in fp32 are gathered as such; the limit counts elements.
    widened_bytes = (r.trained_bytes - r.weight_bytes) * (r.trainable - _persistent(r))
    whole = gathered.parameters
    if r.prefetching and r.staying_embedding:
        whole = min(_gatherable(r), whole + r.staying_embedding)
    size_bytes = r.weight_bytes * whole + widened_bytes * whole // max(1, _gatherable(r))
    # partition_parameters.py, _all_gather_sequential: shards on the host are copied to the GPU, and
    # NCCL holds the copy until the parameter is waited for (k1-032).
    alone = gathered.alone // r.ranks if r.strategy.offload is Offload.ALL else 0
    # A lone rank's are copied to where they stay.
    waiting_bytes = r.weight_bytes * (gathered.copies + alone) if r.gathers else 0
    return (
        Allocation(AllocationKind.GATHERED_PARAMETERS, size_bytes, "w (max_live + M)"),
        Allocation(AllocationKind.PARAMETERS_IN_FLIGHT, waiting_bytes, "w (copies + shards)"),
        *_secondary(r, max(0, _gatherable(r) - whole)),
    )


def _building(r: RankSizes) -> tuple[Moment, ...]:
    if not r.workload.resolved_zero_init:
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
        *(() if r.workload.resolved_zero_init else ((*weights(r), shard),)),
        # stage3.py, initialize_optimizer_states: a gradient of the largest sub-group (g1-076).
        (*_sharded(r), *secondary, *masters, zeroed),
        # stage3.py, create_reduce_and_remove_grad_hooks: each tensor is gathered once.
        (*_sharded(r), *_buffers(r), *secondary, *masters, *gathering),
    )


def _slice(r: RankSizes, numel: int) -> Moment:
    """What a shard of a gradient needs on its way to the host."""
    if not r.offloaded:
        return ()
    # stage3.py, partition_grads: it is summed on the GPU with what came before. _constant_buffered_
    # norm2: its norm is taken in fp64, a quarter of a billion elements at a time.
    shard = numel // r.ranks
    summed_bytes = r.weight_bytes * shard
    doubled_bytes = _NORM_BYTES * min(shard, _NORM_ELEMENTS)
    return (
        Allocation(AllocationKind.OFFLOAD_STAGING, summed_bytes, "w M/d"),
        Allocation(AllocationKind.SLICE_IN_DOUBLE, doubled_bytes, "8 M/d"),
    )


def zero3_lasting(r: RankSizes) -> Moment:
    """What stage 3 holds from step to step: shards of everything, and what is never released."""
    # stage3.py, step: what is never released is gathered again when it is done.
    small_bytes, formula = r.trained_bytes * _persistent(r), N_("4 x those below threshold")
    return (*_lasting(r), Allocation(AllocationKind.SMALL_ADAPTERS, small_bytes, formula))


def _whole_bytes(r: RankSizes, gathered: Gathered) -> int:
    """Of the two, the part that grows and shrinks from block to block."""
    alone = gathered.alone // r.ranks if r.strategy.offload is Offload.ALL else 0
    return _arrived_bytes(r, gathered) + r.weight_bytes * alone


def _arrived_bytes(r: RankSizes, gathered: Gathered) -> int:
    """The same where nothing waits alone any more."""
    return r.weight_bytes * (gathered.parameters + gathered.copies)


def _arrived(gathered: Gathered) -> Gathered:
    """In backward the host waits for buckets, and by then what it asked for is there."""
    # stage3.py, param_reduce_events; NCCL drops the shards' copies as the next collective begins.
    return gathered._replace(alone=0)


def _of_blocks(r: RankSizes, blocks: int) -> Allocation:
    """The activations of as many blocks."""
    size_bytes = r.activations.saved_bytes * blocks // max(1, len(r.layout.blocks))
    return Allocation(AllocationKind.ACTIVATIONS, size_bytes, N_("of some blocks"))


def _gathered_with_the_loss(r: RankSizes) -> Moment:
    loss = _gathering(r).loss
    # trl 1.16, trainer/utils.py, maybe_gather_lm_head_ctx (tr1-005).
    head = 0 if r.prefetching else r.gathered_head
    return _gathered(r, loss._replace(parameters=loss.parameters + head))


def left_by_a_pass(r: RankSizes, moment: Moment) -> Allocation:
    """What a pass without gradients finds of the one before, beside what it gathers itself.

    partitioned_param_coordinator.py, reset_step: what is kept for a backward that never comes stays
    whole, and no longer counts towards the limit.
    """
    whole = sum(a.size_bytes for a in moment if a.kind is AllocationKind.GATHERED_PARAMETERS)
    kept_bytes = r.weight_bytes * _gathering(r).loss.parameters
    size_bytes = max(0, min(kept_bytes, r.weight_bytes * _gatherable(r) - whole))
    return Allocation(AllocationKind.GATHERED_PARAMETERS, size_bytes, N_("of the pass before"))


def _forward(r: RankSizes) -> tuple[Moment, ...]:
    running, gathering = zero3_lasting(r), _gathering(r)
    block_bytes = r.activations.saved_bytes // max(1, len(gathering.forward))
    done, most = max(
        (
            (done, gathered)
            for done, most in enumerate(gathering.forward, start=1)
            for gathered in most
        ),
        key=lambda pair: _whole_bytes(r, pair[1]) + pair[0] * block_bytes,
    )
    at_the_end = (*running, *_gathered_with_the_loss(r), *forward(r))
    return (at_the_end, (*running, *_gathered(r, most), _of_blocks(r, done)))


class _Full(NamedTuple):
    """What a rank holds as the bucket is full inside a block."""

    gone_bytes: int
    """Of the block's activations."""
    bucket: int
    """Its content."""
    waiting: int
    """The gradients that are not in it: that which comes, and one that is larger than all of it."""


def _reduced(r: RankSizes) -> Iterator[tuple[int, _Full]]:
    """Each block in which a gradient comes for which the bucket has no room, and what is held then.

    stage3.py, reduce_independent_p_g_buckets_and_remove_grads and __add_grad_to_ipg_bucket.
    """
    limit, bucket = r.buffers.reduce_bucket_size, r.own_head
    # Adapters lie evenly in what is gathered.
    part = r.trainable / max(1, _gatherable(r))
    for block, modules in enumerate(reversed(r.layout.blocks)):
        passed = 0
        for place in (place for module in reversed(modules) for place in reversed(module)):
            gradient = int(part * r.layout.sizes[place])
            if bucket > 0 and bucket + gradient > limit:
                is_first = passed < r.block_largest
                gone = r.activations.gone_bytes if is_first else r.activations.later_gone_bytes
                yield block, _Full(gone, bucket, gradient + (bucket if bucket > limit else 0))
                bucket = 0
            bucket += gradient
            passed += gradient


def _flush(r: RankSizes, numel: int) -> Allocation:
    """The content of a bucket once more; a tensor that is larger than it goes alone (f3-025).

    coalesced_collectives.py, reduce_scatter_coalesced; stage3.py, __avg_scatter_grads: this rank's
    part of it in w.
    """
    cast_bytes = 0 if r.reduced_bytes == r.weight_bytes else r.weight_bytes
    copied = numel if numel <= r.buffers.reduce_bucket_size else 0
    size_bytes = r.reduced_bytes * copied + cast_bytes * copied // r.ranks
    return Allocation(AllocationKind.REDUCE_SCATTER_COPY, size_bytes, "w min(N, b)")


def _midway(r: RankSizes, gathering: Gathering) -> tuple[Moment, ...]:
    """What is gathered and kept, at the largest of the moments at which a bucket is full."""
    moments: dict[tuple[Gathered, _Full], Moment] = {}
    blocks, run = len(r.layout.blocks), r.activations
    held_bytes = run.saved_bytes // max(1, blocks) + run.block_bytes
    for block, full in _reduced(r):
        gathered = gathering.backward[block].running
        # Ever less is to come: of moments that are alike the first is the largest.
        if (gathered, full) not in moments:
            left = replace(run, block_bytes=held_bytes - full.gone_bytes)
            moments[gathered, full] = (
                *_gathered(r, _arrived(gathered)),
                _of_blocks(r, blocks - block - 1),
                *one_block(replace(r, activations=left, block_largest=full.waiting)),
                _flush(r, full.bucket),
            )
    return (max(moments.values(), key=moment_bytes),) if moments else ()


def _backward_unordered(r: RankSizes) -> tuple[Moment, ...]:
    """As modules come in another order than they were seen in: nothing is released (tr1-013).

    parameter_offload.py, _end_of_forward_module_hook: a pass without gradients, as that of the
    reference, resets the step, so backward is held against the order of forward.
    """
    running, with_loss = zero3_lasting(r), _gathered_with_the_loss(r)
    last_block_bytes = r.activations.saved_bytes // r.layers
    return (
        (*running, *with_loss, *opening(r)),
        (*running, *with_loss, *some_blocks(r, r.layers)),
        (
            *running,
            *_gathered(r, Gathered(parameters=_gatherable(r))),
            Allocation(AllocationKind.ACTIVATIONS, last_block_bytes, N_("of the last block")),
            *one_block(r),
        ),
    )


def _backward(r: RankSizes) -> tuple[Moment, ...]:
    if r.workload.is_own_reference:
        return _backward_unordered(r)
    running, gathering = zero3_lasting(r), _gathering(r)
    last = _gathered(r, gathering.end)
    # The embedding is the last of them, and a head that is not tied to it the first: one that is
    # larger than the bucket is reduced alone, as the next gradient comes, in front of the blocks.
    is_head_alone = r.own_head > r.buffers.reduce_bucket_size
    early_slice = _slice(r, r.block_largest if is_head_alone else max(r.block_largest, r.own_head))
    head_bytes = r.weight_bytes * r.own_head
    head_alone = Allocation(AllocationKind.HEAD_GRADIENT, head_bytes, "w V h")
    alone = (head_alone, *_slice(r, r.own_head)) if is_head_alone else ()
    flush = _flush(r, _first_bucket(r))
    one_bytes = r.weight_bytes * r.embedding
    one_gradient = Allocation(AllocationKind.EMBEDDING_GRADIENT, one_bytes, "w V h")
    first = gathering.backward[0].running
    asked = min(first.alone, gathering.loss.alone)
    through_first = _gathered(r, first._replace(alone=asked))
    blocks = len(gathering.backward)
    block_bytes = r.activations.saved_bytes // blocks
    left, most = max(
        ((blocks - done, most.waiting) for done, most in enumerate(gathering.backward)),
        key=lambda pair: _arrived_bytes(r, pair[1]) + pair[0] * block_bytes,
    )
    waiting = (*_gathered(r, _arrived(most)), _of_blocks(r, left))
    reducing = (head_gradient(r), *early_slice)
    return (
        (*running, *_gathered_with_the_loss(r), *opening(r)),
        (*running, *_gathered_with_the_loss(r), *kept_blocks(r, r.layers), *alone),
        (*running, *through_first, *some_blocks(r, r.layers), *early_slice),
        (*running, *waiting, head_gradient(r)),
        *((*running, *midway, *reducing) for midway in _midway(r, gathering)),
        (*running, *last, embedding_gradient(r), *_slice(r, r.largest)),
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
    slice_bytes = 0 if r.offloaded else _NORM_BYTES * r.largest // r.ranks
    return (
        (*lasting, Allocation(AllocationKind.SUB_GROUP_GRADIENTS, group_bytes, "(w + master) G")),
        # stage3.py, get_grad_norm_direct: the norm of each gradient is taken in fp64 (six-p1).
        (*lasting, Allocation(AllocationKind.SLICE_IN_DOUBLE, slice_bytes, "8 M/d")),
        (*lasting, Allocation(AllocationKind.LAST_SUB_GROUP, last_bytes, "master G")),
    )


def zero3_moments(r: RankSizes) -> Moments:
    """The moments of stage 3, with or without offload."""
    return {
        Phase.MODEL: _building(r),
        Phase.INIT: _init(r),
        Phase.FORWARD: _forward(r),
        Phase.BACKWARD: _backward(r),
        Phase.STEP: _step(r),
    }
