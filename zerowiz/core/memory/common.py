"""List the allocations that DeepSpeed's wrappers have in common, whatever they shard.

Symbols are those of `rank_sizes.py`. Ids such as b4-000 name the run of tests/measured/h200.jsonl
that settled a formula.
"""

from zerowiz.core.memory.allocations import Allocation, AllocationKind, Moment
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.workload import FP32_BYTES, HALF_BYTES
from zerowiz.words import N_


def weights(r: RankSizes) -> Moment:
    """All parameters, whole."""
    return (
        Allocation(AllocationKind.PARAMETERS, r.weight_bytes * r.trainable, "w N"),
        Allocation(AllocationKind.FROZEN_PARAMETERS, r.frozen_bytes, "F"),
    )


def master_weights(r: RankSizes, params: int, symbol: str) -> Allocation:
    """The optimizer's own copy of so many parameters."""
    size_bytes = r.master_bytes * params
    return Allocation(AllocationKind.MASTER_WEIGHTS, size_bytes, f"{r.master_bytes} {symbol}")


def optimizer_states(r: RankSizes, params: int, symbol: str) -> Allocation:
    """The optimizer's moments of so many parameters."""
    size_bytes = r.states_bytes(params)
    return Allocation(AllocationKind.OPTIMIZER_STATES, size_bytes, f"{r.state_bytes} {symbol}")


def optimizer(r: RankSizes, params: int, symbol: str) -> Moment:
    """What the optimizer keeps of so many parameters once it has stepped."""
    return (master_weights(r, params, symbol), optimizer_states(r, params, symbol))


def share_gradients(r: RankSizes) -> Allocation:
    """The gradients whose parameters this rank steps."""
    return Allocation(AllocationKind.SHARE_GRADIENTS, r.weight_bytes * r.cut.held, "w S")


def _untied_head(r: RankSizes) -> Allocation:
    # transformers builds a head and then ties it: both exist for a moment (b4-000).
    return Allocation(AllocationKind.UNTIED_HEAD, r.untied_head_bytes, "w V h")


def new_adapters(r: RankSizes) -> Allocation:
    """The adapters as peft makes them."""
    # peft/tuners/tuners_utils.py, cast_adapter_dtype: fp32, until DeepSpeed casts them (f3-007).
    return Allocation(AllocationKind.NEW_ADAPTERS, FP32_BYTES * r.trainable, "4 N")


def built(r: RankSizes) -> tuple[Moment, ...]:
    """The model as it is built; adapters are made when the base is complete."""
    trained, frozen = weights(r)
    if not r.frozen_bytes:
        return ((trained, _untied_head(r)),)
    return ((frozen, _untied_head(r)), (frozen, new_adapters(r)))


def _activations(r: RankSizes) -> Allocation:
    saved = r.activations
    return Allocation(AllocationKind.ACTIVATIONS, saved.saved_bytes, saved.saved_formula)


def _half_weights(size_bytes: int) -> Allocation:
    return Allocation(AllocationKind.HALF_WEIGHTS, size_bytes, N_("2 N of the linear layers"))


def _saved_half_weights(r: RankSizes) -> Allocation:
    # A checkpointed block frees its copies as forward ends (j1-038).
    return _half_weights(0 if r.workload.gradient_checkpointing else r.half_weight_bytes)


def _saved(r: RankSizes) -> Moment:
    saved = r.activations
    loss = Allocation(AllocationKind.LOSS_SAVED, saved.head_bytes, saved.head_formula)
    return (_activations(r), loss)


def forward(r: RankSizes) -> Moment:
    """What forward holds as it ends."""
    logits_bytes = r.activations.loss_forward_bytes
    logits = Allocation(AllocationKind.LOSS_LOGITS, logits_bytes, N_("logits in w and in fp32"))
    return (*_saved(r), _half_weights(r.half_weight_bytes), logits)


def opening(r: RankSizes) -> Moment:
    """What backward holds as it opens with the loss."""
    gradients_bytes = r.activations.loss_backward_bytes
    gradients = Allocation(AllocationKind.LOSS_GRADIENTS, gradients_bytes, "8 V t")
    return (*_saved(r), _saved_half_weights(r), gradients)


def one_block(r: RankSizes) -> Moment:
    """What backward needs to run through one block."""
    in_flight_bytes = r.trained_bytes * r.block_largest
    return (
        Allocation(
            AllocationKind.ONE_BLOCK,
            r.activations.block_bytes,
            N_("recomputed activations, temporaries"),
        ),
        Allocation(AllocationKind.GRADIENT_IN_FLIGHT, in_flight_bytes, N_("w M of a block")),
        Allocation(AllocationKind.DEQUANTIZED_LAYER, r.dequantized_bytes, N_("w of the largest")),
    )


def head_gradient(r: RankSizes) -> Allocation:
    """A tied head's gradient, which waits for the embedding's (b4-002)."""
    size_bytes = r.weight_bytes * r.embedding if r.tied else 0
    return Allocation(AllocationKind.HEAD_GRADIENT, size_bytes, "w V h")


def first_block(r: RankSizes) -> Moment:
    """What backward holds in the block that it comes to first."""
    return some_blocks(r, r.layers)


def kept_blocks(r: RankSizes, blocks: int) -> Moment:
    """What so many blocks keep for backward, and a tied head's gradient."""
    saved_bytes = r.activations.saved_bytes * blocks // r.layers
    # The head's are free by then.
    inside_bytes = max(0, _saved_half_weights(r).size_bytes - HALF_BYTES * r.embedding)
    halves_bytes = inside_bytes * blocks // r.layers
    saved = Allocation(AllocationKind.ACTIVATIONS, saved_bytes, r.activations.saved_formula)
    return (saved, _half_weights(halves_bytes), head_gradient(r))


def some_blocks(r: RankSizes, blocks: int) -> Moment:
    """What backward holds in a block, with so many blocks left."""
    return (*kept_blocks(r, blocks), *one_block(r))


def summed_gradients(r: RankSizes, counted: int = 0) -> Allocation:
    """The embedding's gradient as it is added to a tied head's, without those counted already.

    Both and their sum exist at the same time (acts-000, f1-007). Autocast casts the head's into a
    tensor of its own, into which the other is added (j1-038).
    """
    times = (2 if r.half_weight_bytes else 3) if r.tied else 1
    size_bytes = (times - counted) * r.weight_bytes * r.embedding
    return Allocation(AllocationKind.EMBEDDING_GRADIENT, size_bytes, f"{times - counted} w V h")


def embedding_gradient(r: RankSizes) -> Allocation:
    """What is allocated of the embedding's gradient as backward closes with it."""
    # A tied weight's two gradients and their sum exist at the same time (acts-000, acts-033); where
    # gradients are fp32, the second is added into the first (f1-007).
    times = 2 if r.tied and r.weight_bytes != FP32_BYTES else 1
    size_bytes = times * r.weight_bytes * r.embedding
    return Allocation(AllocationKind.EMBEDDING_GRADIENT, size_bytes, f"{times} w V h")
