"""Predict what forward saves for backward, layer by layer, and what the loss adds.

Theory: autograd keeps what each operation's derivative reads. Per token and block of a Llama
(element size w, fp32 inside the norms, flash or efficient attention, so no score matrix):

    norm x 2        fp32 input 4h, its normalised copy wh, the output that q, k, v read wh
    attention       q, k, v after rotation and the output: w (2q + 2kv), log-sum-exp 4 heads
    gated MLP       gate, activation, up, product: 4 w i

A LayerNorm keeps its input in w and two fp32 statistics; dropout keeps one byte an element. Liger's
norms keep their input in w, and its MLPs compute the activation again. Packed sequences are one
long one, with a mask that keeps them apart.

Attention is in attention.py, head and loss in losses.py, what adapters change in adapters.py.
Held exactly against the `forward_backward` runs acts-000 to acts-045 of tests/measured/h200.jsonl.
"""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.memory.forward.adapters import Adapters, Input, lay_adapters
from zerowiz.core.memory.forward.attention import (
    attention_bytes,
    copies_output,
    cross_attention_bytes,
    is_fused,
    length_tokens,
    runs_eager,
    scores_pass_bytes,
    shared_mask_bytes,
    softmax_backward_bytes,
    window_bytes,
)
from zerowiz.core.memory.forward.losses import loss_bytes, loss_pass_bytes
from zerowiz.core.model.blocks import Slot
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.family import Norm
from zerowiz.core.model.tensors import COPIES, holds, list_tensors
from zerowiz.core.model.types import Architecture
from zerowiz.core.values import Count, replace
from zerowiz.core.workload.choices import FP32_BYTES, Attention, Loss
from zerowiz.core.workload.workload import Workload
from zerowiz.words import _


class Activations(Struct, frozen=True, kw_only=True):
    """Bytes of one micro-step on one rank, without weights and gradients."""

    saved_bytes: Count
    """Kept by all blocks from forward to backward."""
    saved_formula: str
    head_bytes: Count
    """Kept by the embedding, the final norm and the loss: mostly the fp32 log-softmax."""
    head_formula: str
    loss_forward_bytes: Count
    """Held for a moment while the loss is computed: the logits and their fp32 copy."""
    loss_backward_bytes: Count
    """Held for a moment as backward opens: two gradients of the logits."""
    block_bytes: Count
    """Held while one block runs backward: its temporaries, and its recomputed activations."""
    pass_bytes: Count = 0
    """Held while one block runs forward and nothing is kept for backward."""
    block_pass_bytes: Count = 0
    """The same, or the scores of its attention where they are more."""
    loss_pass_bytes: Count = 0
    """Held while head and loss run and nothing is kept for backward; 0 where nobody knows."""


# Added to an architecture's switches where Liger's kernels replace its own norms and MLPs.
_LIGER = "liger"
# What an activation function keeps, in copies of its input; one that keeps its result keeps no
# more, as the next operation keeps that too. transformers/activations.py: the GELUs written in
# Python keep their steps. Any other keeps its input alone.
_KEPT_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), 0),
    **dict.fromkeys(("quick_gelu", "gelu_10"), 2),
    "gelu_python": 3,
    **dict.fromkeys(("gelu_new", "gelu_accurate"), 4),
    "gelu_fast": 7,
}


def _norm(architecture: Architecture) -> Norm:
    """How this model normalises."""
    own = FAMILIES[architecture.family].norm
    return Norm.RMS_OF_LIGER if _LIGER in architecture.switches else own


def _norm_bytes(architecture: Architecture, width_size: int, size_bytes: int) -> int:
    """Of one normalised vector of this width, with its fp32 statistics.

    A fp32 model needs no upcast: the input is the residual itself, kept once all the same.
    """
    norm = _norm(architecture)
    element_bytes = {
        Norm.RMS: FP32_BYTES + size_bytes,
        Norm.RMS_OF_LIGER: size_bytes,
        Norm.RMS_SCALED_IN_FP32: 8,
        Norm.RMS_OF_T5: 8,
        Norm.LAYER: size_bytes,
    }[norm]
    return element_bytes * width_size + (8 if norm is Norm.LAYER else 4)


