"""Predict how long an optimizer step takes, term by term.

Theory: a GPU computes while the host launches what comes next and other streams communicate, so a
phase takes as long as the slowest of them: each term counts what it adds to those before it. A step
is A micro-steps of forward and backward, then the optimizer. Stage 0 reduces gradients behind the
last backward, stages 1 and 2 while it runs where `overlap_comm` is on, and gather the updated
weights behind the step; stage 3 gathers weights in both passes of each micro-step, ahead of the
module that needs them. The optimizer moves bytes of the GPU's memory, or of the host's.

Sources: DeepSpeed 0.19.8, runtime/engine.py (allreduce_gradients, _take_model_step),
runtime/zero/stage_1_and_2.py (reduce_ipg_grads, step), runtime/zero/stage3.py and
partitioned_param_coordinator.py. The constants stand in costs.py.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import FAST_CLASSES, Accelerator, Machine
from zerowiz.core.memory.activations import (
    activations,
    falls_back,
    is_fused,
    length_tokens,
    masks_all,
    masks_window,
)
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.families import FAMILIES, Norm
from zerowiz.core.model.types import Architecture, Model, ModelSource, Tensor
from zerowiz.core.speed.costs import (
    COSTS,
    Calibration,
    Costs,
    StepTime,
    Term,
    TermKind,
    memory_rate_on,
    on_host,
)
from zerowiz.core.strategy_types import Offload, Part
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    FP32_BYTES,
    HALF_BYTES,
    Head,
    Method,
    Precision,
    Trainer,
    Workload,
)
from zerowiz.translation import N_

# Predict what a rank sends to the others per optimizer step.
#
# Theory: a ring sends each byte once to gather it, or once to reduce and scatter it, less the
# rank's own share; an all-reduce is both. With N trainable and F frozen parameters of w bytes, A
# micro-steps and d ranks, each sends (d - 1)/d of
#
#     stage 0    all-reduce N at the boundary                         2 w N
#     stage 1    all-reduce N, all-gather N, both at the boundary     3 w N
#     stage 2    all-reduce N every micro-step, all-gather N          (2 A + 1) w N
#     stage 3    every micro-step: all-gather N + F for forward and   A w ((2 - rho) (N + F) + N)
#                what was released for backward, reduce-scatter N
#
# where rho is the fraction of the weights that outlives forward. How often a strategy goes around
# the ring is a field of its row, `ring`.


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
    # The weights that a rank of stage 1 or 2 stepped go around once; all else is gradients.
    stepped = 1 if r.strategy.cuts_shares else 0
    size_bytes = (times - stepped) * r.reduced_bytes + stepped * r.weight_bytes
    ring_bytes = size_bytes * r.trainable + gathered_bytes
    exchanged_bytes = int(micro_steps * _passes(r) * r.exchanged_bytes)
    # Patarasuk and Yuan 2009, section 3: all but the rank's own share.
    return ring_bytes * (r.ranks - 1) // r.ranks + exchanged_bytes


def _passes(r: RankSizes) -> float:
    """Forward and backward, with what is computed again for it."""
    return 2 + r.workload.recomputed_fraction


# How fast collectives over all ranks of a job run.

# What a network is taken to be of which nobody knows the rate: 25 Gb/s.
_UNKNOWN_NETWORK_BYTES_PER_S = 3_125_000_000


def _send_seconds(rate: float, sent_bytes: float, collectives: float, costs: Costs) -> float:
    """To send so much around a ring in so many collectives, each of which something waits for."""
    return sent_bytes / rate + collectives * costs.collective_seconds


def _queued_seconds(rate: float, sent_bytes: float, collectives: int, costs: Costs) -> float:
    """The same where the host queues the collectives one after the other."""
    first = min(1, collectives)
    queued = (collectives - first) * costs.queued_seconds
    return _send_seconds(rate, sent_bytes, first, costs) + queued


def link_bytes_per_s(machine: Machine, rates: GpuModel) -> int | None:
    """The nominal rate of the link inside a node, in one direction; None where nobody knows it.

    NVLink of which only the class is known has the rate of the GPUs.
    """
    link = machine.interconnect
    by_nvlink = rates.nvlink_bytes_per_s if link.link_class in FAST_CLASSES else 0
    return link.bytes_per_s or by_nvlink or None


def is_assumed(machine: Machine, rates: GpuModel) -> bool:
    """Whether nobody knows the rate of the link inside a node, so that the GPUs' PCIe counts."""
    return len(machine.gpus) > 1 and link_bytes_per_s(machine, rates) is None


