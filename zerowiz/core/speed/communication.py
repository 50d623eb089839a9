"""Predict what a rank sends to the others per optimizer step.

Theory: a ring sends each byte once to gather it, or once to reduce and scatter it, less the rank's
own share; an all-reduce is both. With N trainable and F frozen parameters of w bytes, A micro-steps
and d ranks, each sends (d - 1)/d of

    stage 0    all-reduce N at the boundary                         2 w N
    stage 1    all-reduce N, all-gather N, both at the boundary     3 w N
    stage 2    all-reduce N every micro-step, all-gather N          (2 A + 1) w N
    stage 3    every micro-step: all-gather N + F for forward and   A w ((2 - rho) (N + F) + N)
               what was released for backward, reduce-scatter N

where rho is the fraction of the weights that outlives forward. How often a strategy goes around the
ring is a field of its row, `ring`.
"""

from zerowiz.core.memory.rank_sizes import RankSizes


def whole_bytes(r: RankSizes) -> int:
    """All weights, those that train and those that do not."""
    return r.weight_bytes * r.trainable + r.frozen_bytes


def regathered_bytes(r: RankSizes) -> int:
    """Weights that stage 3 gathers once more for backward: all but what outlives forward."""
    weights_bytes = whole_bytes(r)
    # partitioned_param_coordinator.py, fetch_sub_module prefetches up to max_live. Counted on two
    # CPU ranks, 0.19.8: 1.53 gathers for max_live = N/2, 1.78 for N/4, 1.00 for 2 N.
    live_bytes = r.weight_bytes * r.buffers.stage3_max_live_parameters
    return weights_bytes - min(weights_bytes, live_bytes)


def wire_bytes_per_step(r: RankSizes) -> int:
    """Bytes that this rank sends per optimizer step."""
    passes, micro_steps = r.strategy.ring, r.workload.accumulation_steps
    times = passes.per_step + passes.per_micro_step * micro_steps
    gathered_bytes = 0
    if passes.gathers_weights:
        gathered_bytes = micro_steps * (whole_bytes(r) + regathered_bytes(r))
    ring_bytes = times * r.weight_bytes * r.trainable + gathered_bytes
    # Patarasuk and Yuan 2009, section 3: all but the rank's own share.
    return ring_bytes * (r.ranks - 1) // r.ranks
