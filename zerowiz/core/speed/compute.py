"""Count what the GPU computes in one micro-step.

Theory: a product of t tokens with a weight of m x n takes 2 t m n operations and moves t (m + n) +
m n values, so a small one is limited by memory. Forward has one such product, backward two: the
gradient of the input, and that of the weight where it trains. Attention has two products of s x s
for every head; backward computes five (Dao 2023, FlashAttention-2, section 3.1). What else a block
does moves bytes: a multiple of what forward keeps for backward, which memory/forward counts.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from zerowiz.core.memory.forward.activations import activations
from zerowiz.core.memory.forward.attention import is_fused, length_tokens, masks_all, masks_window
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.family import Norm
from zerowiz.core.model.types import Architecture, Model, Tensor
from zerowiz.core.speed.costs import Costs, memory_rate_on, product_fraction_on
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import HALF_BYTES, Loss, Method, Trainer
from zerowiz.core.workload.workload import Workload

_EXPERTS = "experts."
# peft/tuners/lora/layer.py: two products, a scale and a sum, beside the module's own product, the
# norm in front of it, rotation or activation. On a CPU, where tiny blocks take as long as Python
# does, a pair took 0.7 to 0.9 of a module; the fitted steps agree with 0.6 to 0.7.
_ADAPTERS_AS_MODULES = 0.7


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
    modules: float
    """With weights; a pair of adapters launches half as much as a module and what belongs to it."""
    trained_tensors: int


def _product(tensor: Tensor, architecture: Architecture) -> Products:
    out, wide = tensor.shape[-2:]
    visits = stack = math.prod(tensor.shape[:-2])
    if tensor.name.startswith(_EXPERTS) and architecture.experts_per_token:
        visits = architecture.experts_per_token
    size = out * wide
    copies = tensor.copies
    return Products(stack * size * copies, visits * size * copies, visits * (out + wide) * copies)


def _adapters(tensor: Tensor, architecture: Architecture, rank: int) -> Products:
    out, wide = tensor.shape[-2:]
    stack, visits = tensor.adapters, len(tensor.targets)
    if tensor.name.startswith(_EXPERTS):
        visits *= max(1, architecture.experts_per_token)
    size, copies = rank * (out + wide), tensor.copies
    values = visits * (out + wide + 2 * rank)
    return Products(stack * size * copies, visits * size * copies, values * copies)


def _head(model: Model, trainer: Trainer) -> Products:
    """The logits: a reward has one, and a model of images a few."""
    a = model.architecture
    if not a.vocab_size or trainer is Trainer.REWARD:
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
    blocks, adapters = Products(), Products()
    ends = _head(model, trainer)
    modules, trained = 0.0, 0
    for tensor in model.tensors:
        is_bias = tensor.name.endswith(".bias")
        modules += 0 if is_bias else tensor.copies
        trained += 0 if rank else tensor.copies
        is_vector = len(tensor.shape) == 1
        if is_vector or not (tensor.in_block or tensor.linear):
            continue
        product = _product(tensor, a)
        if tensor.in_block:
            blocks = blocks.plus(product)
        else:
            ends = ends.plus(product)
        if rank and tensor.is_adapted(targets):
            adapters = adapters.plus(_adapters(tensor, a, rank))
            modules += _ADAPTERS_AS_MODULES * tensor.copies * len(tensor.targets)
            trained += 2 * tensor.copies * len(tensor.targets)
    return Counted(blocks, ends, adapters, modules, trained)


class Pass(NamedTuple):
    """Seconds that the GPU computes for one pass of one micro-step."""

    products: float
    attention: float
    elementwise: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.products + self.attention + self.elementwise


class _Gpu(NamedTuple):
    """What one GPU really does in a second."""

    product_flop_per_s: float
    bytes_per_s: float


def _products_seconds(gpu: _Gpu, counted: Products, tokens: int, size_bytes: int) -> float:
    flops = 2 * tokens * counted.used
    moved = size_bytes * (counted.weights + tokens * counted.values)
    return flops / gpu.product_flop_per_s + moved / gpu.bytes_per_s


def _unpacking_seconds(gpu: _Gpu, counted: Products, workload: Workload) -> float:
    """Each pass makes values of 16 bits of the weights in 4 bits (bitsandbytes, MatMul4Bit)."""
    if workload.method is not Method.QLORA:
        return 0.0
    return counted.weights * (HALF_BYTES + 0.5) / gpu.bytes_per_s


def _attention_seconds(
    architecture: Architecture, workload: Workload, tokens: int, flop_per_s: float, costs: Costs
) -> float:
    """Of forward: a causal kernel computes half of the scores, and a window those inside it.

    With a mask torch takes another kernel, which computes all scores, also those that a window
    leaves out (torch/aten, transformers/cuda/sdp_utils.cpp, check_for_attn_mask; transformers,
    integrations/sdpa_attention.py).
    """
    a, length = architecture, length_tokens(architecture, workload)
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
    return flops * unmasked / (flop_per_s * costs.attention_fraction) + flops * masked * length / (
        flop_per_s * costs.masked_attention_fraction
    )


def _recomputed_bytes(model: Model, rank: RankSizes) -> int:
    """What the blocks would keep without checkpointing, as each computes it again."""
    a, workload = model.architecture, rank.workload
    upper_bytes = rank.activations.block_bytes * a.layers
    if a.family not in FAMILIES or workload.torch_autocast is not None:
        return upper_bytes
    # A packed row is one sequence, so its length counts; other sequences are alike.
    alike = workload if workload.packing else replace(workload, micro_batch=1)
    one = replace(alike, gradient_checkpointing=False, accumulation_steps=1)
    sequences = workload.micro_batch // one.micro_batch
    sharded = rank.strategy.shards_weights
    return min(upper_bytes, sequences * _kept_bytes(a, one, sharded=sharded))


@lru_cache(maxsize=256)
def _kept_bytes(architecture: Architecture, workload: Workload, *, sharded: bool) -> int:
    return activations(architecture, workload, sharded=sharded).saved_bytes


def _moved_in_blocks(architecture: Architecture, workload: Workload) -> Moved:
    family = FAMILIES.get(architecture.family)
    fused = family is not None and family.norm is Norm.LAYER
    return IN_FUSED_BLOCKS if fused or workload.loss is Loss.LIGER else IN_BLOCKS


class Passes(NamedTuple):
    """The GPU's work of one micro-step."""

    forward: Pass
    backward: Pass
    """With what is computed again for it."""


