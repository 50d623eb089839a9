"""What each of DeepSpeed's optimizer wrappers holds on the GPU, moment by moment.

Theory: DeepSpeed has one wrapper per regime, and each fills the phases in its own way. A phase has
moments that compete for its peak: backward opens with the loss, runs through the blocks, closes
with the embedding and the reduction. Each moment lists everything alive in it. Stage 3 has a
module of its own, `stage3.py`; `held.py` has the lines that all of them share.
The letters are those of `rank.py`; sources name DeepSpeed 0.19.8's file and function; ids such as
e4-000 name the run of tests/measured/h200.jsonl that settled a line.
"""

from collections.abc import Callable, Mapping

from zerowiz.core.memory.common import (
    Held,
    Moment,
    Moments,
    built,
    embedding_gradient,
    first_block,
    forward,
    master_weights,
    one_block,
    opening,
    optimizer,
    share_gradients,
    weights,
)
from zerowiz.core.memory.ledger import Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.memory.zero3 import stage3
from zerowiz.core.strategy import Part
from zerowiz.core.values import replace
from zerowiz.core.workload import FP32_BYTES

_NORM_BYTES = 8
"""stage_1_and_2.py, complete_grad_norm_calculation_for_cpu_offload: the norm in double."""


def _gradients(r: RankSizes) -> Held:
    return ("gradients", r.weight_bytes * r.trainable, "w N")


def _stage0(r: RankSizes) -> Moments:
    w, n = r.weight_bytes, r.trainable
    fp32 = w == FP32_BYTES
    # fp16/unfused_optimizer.py, __init__: an fp32 master of each tensor; fp32 needs none.
    lasting = (*weights(r), *optimizer(r, n, "N")[fp32:])
    gradients = _gradients(r)
    fp32_gradients = ("fp32 gradients", 0 if fp32 else 4 * n, "4 N")
    # unfused_optimizer.py, initialize_optimizer_states: one step on zero gradients (b4-000).
    stepping = ("optimizer temporaries", r.stepping_bytes * n, f"{r.stepping_bytes} N")
    init = weights(r) if fp32 else (*lasting, gradients, fp32_gradients, stepping)
    later = max(0, n - r.block - (0 if r.tied else r.embedding))
    # engine.py, allreduce_bucket: a flat copy of up to 5e8 gradients.
    all_reduce = ("all-reduce bucket", w * min(n, 500_000_000), "w min(N, 5e8)")
    return {
        Phase.MODEL: built(r),
        Phase.INIT: (init,),
        Phase.FORWARD: ((*lasting, *forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *opening(r)),
            (*lasting, *first_block(r)),
            (*lasting, ("gradients", w * later, "w (N - first block)"), *one_block(r)),
            (*lasting, gradients, *((embedding_gradient(r),) if r.tied else ())),
            (*lasting, gradients, all_reduce),
        ),
        Phase.STEP: ((*lasting, gradients, fp32_gradients, stepping),),
    }


def _separate_gradients(r: RankSizes) -> Held:
    """What a bucket's worth of gradients takes that are not copied into one.

    stage_1_and_2.py, reduce_ipg_grads: flattened for the reduction (buffered_reduce_fallback). At
    stage 1 they stand among all gradients anyway; at stage 2 they wait, and those of the bucket
    before until its reduction is done, where communication overlaps (j1-041 and j2-018, without).
    """
    waiting = 1 + r.buffers.overlap_comm if Part.GRADIENTS in r.strategy.sharded else 0
    filled = min(r.buffers.reduce_bucket_size, r.trainable)
    return ("separate gradients", r.weight_bytes * filled * (1 + waiting), "w min(b, N) x copies")


def _bucket(r: RankSizes) -> Held:
    if not (r.buffers.contiguous_gradients or r.offloaded):
        return _separate_gradients(r)
    # stage_1_and_2.py, setup_buckets: a second one where communication overlaps.
    size_bytes = r.weight_bytes * r.buffers.reduce_bucket_size * (1 + r.buffers.overlap_comm)
    return ("reduce bucket", size_bytes, "w b (1 + overlap)")


def _slice(r: RankSizes) -> Held:
    return ("slice in double", _NORM_BYTES * r.largest_slice, "8 M/d")


def _partitioned(r: RankSizes) -> tuple[Held, ...]:
    # stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__; the moments appear at the first step.
    return (*weights(r), *optimizer(r, r.share, "P"))


def _partitioned_init(r: RankSizes, kept: tuple[Held, ...]) -> tuple[Moment, ...]:
    flattening = ("flattening copy", r.weight_bytes * r.trainable, "w N")
    return ((*weights(r), flattening), (*weights(r), *kept))


def _masters(r: RankSizes) -> tuple[Held, ...]:
    # initialize_optimizer_states: a zero gradient beside each master; Adam's moments come later.
    zeroed = ("zero gradients", r.master_bytes * r.share, f"{r.master_bytes} P")
    return (master_weights(r, r.share, "P"), zeroed)


