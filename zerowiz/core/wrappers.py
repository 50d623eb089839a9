"""What each of DeepSpeed's optimizer wrappers holds on the GPU, moment by moment.

Theory: DeepSpeed has one wrapper per regime, and each fills the phases in its own way. A phase has
moments that compete for its peak: backward opens with the loss, runs through the blocks, closes
with the embedding and the reduction. Each moment lists everything alive in it.
The letters are those of `rank.py`; sources name DeepSpeed 0.19.8's file and function; ids such as
e4-000 name the run of tests/measured/h200.jsonl that settled a line.
"""

from collections.abc import Callable, Mapping, Sequence

from zerowiz.core.ledger import Phase
from zerowiz.core.rank import Rank
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import FP32_BYTES

Held = tuple[str, int, str]
"""A line without its phase: part, bytes, formula."""
Moments = Mapping[Phase, Sequence[tuple[Held, ...]]]

_NORM_BYTES = 8
"""stage_1_and_2.py, complete_grad_norm_calculation_for_cpu_offload: the norm in double."""


def _weights(r: Rank) -> tuple[Held, ...]:
    return (
        ("parameters", r.weight_bytes * r.trainable, "w N"),
        ("frozen parameters", r.frozen_bytes, "F"),
    )


def _optimizer(r: Rank, params: int, letter: str) -> tuple[Held, ...]:
    return (
        ("master weights", r.master_bytes * params, f"{r.master_bytes} {letter}"),
        ("optimizer states", r.state_bytes * params, f"{r.state_bytes} {letter}"),
    )


def _untied_head(r: Rank) -> tuple[Held, ...]:
    # transformers builds a head and then ties it: both stand for a moment (b4-000).
    return (("head before tying", r.tied * r.weight_bytes * r.embedding, "w V h"),)


def _gradients(r: Rank) -> Held:
    return ("gradients", r.weight_bytes * r.trainable, "w N")


def _saved(r: Rank) -> tuple[Held, ...]:
    return (
        ("activations", r.activations.saved_bytes, r.activations.saved_formula),
        ("loss, saved", r.activations.head_bytes, r.activations.head_formula),
    )


def _forward(r: Rank) -> tuple[Held, ...]:
    logits = ("loss, logits", r.activations.loss_forward_bytes, "logits in w and in fp32")
    return (*_saved(r), logits)


def _opening(r: Rank) -> tuple[Held, ...]:
    return (*_saved(r), ("loss, gradients", r.activations.loss_backward_bytes, "8 V t"))


def _one_block(r: Rank) -> tuple[Held, ...]:
    return (
        ("one block", r.activations.block_bytes, "recomputed activations, temporaries"),
        ("gradient in flight", r.weight_bytes * r.block_largest, "w M of a block"),
    )


def _first_block(r: Rank) -> tuple[Held, ...]:
    # A tied head's gradient waits for the embedding's (b4-002).
    head = ("head gradient", r.tied * r.weight_bytes * r.embedding, "w V h")
    return (*_saved(r)[:1], head, *_one_block(r))


def _embedding(r: Rank) -> tuple[Held, ...]:
    # A tied weight's two gradients and their sum stand side by side (acts-000, acts-033); where
    # gradients are fp32, the second is added into the first (f1-007).
    times = 2 if r.tied and r.weight_bytes != FP32_BYTES else 1
    size_bytes = times * r.weight_bytes * r.embedding
    return (("embedding gradient", size_bytes, f"{times} w V h"),)


def _stage0(r: Rank) -> Moments:
    w, n = r.weight_bytes, r.trainable
    fp32 = w == FP32_BYTES
    # fp16/unfused_optimizer.py, __init__: an fp32 master of each tensor; fp32 needs none.
    lasting = (*_weights(r), *_optimizer(r, n, "N")[fp32:])
    gradients = _gradients(r)
    fp32_gradients = ("fp32 gradients", 0 if fp32 else 4 * n, "4 N")
    # unfused_optimizer.py, initialize_optimizer_states: one step on zero gradients (b4-000).
    stepping = ("optimizer temporaries", r.stepping_bytes * n, f"{r.stepping_bytes} N")
    init = _weights(r) if fp32 else (*lasting, gradients, fp32_gradients, stepping)
    later = max(0, n - r.block - (0 if r.tied else r.embedding))
    # engine.py, allreduce_bucket: a flat copy of up to 5e8 gradients.
    all_reduce = ("all-reduce bucket", w * min(n, 500_000_000), "w min(N, 5e8)")
    return {
        Phase.MODEL: ((*_weights(r), *_untied_head(r)),),
        Phase.INIT: (init,),
        Phase.FORWARD: ((*lasting, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *_opening(r)),
            (*lasting, *_first_block(r)),
            (*lasting, ("gradients", w * later, "w (N - first block)"), *_one_block(r)),
            (*lasting, gradients, *(_embedding(r) if r.tied else ())),
            (*lasting, gradients, all_reduce),
        ),
        Phase.STEP: ((*lasting, gradients, fp32_gradients, stepping),),
    }