def ring_bytes_per_s(
    machine: Machine, rates: GpuModel, costs: Costs, *, inside: bool = False
) -> float:
    """The bytes a second of the slowest part of the ring through all GPUs, or inside one node.

    Theory: a ring enters and leaves a node as often as the node has adapters, so all that a node's
    GPUs send passes its network once for all of them (NCCL, graph/search.cc). A link inside the
    node whose rate nobody knows is taken to be the PCIe of the GPUs.
    """
    link, network = machine.interconnect, machine.network
    link_rate = link_bytes_per_s(machine, rates) or rates.pcie_bytes_per_s
    by_nvlink = link.link_class in FAST_CLASSES
    fraction = costs.nvlink_fraction if by_nvlink else costs.pcie_link_fraction
    reached = []
    if len(machine.gpus) > 1:
        reached.append(link_rate * fraction)
    if machine.nodes > 1 and not inside:
        between = network.bytes_per_s or _UNKNOWN_NETWORK_BYTES_PER_S
        reached.append(between * costs.network_fraction)
    return min(reached, default=float("inf"))


# What the optimizer's step takes, on the GPU or on the host.

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


def step_optimizer(
    r: RankSizes, machine: Machine, rates: GpuModel, tensors: int, costs: Costs
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
    # The step reads and writes of each parameter its states, its gradient and its weight.
    states = 2 * (r.master_bytes + r.state_bytes)
    lists = _FOREACH_BYTES if r.stepping_bytes else 0
    moved_bytes = params * (states + _GRADIENT_PASSES * FP32_BYTES + 2 * r.weight_bytes + lists)
    if not r.offloaded:
        moved = moved_bytes / memory_rate_on(costs, rates)
        return Stepping(seconds={TermKind.OPTIMIZER: moved + launched})
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
        seconds={
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


# Count what the GPU computes in one micro-step.
#
# Theory: a product of t tokens with a weight of m x n takes 2 t m n operations and moves t (m +
# n) + m n values, so a small one is limited by memory. Forward has one such product, backward
# two: the gradient of the input, and that of the weight where it trains. Attention has two
# products of s x s for every head; backward computes five (Dao 2023, FlashAttention-2, section
# 3.1). What else a block does moves bytes: a multiple of what forward keeps for backward, which
# memory/forward counts.

# The operations that torch is called for in forward, counted in traces (tests/speed/traffic.py): a
# product with its views, a norm of either kind, what else a block does (rotation, attention, the
# activation, sums). A pair of adapters has 12 (two products, a scale and a sum), which took 0.7 to
# 0.9 of a module of 8 on a CPU, where Python alone counts; the fitted steps agree with 6.
_OF_PRODUCT, _OF_BLOCK, _OF_ADAPTERS = 4, 30, 6
_OF_RMS_NORM, _OF_LAYER_NORM = 9, 1


class Moved(NamedTuple):
    """The bytes that small kernels move for each byte that forward keeps."""

    forward: float
    backward: float


# Counted in traces of the operations of one layer, and of what is outside the layers
# (tests/speed/traffic.py): transformers writes RMS norms and rotations as several kernels, torch a
# LayerNorm as one. Liger's are one kernel too.
IN_BLOCKS = Moved(2.9, 6.6)
IN_FUSED_BLOCKS = Moved(2.1, 3.6)
AT_ENDS = Moved(2.3, 3.3)
# Of an adapted product (peft/tuners/lora/layer.py, Linear.forward): its adapter's output is scaled
# and added to its own; backward scales the gradient, and adds both gradients of the input.
_SCALED, _ADDED = 2, 3


class Products(NamedTuple):
    """The products of matrices of one pass; counts are elements."""

    weights: int = 0
    """Of all weights that are multiplied with."""
    used: int = 0
    """Of those, what one token is multiplied with: active experts alone."""
    values: int = 0
    """Inputs and outputs of one token."""

    def plus(self, other: "Products") -> "Products":
        """Both together."""
        return Products(*(a + b for a, b in zip(self, other, strict=True)))


class Counted(NamedTuple):
    """What a model multiplies."""

    blocks: Products
    ends: Products
    """The head, and projections before and behind the blocks."""
    adapters: Products
    adapters_moved: Moved
    """Values of one token that small kernels of the adapters read and write."""
    modules: int
    """With weights."""
    operations: int
    """That forward calls torch for; backward takes twice as many, in less Python each."""
    trained_tensors: int


def _product(tensor: Tensor, architecture: Architecture) -> Products:
    out, wide = tensor.shape[-2:]
    visits = stack = math.prod(tensor.shape[:-2])
    if tensor.holds_experts and architecture.experts_per_token:
        visits = architecture.experts_per_token
    size = out * wide
    copies = tensor.copies
    return Products(stack * size * copies, visits * size * copies, visits * (out + wide) * copies)


def _adapters(tensor: Tensor, architecture: Architecture, rank: int) -> tuple[Products, Moved]:
    out, wide = tensor.shape[-2:]
    stack, visits = tensor.adapters, len(tensor.targets)
    if tensor.holds_experts:
        visits *= max(1, architecture.experts_per_token)
    size, copies = rank * (out + wide), tensor.copies
    values = visits * (out + wide + 2 * rank)
    products = Products(stack * size * copies, visits * size * copies, values * copies)
    forward = (_SCALED + _ADDED) * out
    backward = _SCALED * out + _ADDED * wide
    return products, Moved(visits * copies * forward, visits * copies * backward)


def _head(model: Model, trainer: Trainer) -> Products:
    """The logits: a reward has one, and a model of images a few."""
    a = model.architecture
    if not a.vocab_size or trainer.row.head is Head.VALUE:
        return Products()
    size = a.embedding_params
    return Products(size, size, a.vocab_size + a.embedding_size)


def count_products(model: Model, workload: Workload) -> Counted:
    """What one token is multiplied with, forward."""
    full = workload.method is Method.FULL
    rank = 0 if full else workload.lora_rank
    return _count(model, rank, () if full else workload.lora_target_modules, workload.trainer)


@lru_cache(maxsize=64)
def _count(model: Model, rank: int, targets: tuple[str, ...], trainer: Trainer) -> Counted:
    a = model.architecture
    blocks, adapters, moved = Products(), Products(), Moved(0, 0)
    ends = _head(model, trainer)
    modules, trained = 0, 0
    family = FAMILIES.get(a.family)
    by_torch = family is not None and family.norm is Norm.LAYER
    of_norm = _OF_LAYER_NORM if by_torch else _OF_RMS_NORM
    operations = _OF_BLOCK * (a.layers + a.encoder_layers)
    for tensor in model.tensors:
        is_bias = tensor.name.endswith(".bias")
        modules += 0 if is_bias else tensor.copies
        trained += 0 if rank else tensor.copies
        is_vector = len(tensor.shape) == 1
        if not is_bias:
            operations += tensor.copies * (of_norm if is_vector else _OF_PRODUCT)
        if is_vector or not (tensor.in_block or tensor.linear):
            continue
        product = _product(tensor, a)
        if tensor.in_block:
            blocks = blocks.plus(product)
        else:
            ends = ends.plus(product)
        if rank and tensor.is_adapted(targets):
            products, kernels = _adapters(tensor, a, rank)
            adapters = adapters.plus(products)
            moved = Moved(moved.forward + kernels.forward, moved.backward + kernels.backward)
            operations += _OF_ADAPTERS * tensor.copies * len(tensor.targets)
            trained += 2 * tensor.copies * len(tensor.targets)
    return Counted(
        blocks=blocks,
        ends=ends,
        adapters=adapters,
        adapters_moved=moved,
        modules=modules,
        operations=operations,
        trained_tensors=trained,
    )


class Pass(NamedTuple):
    """Seconds that the GPU computes for one pass of one micro-step."""

    products: float
    attention: float
    elementwise: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.products + self.attention + self.elementwise


def _products_seconds(
    counted: Products, tokens: int, size_bytes: int, flop_per_s: float, bytes_per_s: float
) -> float:
    """With what the GPU really does in a second."""
    flops = 2 * tokens * counted.used
    moved = size_bytes * (counted.weights + tokens * counted.values)
    return flops / flop_per_s + moved / bytes_per_s


# The exponential, and about as much again for the scale, the maximum and the sum: of heads of 64,
# 1.5 times the time of the products was seen beside an exchange, and 1.0 to 1.3 without one.
_OF_A_SCORE = 2


def _attention_seconds(
    a: Architecture,
    workload: Workload,
    tokens: int,
    rates: GpuModel,
    flop_per_s: float,
    costs: Costs,
) -> float:
    """Of forward: a causal kernel computes half of the scores, and a window those inside it.

    Each score is an exponential, which a kernel takes while it multiplies: of a small head that
    takes longer than the products.
    With a mask torch takes another kernel, which computes all scores, also those that a window
    leaves out (torch/aten, transformers/cuda/sdp_utils.cpp, check_for_attn_mask; transformers,
    integrations/sdpa_attention.py). Where it finds no fused kernel, it multiplies in fp32
    (transformers/attention.cpp, _scaled_dot_product_attention_math).
    """
    length = length_tokens(a, workload) * workload.sequence_parallel
    family = FAMILIES.get(a.family)
    fused = family is not None and is_fused(a, workload)
    causal = family is None or family.causal
    sliding = min(a.sliding_layers, a.layers)
    seen = length / 2 if fused and causal and not workload.packing else length
    windowed = min(seen, a.sliding_window_tokens or seen) if fused else seen
    masked = 0
    if fused and masks_all(a, workload):
        masked = a.layers
    elif fused and masks_window(a, workload):
        masked = sliding
    unmasked = (a.layers - max(sliding, masked)) * seen + max(0, sliding - masked) * windowed
    # A trace of an unknown family says nothing of its heads.
    flops = 4 * tokens * (a.query_size or a.hidden_size)
    if family is not None and falls_back(a, workload):
        return flops * a.layers * length / (rates.fp32_flop_per_s * costs.product_fraction)
    exponentials_seconds = _OF_A_SCORE * tokens * a.heads / rates.exponential_rate
    fused_seconds = max(flops / (flop_per_s * costs.attention_fraction), exponentials_seconds)
    masked_seconds = flops / (flop_per_s * costs.masked_attention_fraction)
    return unmasked * fused_seconds + masked * length * masked_seconds


def _recomputed_bytes(model: Model, rank: RankSizes) -> int:
    """What the blocks would keep without checkpointing, as each computes it again."""
    a, workload = model.architecture, rank.workload.of_one_rank
    upper_bytes = rank.activations.block_bytes * a.layers
    if a.family not in FAMILIES or workload.torch_autocast is not None:
        return upper_bytes
    # A packed row is one sequence, so its length counts; other sequences are alike.
    alike = workload if workload.packing else replace(workload, micro_batch=1)
    single = replace(alike, gradient_checkpointing=False, accumulation_steps=1)
    sequences = workload.micro_batch // single.micro_batch
    sharded = rank.strategy.shards_weights
    return min(upper_bytes, sequences * _kept_bytes(a, single, sharded=sharded))


@lru_cache(maxsize=256)
def _kept_bytes(architecture: Architecture, workload: Workload, *, sharded: bool) -> int:
    return activations(architecture, workload, sharded=sharded).saved_bytes


def compute_passes(
    model: Model,
    rank: RankSizes,
    counted: Counted,
    rates: GpuModel,
    flop_per_s: float,
    costs: Costs,
) -> tuple[Pass, Pass]:
    """What the GPU computes in one micro-step: forward; backward, with what it computes again.

    Args:
        model: What is trained.
        rank: The micro-step.
        counted: The products of the model.
        rates: Of the GPU.
        flop_per_s: Nominal, in the precision that is computed in.
        costs: What of the nominal rates is reached.
    """
    workload, a = rank.workload.of_one_rank, model.architecture
    tokens = workload.rows * length_tokens(a, workload)
    w = rank.weight_bytes if workload.torch_autocast is None else HALF_BYTES
    memory_rate = memory_rate_on(costs, rates)
    again = workload.recomputed_fraction
    blocks, ends, adapters = (
        _products_seconds(products, tokens, w, flop_per_s * costs.product_fraction, memory_rate)
        for products in (counted.blocks, counted.ends, counted.adapters)
    )
    # A frozen weight has no gradient; its input has one, and adapters train.
    gradients = 2 if workload.method is Method.FULL else 1
    attention = _attention_seconds(a, workload, tokens, rates, flop_per_s, costs)
    saved = rank.activations
    if workload.method is Method.QLORA:
        # Each pass makes values of 16 bits of the weights in 4 bits (bitsandbytes, MatMul4Bit).
        blocks += counted.blocks.weights * (HALF_BYTES + 0.5) / memory_rate
    kept_bytes = _recomputed_bytes(model, rank) if again else saved.saved_bytes
    rate = rates.memory_bytes_per_s * costs.elementwise_fraction
    family = FAMILIES.get(a.family)
    fused = LOSS_ROWS[workload.loss].has_liger or (family is not None and family.norm is Norm.LAYER)
    moved = IN_FUSED_BLOCKS if fused else IN_BLOCKS
    beside = counted.adapters_moved
    blocks_bytes = moved.forward * kept_bytes + w * tokens * beside.forward
    # A block that is not computed again is among the blocks.
    ends_bytes = saved.head_bytes - saved.opened_bytes
    forward_bytes = blocks_bytes + AT_ENDS.forward * (ends_bytes + saved.loss_forward_bytes)
    backward_bytes = moved.backward * kept_bytes + w * tokens * beside.backward
    backward_bytes += AT_ENDS.backward * (ends_bytes + saved.loss_backward_bytes)
    return Pass(blocks + ends + adapters, attention, forward_bytes / rate), Pass(
        (gradients + again) * blocks + gradients * ends + (2 + again) * adapters,
        (2.5 + again) * attention,
        (backward_bytes + again * blocks_bytes) / rate,
    )


# How far a predicted time may be off, by what the job is.

# The GPUs of tests/measured.
_MEASURED_GPUS = frozenset({"NVIDIA H200", "NVIDIA H100 80GB HBM3"})
_SEEN_GPUS = 4
"""Of one host, at most, in tests/measured."""

_TIGHT = 0.30
# What is left of the doubts once steps of this machine were measured.
_CALIBRATED = 0.5

_BY_HOST = frozenset({TermKind.HOST, TermKind.HOOKS})


def doubt_fraction(
    model: Model,
    r: RankSizes,
    machine: Machine,
    rates: GpuModel,
    terms: Sequence[Term],
    *,
    calibrated: bool,
    near_limit: bool,
) -> float:
    """By which fraction a step may be longer, and as many times shorter; each doubt adds to it."""
    waited = sum(term.exposed_seconds for term in terms if term.kind in _BY_HOST)
    # Each fraction is added to the others. Nine in ten of the free-running steps are within 21 %,
    # fitted and set aside (tests/speed/fit.py --free-running); the same setting measured twice
    # differs by up to 45 %. Published times of A100s and A800s (tests/speed/public.py) are mostly
    # within 27 % where the GPU computes, off by a half where the host launches, as hosts differ,
    # and more than twice as long where its cores step.
    doubts = (
        (0.25, True),
        (0.10, r.strategy.shards_weights),
        (0.30, r.offloaded),
        (0.15, r.workload.method is not Method.FULL),
        (0.15, machine.gpus[0].name not in _MEASURED_GPUS),
        # Nobody knows how many cores step.
        (0.40, r.offloaded and machine.host.cores is None),
        # The share of a step in which the GPU waits for Python, where nobody timed the host.
        (
            0.40 * waited / sum(term.exposed_seconds for term in terms),
            machine.host.python_call_seconds is None,
        ),
        (0.50, is_assumed(machine, rates)),
        (0.15, machine.world_size > _SEEN_GPUS),
        (0.30, machine.nodes > 1),
        # Two GPUs alone were measured.
        (0.15, r.workload.sequence_parallel > 1),
        (0.15, model.source in {ModelSource.SIZE, ModelSource.GUESS, ModelSource.TRACE}),
        # No part counts its casts: a third too little in the two fitted steps that have it.
        (0.30, r.workload.torch_autocast is not None),
    )
    total = sum(fraction for fraction, holds in doubts if holds)
    # A flush comes or does not, whatever was measured with more room.
    return total * (_CALIBRATED if calibrated else 1) + (_TIGHT if near_limit else 0)


_FORMULAS: Mapping[TermKind, str] = {
    TermKind.MATRIX_PRODUCTS: N_(
        "2 t x weights forward, 4 t backward, 2 t again where checkpointed"
    ),
    TermKind.ATTENTION: N_("4 t s q forward, half where causal, 2.5 times as much backward"),
    TermKind.ELEMENTWISE: N_("bytes that small kernels move / memory bandwidth"),
    TermKind.HOST: N_("operations x launches - what the GPU computes meanwhile"),
    TermKind.HOOKS: N_("modules x hooks of stage 3 - what the GPU computes meanwhile"),
    TermKind.GATHERING: N_("w (N + F) / link - what the GPU computes meanwhile"),
    TermKind.REDUCTION: N_("w N / link - what the GPU computes meanwhile"),
    TermKind.EXCHANGE: N_("2 w (q + kv) per token and layer / link, and their copies"),
    TermKind.OPTIMIZER: N_("bytes of P parameters / memory bandwidth + launches"),
    TermKind.CPU_OPTIMIZER: N_("bytes of P parameters / what the cores move"),
    TermKind.PCIE: N_("w P / PCIe - what the GPU computes meanwhile"),
    TermKind.ALLOCATOR: N_("flushes near the limit of memory"),
}

Seconds = dict[TermKind, float]


def _normal_cdf(x: float) -> float:
    """Of the standard normal distribution; `statistics`, which has it, takes long to load."""
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


class _MicroStep(NamedTuple):
    """What a micro-step takes on the other streams, in seconds, if nothing else ran."""

    gathered_first: float
    """Weights for the first forward of an optimizer step."""
    gathered: float
    """Weights for each forward after it."""
    gathered_again: float
    """Weights for backward."""
    reduced: float
    """Gradients, behind or beside backward."""
    fetched: float
    """Weights from the host, for forward and as often for backward."""
    stored: float
    """Gradients to the host."""
    updated: float
    """Weights that others have stepped, behind the optimizer's step."""
    overlaps: bool
    """Whether gradients are reduced while backward goes on."""
    alone_fraction: float
    """Of what is reduced, what comes last: nothing runs beside it."""


def _beside(
    parts: Mapping[TermKind, float], busy: float, alone_fraction: float, costs: Costs
) -> Seconds:
    """What other streams add to a phase of `busy` seconds, in the shares that they have."""
    total = sum(parts.values())
    if not total:
        return {}
    exposed = max(total - (1 - alone_fraction) * busy, alone_fraction * total)
    exposed += costs.contention_fraction * (total - exposed)
    return {kind: seconds * exposed / total for kind, seconds in parts.items()}


def _add(total: Seconds, parts: Mapping[TermKind, float], times: float = 1) -> None:
    """Add so many times what stands under each kind."""
    for kind, seconds in parts.items():
        total[kind] = total.get(kind, 0.0) + times * seconds


def _waited(gpu: float, host: float, spread: float) -> float:
    """How long the GPU waits for the host on average.

    Theory: a host that others use is not always as fast; with a lognormal factor X of mean 1, whose
    logarithm has this standard deviation, it is the mean of max(0, host X - gpu).
    """
    if not host or not spread:
        return max(0.0, host - gpu)
    upper = math.log(host / gpu) / spread + spread / 2
    mean = host * _normal_cdf(upper) - gpu * _normal_cdf(upper - spread)
    # Of two numbers that are nearly equal the difference may round below 0.
    return max(0.0, mean)


def _phase(computed: Pass, host: float, hooks: float, costs: Costs) -> tuple[Seconds, float]:
    """What the GPU computes and waits for the host, and how long that takes."""
    gpu = computed.seconds
    waited = _waited(gpu, host, costs.host_spread_fraction)
    parts = {
        TermKind.MATRIX_PRODUCTS: computed.products,
        TermKind.ATTENTION: computed.attention,
        TermKind.ELEMENTWISE: computed.elementwise,
        TermKind.HOST: waited,
    }
    if hooks:
        hooked = _waited(gpu, host + hooks, costs.host_spread_fraction)
        parts[TermKind.HOOKS] = max(0.0, hooked - waited)
        waited = hooked
    return parts, gpu + waited


def _hooks_seconds(r: RankSizes, counted: Counted, costs: Costs) -> float:
    """DeepSpeed hooks every module, also one without weights of its own, and gathers by tensor."""
    if not r.strategy.shards_weights:
        return 0.0
    layout = r.layout
    visits = len(layout.first) + sum(map(len, layout.blocks)) + len(layout.last)
    gathered = len(layout.sizes) if r.ranks > 1 else 0
    hooks = costs.hook_seconds * max(visits, counted.modules)
    return hooks + costs.gather_seconds * gathered


def _bucket_seconds(r: RankSizes, rates: GpuModel, costs: Costs) -> float:
    """The GPU's copies of the gradients of one backward on their way through buckets.

    Stage 0 flattens them, divides them among several ranks and copies them back (engine.py,
    allreduce_bucket, allreduce_and_copy). The others copy each into a bucket and divide it there;
    stages 1 and 2 flatten the bucket once more and copy it back (stage_1_and_2.py,
    reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_and_copy), stage 3
    sorts it by rank (coalesced_collectives.py, reduce_scatter_coalesced). At last a rank copies its
    share.
    """
    if Part.OPTIMIZER not in r.strategy.sharded:
        copied = r.trainable * (3 if r.ranks > 1 else 2)
    else:
        copied = r.trainable * (3 if r.strategy.shards_weights else 4) + r.share
    moved_bytes = 2 * r.weight_bytes * copied
    if r.reduced_bytes != r.weight_bytes:
        # stage_1_and_2.py, allreduce_bucket: cast there and back.
        moved_bytes += 2 * (r.reduced_bytes + r.weight_bytes) * r.trainable
    return moved_bytes / memory_rate_on(costs, rates)


def _communication(
    r: RankSizes, machine: Machine, rates: GpuModel, costs: Costs, stepping: Stepping
) -> _MicroStep:
    ring_rate = ring_bytes_per_s(machine, rates, costs)
    others = (r.ranks - 1) / r.ranks
    stepped_bytes = others * r.weight_bytes * r.trainable
    reduced_bytes = others * r.reduced_bytes * r.trainable
    bucket = max(1, r.buffers.reduce_bucket_size)
    buckets = -(-r.trainable // bucket) if others else 0
    # The last gradient is that of the embedding, and buckets are half full as backward ends.
    alone = min(1.0, (bucket / 2 + r.embedding) / r.trainable)
    if not r.strategy.shards_weights:
        updated = (
            _send_seconds(ring_rate, stepped_bytes, min(1, buckets), costs)
            if r.strategy.cuts_shares
            else 0.0
        )
        return _MicroStep(
            gathered_first=0.0,
            gathered=0.0,
            gathered_again=0.0,
            reduced=_queued_seconds(ring_rate, 2 * reduced_bytes, buckets, costs),
            fetched=0.0,
            stored=stepping.stored,
            updated=updated,
            overlaps=r.buffers.overlap_comm and not r.offloaded and r.strategy.stage > 0,
            alone_fraction=alone,
        )
    weights_bytes, again_bytes = whole_bytes(r), regathered_bytes(r)
    # With a copy of the weights on each node, gathers stay inside it, but for those behind a step:
    # it drops the copies of what it trained (stage3.py, _post_step, invalidate_secondary_tensor).
    has_copies = r.buffers.hpz_partition_size > 1
    near_rate = ring_bytes_per_s(machine, rates, costs, inside=True) if has_copies else ring_rate
    modules = len(r.layout.sizes) if others else 0
    gathered = _send_seconds(near_rate, others * weights_bytes, modules, costs)
    return _MicroStep(
        gathered_first=gathered + stepped_bytes / ring_rate - stepped_bytes / near_rate,
        gathered=gathered,
        gathered_again=_send_seconds(
            near_rate, others * again_bytes, modules * again_bytes / weights_bytes, costs
        ),
        reduced=_queued_seconds(ring_rate, reduced_bytes, buckets, costs),
        fetched=stepping.fetched if r.strategy.offload is Offload.ALL else 0.0,
        stored=stepping.stored,
        updated=0.0,
        overlaps=True,
        alone_fraction=alone,
    )


# Of each of queries, keys, values and output: packed for the others, and laid out for the kernel,
# read and written each time (ulysses_sp.py, combine_sequence, forward).
_EXCHANGE_COPIES = 4
# deepspeed 0.19.8, ulysses_sp.py, forward: theirs, and that of the positions.
_EXCHANGES = 5
# As many operations of Python as all of that takes as long as: custom operators, einops, and what
# DeepSpeed wraps a collective in. On a CPU, with nobody to send to, it took 1.0 to 1.2 times as
# long as both passes of a block of a Llama, which has 76. None saves a tensor for backward.
_OF_EXCHANGE = 83


def _exchange_seconds(r: RankSizes, machine: Machine, rates: GpuModel, costs: Costs) -> float:
    """Of one micro-step between ranks that share a sequence: attention waits for it."""
    if not r.exchanged_bytes:
        return 0.0
    ranks = r.workload.sequence_parallel
    ring_rate = ring_bytes_per_s(machine, rates, costs, inside=True)
    copied_bytes = _EXCHANGE_COPIES * r.exchanged_bytes * ranks / (ranks - 1)
    each = _send_seconds(ring_rate, r.exchanged_bytes, _EXCHANGES * r.layers, costs)
    return _passes(r) * (each + copied_bytes / memory_rate_on(costs, rates))


def _seconds(
    model: Model, r: RankSizes, machine: Machine, rates: GpuModel, flop_per_s: float, costs: Costs
) -> Seconds:
    """What each kind of term adds to an optimizer step."""
    workload = r.workload
    counted = count_products(model, workload)
    in_forward, in_backward = compute_passes(model, r, counted, rates, flop_per_s, costs)
    stepping = step_optimizer(r, machine, rates, counted.trained_tensors, costs)
    sent = _communication(r, machine, rates, costs, stepping)
    micro_steps = workload.accumulation_steps
    exchanging = _OF_EXCHANGE * r.layers if r.exchanged_bytes else 0
    launched = costs.host_seconds * (counted.operations + exchanging)
    host = launched + costs.micro_step_seconds / 2
    hooks = _hooks_seconds(r, counted, costs)
    reducing = costs.gradient_seconds * counted.trained_tensors if r.strategy.cuts_shares else 0.0
    recomputed = workload.recomputed_fraction
    again = 1 + recomputed
    checkpoints = costs.checkpoint_seconds * counted.operations * recomputed
    total: Seconds = {}

    forward, busy = _phase(in_forward, host + checkpoints, hooks, costs)
    _add(total, forward, micro_steps * (2 if workload.runs_reference else 1))
    for gathered, times in ((sent.gathered_first, 1), (sent.gathered, micro_steps - 1)):
        incoming = {TermKind.GATHERING: gathered, TermKind.PCIE: sent.fetched}
        _add(total, _beside(incoming, busy, 0.0, costs), times)

    # Below stage 2 gradients accumulate where they are, and the last backward alone reduces them
    # (stage_1_and_2.py, reduce_ready_partitions_and_remove_grads).
    each_time = Part.GRADIENTS in r.strategy.sharded
    reductions = micro_steps if each_time else 1
    host_behind = again * host + 2 * checkpoints
    copied = _bucket_seconds(r, rates, costs)
    last = in_backward._replace(elementwise=in_backward.elementwise + copied)
    backward, busy = _phase(last, host_behind, again * hooks + reducing, costs)
    _add(total, backward, reductions)
    accumulating, _ = _phase(in_backward, host_behind, again * hooks, costs)
    _add(total, accumulating, micro_steps - reductions)
    behind = {TermKind.REDUCTION: sent.reduced, TermKind.PCIE: sent.stored}
    incoming = {TermKind.GATHERING: sent.gathered_again, TermKind.PCIE: sent.fetched}
    if not sent.overlaps:
        _add(total, behind, reductions)
    elif each_time:
        both = dict(incoming)
        _add(both, behind)
        alone = sent.alone_fraction * sum(behind.values()) / (sum(both.values()) or 1)
        _add(total, _beside(both, busy, alone, costs), micro_steps)
    else:
        _add(total, _beside(behind, busy, sent.alone_fraction, costs))
    _add(total, {TermKind.EXCHANGE: _exchange_seconds(r, machine, rates, costs)}, micro_steps)
    _add(total, stepping.seconds)
    _add(total, {TermKind.GATHERING: sent.updated})
    return total


def _uncounted(model: Model, workload: Workload) -> str | None:
    """What takes time that nothing here counts, as a reason; None where all is counted."""
    if workload.trainer.row.generates:
        return N_("zerowiz cannot predict the time to generate completions")
    if model.architecture.has_unknown_patches:
        return N_("zerowiz has no formulas for this model of images")
    if workload.shares_weights:
        return N_("no step of GPUs that share weights was measured")
    return None


def why_untimed(model: Model, workload: Workload, machine: Machine, rates: GpuModel | None) -> str:
    """Why no time of a step is known, where none is.

    Args:
        model: What is trained.
        workload: The step.
        machine: What it runs on.
        rates: Of each GPU.
    """
    precision = workload.torch_autocast or workload.precision
    if machine.accelerator is not Accelerator.CUDA:
        return f"zerowiz has no speeds for a {machine.accelerator.upper()}"
    if rates is None or rates.flop_per_s(precision) is None:
        return _why_no_rates(machine, None if rates is None else precision)
    return _uncounted(model, workload) or N_("zerowiz cannot predict the time of NVMe offload")


def _why_no_rates(machine: Machine, precision: Precision | None) -> str:
    if precision is not None:
        return f"zerowiz has no speed for {machine.gpus[0].name} in {precision}"
    if not machine.is_uniform:
        return N_("the GPUs are of different models")
    if any(gpu.mig_slice is not None for gpu in machine.gpus):
        return N_("zerowiz has no speeds for MIG slices")
    return f"{machine.gpus[0].name} is not in the table of GPUs"


def predict_step_time(
    model: Model,
    rank: RankSizes,
    machine: Machine,
    rates: GpuModel | None,
    calibration: Calibration | None = None,
    *,
    near_limit: bool = False,
    costs: Costs = COSTS,
) -> StepTime | None:
    """How long a step of this rank takes.

    None where the rates of its GPU are not known, or where the step has parts that nothing here
    counts: completions that are sampled, states on a disk.

    Args:
        model: What is trained.
        rank: The strategy, its buffers and its workload.
        machine: The links and the host.
        rates: Of each GPU.
        calibration: What was learned from steps that were measured on the machine.
        near_limit: Whether memory is so full that the allocator flushes now and then.
        costs: The constants of the model.
    """
    workload = rank.workload
    on_disk = rank.strategy.offload is not Offload.NONE and rank.buffers.on_nvme
    if rates is None or on_disk or _uncounted(model, workload) is not None:
        return None
    flop_per_s = rates.flop_per_s(workload.torch_autocast or workload.precision)
    if flop_per_s is None:
        return None
    host = machine.host if calibration is None else calibration.describe(machine.host)
    here = on_host(costs, host)
    seconds = _seconds(model, rank, machine, rates, flop_per_s, here)
    if near_limit:
        seconds[TermKind.ALLOCATOR] = costs.tight_fraction * sum(seconds.values())
    terms = tuple(
        Term(kind=kind, exposed_seconds=seconds[kind], formula=_FORMULAS[kind])
        for kind in TermKind
        if seconds.get(kind)
    )
    if calibration is not None:
        terms = tuple(map(calibration.apply, terms))
    length = length_tokens(model.architecture, workload.of_one_rank)
    sequences = machine.world_size * workload.accumulation_steps * workload.rows
    expected = sum(term.exposed_seconds for term in terms)
    factor = 1 + doubt_fraction(
        model,
        rank,
        machine,
        rates,
        terms,
        calibrated=calibration is not None,
        near_limit=near_limit,
    )
    return StepTime(
        terms=terms,
        expected_seconds=expected,
        low_seconds=expected / factor,
        high_seconds=expected * factor,
        tokens=sequences * length,
        images=sequences if model.architecture.reads_images else None,
        measured_steps=0 if calibration is None else calibration.measured_steps,
    )
