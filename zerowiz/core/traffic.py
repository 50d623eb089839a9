"""Predict what a rank sends to the others per optimizer step.

Theory: a ring sends each byte once to gather it or to reduce and scatter it, less the rank's own
share, (d - 1)/d; an all-reduce is both. N trainable and F frozen parameters of w bytes, G gradient
accumulation steps, d ranks; rho of the weights survive from forward to backward under stage 3:

    stage 0    all-reduce N                                         2 w N
    stage 1    all-reduce N, all-gather N                           3 w N
    stage 2    G times all-reduce N, all-gather N                   (2 G + 1) w N
    stage 3    G times: all-gather (2 - rho) (N + F),
               reduce-scatter N                                     G w ((2 - rho) (N + F) + N)

What is offloaded crosses PCIe, not the wire, and is not counted. The counts were taken from
DeepSpeed itself, which at stages 1 and 2 all-reduces whatever `reduce_scatter` says.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction

from zerowiz.core.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.model import Model
from zerowiz.core.rank import Rank, place_rank
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload import Workload


def _ddp_bytes(gradient_bytes: int, _rank: Rank, _micro_steps: int) -> int:
    # engine.py, allreduce_gradients: once, at the boundary.
    return 2 * gradient_bytes


def _zero1_bytes(gradient_bytes: int, _rank: Rank, _micro_steps: int) -> int:
    # stage_1_and_2.py, average_tensor (use_multi_rank_bucket_allreduce) and step
    # (all_gather_dp_groups): both at the boundary.
    return 3 * gradient_bytes


def _zero2_bytes(gradient_bytes: int, _rank: Rank, micro_steps: int) -> int:
    # engine.py, allreduce_gradients: gradients that are sharded cannot wait for the boundary.
    return (2 * micro_steps + 1) * gradient_bytes


def _zero3_bytes(gradient_bytes: int, rank: Rank, micro_steps: int) -> int:
    weight_bytes = gradient_bytes + rank.frozen_bytes
    # partitioned_param_coordinator.py, fetch_sub_module: what forward fetched and prefetched up to
    # stage3_max_live_parameters is still there when backward begins.
    kept_bytes = min(
        weight_bytes, rank.weight_bytes * DEEPSPEED_DEFAULTS.stage3_max_live_parameters
    )
    # stage3.py, __avg_scatter_grads: every micro-step.
    return micro_steps * (2 * weight_bytes - kept_bytes + gradient_bytes)


# Rule: what a stage sends is said here and nowhere else.
_RING_BYTES: Mapping[int, Callable[[int, Rank, int], int]] = {
    0: _ddp_bytes,
    1: _zero1_bytes,
    2: _zero2_bytes,
    3: _zero3_bytes,
}


def wire_bytes_per_step(model: Model, workload: Workload, ranks: int, strategy: Strategy) -> int:
    """Bytes that each of `ranks` ranks sends per optimizer step."""
    rank = place_rank(model, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    gradient_bytes = rank.weight_bytes * rank.trainable
    ring_bytes = _RING_BYTES[strategy.stage](gradient_bytes, rank, workload.accumulation_steps)
    # Patarasuk and Yuan 2009, section 3: all but the rank's own share.
    return int(ring_bytes * Fraction(ranks - 1, ranks))