def _normalised_bytes(architecture: Architecture, width_size: int, size_bytes: int) -> int:
    """Of what one normalised vector keeps, the part that only the norm's own weight needs."""
    element_bytes = {
        Norm.RMS: size_bytes,
        Norm.RMS_OF_LIGER: 0,
        Norm.RMS_SCALED_IN_FP32: FP32_BYTES,
        Norm.RMS_OF_T5: size_bytes,
        Norm.LAYER: 0,
    }[_norm(architecture)]
    return element_bytes * width_size


def _norms(architecture: Architecture) -> int:
    """How many norms of hidden states a block has."""
    family = FAMILIES[architecture.family]
    return family.norms_per_layer if "two_norms" in architecture.switches else 1


def _norms_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Per token, kept by one block's norms and by the linear layers that read a hidden state."""
    a, w = architecture, size_bytes
    norms = _norms(a)
    kept = norms * _norm_bytes(a, a.hidden_size, w)
    if "parallel" in a.switches:
        # They read the same hidden state, and a LayerNorm keeps just that.
        kept -= (norms - 1) * w * a.hidden_size
    return kept + min(norms, 2) * w * a.hidden_size


def _query_norm_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Per token, kept by the norms of queries and keys."""
    a, w = architecture, size_bytes
    width_size = next((t.shape[0] for t in list_tensors(a) if t.name == "q_norm"), 0)
    if width_size == a.head_dim:
        return (a.heads + a.kv_heads) * _norm_bytes(a, a.head_dim, w)
    wide = (a.query_size, a.kv_size) if width_size else ()
    return sum(_norm_bytes(a, size, w) for size in wide)


def _mlp_bytes(architecture: Architecture, wide_size: int, size_bytes: int) -> int:
    """Per token, kept by one MLP."""
    a, w = architecture, size_bytes
    kept = 0 if _LIGER in a.switches else _KEPT_INPUTS.get(a.hidden_act, 1)
    dropped = FAMILIES[a.family].mlp_dropout and a.residual_dropout_rate
    if holds(a, FAMILIES[a.family].gated):
        copies = kept + 3
    else:
        copies = kept + (2 if dropped and not kept else 1)
    return (copies * w + (1 if dropped else 0)) * wide_size


def _experts_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Per token, kept by the experts that it visits, and by the one that all tokens do."""
    a, w = architecture, size_bytes
    # Gathered input, gate and up, activation, product, output before its routing weight.
    visit = 2 * w * a.hidden_size + 4 * w * a.intermediate_size
    # Four lists of 64-bit places, and the routing weights.
    routing = 4 * a.experts + 40 * a.experts_per_token
    shared = 4 * w * a.shared_expert_intermediate_size + w * a.hidden_size + w
    return (
        a.experts_per_token * visit + routing + (shared if a.shared_expert_intermediate_size else 0)
    )


def _cross_attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by a decoder's look at the encoder, its norm and its dropout."""
    a, w = architecture, workload.precision.size_bytes
    norm = _norm_bytes(a, a.hidden_size, w) + w * a.hidden_size
    dropped = a.hidden_size if a.residual_dropout_rate else 0
    return norm + cross_attention_bytes(a, workload) + dropped


