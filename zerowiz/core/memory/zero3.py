"""What DeepSpeed's stage 3 wrapper holds on the GPU, moment by moment.

Theory: parameters stand in shards. Those of a module are gathered before it runs, with those that
come next as far as DeepSpeed's limit on live parameters allows, and let go after it. A gradient
goes into a bucket that is reduced and scattered when it is full, so in backward two moments more
compete: the first full bucket, and the last one. The optimizer steps one sub-group (G) at a time.
Letters and sources are as in `wrappers.py`; a function that returns an int counts elements.
"""

from zerowiz.core.memory.common import (
    Held,
    Moment,
    Moments,
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
from zerowiz.core.memory.ledger import Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.strategy import Offload
from zerowiz.core.workload import FP32_BYTES


def _sharded(r: RankSizes) -> tuple[Held, ...]:
    on_host = r.strategy.offload is Offload.ALL
    return (
        ("parameters, sharded", 0 if on_host else r.trained_bytes * r.share, "w P"),
        ("frozen parameters, sharded", 0 if on_host else r.frozen_bytes // r.ranks, "F / d"),
    )


def _buffers(r: RankSizes) -> tuple[Held, ...]:
    # stage3.py, grad_partitions_flat_buffer and __setup_for_real_optimizer: both allocated once.
    return (
        ("gradients, sharded", 0 if r.offloaded else r.weight_bytes * r.share, "w P"),
        ("reduce bucket", r.weight_bytes * r.buffers.reduce_bucket_size, "w b"),
    )


def _lasting(r: RankSizes) -> tuple[Held, ...]:
    states = () if r.offloaded else optimizer(r, r.share, "P")
    return (*_sharded(r), *_buffers(r), *states)


def _persistent(r: RankSizes) -> int:
    """What is never let go; a lone rank lets nothing go, and gathers nothing."""
    return r.persistent_parameters if r.ranks > 1 else 0


def _passing(r: RankSizes) -> int:
    """What is gathered and let go."""
    return r.trainable - _persistent(r) + r.frozen_bytes // r.weight_bytes


def _live(r: RankSizes) -> int:
    """What is gathered while the loss is worked out: without prefetch nothing (g1-076, d4-014).

    partitioned_param_coordinator.py, fetch_sub_module: prefetch goes on until max_live.
    """
    if r.ranks == 1:
        return 0
    most = max(r.module, r.buffers.stage3_max_live_parameters) if r.prefetching else 0
    return min(_passing(r), r.kept_experts + most)


def _first_bucket(r: RankSizes) -> int:
    """What went through backward when the bucket is full for the first time."""
    return min(r.buffers.reduce_bucket_size, r.trainable)


def _on_their_way(r: RankSizes) -> int:
    """What is gathered together stands once more until each tensor is copied out of it (i1-038).

    partition_parameters.py, AllGatherCoalescedHandle; checkpointing does that while it recomputes.
    """
    ahead = r.module < r.buffers.stage3_max_live_parameters and not r.checkpointing
    return ahead * (r.buffers.stage3_prefetch_bucket_size + r.block_largest)


def _secondary(r: RankSizes, released: int) -> tuple[Held, ...]:
    """What a node keeps of parameters that are not gathered, so that no other node is asked.

    partition_parameters.py, _partition_param_sec: made as a parameter is let go, dropped when it
    was stepped (h1-024 to h1-027).
    """
    if r.buffers.hpz_partition_size == 1:
        return ()
    size_bytes = r.weight_bytes * released // r.buffers.hpz_partition_size
    return (("secondary parameters", size_bytes, "w (N - gathered) / hpz"),)


def _gathered_with_the_loss(r: RankSizes) -> tuple[Held, ...]:
    passing, live = _passing(r), _live(r)
    # Adapters in fp32 are gathered as such; the limit counts elements.
    widened_bytes = (r.trained_bytes - r.weight_bytes) * (r.trainable - _persistent(r))
    size_bytes = r.weight_bytes * live + widened_bytes * live // max(1, passing)
    return (
        ("gathered parameters", size_bytes, "w min(N, max_live + experts)"),
        *_secondary(r, passing - live if r.prefetching else passing),
    )


def _gathered_midway(r: RankSizes) -> tuple[Held, ...]:
    w, passing = r.weight_bytes, _passing(r)
    live = max(0, min(_live(r), passing - _first_bucket(r)))
    on_their_way_bytes = w * min(live, _on_their_way(r))
    return (
        ("gathered parameters", w * live, "w (N - b)"),
        ("parameters on their way", on_their_way_bytes, "w (prefetch + M of a block)"),
        *_secondary(r, passing - live),
    )


def _gathered_last(r: RankSizes) -> tuple[Held, ...]:
    # By the end all but the embedding is let go (i1-024).
    live = min(_live(r), r.embedding)
    return (
        ("gathered parameters", r.weight_bytes * live, "w V h"),
        *_secondary(r, _passing(r) - live),
    )


def _building(r: RankSizes) -> tuple[Moment, ...]:
    if not r.zero_init:
        return built(r)
    trained, frozen = _sharded(r)
    head = ("head before tying, sharded", r.untied_head_bytes // r.ranks, "w V h / d")
    # partition_parameters.py, Init: each module is built whole, then sharded.
    building = (
        head,
        *_secondary(r, r.untied_head_bytes // r.weight_bytes),
        ("largest module", r.weight_bytes * r.module, "w M"),
    )
    if not r.frozen_bytes:
        return ((trained, frozen, *_secondary(r, _passing(r)), *building),)
    # Adapters are made whole, and sharded by the engine (f3-006).
    return ((frozen, *building), (frozen, new_adapters(r)))


def _init(r: RankSizes) -> tuple[Moment, ...]:
    tensor = ("largest tensor", r.weight_bytes * r.largest, "w M")
    shard = ("its shard", r.weight_bytes * r.largest // r.ranks, "w M / d")
    secondary = _secondary(r, _passing(r))
    masters = () if r.offloaded else (master_weights(r, r.share, "P"),)
    zeroed_bytes = 0 if r.offloaded else r.master_bytes * r.sub_group
    gathering = (tensor, shard) if r.strategy.offload is Offload.ALL else (tensor,)
    return (
        # partition_parameters.py, _convert_to_zero_parameters: sharded tensor by tensor.
        *(() if r.zero_init else ((*weights(r), shard),)),
        # stage3.py, initialize_optimizer_states: a gradient of the largest sub-group (g1-076).
        (*_sharded(r), *secondary, *masters, ("zero gradients", zeroed_bytes, "master G")),
        # stage3.py, create_reduce_and_remove_grad_hooks: each tensor is gathered once.
        (*_sharded(r), *_buffers(r), *secondary, *masters, *gathering),
    )


def _slice(r: RankSizes, numel: int) -> Held:
    # stage3.py, _offload_grad_partition_at_boundary: the shard of the tensor at hand.
    size_bytes = FP32_BYTES * numel // r.ranks if r.offloaded else 0
    return ("slice in fp32", size_bytes, "4 M/d")


def _running(r: RankSizes) -> tuple[Held, ...]:
    # stage3.py, step: what is never let go is gathered again when it is done.
    small_bytes = r.trained_bytes * _persistent(r)
    return (*_lasting(r), ("small adapters, whole", small_bytes, "4 x those below threshold"))


def _backward(r: RankSizes) -> tuple[Moment, ...]:
    running, with_loss = _running(r), _gathered_with_the_loss(r)
    # A head that is tied is the last of them, not the first.
    early_slice = _slice(r, r.block_largest if r.tied else r.largest)
    # coalesced_collectives.py, reduce_scatter_coalesced: the bucket's content once more.
    flush = ("reduce-scatter copy", r.weight_bytes * _first_bucket(r), "w min(N, b)")
    # When it is full for the first time, the blocks behind it are done, with their activations.
    to_come = (r.trainable - _first_bucket(r)) / r.trainable
    saved = ("activations", int(r.activations.saved_bytes * to_come), "of the blocks to come")
    midway = (*_gathered_midway(r), saved, head_gradient(r), *one_block(r))
    last = _gathered_last(r)
    one_gradient = ("embedding gradient", r.weight_bytes * r.embedding, "w V h")
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
    lasting = (*_lasting(r), *_secondary(r, _passing(r)))
    group_bytes, last_bytes = _step_bytes(r)
    return (
        (*lasting, ("sub-group gradients", group_bytes, "(w + master) G")),
        (*lasting, ("last sub-group", last_bytes, "master G")),
    )


def stage3(r: RankSizes) -> Moments:
    """The moments of stage 3, with or without offload."""
    return {
        Phase.MODEL: _building(r),
        Phase.INIT: _init(r),
        Phase.FORWARD: ((*_running(r), *_gathered_with_the_loss(r), *forward(r)),),
        Phase.BACKWARD: _backward(r),
        Phase.STEP: _step(r),
    }
