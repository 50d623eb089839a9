"""Predict what forward saves for backward, layer by layer, and what the loss adds.

Theory: autograd keeps what each operation's derivative reads. Per token and block of a Llama
(element size w, fp32 inside the norms, flash or efficient attention, so no score matrix):

    norm x 2        fp32 input 4h, its normalised copy wh, the output that q, k, v read wh
    attention       q, k, v after rotation and the output: w (2q + 2kv), log-sum-exp 4 heads
    gated MLP       gate, activation, up, product: 4 w i

A LayerNorm keeps its input in w and two fp32 statistics; dropout keeps one byte an element. Liger's
norms keep their input in w, and its MLPs compute the activation again. Packed sequences are one
long one, with a mask that keeps them apart.

Head and loss are in losses.py.
Held exactly against the `forward_backward` runs acts-000 to acts-045 of tests/measured/h200.jsonl.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.memory.losses import LOSS_ROWS, loss_bytes, loss_pass_bytes
from zerowiz.core.model.families import FAMILIES, Norm, Slot
from zerowiz.core.model.hf_config import COPIES, holds, list_tensors, list_tensors_by_slot
from zerowiz.core.model.types import Architecture, Tensor
from zerowiz.core.structs import Count, replace
from zerowiz.core.workload import FP32_BYTES, Attention, Method, Trainer, Workload

# Compute what forward saves less, and what more, where adapters train and the base is frozen.
#
# Theory: a frozen linear layer does not keep its input, as its weight has no gradient; a frozen
# norm does not keep its normalised copy. An adapter keeps its own input and the narrow vector
# between its halves. The first block's input has no gradient, so its first norm keeps nothing.
#
# Under ZeRO-3 that is undone in part. DeepSpeed replaces torch's linear by its own function,
# which keeps its input whatever is frozen (runtime/zero/linear.py, LinearFunctionForZeroStage3),
# and peft's adapters stay in fp32 (`value_bytes`), so each reads a fp32 copy of its own
# (peft/tuners/lora/layer.py, _cast_input_dtype). Held against autograd by
# tests/core/memory/test_activations.py, with peft 0.21.


class Input(StrEnum):
    """What the linear layers of a block read."""

    HIDDEN = "hidden"
    """Before attention."""
    ATTENDED = "attended"
    """What attention gives."""
    SECOND = "second"
    """Before the MLP."""
    PRODUCT = "product"
    """Before the MLP's last layer."""


# families.py lists them all.
_READS: Mapping[str, Input] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn"), Input.HIDDEN),
    **dict.fromkeys(("query_key_value", "query", "key", "value", "q", "k", "v"), Input.HIDDEN),
    **dict.fromkeys(("o_proj", "attn.c_proj", "dense", "out_proj", "o"), Input.ATTENDED),
    "attention.output.dense": Input.ATTENDED,
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "c_fc", "fc1"), Input.SECOND),
    **dict.fromkeys(("dense_h_to_4h", "intermediate.dense", "wi", "wi_0", "wi_1"), Input.SECOND),
    **dict.fromkeys(("shared_expert_gate", "mlp.gate"), Input.SECOND),
    **dict.fromkeys(("down_proj", "mlp.c_proj", "dense_4h_to_h", "fc2"), Input.PRODUCT),
    **dict.fromkeys(("output.dense", "wo"), Input.PRODUCT),
}


