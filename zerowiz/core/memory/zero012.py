"""Predict what DeepSpeed's wrappers of stages 0 to 2 hold on the GPU, moment by moment.

Theory: DeepSpeed has one wrapper per regime, and each fills the phases in its own way. A phase has
moments that compete for its peak: backward opens with the loss, runs through the blocks, closes
with the embedding and the reduction. Each moment lists everything alive in it. Stage 3 has a
module of its own, `zero3.py`; `rank_sizes.py` has the allocations that all of them share. Each
public function is the `moments` of rows in core/strategies.py.
Symbols are those of `rank_sizes.py`; sources name DeepSpeed 0.19.8's file and function; ids such as
e4-000 name the run of tests/measured/h200.jsonl that settled a formula.
"""

from collections.abc import Callable, Iterator

from zerowiz.core.memory.allocations import Allocation, AllocationKind, Moment, Moments, Phase
from zerowiz.core.memory.gradient_shards import WITH_EMBEDDING, Reduction
from zerowiz.core.memory.rank_sizes import (
    RankSizes,
    built,
    forward,
    head_gradient,
    kept_blocks,
    master_weights,
    one_block,
    opening,
    optimizer,
    optimizer_states,
    share_gradients,
    some_blocks,
    summed_gradients,
    weights,
)
from zerowiz.core.strategy_types import Part
from zerowiz.core.workload import FP32_BYTES
from zerowiz.translation import N_

_NORM_BYTES = 8
"""stage_1_and_2.py, complete_grad_norm_calculation_for_cpu_offload: the norm in double."""
# engine.py, allreduce_bucket: a flat copy of up to so many gradients.
_ALL_REDUCE_BUCKET_SIZE = 500_000_000


def _gradients(r: RankSizes, moved: int = 0) -> Allocation:
    """All gradients, but those that were moved into the bucket."""
    formula = "w (N - moved)" if moved else "w N"
    left = max(0, r.trainable - moved)
    return Allocation(AllocationKind.GRADIENTS, r.weight_bytes * left, formula)


def _later_gradients(r: RankSizes) -> Allocation:
    """What there is while backward runs through the block that it comes to last."""
    later = max(0, r.trainable - r.block - (0 if r.tied else r.embedding))
    return Allocation(AllocationKind.GRADIENTS, r.weight_bytes * later, N_("w (N - first block)"))


def _tied_gradients(r: RankSizes) -> Moment:
    """The embedding's gradient where all others exist: counted among them unless it is tied."""
    return (summed_gradients(r, counted=1),) if r.tied else ()


def _temporaries(r: RankSizes, params: int, symbol: str) -> Allocation:
    """What the optimizer allocates while it steps so many parameters."""
    formula = f"{r.stepping_bytes} {symbol}"
    return Allocation(AllocationKind.OPTIMIZER_TEMPORARIES, r.stepping_bytes * params, formula)


def ddp_lasting(r: RankSizes) -> Moment:
    """What stage 0 holds from step to step: everything whole on each rank."""
    # fp16/unfused_optimizer.py, __init__: an fp32 master of each tensor; fp32 needs none.
    is_fp32 = r.weight_bytes == FP32_BYTES
    masters = () if is_fp32 else (master_weights(r, r.trainable, "N"),)
    return (*weights(r), *masters, optimizer_states(r, r.trainable, "N"))


def ddp_moments(r: RankSizes) -> Moments:
    """The moments of stage 0."""
    is_fp32, lasting = r.weight_bytes == FP32_BYTES, ddp_lasting(r)
    gradients = _gradients(r)
    fp32_bytes = 0 if is_fp32 else FP32_BYTES * r.trainable
    fp32_gradients = Allocation(AllocationKind.FP32_GRADIENTS, fp32_bytes, "4 N")
    # unfused_optimizer.py, initialize_optimizer_states: one step on zero gradients (b4-000).
    stepping = _temporaries(r, r.trainable, "N")
    init = weights(r) if is_fp32 else (*lasting, gradients, fp32_gradients, stepping)
    # engine.py, step: gradients are cleared at the boundary alone; the next micro-step finds them
    # all (k1-000).
    carried = (gradients,) if r.accumulating else ()
    reduced_bytes = r.weight_bytes * min(r.trainable, _ALL_REDUCE_BUCKET_SIZE)
    all_reduce = Allocation(AllocationKind.ALL_REDUCE_BUCKET, reduced_bytes, "w min(N, 5e8)")
    return {
        Phase.MODEL: built(r),
        Phase.INIT: (init,),
        Phase.FORWARD: ((*lasting, *carried, *forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *carried, *opening(r)),
            (*lasting, *carried, *some_blocks(r, r.layers)),
            (*lasting, *(carried or (_later_gradients(r),)), *one_block(r)),
            (*lasting, gradients, *_tied_gradients(r)),
            (*lasting, gradients, all_reduce),
        ),
        Phase.STEP: ((*lasting, gradients, fp32_gradients, stepping),),
    }


