"""Predict what forward keeps for backward, layer by layer, and what the loss adds on top.

Theory: autograd keeps what each operation's derivative reads. Per token and block of a Llama
(element size w, fp32 inside the norms, flash or efficient attention, so no score matrix):

    norm x 2        fp32 input 4h, its normalised copy wh, the output that q, k, v read wh
    attention       q, k, v after rotation and the output: w (2q + 2kv), log-sum-exp 4 heads
    gated MLP       gate, activation, up, product: 4 w i

The loss upcasts: at its peak the logits stand three times (w + 4 + 4 bytes each), and backward
opens with log-softmax, its gradient and the loss' gradient, 12 bytes each.
Held exactly against the `forward_backward` runs acts-000 to acts-045 of tests/measured/h200.jsonl.
"""

from dataclasses import dataclass

from zerowiz.core.families import FAMILIES
from zerowiz.core.model import Architecture
from zerowiz.core.workload import FP32_BYTES, Attention, Precision, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """Bytes of one micro-step on one rank, beside weights and gradients."""

    saved_bytes: int
    """Kept by all blocks from forward to backward."""
    saved_formula: str
    head_bytes: int
    """Kept by the final norm and the loss: 8h and the fp32 log-softmax."""
    head_formula: str
    loss_forward_bytes: int
    """Held for a moment while the loss is computed: the logits and their fp32 copy."""
    loss_backward_bytes: int
    """Held for a moment as backward opens: two fp32 gradients of the logits."""
    block_bytes: int
    """Held while one block runs backward: its temporaries, and its recomputed activations."""


def _with_fp32_copy(size_bytes: int) -> int:
    """Of one value in w and in fp32; fp32 itself is not copied."""
    return FP32_BYTES if size_bytes == FP32_BYTES else size_bytes + FP32_BYTES


def _norm_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Per token, kept by the block's RMSNorms; Gemma multiplies by its weight in fp32."""
    a, family = architecture, FAMILIES[architecture.family]
    # A fp32 model needs no upcast: the input is the residual itself, kept once all the same.
    scale_bytes = 4 if a.family.startswith("gemma") else size_bytes
    inner = 4 + scale_bytes
    # Only the two norms in front of attention and MLP have an output that a matmul reads.
    around = family.norms_per_layer * inner * a.hidden_size + 2 * size_bytes * a.hidden_size
    heads = inner * (a.query_size + a.kv_size) if family.qk_norm else 0
    return around + heads + 4 * family.norms_per_layer


def _attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by one attention."""
    a, w = architecture, workload.precision.size_bytes
    scores = workload.sequence_tokens * a.heads
    repeated_kv = 2 * w * a.query_size
    if workload.attention is Attention.EAGER:
        # fp32 softmax and its cast back (acts-039).
        return 2 * w * a.query_size + repeated_kv + _with_fp32_copy(w) * scores
    if workload.precision is Precision.FP32 and a.kv_heads < a.heads:
        # No fused kernel takes fp32 grouped queries: torch falls back to plain matmuls (acts-044).
        return 2 * w * a.query_size + repeated_kv + 4 * scores
    return 2 * w * (a.query_size + a.kv_size) + 4 * a.heads


def _mlp_bytes(architecture: Architecture, size_bytes: int) -> int:
    """Per token, kept by one MLP, or by the experts that one token visits."""
    a, w = architecture, size_bytes
    if a.experts:
        # Gathered input, gate and up, activation, product, output before its routing weight.
        visit = 2 * w * a.hidden_size + 4 * w * a.intermediate_size
        return a.experts_per_token * visit + 8 * a.experts
    return 4 * w * a.intermediate_size


def _gpt2_block_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token: LayerNorm keeps input and output in w; tanh-GELU in Python keeps five tensors."""
    a, w = architecture, workload.precision.size_bytes
    masks = 2 * a.hidden_size if a.residual_dropout_rate else 0
    norms = 4 * w * a.hidden_size + 16
    attention = _attention_bytes(a, workload)
    return norms + attention + 5 * w * a.intermediate_size + masks


def block_saved_bytes(architecture: Architecture, workload: Workload) -> int:
    """Bytes per token that one transformer block keeps from forward to backward."""
    a, w = architecture, workload.precision.size_bytes
    if FAMILIES[a.family].gpt2_block:
        return _gpt2_block_bytes(a, workload)
    return _norm_bytes(a, w) + _attention_bytes(a, workload) + _mlp_bytes(a, w)


def activations(architecture: Architecture, workload: Workload) -> Activations:
    """Predict the activations and the logits of one micro-step.

    Source: transformers 5.17 modelling files, checked against acts-000 to acts-045.
    """
    a, w, tokens = architecture, workload.precision.size_bytes, workload.tokens
    block = block_saved_bytes(a, workload)
    checkpoint = w * a.hidden_size
    saved = checkpoint if workload.gradient_checkpointing else block
    recomputed = block if workload.gradient_checkpointing else 0
    softcap = w * a.vocab_size if a.logit_softcap else 0
    wide = a.intermediate_size * max(1, a.experts_per_token)
    # Backward of the MLP: gradients of product, activation and up, and two of the residual.
    temporaries = 3 * w * wide + 2 * w * a.hidden_size
    name = "w h" if workload.gradient_checkpointing else f"{block}"
    return Activations(
        saved_bytes=a.layers * saved * tokens,
        saved_formula=f"{a.layers} layers x {name} x t",
        head_bytes=(4 * a.vocab_size + softcap + (4 + 2 * w) * a.hidden_size) * tokens,
        head_formula=f"({'4 + w' if softcap else '4'}) V t + (4 + 2w) h t",
        loss_forward_bytes=_with_fp32_copy(w) * a.vocab_size * tokens,
        loss_backward_bytes=8 * a.vocab_size * tokens,
        block_bytes=(recomputed + temporaries) * tokens,
    )