class Adapters(Struct, frozen=True, kw_only=True):
    """The adapters of one model."""

    rank: int
    placed: tuple[tuple[Slot, Tensor], ...]
    """The tensors that have one."""
    value_bytes: int
    """Of one value of theirs, and of the activations between them."""
    copied: bool
    """Whether each reads a copy of its own."""
    inputs_kept: bool
    """Whether a block's frozen linear layers keep their input all the same."""
    head_kept: bool
    """Whether the frozen head does."""

    def read(self, place: Slot, *inputs: Input) -> bool:
        """Whether any layer in these blocks keeps one of these inputs."""
        places = {place} if place is Slot.DECODER else {place, Slot.BLOCK}
        read = {_READS[t.name] for p, t in self.placed if p in places and t.name in _READS}
        return self.inputs_kept or (not self.copied and not read.isdisjoint(inputs))

    def reads_encoder(self) -> bool:
        """Whether a decoder's keys and values keep what the encoder gave."""
        names = {t.name for place, t in self.placed if place is Slot.DECODER}
        return self.inputs_kept or (not self.copied and not names.isdisjoint({"k", "v"}))

    def reads_last(self, hidden_size: int) -> bool:
        """Whether a layer of the head keeps the last hidden state."""
        read = {t.input_size for place, t in self.placed if place is Slot.ENDS}
        return self.head_kept or hidden_size in read

    def adapts(self, name: str) -> bool:
        """Whether this tensor has an adapter."""
        return any(t.name == name for _, t in self.placed)

    def own_bytes(self, place: Slot) -> int:
        """Per token, kept by the adapters of one block."""
        return sum(
            self.value_bytes * (self.rank + (t.input_size if self.copied else 0))
            for p, t in self.placed
            if p is place and t.linear
        )

    def stack_bytes(self, weight_bytes: int) -> int:
        """Of one layer's experts with their adapters added, which backward reads.

        peft/tuners/lora/layer.py, ParamWrapper._activate_lora: the sum is made in every forward,
        of adapters that are cast to the weights' format.
        """
        stacks = [t for _, t in self.placed if t.holds_experts]
        cast = self.rank * sum(t.adapter_size for t in stacks) if self.copied else 0
        return weight_bytes * (sum(t.numel for t in stacks) + cast)


def value_bytes(workload: Workload, *, sharded: bool) -> int:
    """Of one value of a weight that trains, once the engine has it.

    peft makes adapters in fp32 (tuners_utils.py, cast_adapter_dtype) and DeepSpeed casts them
    (runtime/engine.py, _cast_module_mixed_precision), but no model that zero.Init built (f3-006);
    for that TRL's trainers make them in the model's format (trl 1.16, dpo_trainer.py, __init__).
    """
    kept = sharded and workload.resolved_zero_init and workload.method is not Method.FULL
    kept = kept and workload.trainer is Trainer.SFT
    return FP32_BYTES if kept else workload.precision.size_bytes


def lay_adapters(
    architecture: Architecture, workload: Workload, *, sharded: bool
) -> Adapters | None:
    """The adapters of this workload, None where it trains the model itself.

    Args:
        architecture: The model.
        workload: What is trained.
        sharded: Whether ZeRO-3 holds the weights.
    """
    if workload.method is Method.FULL:
        return None
    modules: Collection[str] = workload.lora_target_modules
    placed = list_tensors_by_slot(architecture)
    own_bytes = value_bytes(workload, sharded=sharded)
    return Adapters(
        rank=workload.lora_rank,
        placed=tuple((place, t) for place, t in placed if t.is_adapted(modules)),
        value_bytes=own_bytes,
        copied=own_bytes != workload.precision.size_bytes,
        inputs_kept=sharded and FAMILIES[architecture.family].torch_linear,
        head_kept=sharded,
    )


# Predict what attention saves for backward, by the kernel that runs.
#
# Theory: a fused kernel keeps queries, keys, values, its output and the log-sum-exp. Plain
# matmuls keep the scores too: eager attention in the model's precision, torch's own fallback in
# fp32. A mask (a sliding window that ends inside the sequence, a position bias) is kept by every
# layer in w, and the keys are repeated for it; some masks and biases are one for all layers. Held
# exactly against the `forward_backward` runs acts-000 to acts-045 of tests/measured/h200.jsonl.


def runs_eager(architecture: Architecture, workload: Workload) -> bool:
    """Whether transformers takes eager attention, whatever was set."""
    since, row = FAMILIES[architecture.family].eager_since, workload.attention.row
    is_refused = since is not None and workload.transformers_version >= since
    return row.keeps_scores or (row.takes_masks and is_refused)


def length_tokens(architecture: Architecture, workload: Workload) -> int:
    """Tokens of one sequence, or of one image."""
    return architecture.image_tokens or workload.sequence_tokens