def _separate_gradients(r: RankSizes) -> Allocation:
    """What a bucket's worth of gradients takes that are not copied into one.

    stage_1_and_2.py, reduce_ipg_grads: flattened for the reduction (buffered_reduce_fallback). At
    stage 1 they exist among all gradients anyway; at stage 2 they wait, and those of the bucket
    before until its reduction is done, where communication overlaps (j1-041 and j2-018, without).
    """
    waiting = r.buffers.buckets if Part.GRADIENTS in r.strategy.sharded else 0
    filled = min(r.buffers.reduce_bucket_size, r.trainable)
    size_bytes = r.weight_bytes * filled * (1 + waiting)
    return Allocation(AllocationKind.SEPARATE_GRADIENTS, size_bytes, "w min(b, N) x copies")


def _bucket(r: RankSizes) -> Allocation:
    if not (r.buffers.contiguous_gradients or r.offloaded):
        return _separate_gradients(r)
    # stage_1_and_2.py, setup_buckets: a second one where communication overlaps; and one for each
    # format in which gradients travel, of which autocast has two (torch_autocast.py; j1-036).
    buckets = r.buffers.buckets * (2 if r.half_weight_bytes else 1)
    size_bytes = r.weight_bytes * r.buffers.reduce_bucket_size * buckets
    return Allocation(AllocationKind.REDUCE_BUCKET, size_bytes, "w b (1 + overlap)")


def _slice(r: RankSizes) -> Allocation:
    return Allocation(AllocationKind.SLICE_IN_DOUBLE, _NORM_BYTES * r.cut.largest_slice, "8 M/d")


def divided_lasting(r: RankSizes) -> Moment:
    """What stages 1 and 2 hold from step to step: whole weights, a share of the states."""
    # stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__; the moments appear at the first step.
    return (*weights(r), *optimizer(r, r.share, "P"))


def _partitioned_init(r: RankSizes, kept: Moment) -> tuple[Moment, ...]:
    size_bytes = r.weight_bytes * r.trainable
    flattening = Allocation(AllocationKind.FLATTENING_COPY, size_bytes, "w N")
    return ((*weights(r), flattening), (*weights(r), *kept))


def _masters(r: RankSizes) -> Moment:
    # initialize_optimizer_states: a zero gradient for each master; Adam's moments come later.
    size_bytes = r.master_bytes * r.share
    zeroed = Allocation(AllocationKind.ZERO_GRADIENTS, size_bytes, f"{r.master_bytes} P")
    return (master_weights(r, r.share, "P"), zeroed)


def _partitioned_step(r: RankSizes, lasting: Moment) -> tuple[Moment, ...]:
    share = r.cut.stepped or r.share
    flat = Allocation(AllocationKind.FLAT_GRADIENTS, r.weight_bytes * share, "w P")
    copied_bytes = 0 if r.master_bytes == r.weight_bytes else FP32_BYTES * share
    copied = Allocation(AllocationKind.FP32_GRADIENTS, copied_bytes, "4 P")
    stepped = Allocation(
        AllocationKind.MASTER_GRADIENTS, r.master_bytes * share, f"{r.master_bytes} P"
    )
    # step: the share's gradients are one tensor, which the next group still needs.
    kept = (share_gradients(r),) if r.cut.groups > 1 else ()
    return (
        # step, flatten_dense_tensors_aligned and `.to(fp32)`: both next to the 16-bit shares.
        (*lasting, share_gradients(r), flat, copied),
        (*lasting, share_gradients(r), _slice(r)),
        (*lasting, *kept, stepped, _temporaries(r, share, "P")),
    )


def _held(r: RankSizes, reduction: Reduction) -> Moment:
    """The share's gradients, where an earlier reduction made their memory."""
    return (share_gradients(r),) if r.cut.appearing.moved < reduction.moved else ()


def _copies(r: RankSizes) -> Iterator[tuple[Reduction, Allocation]]:
    """What reductions copy of a bucket that has gradients of several ranks."""
    for reduction in r.cut.copies if r.buffers.contiguous_gradients or r.offloaded else ():
        size_bytes = r.weight_bytes * reduction.copied
        yield reduction, Allocation(AllocationKind.FLATTENING_COPY, size_bytes, N_("w b, filled"))