def _partitioned_step(r: RankSizes, held: tuple[Held, ...]) -> tuple[Moment, ...]:
    flat = ("flat gradients", r.weight_bytes * r.share, "w P")
    copied = 0 if r.master_bytes == r.weight_bytes else FP32_BYTES * r.share
    return (
        # step, flatten_dense_tensors_aligned and `.to(fp32)`: both beside the 16-bit shares.
        (*held, share_gradients(r), flat, ("fp32 gradients", copied, "4 P")),
        (*held, share_gradients(r), _slice(r)),
        (
            *held,
            ("gradients in the master's format", r.master_bytes * r.share, "4 P"),
            ("optimizer temporaries", r.stepping_bytes * r.share, f"{r.stepping_bytes} P"),
        ),
    )


def _stage1(r: RankSizes) -> Moments:
    lasting, bucket, full = _partitioned(r), _bucket(r), _gradients(r)
    # All gradients, and the bucket, stay between micro-steps (d4-008).
    kept = (bucket,) if r.buffers.contiguous_gradients else ()
    carried = (full, *kept) if r.accumulating else ()
    # A bucket's gradients are freed as they are copied in, but a tensor larger than the bucket
    # goes alone (e4-000 against b4-008).
    alone = r.largest > r.buffers.reduce_bucket_size
    left_bytes = bucket[1] - (0 if alone else min(bucket[1], full[1]))
    return {
        Phase.MODEL: built(r),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*lasting, *carried, *forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *carried, *opening(r)),
            (*lasting, *(carried or kept), *first_block(r)),
            (*lasting, full, bucket, *one_block(r)),
            (*lasting, full, bucket, *((embedding_gradient(r),) if r.tied else ())),
            (*lasting, full, share_gradients(r), ("reduce bucket", left_bytes, "w b - fill")),
        ),
        Phase.STEP: _partitioned_step(r, (*lasting, *kept) if r.accumulating else lasting),
    }


def _stage2(r: RankSizes) -> Moments:
    lasting, bucket, shares = _partitioned(r), _bucket(r), share_gradients(r)
    # The share stands twice while the next micro-step is added (get_gradient_for_partition).
    carried = (("accumulated gradients", *shares[1:]),) if r.accumulating else ()
    reducing = (*lasting, *carried, shares, bucket)
    return {
        Phase.MODEL: built(r),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*lasting, *carried, *forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *carried, *opening(r)),
            (*lasting, *carried, *first_block(r), bucket),
            (*reducing, *one_block(r)),
            (*reducing, embedding_gradient(r)),
        ),
        Phase.STEP: _partitioned_step(r, lasting),
    }


def _stage2_offloaded(r: RankSizes) -> Moments:
    # stage_1_and_2.py: temp_grad_gpu_buffer_for_param_offload holds the largest gradient, and
    # gradients leave at once (async_accumulate_grad_in_cpu_via_gpu), slice by slice (d4-027).
    staging = ("offload staging", r.weight_bytes * r.largest, "w M")
    lasting, bucket = (*weights(r), staging), _bucket(r)
    alone_bytes = staging[1] if r.largest > r.buffers.reduce_bucket_size else 0
    return {
        Phase.MODEL: built(r),
        Phase.INIT: _partitioned_init(r, (staging,)),
        Phase.FORWARD: ((*lasting, *forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *opening(r)),
            (*lasting, *first_block(r), bucket),
            (*lasting, bucket, embedding_gradient(r)),
            # A gradient larger than the bucket stays beside it; the others were copied in (h1-028).
            (*lasting, bucket, ("gradient alone", alone_bytes, "w M"), _slice(r)),
        ),
        Phase.STEP: (lasting,),
    }


# Rule: which wrapper a strategy uses is said here and nowhere else (engine.py,
# _configure_optimizer); the key is its stage and whether the optimizer is offloaded.
WRAPPERS: Mapping[tuple[int, bool], Callable[[RankSizes], Moments]] = {
    (0, False): _stage0,
    (1, False): _stage1,
    (2, False): _stage2,
    (2, True): _stage2_offloaded,
    (3, False): stage3,
    (3, True): stage3,
}


def first_iteration(r: RankSizes, steady: Moments) -> Moments:
    """The moments of the first iteration, beside those of the steady ones.

    Adam has no moments before it steps; only the wrapper of stage 0 steps once at init
    (fp16/unfused_optimizer.py, initialize_optimizer_states). Stage 3 gathers nothing early before
    it has seen a backward (partitioned_param_coordinator.py, fetch_sub_module).
    """
    stepped_at_init = r.strategy.stage == 0 and r.weight_bytes != FP32_BYTES
    state_bytes = r.state_bytes if stepped_at_init else 0
    scales_bytes = r.state_scales_bytes if stepped_at_init else 0
    unstepped = replace(
        r,
        state_bytes=state_bytes,
        state_scales_bytes=scales_bytes,
        prefetching=r.accumulating,
    )
    early = WRAPPERS[r.strategy.stage, r.offloaded](unstepped)
    # The last moment of a step is the optimizer's own, which makes its states as it begins.
    step = (*early[Phase.STEP][:-1], steady[Phase.STEP][-1])
    return {
        Phase.FORWARD: early[Phase.FORWARD],
        Phase.BACKWARD: early[Phase.BACKWARD],
        Phase.STEP: step,
    }
