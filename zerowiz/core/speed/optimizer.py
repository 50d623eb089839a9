"""What the optimizer's step takes, on the GPU or on the host."""

from typing import NamedTuple

from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.speed.costs import Costs, memory_rate_on
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.speed.terms import TermKind
from zerowiz.core.strategy import Offload, Part
from zerowiz.core.workload.choices import FP32_BYTES

# Of one parameter: the gradient in fp32 is written, its norm read, and it is scaled
# (stage_1_and_2.py, step, unscale_and_clip_grads), before Adam reads it.
_GRADIENT_PASSES = 6
# torch/optim/adam.py, _multi_tensor_adam: ten operations on lists, each with two operands of fp32.
_FOREACH_BYTES = 10 * 2 * FP32_BYTES


class Stepping(NamedTuple):
    """What the optimizer adds to a step, and its traffic to the host for each micro-step."""

    seconds: dict[TermKind, float]
    fetched: float = 0.0
    """Seconds to bring this rank's share of the weights to the GPU, if nothing else ran."""
    stored: float = 0.0
    """Seconds that its gradients go to the host and come back, if nothing else ran."""


def _stepped_bytes(r: RankSizes) -> int:
    """That the step reads and writes of one parameter: its states, its gradient, its weight."""
    states = 2 * (r.master_bytes + r.state_bytes)
    lists = _FOREACH_BYTES if r.stepping_bytes else 0
    return states + _GRADIENT_PASSES * FP32_BYTES + 2 * r.weight_bytes + lists


def step_optimizer(
    r: RankSizes, machine: Machine, rates: GpuRates, tensors: int, costs: Costs
) -> Stepping:
    """The step of this rank's share.

    Args:
        r: The rank.
        machine: Whose cores step what is offloaded.
        rates: Of the GPU.
        tensors: How many train.
        costs: What of the nominal rates is reached.
    """
    params = r.share if Part.OPTIMIZER in r.strategy.sharded else r.trainable
    # Stages 1 and 2 step one flat vector; stage 0's wrapper casts, scales and copies tensor by
    # tensor (fp16/unfused_optimizer.py, step), and stage 3 partitions them so. Offloaded, stages 1
    # and 2 too wait for the norm of each (complete_grad_norm_calculation_for_cpu_offload).
    apart = 0 if r.strategy.cuts_shares and not r.offloaded else tensors
    launched = costs.fixed_seconds + costs.step_seconds * apart
    moved_bytes = params * _stepped_bytes(r)
    if not r.offloaded:
        moved = moved_bytes / memory_rate_on(costs, rates)
        return Stepping({TermKind.OPTIMIZER: moved + launched})
    ranks = len(machine.gpus)
    cores = machine.host.cores or costs.unknown_cores * ranks
    rate = min(costs.core_bytes_per_s * cores, costs.host_bytes_per_s) / ranks
    pcie = rates.pcie_bytes_per_s * costs.pcie_fraction
    copied = r.weight_bytes * r.share / pcie
    # Stage 3 writes weights that stay on the GPU by one blocking copy of those in fp32 (stage3.py,
    # _reassign_or_swap_out_partitioned_parameters). torch casts such a copy on the host, into
    # memory that is not pinned (ATen/native/cuda/Copy.cu). Stage 2 keeps a pinned buffer for it.
    cast = r.weight_bytes != r.master_bytes
    stays = r.strategy.shards_weights and r.strategy.offload is not Offload.ALL
    back = r.weight_bytes * r.share / costs.pageable_bytes_per_s if cast and stays else copied
    return Stepping(
        {
            TermKind.OPTIMIZER: launched,
            TermKind.CPU_OPTIMIZER: moved_bytes / rate,
            TermKind.PCIE: back,
        },
        fetched=copied,
        stored=_gradient_bytes(r) / r.workload.accumulation_steps * r.share / pcie,
    )


def _gradient_bytes(r: RankSizes) -> int:
    """That go over PCIe for one parameter in a whole step: sums, and last the optimizer's own.

    Stage 3 brings each micro-step's gradient to the host and back (stage3.py, partition_grads);
    stage 2 keeps the sum there between micro-steps (stage_1_and_2.py, copy_grads_in_partition).
    """
    micro_steps = r.workload.accumulation_steps
    if r.strategy.shards_weights:
        crossings = 2 * micro_steps
    else:
        crossings = 2 * micro_steps - 1 if micro_steps > 1 else 0
    return crossings * r.weight_bytes + r.master_bytes
