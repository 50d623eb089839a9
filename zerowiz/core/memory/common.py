"""The lines that DeepSpeed's wrappers have in common, whatever they shard.

Ids such as b4-000 name the run of tests/measured/h200.jsonl that settled a line.
"""

from collections.abc import Mapping, Sequence

from zerowiz.core.memory.ledger import Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.workload import FP32_BYTES

Held = tuple[str, int, str]
"""A line without its phase: part, bytes, formula."""
Moment = tuple[Held, ...]
"""Everything that is alive at one time."""
Moments = Mapping[Phase, Sequence[Moment]]
"""Those that compete for the peak of each phase."""


def weights(r: RankSizes) -> tuple[Held, ...]:
    """All parameters, whole."""
    return (
        ("parameters", r.weight_bytes * r.trainable, "w N"),
        ("frozen parameters", r.frozen_bytes, "F"),
    )


def master_weights(r: RankSizes, params: int, letter: str) -> Held:
    """The optimizer's own copy of so many parameters."""
    return ("master weights", r.master_bytes * params, f"{r.master_bytes} {letter}")


def optimizer(r: RankSizes, params: int, letter: str) -> tuple[Held, ...]:
    """What the optimizer keeps of so many parameters once it has stepped."""
    states = ("optimizer states", r.states_bytes(params), f"{r.state_bytes} {letter}")
    return (master_weights(r, params, letter), states)


def share_gradients(r: RankSizes) -> Held:
    """The gradients whose parameters this rank steps."""
    return ("gradients of the share", r.weight_bytes * r.held_share, "w S")


def _untied_head(r: RankSizes) -> Held:
    # transformers builds a head and then ties it: both stand for a moment (b4-000).
    return ("head before tying", r.untied_head_bytes, "w V h")


def new_adapters(r: RankSizes) -> Held:
    """The adapters as peft makes them."""
    # peft/tuners/tuners_utils.py, cast_adapter_dtype: fp32, until DeepSpeed casts them (f3-007).
    return ("adapters in fp32", FP32_BYTES * r.trainable, "4 N")


def built(r: RankSizes) -> tuple[Moment, ...]:
    """The model as it is built; adapters come when the base stands."""
    trained, frozen = weights(r)
    if not r.frozen_bytes:
        return ((trained, _untied_head(r)),)
    return ((frozen, _untied_head(r)), (frozen, new_adapters(r)))


def _activations(r: RankSizes) -> Held:
    return ("activations", r.activations.saved_bytes, r.activations.saved_formula)


def _half_weights(size_bytes: int) -> Held:
    return ("weights in 16 bits", size_bytes, "2 N of the linear layers")


def _saved_half_weights(r: RankSizes) -> Held:
    # A checkpointed block lets its copies go as forward ends (j1-038).
    return _half_weights(0 if r.checkpointing else r.half_weight_bytes)


def _saved(r: RankSizes) -> tuple[Held, ...]:
    loss = ("loss, saved", r.activations.head_bytes, r.activations.head_formula)
    return (_activations(r), loss)


def forward(r: RankSizes) -> tuple[Held, ...]:
    """What forward holds as it ends."""
    logits = ("loss, logits", r.activations.loss_forward_bytes, "logits in w and in fp32")
    return (*_saved(r), _half_weights(r.half_weight_bytes), logits)


def opening(r: RankSizes) -> tuple[Held, ...]:
    """What backward holds as it opens with the loss."""
    gradients = ("loss, gradients", r.activations.loss_backward_bytes, "8 V t")
    return (*_saved(r), _saved_half_weights(r), gradients)


def one_block(r: RankSizes) -> tuple[Held, ...]:
    """What backward needs to run through one block."""
    return (
        ("one block", r.activations.block_bytes, "recomputed activations, temporaries"),
        ("gradient in flight", r.trained_bytes * r.block_largest, "w M of a block"),
        ("layer out of 4 bits", r.dequantized_bytes, "w of the largest"),
    )


def head_gradient(r: RankSizes) -> Held:
    """A tied head's gradient, which waits for the embedding's (b4-002)."""
    return ("head gradient", r.tied * r.weight_bytes * r.embedding, "w V h")


def first_block(r: RankSizes) -> tuple[Held, ...]:
    """What backward holds in the block that it comes to first."""
    return (_activations(r), _saved_half_weights(r), head_gradient(r), *one_block(r))


def embedding_gradient(r: RankSizes) -> Held:
    """What stands of the embedding's gradient as backward closes with it."""
    # A tied weight's two gradients and their sum stand side by side (acts-000, acts-033); where
    # gradients are fp32, the second is added into the first (f1-007).
    times = 2 if r.tied and r.weight_bytes != FP32_BYTES else 1
    size_bytes = times * r.weight_bytes * r.embedding
    return ("embedding gradient", size_bytes, f"{times} w V h")