def _bucket(r: Rank) -> Held:
    # stage_1_and_2.py, setup_buckets: a second one where communication overlaps.
    size_bytes = r.weight_bytes * r.buffers.reduce_bucket_size * (1 + r.buffers.overlap_comm)
    return ("reduce bucket", size_bytes, "w b (1 + overlap)")


def _shares(r: Rank) -> Held:
    return ("gradients of the share", r.weight_bytes * r.held_share, "w S")


def _slice(r: Rank) -> Held:
    return ("slice in double", _NORM_BYTES * r.largest_slice, "8 M/d")


def _partitioned(r: Rank) -> tuple[Held, ...]:
    # stage_1_and_2.py, DeepSpeedZeroOptimizer.__init__; the moments appear at the first step.
    return (*_weights(r), *_optimizer(r, r.share, "P"))


def _partitioned_init(r: Rank, kept: tuple[Held, ...]) -> tuple[tuple[Held, ...], ...]:
    flattening = ("flattening copy", r.weight_bytes * r.trainable, "w N")
    return ((*_weights(r), flattening), (*_weights(r), *kept))


def _masters(r: Rank) -> tuple[Held, ...]:
    # initialize_optimizer_states: a zero gradient beside each master; Adam's moments come later.
    zeroed = ("zero gradients", r.master_bytes * r.share, f"{r.master_bytes} P")
    return (*_optimizer(r, r.share, "P")[:1], zeroed)


def _partitioned_step(r: Rank, held: tuple[Held, ...]) -> tuple[tuple[Held, ...], ...]:
    flat = ("flat gradients", r.weight_bytes * r.share, "w P")
    copied = 0 if r.master_bytes == r.weight_bytes else FP32_BYTES * r.share
    return (
        # step, flatten_dense_tensors_aligned and `.to(fp32)`: both beside the 16-bit shares.
        (*held, _shares(r), flat, ("fp32 gradients", copied, "4 P")),
        (*held, _shares(r), _slice(r)),
        (
            *held,
            ("gradients in the master's format", r.master_bytes * r.share, "4 P"),
            ("optimizer temporaries", r.stepping_bytes * r.share, f"{r.stepping_bytes} P"),
        ),
    )


def _stage1(r: Rank) -> Moments:
    lasting, bucket, full = _partitioned(r), _bucket(r), _gradients(r)
    # All gradients, and the bucket, stay between micro-steps (d4-008).
    carried = (full, bucket) if r.accumulating else ()
    # A bucket's gradients are freed as they are copied in, but a tensor larger than the bucket
    # goes alone (e4-000 against b4-008).
    alone = r.largest > r.buffers.reduce_bucket_size
    left_bytes = bucket[1] - (0 if alone else min(bucket[1], full[1]))
    return {
        Phase.MODEL: ((*_weights(r), *_untied_head(r)),),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*lasting, *carried, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *carried, *_opening(r)),
            (*lasting, *(carried or (bucket,)), *_first_block(r)),
            (*lasting, full, bucket, *_one_block(r)),
            (*lasting, full, bucket, *(_embedding(r) if r.tied else ())),
            (*lasting, full, _shares(r), ("reduce bucket", left_bytes, "w b - fill")),
        ),
        Phase.STEP: _partitioned_step(r, (*lasting, bucket) if r.accumulating else lasting),
    }


def _stage2(r: Rank) -> Moments:
    lasting, bucket, shares = _partitioned(r), _bucket(r), _shares(r)
    # The share stands twice while the next micro-step is added (get_gradient_for_partition).
    carried = (("accumulated gradients", *shares[1:]),) if r.accumulating else ()
    reducing = (*lasting, *carried, shares, bucket)
    return {
        Phase.MODEL: ((*_weights(r), *_untied_head(r)),),
        Phase.INIT: _partitioned_init(r, _masters(r)),
        Phase.FORWARD: ((*lasting, *carried, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *carried, *_opening(r)),
            (*lasting, *carried, *_first_block(r), bucket),
            (*reducing, *_one_block(r)),
            (*reducing, *_embedding(r)),
        ),
        Phase.STEP: _partitioned_step(r, lasting),
    }