def _score_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Of one attention score, where the scores are kept."""
    a, w, family = architecture, size_bytes, FAMILIES[architecture.family]
    capped = w if "softcapped_scores" in a.switches else 0
    masked = 1 if a.dropout_rate else 0
    if family.softmax_in_fp32:
        # fp32 softmax and its cast back (acts-039); dropout makes a copy of fp32 itself.
        uncopied = w == FP32_BYTES and not masked
        return capped + masked + (FP32_BYTES if uncopied else w + FP32_BYTES)
    return capped + masked + (2 * w if masked else w)


def _repeated_size(a: Architecture) -> int:
    """Width of the keys of all query heads; a single key is not copied for them."""
    return a.kv_size if a.kv_heads == 1 else a.query_size


def _slices_size(a: Architecture, *, repeated: bool) -> int:
    """What values keep besides themselves where they are a slice of a fused projection."""
    copied = repeated and a.kv_heads not in {1, a.heads}
    fused = holds(a, FAMILIES[a.family].value_in_qkv) and not copied
    return a.query_size + a.kv_size if fused else 0


def shared_kv_size(a: Architecture, ranks: int) -> int:
    """Width of the keys where so many ranks share a sequence: each has one of its heads at least.

    deepspeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py, _combine_local_sequences.
    """
    return max(a.kv_heads, ranks) * a.head_dim


def _fused_attention_bytes(
    architecture: Architecture, size_bytes: int, *, masked: bool, shared_by: int = 1
) -> int:
    """Per token, kept by a kernel that keeps no scores."""
    a, w = architecture, size_bytes
    # transformers/integrations/sdpa_attention.py, use_gqa_in_sdpa: a mask wants repeated keys.
    kv_size = _repeated_size(a) if masked else shared_kv_size(a, shared_by)
    slices_size = _slices_size(a, repeated=masked) if shared_by == 1 else 0
    return w * (2 * a.query_size + 2 * kv_size + slices_size) + 4 * a.heads


def _eager_attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by plain matmuls, which copy what is no batch of matrices yet."""
    a, w = architecture, workload.precision.size_bytes
    alone = workload.micro_batch == 1
    kv_size = _repeated_size(a) if alone else a.query_size
    slices_size = _slices_size(a, repeated=True) if alone else 0
    scores = _score_bytes(a, w) * a.heads * length_tokens(a, workload)
    return w * (2 * a.query_size + 2 * kv_size + slices_size) + scores


def _masked(architecture: Architecture, workload: Workload) -> bool:
    """Whether every attention is given a mask, even where causality would do."""
    return FAMILIES[architecture.family].masked or workload.packing


def falls_back(a: Architecture, workload: Workload) -> bool:
    """Whether torch finds no fused kernel and takes plain matmuls, in fp32.

    No fused kernel takes fp32 grouped queries (acts-044), nor the single key of a Falcon, which is
    not passed as grouped (torch/aten transformers/cuda/sdp_utils, check_batch_size_and_num_heads),
    nor a position bias whose rows are not contiguous (f2-003).
    """
    if not workload.attention.row.takes_masks:
        return False
    fused_since = FAMILIES[a.family].fused_bias_since
    if fused_since is not None:
        return workload.transformers_version < fused_since
    if a.kv_heads == a.heads:
        return False
    if FAMILIES[a.family].masked:
        return "new_decoder_architecture" not in a.switches
    # A mask of packed sequences wants repeated keys, which are no longer grouped.
    return workload.precision.size_bytes == FP32_BYTES and not workload.packing


def is_fused(architecture: Architecture, workload: Workload) -> bool:
    """Whether a kernel runs that keeps no scores."""
    eager = workload.attention.row.keeps_scores
    return not eager and not falls_back(architecture, workload)