def _blocks_at(r: RankSizes, reduction: Reduction) -> Moment:
    """What backward holds when a bucket is reduced, and in the block that comes then."""
    if reduction.blocks_kept >= 0:
        return some_blocks(r, min(reduction.blocks_kept, r.layers))
    fits_bucket = r.embedding <= r.buffers.reduce_bucket_size
    if reduction.blocks_kept != WITH_EMBEDDING and fits_bucket:
        return ()
    size_bytes = r.weight_bytes * r.embedding
    return (Allocation(AllocationKind.EMBEDDING_GRADIENT, size_bytes, "w V h"),)


def _in_fp32(r: RankSizes) -> Moment:
    """What is reduced, once more: ranks that share sequences reduce in fp32 (allreduce_bucket)."""
    if r.reduced_bytes == r.weight_bytes:
        return ()
    reduced = r.cut.appearing.alone or min(r.buffers.reduce_bucket_size, r.trainable)
    return (Allocation(AllocationKind.FLATTENING_COPY, r.reduced_bytes * reduced, "4 min(b, N)"),)


def _alone(r: RankSizes, reduction: Reduction, carried: Callable[[int], Moment]) -> Moment:
    """A gradient outside the bucket, unless it is among those of the micro-steps before."""
    if AllocationKind.GRADIENTS in {allocation.kind for allocation in carried(0)}:
        return ()
    size_bytes = r.weight_bytes * reduction.alone
    return (Allocation(AllocationKind.GRADIENT_ALONE, size_bytes, "w M"),)


def _reduced_in_backward(
    r: RankSizes, carried: Callable[[int], Moment], bucket: Allocation
) -> Iterator[Moment]:
    """What backward holds where buckets are reduced while it runs.

    Args:
        r: The rank.
        carried: What lasts, and the gradients that are there before this backward, of which so
            many were moved into the bucket.
        bucket: The bucket.
    """
    shares, appearing = share_gradients(r), r.cut.appearing
    # Without a bucket each gradient stays where it is, as it comes.
    is_separate = not (r.buffers.contiguous_gradients or r.offloaded)
    early = (shares,) if is_separate or appearing.blocks_kept >= 0 else ()
    # One that is larger than the bucket leaves its own memory as it is copied into the share's.
    kept = (*carried(appearing.left), bucket)
    yield (*carried(0), *opening(r))
    yield (*carried(0), bucket, *some_blocks(r, r.layers))
    if appearing.alone and appearing.blocks_kept > 0:
        both = (bucket, shares, *_alone(r, appearing, carried), *_in_fp32(r))
        blocks = min(appearing.blocks_kept, r.layers)
        yield (*carried(appearing.moved), *both, *kept_blocks(r, blocks))
    yield (*kept, shares, *_in_fp32(r), *_blocks_at(r, appearing))
    for reduction, copy in _copies(r):
        moment = (bucket, copy, *_held(r, reduction), *_blocks_at(r, reduction))
        yield (*carried(reduction.moved), *moment)
    yield (*kept, *early, head_gradient(r), *one_block(r))
    yield (*kept, *early, summed_gradients(r))


def _reduced_after_backward(
    r: RankSizes, lasting: Moment, carried: Moment, bucket: Allocation
) -> Iterator[Moment]:
    """What backward holds where buckets are reduced when it is over."""
    full, appearing = _gradients(r), r.cut.appearing
    kept = (bucket,) if r.buffers.contiguous_gradients else ()
    yield (*lasting, *carried, *opening(r))
    yield (*lasting, *(carried or kept), *some_blocks(r, r.layers))
    yield (*lasting, full, bucket, *one_block(r))
    yield (*lasting, full, bucket, *_tied_gradients(r))
    moved = _gradients(r, appearing.moved)
    yield (*lasting, moved, bucket, share_gradients(r), *_in_fp32(r))
    for reduction, copy in _copies(r):
        moment = (bucket, copy, *_held(r, reduction))
        yield (*lasting, _gradients(r, reduction.moved), *moment)


def zero1_moments(r: RankSizes) -> Moments:
    """The moments of stage 1: the optimizer's states divided."""
    lasting, bucket = divided_lasting(r), _bucket(r)
    # All gradients, and the bucket, stay between micro-steps (d4-008).
    kept = (bucket,) if r.buffers.contiguous_gradients else ()
    carried = (_gradients(r), *kept) if r.accumulating else ()
    if r.buffers.overlap_comm and r.buffers.contiguous_gradients:

        def left(moved: int) -> Moment:
            return (*lasting, _gradients(r, moved)) if r.accumulating else lasting

        backward = (
            (*lasting, *carried, *opening(r)),
            *_reduced_in_backward(r, left, bucket),
        )
    else:
        backward = tuple(_reduced_after_backward(r, lasting, carried, bucket))
    return {
        Phase.MODEL: built(r),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*lasting, *carried, *forward(r)),),
        Phase.BACKWARD: backward,
        Phase.STEP: _partitioned_step(r, lasting),
    }


