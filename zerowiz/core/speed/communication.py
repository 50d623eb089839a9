"""Predict what a rank sends to the others per optimizer step.

Theory: a ring sends each byte once to gather it, or once to reduce and scatter it, less the rank's
own share; an all-reduce is both. With N trainable and F frozen parameters of w bytes, G micro-steps
and d ranks, each sends (d - 1)/d of

    stage 0    all-reduce N at the boundary                         2 w N
    stage 1    all-reduce N, all-gather N, both at the boundary     3 w N
    stage 2    all-reduce N every micro-step, all-gather N          (2 G + 1) w N
    stage 3    every micro-step: all-gather N + F for forward and   G w ((2 - rho) (N + F) + N)
               what is gone again for backward, reduce-scatter N

where rho is the fraction of the weights that outlives forward. What is offloaded crosses PCIe,
not the wire, and is not counted.
"""

from collections.abc import Mapping
from typing import NamedTuple

from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers
from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.memory.rank_sizes import RankSizes, rank_sizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload import Workload


class _Passes(NamedTuple):
    """How often the trainable parameters, or their gradients, go around the ring."""

    per_step: int
    per_micro_step: int
    gathers_weights: bool = False
    """Whether every micro-step gathers the weights too."""


# Rule: what a stage sends is said here and nowhere else. Sources, of DeepSpeed 0.19.8:
# runtime/engine.py, allreduce_gradients: which stages wait for the boundary;
# runtime/zero/stage_1_and_2.py, average_tensor: an all-reduce, whatever `reduce_scatter` says;
# the same file, step: the updated weights are gathered; stage3.py, __avg_scatter_grads.
_PASSES: Mapping[int, _Passes] = {
    0: _Passes(per_step=2, per_micro_step=0),
    1: _Passes(per_step=3, per_micro_step=0),
    2: _Passes(per_step=1, per_micro_step=2),
    3: _Passes(per_step=0, per_micro_step=1, gathers_weights=True),
}


def _gathered_bytes(rank: RankSizes) -> int:
    """Weights gathered per micro-step under stage 3: twice, less what outlives forward."""
    weight_bytes = rank.weight_bytes * rank.trainable + rank.frozen_bytes
    # partitioned_param_coordinator.py, fetch_sub_module prefetches up to max_live. Counted on two
    # CPU ranks, 0.19.8: 1.53 gathers for max_live = N/2, 1.78 for N/4, 1.00 for 2 N.
    live_bytes = rank.weight_bytes * rank.buffers.stage3_max_live_parameters
    return 2 * weight_bytes - min(weight_bytes, live_bytes)


def wire_bytes_per_step(
    model: Model,
    workload: Workload,
    world_size: int,
    strategy: Strategy,
    buffers: Buffers = DEEPSPEED_DEFAULTS,
    traced: Traced | None = None,
) -> int:
    """Bytes that each of `world_size` ranks sends per optimizer step."""
    rank = rank_sizes(model, workload, world_size, strategy, buffers, traced)
    passes, micro_steps = _PASSES[strategy.stage], workload.accumulation_steps
    times = passes.per_step + passes.per_micro_step * micro_steps
    gathered_bytes = micro_steps * _gathered_bytes(rank) if passes.gathers_weights else 0
    ring_bytes = times * rank.weight_bytes * rank.trainable + gathered_bytes
    # Patarasuk and Yuan 2009, section 3: all but the rank's own share.
    return ring_bytes * (world_size - 1) // world_size