def copies_output(architecture: Architecture, workload: Workload) -> bool:
    """Whether what attention gives is copied for the next layer, which reads it token by token.

    The kernels of 16 bits lay their output as the queries lie (flash_api.cpp, mha_fwd; cuDNN's MHA
    .cpp, alloc_with_matching_layout), and queries that are joined of two parts lie head by head
    (g1-079; with a mask h1-045). The one of fp32 writes token by token, and Liger's rotation leaves
    queries where they are (h1-017). Ranks that share a sequence exchange what it gives.
    """
    if workload.sequence_parallel > 1:
        return True
    joined = FAMILIES[architecture.family].rotated_in_parts
    half, moved = workload.precision.size_bytes < FP32_BYTES, not LOSS_ROWS[workload.loss].has_liger
    return joined and half and moved and is_fused(architecture, workload)


def _plain_attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by torch's own plain matmuls, which are in fp32."""
    a, w = architecture, workload.precision.size_bytes
    # Grouped keys are copied for every head; a single one is read in place by a lone sequence.
    alone = workload.micro_batch == 1 and FAMILIES[a.family].masked
    kv_size = _repeated_size(a) if alone else a.query_size
    # The softmax; where scores are dropped, the others once more and a byte for which they are.
    score_bytes = FP32_BYTES + (FP32_BYTES + 1 if a.dropout_rate else 0)
    scores_bytes = score_bytes * a.heads * length_tokens(a, workload)
    return FP32_BYTES * (a.query_size + 2 * kv_size) + scores_bytes + w * a.query_size


def attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by one attention through no window."""
    a, w = architecture, workload.precision.size_bytes
    if workload.attention.row.keeps_scores:
        return _eager_attention_bytes(a, workload)
    if falls_back(a, workload):
        return _plain_attention_bytes(a, workload)
    fused = _fused_attention_bytes(
        a, w, masked=masks_all(a, workload), shared_by=workload.sequence_parallel
    )
    copied = w * a.query_size if copies_output(a, workload) else 0
    return fused + copied + _mask_bytes(a, workload)


def _cross_attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by a decoder's look at the encoder, its norm and its dropout."""
    a, w = architecture, workload.precision.size_bytes
    norm = _norm_bytes(a, a.hidden_size, w) + w * a.hidden_size
    dropped = a.hidden_size if a.residual_dropout_rate else 0
    if workload.attention.row.keeps_scores:
        attended = _eager_attention_bytes(a, workload)
    else:
        attended = _fused_attention_bytes(a, w, masked=False)
    # Its empty bias is one for all layers.
    biases = 1 if workload.attention.row.takes_masks else 0
    bias = -(-biases * length_tokens(a, workload) // workload.micro_batch)
    return norm + attended + bias + dropped


def _mask_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of the mask that one layer keeps in w.

    torch/aten transformers/attention.cpp, convert_boolean_attn_mask: a layer converts its own.
    """
    a, w = architecture, workload.precision.size_bytes
    length = length_tokens(a, workload)
    if not workload.attention.row.takes_masks:
        return 0
    if a.relative_attention_num_buckets:
        kept = 0 if falls_back(a, workload) else w * a.heads * length
        return -(-kept // workload.micro_batch)
    # That of alibi is in w already, and one for all layers.
    return w * length if _masked(a, workload) and "alibi" not in a.switches else 0


def masks_window(architecture: Architecture, workload: Workload) -> bool:
    """Whether a layer with a window is given it as a mask, as it ends inside the sequence."""
    inside = 0 < architecture.sliding_window_tokens <= length_tokens(architecture, workload)
    return inside and workload.attention.row.takes_masks


def masks_all(architecture: Architecture, workload: Workload) -> bool:
    """Whether torch's own attention is given a mask in every layer."""
    return workload.attention.row.takes_masks and _masked(architecture, workload)


def window_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, what a layer keeps more whose window ends inside the sequence."""
    a, w = architecture, workload.precision.size_bytes
    length = length_tokens(a, workload)
    if not masks_window(a, workload):
        return 0
    masked = _fused_attention_bytes(a, w, masked=True) + w * length
    copied = w * a.query_size if copies_output(a, workload) else 0
    return masked + copied - attention_bytes(a, workload)


def softmax_backward_bytes(a: Architecture, workload: Workload) -> int:
    """Per token, held in the backward of torch's own plain matmuls.

    The softmax' gradient, that of the scores, and the kernel's own product; by then the dropped
    scores are gone (h1-046).
    """
    if not falls_back(a, workload):
        return 0
    dropped = FP32_BYTES + 1 if a.dropout_rate else 0
    return (3 * FP32_BYTES - dropped) * a.heads * length_tokens(a, workload)


def scores_pass_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, the scores of one layer in a pass without gradients; a fused kernel makes none.

    transformers, eager_attention_forward: the scores, their softmax in fp32 and its cast; torch's
    own plain matmuls stay in fp32.
    """
    a, w = architecture, workload.precision.size_bytes
    in_fp32 = 2 * FP32_BYTES if falls_back(a, workload) else 0
    score_bytes = 2 * w + FP32_BYTES if workload.attention.row.keeps_scores else in_fp32
    return score_bytes * a.heads * length_tokens(a, workload)


def shared_mask_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of masks and position biases that all layers share."""
    a, w = architecture, workload.precision.size_bytes
    length = length_tokens(a, workload)
    checkpointing = workload.gradient_checkpointing
    if a.relative_attention_num_buckets:
        # 64-bit buckets of both stacks, which checkpointing computes again, and the empty bias of
        # the cross attention; the biases of both stacks are handed on where layers keep no copy.
        biases = 3 if checkpointing else 1
        biases = biases if workload.attention.row.takes_masks else 0
        looked_up = 0 if checkpointing or workload.method is not Method.FULL else 2 * 8
        kept = looked_up + biases * w * a.heads
        return -(-kept * length // workload.micro_batch)
    if workload.attention.row.takes_masks and "alibi" in a.switches:
        return 0 if falls_back(a, workload) else w * a.heads * length
    return _mask_argument_bytes(a, workload) if checkpointing else 0


def _mask_argument_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of the mask that a checkpoint keeps as its argument (acts-026, acts-043)."""
    a, length = architecture, length_tokens(architecture, workload)
    inside = a.sliding_layers and a.sliding_window_tokens <= length
    if workload.attention.row.keeps_scores and FAMILIES[a.family].causal:
        masks = 2 if inside and a.sliding_layers < a.layers else 1
        return masks * workload.precision.size_bytes * length
    wanted = inside or _masked(a, workload)
    return length if workload.attention.row.takes_masks and wanted else 0


class Activations(Struct, frozen=True, kw_only=True):
    """Bytes of one micro-step on one rank, without weights and gradients."""

    saved_bytes: Count
    """Kept by all blocks from forward to backward."""
    saved_formula: str
    head_bytes: Count
    """Kept by the embedding, the final norm and the loss: mostly the fp32 log-softmax."""
    head_formula: str
    opened_bytes: Count = 0
    """Of these, of a last block that is not computed again."""
    loss_forward_bytes: Count
    """Held for a moment while the loss is computed: the logits and their fp32 copy."""
    loss_backward_bytes: Count
    """Held for a moment as backward opens: two gradients of the logits."""
    block_bytes: Count
    """Held while one block runs backward: its temporaries, and its recomputed activations."""
    gone_bytes: Count = 0
    """Of these, and of what a block keeps, gone as its first weight has its gradient."""
    later_gone_bytes: Count = 0
    """The same as the second one has it; 0 where nobody knows."""
    pass_bytes: Count = 0
    """Held while one block runs forward and nothing is kept for backward."""
    block_pass_bytes: Count = 0
    """The same, or the scores of its attention where they are more."""
    loss_pass_bytes: Count = 0
    """Held while head and loss run and nothing is kept for backward; 0 where nobody knows."""


# Added to an architecture's switches where Liger's kernels replace its own norms and MLPs.
_LIGER = "liger"
AUTO_EP = "auto_ep"
"""Whether DeepSpeed's layers of experts run, whose fused kernel keeps gate and up alone."""
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
    norm = FAMILIES[architecture.family].norm
    return Norm.RMS_OF_LIGER if _LIGER in architecture.switches else norm


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
    wides = 3 if AUTO_EP in a.switches else 4
    visit = 2 * w * a.hidden_size + wides * w * a.intermediate_size
    # Four lists of 64-bit places, and the routing weights.
    routing = 4 * a.experts + 40 * a.experts_per_token
    shared = 4 * w * a.shared_expert_intermediate_size + w * a.hidden_size + w
    return (
        a.experts_per_token * visit + routing + (shared if a.shared_expert_intermediate_size else 0)
    )


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
    is_kept = holds(a, family.gated) or _KEPT_INPUTS.get(a.hidden_act, 1)
    dropped = family.mlp_dropout and a.residual_dropout_rate
    return size_bytes * wide_size if is_kept or dropped else 0


def _unread_bytes(
    architecture: Architecture, workload: Workload, adapters: Adapters
) -> Mapping[Slot, int]:
    """Per token, what frozen layers read and do not keep."""
    a, w, read = architecture, workload.precision.size_bytes, adapters.read
    hidden = w * a.hidden_size
    shared = _norms(a) == 1
    first = (Input.HIDDEN, Input.SECOND) if shared else (Input.HIDDEN,)
    # What a fused kernel gives is its own, unless the layer reads a copy of it.
    is_kept = is_fused(a, workload) and not copies_output(a, workload)
    attended = 0 if is_kept else w * a.query_size
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
    first_norms = norms if holds(a, FAMILIES[a.family].first_norm) else 0
    return stacks * (first_norms + (reading * w * a.hidden_size if adapters.inputs_kept else 0))


def _parts(
    architecture: Architecture, workload: Workload, adapters: Adapters | None
) -> Mapping[Slot, int]:
    """Per token, what the blocks of each place keep."""
    a, w = architecture, workload.precision.size_bytes
    trained = {
        Slot.BLOCK: _plain_block_bytes(a, workload),
        Slot.DENSE: _mlp_bytes(a, a.dense_intermediate_size, w),
        Slot.EXPERTS: _experts_bytes(a, w) if a.expert_layers else 0,
        Slot.DECODER: _cross_attention_bytes(a, workload) if a.encoder_layers else 0,
    }
    if adapters is None:
        return trained
    changes = _frozen_parts(a, workload, adapters)
    return {place: part and part + changes[place] for place, part in trained.items()}


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
    ends = 0 if a.image_tokens else adapters.own_bytes(Slot.ENDS)
    if a.type_vocab_size:
        return ends + last + _KEPT_INPUTS.get(a.hidden_act, 1) * w * h + norm + head
    dropped = h if a.encoder_layers and a.embedding_dropout_rate else 0
    encoded = w * h if a.encoder_layers and adapters.reads_encoder() else 0
    stacks = 2 if a.encoder_layers else 1
    norms = norm if "final_norm" in a.switches else 0
    return ends + last + encoded + stacks * (norms + dropped) + shared_mask_bytes(a, workload)


def _temporary_bytes(
    architecture: Architecture, workload: Workload, adapters: Adapters | None
) -> int:
    """Per token, held for a moment while one block runs backward."""
    a, w = architecture, workload.precision.size_bytes
    wide = a.intermediate_size * max(1, a.experts_per_token)
    # Of the MLP: gradients of product, activation and up, and two of the residual; Liger writes
    # the others over what was kept.
    wides, hiddens = (1, 1) if _LIGER in a.switches else (3, 2)
    # The kernel that needs them all has freed the activation.
    wides -= AUTO_EP in a.switches
    of_mlp = w * (wides * wide + hiddens * a.hidden_size)
    # Of a product that an adapter reads: its gradients through the adapter and through the layer.
    placed = () if adapters is None else adapters.placed
    adapted = any(_READS.get(tensor.name) is Input.PRODUCT for _, tensor in placed)
    of_adapter = max(2 * w, adapters.value_bytes) * wide if adapters and adapted else 0
    # By the time of the softmax the MLP's activations are gone (acts-045).
    of_softmax = softmax_backward_bytes(a, workload) - _mlp_bytes(a, a.intermediate_size, w)
    return max(of_mlp, of_adapter, of_softmax)


def _gone_bytes(architecture: Architecture, workload: Workload) -> tuple[int, int]:
    """Per token, of what a block keeps and holds, gone as the first, the second gradient is there.

    They are of the MLP's last layer, which has read the product, and of the one before it. Those of
    fused experts are there when all are through.
    """
    a, w = architecture, workload.precision.size_bytes
    if workload.method is not Method.FULL:
        return 0, 0
    if a.expert_layers:
        gone = _experts_bytes(a, w) + _temporary_bytes(a, workload, None)
        return gone, gone
    later_bytes = 0 if _LIGER in a.switches else 2 * w * a.intermediate_size
    gone = _product_bytes(a, a.intermediate_size, w) + later_bytes
    # The gradient of the product, and what its factor was; that of the layer's input is there.
    is_gated = holds(a, FAMILIES[a.family].gated)
    return gone, gone + (w * (2 * a.intermediate_size - a.hidden_size) if is_gated else 0)


def _pass_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of a pass without gradients, in the MLP of a block: it is released after it."""
    a, w = architecture, workload.precision.size_bytes
    # The activation, what it is multiplied with, and the product.
    wides = 3 if holds(a, FAMILIES[a.family].gated) else 2
    wide = max(a.intermediate_size * max(1, a.experts_per_token), a.dense_intermediate_size)
    return w * (wides * wide + 2 * a.hidden_size)


def _in_one_row(workload: Workload) -> Workload:
    """The sequences of a pass; packed ones are one, and stay packed for their attention's mask."""
    if not workload.packing:
        return replace(workload, micro_batch=workload.rows)
    return replace(workload, micro_batch=1, sequence_tokens=workload.tokens)


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
    a, workload = architecture, _in_one_row(workload)
    if LOSS_ROWS[workload.loss].has_liger:
        a = replace(a, switches=a.switches | {_LIGER})
    if runs_eager(a, workload):
        workload = replace(workload, attention=Attention.EAGER)
    w, checkpointing = workload.precision.size_bytes, workload.gradient_checkpointing
    tokens = workload.micro_batch * length_tokens(a, workload)
    adapters = lay_adapters(a, workload, sharded=sharded)
    stack = 0 if adapters is None else adapters.stack_bytes(w)
    recomputed = opened = 0
    if checkpointing:
        recomputed = block_saved_bytes(a, workload, adapters) * tokens + stack
        # transformers 5.23, modeling_utils.py, _set_gradient_checkpointing: `every_n_layers`.
        # The block that keeps most stands for each that is not.
        plain = a.layers - -(-a.layers // workload.every_n_layers)
        # The last block comes first in backward, which needs none of another one to begin with.
        opened = recomputed if (a.layers - 1) % workload.every_n_layers else 0
        inputs = (a.layers - plain) * w * a.hidden_size * tokens
        saved, name = inputs + plain * recomputed - opened, "w h"
    else:
        blocks = _blocks_saved_bytes(a, workload, adapters)
        saved, name = blocks * tokens + a.expert_layers * stack, f"{blocks // a.layers}"
    loss = loss_bytes(a, workload, tokens)
    ends = _ends_bytes(a, workload, adapters)
    if not loss.keeps_input and (adapters is None or adapters.head_kept):
        ends -= w * a.hidden_size
    passing_bytes = _pass_bytes(a, workload) * tokens
    block_bytes = recomputed + _temporary_bytes(a, workload, adapters) * tokens
    gone, later_gone = _gone_bytes(a, workload)
    # The pass of a reference runs beside what the model's own keeps.
    again_bytes = passing_bytes if workload.runs_reference else 0
    return Activations(
        saved_bytes=saved,
        saved_formula=f"{a.layers} layers x {name} x t",
        head_bytes=loss.kept_bytes + ends * tokens + opened,
        head_formula=f"{loss.kept_formula}{ends} t",
        opened_bytes=opened,
        loss_forward_bytes=max(loss.forward_bytes, again_bytes),
        loss_backward_bytes=loss.backward_bytes,
        block_bytes=block_bytes,
        gone_bytes=gone * tokens,
        later_gone_bytes=later_gone * tokens,
        pass_bytes=passing_bytes,
        block_pass_bytes=max(passing_bytes, scores_pass_bytes(a, workload) * tokens),
        loss_pass_bytes=max(loss_pass_bytes(a, workload, tokens), again_bytes),
    )