def zero2_moments(r: RankSizes) -> Moments:
    """The moments of stage 2: the optimizer's states and the gradients divided."""
    lasting, shares = divided_lasting(r), share_gradients(r)
    # The share is held twice while the next micro-step is added (get_gradient_for_partition).
    accumulated = Allocation(
        AllocationKind.ACCUMULATED_GRADIENTS, shares.size_bytes, shares.formula
    )
    carried = (*lasting, accumulated) if r.accumulating else lasting
    return {
        Phase.MODEL: built(r),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*carried, *forward(r)),),
        Phase.BACKWARD: tuple(_reduced_in_backward(r, lambda _: carried, _bucket(r))),
        Phase.STEP: _partitioned_step(r, lasting),
    }


def zero2_offload_lasting(r: RankSizes) -> Moment:
    """What stage 2 with the optimizer on the host holds from step to step."""
    # stage_1_and_2.py: temp_grad_gpu_buffer_for_param_offload holds the largest gradient, and
    # gradients leave at once (async_accumulate_grad_in_cpu_via_gpu), slice by slice (d4-027).
    staging = Allocation(AllocationKind.OFFLOAD_STAGING, r.weight_bytes * r.largest, "w M")
    return (*weights(r), staging)


def _first_alone(r: RankSizes) -> Moment:
    """The first gradient of a rank beside the blocks to come, if it is larger than the bucket.

    stage_1_and_2.py, reduce_ipg_grads: it is reduced, and its norm taken, as the next one comes. A
    head that is not tied comes first of all (v5-ballast-z2-offload-host).
    """
    first = r.cut.appearing
    if not first.alone or first.blocks_kept < 0:
        return ()
    size_bytes = _NORM_BYTES * min(first.alone, r.cut.largest_slice)
    return (
        Allocation(AllocationKind.GRADIENT_ALONE, r.weight_bytes * first.alone, "w M"),
        Allocation(AllocationKind.SLICE_IN_DOUBLE, size_bytes, "8 M/d"),
        *kept_blocks(r, min(first.blocks_kept, r.layers)),
    )


def zero2_offload_moments(r: RankSizes) -> Moments:
    """The moments of stage 2, and of stage 1, with the optimizer on the host."""
    lasting, bucket = zero2_offload_lasting(r), _bucket(r)
    *_, staging = lasting
    # A gradient larger than the bucket stays outside it; the others were copied in (h1-028).
    alone_bytes = staging.size_bytes if r.largest > r.buffers.reduce_bucket_size else 0
    alone = Allocation(AllocationKind.GRADIENT_ALONE, alone_bytes, "w M")
    carried: Moment = ()
    backward: tuple[Moment, ...] = (
        (*lasting, *opening(r)),
        (*lasting, *some_blocks(r, r.layers), bucket),
        *((*lasting, bucket, copy, *_blocks_at(r, when)) for when, copy in _copies(r)),
        (*lasting, bucket, summed_gradients(r)),
        (*lasting, bucket, alone, _slice(r)),
        (*lasting, bucket, *_first_alone(r)),
    )
    if r.buffers.keeps_gradients and (r.accumulating or not r.buffers.overlap_comm):
        # As at stage 1, but that what a bucket brings to this rank leaves for the host.
        carried = (_gradients(r), bucket) if r.accumulating else ()
        # The largest is the embedding's, and the first: where it is not copied, nothing has moved.
        moved = 0 if alone_bytes else min(r.buffers.reduce_bucket_size, r.trainable)
        left = _gradients(r, moved)
        backward = (
            *_reduced_after_backward(r, lasting, carried, bucket),
            (*lasting, left, bucket, _slice(r)),
        )
    # __init__, weights_partition: cloned on the GPU, then converted on the host. One H100 whose
    # memory another process held ran out of memory here (tests/measured/README.md).
    copied = Allocation(AllocationKind.SHARE_COPY, r.weight_bytes * r.share, "w P")
    return {
        Phase.MODEL: built(r),
        Phase.INIT: (*_partitioned_init(r, (staging,)), (*weights(r), copied)),
        Phase.FORWARD: ((*lasting, *carried, *forward(r)),),
        Phase.BACKWARD: backward,
        Phase.STEP: (lasting,),
    }