def _plain_block_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by what all blocks have: norms, attention and dropout, and no MLP."""
    a, w = architecture, workload.precision.size_bytes
    dropouts = FAMILIES[a.family].residual_dropouts if a.residual_dropout_rate else 0
    return (
        _norms_bytes(a, w)
        + _query_norm_bytes(a, w)
        + attention_bytes(a, workload)
        + dropouts * a.hidden_size
    )


def _product_bytes(architecture: Architecture, wide_size: int, size_bytes: int) -> int:
    """Per token, of what the last layer of one MLP reads and nothing else keeps."""
    a, family = architecture, FAMILIES[architecture.family]
    own = holds(a, family.gated) or _KEPT_INPUTS.get(a.hidden_act, 1)
    dropped = family.mlp_dropout and a.residual_dropout_rate
    return size_bytes * wide_size if own or dropped else 0


def _unread_bytes(
    architecture: Architecture, workload: Workload, adapters: Adapters
) -> Mapping[Slot, int]:
    """Per token, what frozen layers read and do not keep."""
    a, w, read = architecture, workload.precision.size_bytes, adapters.read
    hidden = w * a.hidden_size
    shared = _norms(a) == 1
    first = (Input.HIDDEN, Input.SECOND) if shared else (Input.HIDDEN,)
    # What a fused kernel gives is its own, unless the layer reads a copy of it.
    own = is_fused(a, workload) and not copies_output(a, workload)
    attended = 0 if own else w * a.query_size
    dense = _product_bytes(a, a.dense_intermediate_size, w)
    wide = w * a.shared_expert_intermediate_size
    visit = 0 if adapters.adapts("experts.gate_up_proj") else hidden
    visit += 0 if adapters.adapts("experts.down_proj") else w * a.intermediate_size
    unread = (
        (Slot.BLOCK, first, hidden),
        (Slot.BLOCK, (Input.ATTENDED,), attended),
        (Slot.DENSE, (Input.SECOND,), 0 if shared else hidden),
        (Slot.DENSE, (Input.PRODUCT,), dense),
        (Slot.EXPERTS, (Input.SECOND,), hidden),
        (Slot.EXPERTS, (Input.PRODUCT,), wide),
        (Slot.EXPERTS, (), a.experts_per_token * visit),
        (Slot.DECODER, (Input.HIDDEN,), hidden),
        (Slot.DECODER, (Input.ATTENDED,), attended),
    )
    totals = dict.fromkeys(Slot, 0)
    for place, inputs, size_bytes in unread:
        totals[place] += 0 if inputs and read(place, *inputs) else size_bytes
    return totals


def _frozen_parts(
    architecture: Architecture, workload: Workload, adapters: Adapters
) -> Mapping[Slot, int]:
    """Per token, what the blocks of each place keep more, or less, under adapters."""
    a, w = architecture, workload.precision.size_bytes
    unread = _unread_bytes(a, workload, adapters)
    query_norms = any(tensor.name == "q_norm" for tensor in list_tensors(a))
    normed = _norms(a) * a.hidden_size + (a.query_size + a.kv_size if query_norms else 0)
    normalised = {Slot.BLOCK: normed, Slot.DECODER: a.hidden_size}
    return {
        place: adapters.own_bytes(place)
        - unread[place]
        - _normalised_bytes(a, normalised.get(place, 0), w)
        for place in Slot
    }


def _first_block_bytes(architecture: Architecture, workload: Workload, adapters: Adapters) -> int:
    """Per token, what the first blocks do not keep, as their input has no gradient."""
    a, w = architecture, workload.precision.size_bytes
    stacks = 2 if a.encoder_layers else 1
    reading = _norms(a) if "parallel" in a.switches else 1
    size_bytes = _norm_bytes(a, a.hidden_size, w)
    # Those of a parallel block read, and keep, the same hidden state.
    norms = reading * size_bytes - (reading - 1) * w * a.hidden_size
    norms -= _normalised_bytes(a, reading * a.hidden_size, w)
    own = norms if holds(a, FAMILIES[a.family].first_norm) else 0
    return stacks * (own + (reading * w * a.hidden_size if adapters.inputs_kept else 0))


def _parts(
    architecture: Architecture, workload: Workload, adapters: Adapters | None
) -> Mapping[Slot, int]:
    """Per token, what the blocks of each place keep."""
    trained = _trained_parts(architecture, workload)
    if adapters is None:
        return trained
    changes = _frozen_parts(architecture, workload, adapters)
    return {place: part and part + changes[place] for place, part in trained.items()}


def _trained_parts(architecture: Architecture, workload: Workload) -> Mapping[Slot, int]:
    a, w = architecture, workload.precision.size_bytes
    return {
        Slot.BLOCK: _plain_block_bytes(a, workload),
        Slot.DENSE: _mlp_bytes(a, a.dense_intermediate_size, w),
        Slot.EXPERTS: _experts_bytes(a, w) if a.expert_layers else 0,
        Slot.DECODER: _cross_attention_bytes(a, workload) if a.encoder_layers else 0,
    }


def block_saved_bytes(
    architecture: Architecture, workload: Workload, adapters: Adapters | None = None
) -> int:
    """Bytes per token that the transformer block that keeps most keeps until its backward."""
    a, parts = architecture, _parts(architecture, workload, adapters)
    mlps = [parts[place] for place in (Slot.DENSE, Slot.EXPERTS) if COPIES[place](a)]
    window = window_bytes(a, workload) if a.sliding_layers else 0
    return parts[Slot.BLOCK] + max(mlps) + parts[Slot.DECODER] + max(0, window)


def _blocks_saved_bytes(
    architecture: Architecture, workload: Workload, adapters: Adapters | None
) -> int:
    """Bytes per token that all blocks keep together."""
    a, parts = architecture, _parts(architecture, workload, adapters)
    window = a.sliding_layers * window_bytes(a, workload)
    first = 0 if adapters is None else _first_block_bytes(a, workload, adapters)
    return window - first + sum(COPIES[place](a) * part for place, part in parts.items())


def _ends_bytes(architecture: Architecture, workload: Workload, adapters: Adapters | None) -> int:
    """Per token, kept by the embedding and by what is between the last block and the head."""
    if adapters is not None:
        return _frozen_ends_bytes(architecture, workload, adapters)
    a, w = architecture, workload.precision.size_bytes
    h = a.hidden_size
    stacks = 2 if a.encoder_layers else 1
    norm = _norm_bytes(a, h, w) if "final_norm" in a.switches else 0
    dropped = h if a.embedding_dropout_rate else 0
    if a.type_vocab_size:
        # Embedding norm; dense layer, activation, norm and decoder of the head.
        return dropped + norm + (2 + _KEPT_INPUTS.get(a.hidden_act, 1)) * w * h + norm
    # An encoder-decoder drops at both ends of both stacks.
    dropped *= 4 if a.encoder_layers else 1
    return dropped + stacks * (norm + w * h) + shared_mask_bytes(a, workload)


def _frozen_ends_bytes(architecture: Architecture, workload: Workload, adapters: Adapters) -> int:
    """The same under adapters: nothing of the embedding, and of the head what adapters read."""
    a, w = architecture, workload.precision.size_bytes
    h = a.hidden_size
    norm = _norm_bytes(a, h, w) - _normalised_bytes(a, h, w)
    head = w * h if adapters.head_kept else 0
    last = w * h if adapters.reads_last(h) else 0
    # The head of a model of images reads one of its tokens.
    own = 0 if a.image_tokens else adapters.own_bytes(Slot.ENDS)
    if a.type_vocab_size:
        return own + last + _KEPT_INPUTS.get(a.hidden_act, 1) * w * h + norm + head
    dropped = h if a.encoder_layers and a.embedding_dropout_rate else 0
    encoded = w * h if a.encoder_layers and adapters.reads_encoder() else 0
    stacks = 2 if a.encoder_layers else 1
    norms = norm if "final_norm" in a.switches else 0
    return own + last + encoded + stacks * (norms + dropped) + shared_mask_bytes(a, workload)


def _temporary_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, held for a moment while one block runs backward."""
    a, w = architecture, workload.precision.size_bytes
    wide = a.intermediate_size * max(1, a.experts_per_token)
    # Of the MLP: gradients of product, activation and up, and two of the residual; Liger writes
    # the others over what was kept.
    wides, hiddens = (1, 1) if _LIGER in a.switches else (3, 2)
    of_mlp = w * (wides * wide + hiddens * a.hidden_size)
    # By the time of the softmax the MLP's activations are gone (acts-045).
    of_softmax = softmax_backward_bytes(a, workload) - _mlp_bytes(a, a.intermediate_size, w)
    return max(of_mlp, of_softmax)