def compute_passes(
    model: Model,
    rank: RankSizes,
    counted: Counted,
    rates: GpuRates,
    flop_per_s: float,
    costs: Costs,
) -> Passes:
    """What the GPU computes in one micro-step of this rank.

    Args:
        model: What is trained.
        rank: The micro-step.
        counted: The products of the model.
        rates: Of the GPU.
        flop_per_s: Nominal, in the precision that is computed in.
        costs: What of the nominal rates is reached.
    """
    workload, a = rank.workload, model.architecture
    tokens = workload.rows * length_tokens(a, workload)
    w = rank.weight_bytes if workload.torch_autocast is None else HALF_BYTES
    gpu = _Gpu(
        flop_per_s * product_fraction_on(costs, rates.compute_capability),
        memory_rate_on(costs, rates),
    )
    again = 1 if workload.gradient_checkpointing else 0
    blocks, ends, adapters = (
        _products_seconds(gpu, each, tokens, w)
        for each in (counted.blocks, counted.ends, counted.adapters)
    )
    # A frozen weight has no gradient; its input has one, and adapters train.
    gradients = 2 if workload.method is Method.FULL else 1
    attention = _attention_seconds(a, workload, tokens, flop_per_s, costs)
    saved = rank.activations
    blocks += _unpacking_seconds(gpu, counted.blocks, workload)
    kept_bytes = _recomputed_bytes(model, rank) if again else saved.saved_bytes
    rate = rates.memory_bytes_per_s * costs.elementwise_fraction
    moved = _moved_in_blocks(a, workload)
    blocks_bytes = moved.forward * kept_bytes
    forward_bytes = blocks_bytes + AT_ENDS.forward * (saved.head_bytes + saved.loss_forward_bytes)
    backward_bytes = moved.backward * kept_bytes + AT_ENDS.backward * (
        saved.head_bytes + saved.loss_backward_bytes
    )
    return Passes(
        Pass(blocks + ends + adapters, attention, forward_bytes / rate),
        Pass(
            (gradients + again) * blocks + gradients * ends + (2 + again) * adapters,
            (2.5 + again) * attention,
            (backward_bytes + again * blocks_bytes) / rate,
        ),
    )
