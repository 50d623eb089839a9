"""What each of DeepSpeed's optimizer wrappers holds on the GPU, moment by moment.

Theory: DeepSpeed has one wrapper per regime, and each fills the phases in its own way. A phase has
moments that compete for its peak: backward opens with the loss, runs through the blocks, closes
with the embedding and the reduction. Each moment lists everything alive in it.
The letters are those of `rank.py`; sources name DeepSpeed 0.19.8's file and function; ids such as
e4-000 name the run of tests/measured/h200.jsonl that settled a line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
        ("optimizer states", r.states_bytes(params), f"{r.state_bytes} {letter}"),
    )


def _untied_head(r: Rank) -> tuple[Held, ...]:
    # transformers builds a head and then ties it: both stand for a moment (b4-000).
    return (("head before tying", r.untied_head_bytes, "w V h"),)


def _new_adapters(params: int, formula: str) -> Held:
    # peft/tuners/tuners_utils.py, cast_adapter_dtype: fp32, until DeepSpeed casts them (f3-007).
    return ("adapters in fp32", FP32_BYTES * params, formula)


def _built(r: Rank) -> tuple[tuple[Held, ...], ...]:
    """The model as it is built; adapters come when the base stands."""
    trained, frozen = _weights(r)
    if not r.frozen_bytes:
        return ((trained, *_untied_head(r)),)
    return ((frozen, *_untied_head(r)), (frozen, _new_adapters(r.trainable, "4 N")))


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
        ("gradient in flight", r.trained_bytes * r.block_largest, "w M of a block"),
        ("layer out of 4 bits", r.dequantized_bytes, "w of the largest"),
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
        Phase.MODEL: _built(r),
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
        Phase.MODEL: _built(r),
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
        Phase.MODEL: _built(r),
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
    alone_bytes = staging[1] if r.largest > r.buffers.reduce_bucket_size else 0
    return {
        Phase.MODEL: _built(r),
        Phase.INIT: _partitioned_init(r, (staging,)),
        Phase.FORWARD: ((*lasting, *_forward(r)),),
        Phase.BACKWARD: (
            (*lasting, *_opening(r)),
            (*lasting, *_first_block(r), bucket),
            (*lasting, bucket, *_embedding(r)),
            # A gradient larger than the bucket stays beside it; the others were copied in (h1-028).
            (*lasting, bucket, ("gradient alone", alone_bytes, "w M"), _slice(r)),
        ),
        Phase.STEP: (lasting,),
    }


def _secondary(r: Rank, released: int) -> tuple[Held, ...]:
    """What a node keeps of parameters that are not gathered, so that no other node is asked.

    partition_parameters.py, _partition_param_sec: made as a parameter is let go, dropped when it
    was stepped (h1-024 to h1-027).
    """
    if r.buffers.hpz_partition_size == 1:
        return ()
    size_bytes = r.weight_bytes * released // r.buffers.hpz_partition_size
    return (("secondary parameters", size_bytes, "w (N - gathered) / hpz"),)


def _stage3_model(r: Rank, sharded: tuple[Held, ...]) -> tuple[tuple[Held, ...], ...]:
    if not r.zero_init:
        return _built(r)
    untied = (
        ("head before tying, sharded", r.untied_head_bytes // r.ranks, "w V h / d"),
        *_secondary(r, r.untied_head_bytes // r.weight_bytes),
    )
    # partition_parameters.py, Init: each module is built whole, then sharded.
    building = (*untied, ("largest module", r.weight_bytes * r.module, "w M"))
    if not r.frozen_bytes:
        return ((*sharded, *building),)
    frozen = sharded[1]
    # They are made whole, and sharded by the engine (f3-006).
    return ((frozen, *building), (frozen, _new_adapters(r.trainable, "4 N")))


def _stage3_init(
    r: Rank, mastered: tuple[Held, ...], held: tuple[Held, ...], group: int
) -> tuple[tuple[Held, ...], ...]:
    w, on_host = r.weight_bytes, r.strategy.offload is Offload.ALL
    shard = ("its shard", w * r.largest // r.ranks, "w M / d")
    zeroed = ("zero gradients", 0 if r.offloaded else r.master_bytes * group, "master G")
    whole = () if r.zero_init else ((*_weights(r), shard),)
    return (
        # partition_parameters.py, _convert_to_zero_parameters: sharded tensor by tensor.
        *whole,
        # stage3.py, initialize_optimizer_states: a gradient of the largest sub-group (g1-076).
        (*mastered, zeroed),
        # stage3.py, create_reduce_and_remove_grad_hooks: each tensor is gathered once.
        (*held, ("largest tensor", w * r.largest, "w M"), *((shard,) if on_host else ())),
    )


def _stage3(r: Rank) -> Moments:
    w, n, p, trained = r.weight_bytes, r.trainable, r.share, r.trained_bytes
    on_host = r.strategy.offload is Offload.ALL
    sharded = (
        ("parameters, sharded", 0 if on_host else trained * p, "w P"),
        ("frozen parameters, sharded", 0 if on_host else r.frozen_bytes // r.ranks, "F / d"),
    )
    # stage3.py, grad_partitions_flat_buffer and __setup_for_real_optimizer: both allocated once.
    bucket = ("reduce bucket", w * r.buffers.reduce_bucket_size, "w b")
    gradients = ("gradients, sharded", 0 if r.offloaded else w * p, "w P")
    held = (*sharded, gradients, bucket)
    lasting = held if r.offloaded else (*held, *_optimizer(r, p, "P"))
    # partitioned_param_coordinator.py, fetch_sub_module: prefetch goes on until max_live; a lone
    # rank gathers nothing.
    persistent = r.persistent_parameters if r.ranks > 1 else 0
    whole = n - persistent + r.frozen_bytes // w
    # Without prefetch nothing is gathered while the loss is worked out (g1-076, d4-014).
    most = max(r.module, r.buffers.stage3_max_live_parameters) if r.prefetching else 0
    live = min(whole, r.kept_experts + most) if r.ranks > 1 else 0
    # Adapters in fp32 are gathered as such; the limit counts elements.
    wider = (trained - w) * (n - persistent) * live // max(1, whole)
    gathered = (
        ("gathered parameters", w * live + wider, "w min(N, max_live + experts)"),
        *_secondary(r, whole - live if r.prefetching else whole),
    )
    # stage3.py, step: gathered again when it is done.
    running = (
        *lasting,
        ("small adapters, whole", trained * persistent, "4 x those below threshold"),
    )
    # coalesced_collectives.py, reduce_scatter_coalesced: the bucket's content once more, when it
    # is full for the first time. By then the blocks behind it are done, with their activations.
    flush_bytes = w * min(n, r.buffers.reduce_bucket_size)
    flush = ("reduce-scatter copy", flush_bytes, "w min(N, b)")
    done = min(r.buffers.reduce_bucket_size, n)
    left_share = max(0, n - done) / n
    live_last = min(live, r.embedding)
    ending = (
        ("gathered parameters", w * live_last, "w V h"),
        *_secondary(r, whole - live_last),
    )
    live_midway = min(live, whole - done) if r.ranks > 1 else 0
    # partition_parameters.py, AllGatherCoalescedHandle: what is gathered together stands once more
    # until each tensor is copied out of it (i1-038); checkpointing does that while it recomputes.
    ahead = r.module < r.buffers.stage3_max_live_parameters and not r.checkpointing
    early = ahead * (r.buffers.stage3_prefetch_bucket_size + r.block_largest)
    midway = (
        ("gathered parameters", w * live_midway, "w (N - b)"),
        ("parameters on their way", w * min(live_midway, early), "w (prefetch + M of a block)"),
        *_secondary(r, whole - live_midway),
        ("activations", int(r.activations.saved_bytes * left_share), "of the blocks to come"),
    )
    # stage3.py, _create_fp16_sub_groups: a group is closed by the tensor that fills it.
    group = min(p, r.buffers.sub_group_size + r.block_largest // r.ranks // 2)
    copied = 0 if w == FP32_BYTES else r.master_bytes
    stepping_bytes = (copied or w) + r.stepping_bytes
    step_bytes = 0 if r.offloaded else max(w + copied, stepping_bytes) * group
    # At the first step the states appear group by group: the last group's, or the one before it.
    last = p - (p - 1) // group * group
    last_bytes = max(stepping_bytes * last, stepping_bytes * group - r.states_bytes(last))
    # stage3.py, _offload_grad_partition_at_boundary: the shard of the tensor at hand.
    sliced = ("slice in fp32", 4 * r.largest // r.ranks if r.offloaded else 0, "4 M/d")
    # A head that is tied is the last of them, not the first.
    early_largest = r.block_largest if r.tied else r.largest
    early_bytes = 4 * early_largest // r.ranks if r.offloaded else 0
    sliced_early = ("slice in fp32", early_bytes, "4 M/d")
    masters = () if r.offloaded else _optimizer(r, p, "P")[:1]
    secondary = _secondary(r, whole)
    stepped = (*lasting, *secondary)
    return {
        Phase.MODEL: _stage3_model(r, (*sharded, *secondary)),
        Phase.INIT: _stage3_init(
            r, (*sharded, *secondary, *masters), (*held, *secondary, *masters), group
        ),
        Phase.FORWARD: ((*running, *gathered, *_forward(r)),),
        Phase.BACKWARD: (
            (*running, *gathered, *_opening(r)),
            (*running, *gathered, *_first_block(r), sliced_early),
            (*running, *midway, *_first_block(r)[1:], flush, sliced_early),
            # By the end all but the embedding is let go (i1-024).
            (*running, *ending, *_embedding(r), sliced),
            (*running, *ending, ("embedding gradient", w * r.embedding, "w V h"), flush),
        ),
        # stage3.py, _prepare_sub_group: gradients flat and in the master's format (d4-015).
        Phase.STEP: (
            (*stepped, ("sub-group gradients", step_bytes, "(w + master) G")),
            (*stepped, ("last sub-group", 0 if r.offloaded else last_bytes, "master G")),
        ),
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


def first_iteration(r: Rank, steady: Moments) -> Moments:
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