def _pass_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of a pass without gradients, in the MLP of a block: it is released after it."""
    a, w = architecture, workload.precision.size_bytes
    # The activation, what it is multiplied with, and the product.
    wides = 3 if holds(a, FAMILIES[a.family].gated) else 2
    wide = max(a.intermediate_size * max(1, a.experts_per_token), a.dense_intermediate_size)
    return w * (wides * wide + 2 * a.hidden_size)


def _with_kernels(architecture: Architecture, workload: Workload) -> Architecture:
    """The model with Liger's kernels in it, where the loss is theirs."""
    if workload.loss is not Loss.LIGER:
        return architecture
    return replace(architecture, switches=architecture.switches | {_LIGER})


def _in_one_row(workload: Workload) -> Workload:
    """The sequences of a pass; packed ones are one, and stay packed for their attention's mask."""
    if not workload.packing:
        return replace(workload, micro_batch=workload.rows)
    return replace(workload, micro_batch=1, sequence_tokens=workload.tokens)


def _as_it_runs(architecture: Architecture, workload: Workload) -> Workload:
    """The micro-step with the attention that transformers takes for this model."""
    if not runs_eager(architecture, workload):
        return workload
    return replace(workload, attention=Attention.EAGER)


def activations(
    architecture: Architecture, workload: Workload, *, sharded: bool = False
) -> Activations:
    """Predict the activations and the logits of one micro-step.

    Source: transformers 5.17 modelling files, checked against acts-000 to acts-045.

    Args:
        architecture: The model.
        workload: The micro-step.
        sharded: Whether ZeRO-3 holds the weights, which changes what adapters keep.
    """
    a = _with_kernels(architecture, workload)
    workload = _as_it_runs(a, _in_one_row(workload))
    w, checkpointing = workload.precision.size_bytes, workload.gradient_checkpointing
    tokens = workload.micro_batch * length_tokens(a, workload)
    adapters = lay_adapters(a, workload, sharded=sharded)
    stack = 0 if adapters is None else adapters.stack_bytes(w)
    if checkpointing:
        saved, name = a.layers * w * a.hidden_size * tokens, "w h"
        recomputed = block_saved_bytes(a, workload, adapters) * tokens + stack
    else:
        blocks = _blocks_saved_bytes(a, workload, adapters)
        saved, name = blocks * tokens + a.expert_layers * stack, f"{blocks // a.layers}"
        recomputed = 0
    loss = loss_bytes(a, workload, tokens)
    ends = _ends_bytes(a, workload, adapters)
    if not loss.keeps_input and (adapters is None or adapters.head_kept):
        ends -= w * a.hidden_size
    passing_bytes = _pass_bytes(a, workload) * tokens
    # The pass of a reference runs beside what the model's own keeps.
    again_bytes = passing_bytes if workload.runs_reference else 0
    return Activations(
        saved_bytes=saved,
        saved_formula=_("{layers} layers x {name} x t", layers=a.layers, name=name),
        head_bytes=loss.kept_bytes + ends * tokens,
        head_formula=f"{loss.kept_formula}{ends} t",
        loss_forward_bytes=max(loss.forward_bytes, again_bytes),
        loss_backward_bytes=loss.backward_bytes,
        block_bytes=recomputed + _temporary_bytes(a, workload) * tokens,
        pass_bytes=passing_bytes,
        block_pass_bytes=max(passing_bytes, scores_pass_bytes(a, workload) * tokens),
        loss_pass_bytes=max(loss_pass_bytes(a, workload, tokens), again_bytes),
    )