def _stage2_offloaded(r: Rank) -> Moments:
    # stage_1_and_2.py: temp_grad_gpu_buffer_for_param_offload holds the largest gradient, and
    # gradients leave at once (async_accumulate_grad_in_cpu_via_gpu), slice by slice (d4-027).
    staging = ("offload staging", r.weight_bytes * r.largest, "w M")
    lasting, bucket = (*_weights(r), staging), _bucket(r)
    return {
        Phase.MODEL: ((*_weights(r), *_untied_head(r)),),
        Phase.INIT: _partitioned_init(r, (staging,)),
        Phase.FORWARD: ((*lasting, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *_opening(r)),
            (*lasting, *_first_block(r), bucket),
            (*lasting, bucket, *_one_block(r), _slice(r)),
            (*lasting, bucket, *_embedding(r), _slice(r)),
        ),
        Phase.STEP: (lasting,),
    }


def _stage3(r: Rank) -> Moments:
    w, n, p = r.weight_bytes, r.trainable, r.share
    sharded = (
        ("parameters, sharded", 0 if r.strategy.offload is Offload.ALL else w * p, "w P"),
        ("frozen parameters, sharded", r.frozen_bytes // r.ranks, "F / d"),
    )
    # stage3.py, grad_partitions_flat_buffer and __setup_for_real_optimizer: both allocated once.
    bucket = ("reduce bucket", w * r.buffers.reduce_bucket_size, "w b")
    gradients = ("gradients, sharded", 0 if r.offloaded else w * p, "w P")
    held = (*sharded, gradients, bucket)
    lasting = held if r.offloaded else (*held, *_optimizer(r, p, "P"))
    # partitioned_param_coordinator.py, fetch_sub_module: prefetch goes on until max_live; a lone
    # rank gathers nothing.
    whole, most = n + r.frozen_bytes // w, r.buffers.stage3_max_live_parameters
    # A module above max_live is never let go between its forward and its backward (f3-025).
    most += 2 * r.module if r.module > most else 0
    live = min(whole, most) if r.ranks > 1 else 0
    gathered = ("gathered parameters", w * live, "w min(N, max_live)")
    # coalesced_collectives.py, reduce_scatter_coalesced: the bucket's content once more, when it
    # is full for the first time. By then the blocks behind it are done, with their activations.
    flush_bytes = w * min(n, r.buffers.reduce_bucket_size)
    flush = ("reduce-scatter copy", flush_bytes, "w min(N, b)")
    done = min(r.buffers.reduce_bucket_size, n)
    left_share = max(0, n - done) / n
    midway = (
        ("gathered parameters", w * min(live, whole - done) if r.ranks > 1 else 0, "w (N - b)"),
        ("activations", int(r.activations.saved_bytes * left_share), "of the blocks to come"),
    )
    # stage3.py, _create_fp16_sub_groups: a group is closed by the tensor that fills it.
    group = min(p, r.buffers.sub_group_size + r.block_largest // r.ranks // 2)
    copied = 0 if w == FP32_BYTES else r.master_bytes
    stepping_bytes = (copied or w) + r.stepping_bytes
    step_bytes = 0 if r.offloaded else max(w + copied, stepping_bytes) * group
    sliced = ("slice in fp32", 4 * r.largest_slice if r.offloaded else 0, "4 M/d")
    untied = ("head before tying, sharded", r.tied * w * r.embedding // r.ranks, "w V h / d")
    built = (*sharded, ("largest tensor", w * r.largest, "w M"))
    return {
        # partition_parameters.py, Init: each module is built whole, then sharded.
        Phase.MODEL: ((*sharded, untied, ("largest module", w * r.module, "w M")),),
        Phase.INIT: ((*held, *_optimizer(r, p, "P")[:1], built[-1]) if not r.offloaded else built,),
        Phase.FORWARD: ((*lasting, gathered, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, gathered, *_opening(r)),
            (*lasting, gathered, *_first_block(r), sliced),
            (*lasting, *midway, *_first_block(r)[1:], flush, sliced),
            (*lasting, gathered, flush, sliced),
            (*lasting, gathered, *_embedding(r), sliced),
        ),
        # stage3.py, _prepare_sub_group: gradients flat and in the master's format (d4-015).
        Phase.STEP: ((*lasting, ("sub-group gradients", step_bytes, "(w + master) G")),),
    }


# Rule: which wrapper a strategy uses is said here and nowhere else (engine.py,
# _configure_optimizer); the key is its stage and whether the optimizer is offloaded.
WRAPPERS: Mapping[tuple[int, bool], Callable[[Rank], Moments]] = {
    (0, False): _stage0,
    (1, False): _stage1,
    (2, False): _stage2,
    (2, True): _stage2_offloaded,
    (3, False): _stage3,
    (3, True): _stage3,
}
