"""Predict what the head and the loss hold, by the way the loss is computed.

Theory: transformers makes all logits at once and upcasts them. At the peak of forward they exist
three times (w + 4 + 4 bytes each), log-softmax is kept, and backward opens with its gradient and
the loss' gradient. The masked and the encoder-decoder models do not upcast.
In chunks, the logits of a few tokens exist at a time and are computed again in backward. Liger's
kernel takes the gradients of hidden states and head while it computes the loss, and keeps those.
Held against h1-008 to h1-018 of tests/measured/2026-11-h200.jsonl.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Architecture
from zerowiz.core.workload import FP32_BYTES, Loss, Method, Workload

# trl/trainer/sft_trainer.py, when `chunked_nll` was new; zerowiz/worker/losses.py measures it.
_CHUNK_TOKENS = 256


class LossBytes(Struct, frozen=True, kw_only=True):
    """Bytes of one micro-step on one rank, without what the embedding and the final norm keep."""

    kept_bytes: int
    """From forward to backward."""
    kept_formula: str
    forward_bytes: int
    """Held for a moment while the loss is computed."""
    backward_bytes: int
    """Held for a moment as backward opens."""


def _plain(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    w, in_fp32 = workload.precision.size_bytes, FAMILIES[a.family].loss_in_fp32
    logit_bytes = FP32_BYTES if in_fp32 else w
    softcap = w if a.logit_softcap else 0
    copied = logit_bytes if w == FP32_BYTES or not in_fp32 else w + logit_bytes
    return LossBytes(
        kept_bytes=(logit_bytes + softcap) * a.vocab_size * tokens,
        kept_formula=f"{'(4 + w)' if softcap else logit_bytes} V t + " if a.vocab_size else "",
        forward_bytes=copied * a.vocab_size * tokens,
        backward_bytes=2 * logit_bytes * a.vocab_size * tokens,
    )


def _head_gradient_bytes(a: Architecture, workload: Workload) -> int:
    trains = workload.method is Method.FULL
    return workload.precision.size_bytes * a.vocab_size * a.hidden_size if trains else 0


def _chunked(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    w = workload.precision.size_bytes
    logits = a.vocab_size * min(_CHUNK_TOKENS, tokens)
    copied = 0 if w == FP32_BYTES else FP32_BYTES
    capped = w if a.logit_softcap else 0
    in_forward = (w + copied + FP32_BYTES + capped) * logits
    # The gradients of log-softmax and of the loss, and the head's gradient from chunks before.
    in_backward = in_forward + 2 * FP32_BYTES * logits + _head_gradient_bytes(a, workload)
    return LossBytes(
        kept_bytes=0, kept_formula="", forward_bytes=in_forward, backward_bytes=in_backward
    )


def _liger(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    # liger_kernel/ops/fused_linear_cross_entropy.py: as many tokens at a time as their logits are
    # no more than all hidden states, to a power of two.
    w = workload.precision.size_bytes
    chunk = -(-tokens * a.hidden_size // max(1, a.vocab_size))
    logits = a.vocab_size * min(tokens, 1 << (chunk - 1).bit_length())
    head_bytes = _head_gradient_bytes(a, workload)
    # The gradient of the hidden states is kept in their place.
    return LossBytes(
        kept_bytes=head_bytes,
        kept_formula="w V h + " if head_bytes else "",
        forward_bytes=w * logits,
        backward_bytes=0,
    )


_BY_LOSS: Mapping[Loss, Callable[[Architecture, Workload, int], LossBytes]] = {
    Loss.PLAIN: _plain,
    Loss.CHUNKED: _chunked,
    Loss.LIGER: _liger,
}


def loss_bytes(architecture: Architecture, workload: Workload, tokens: int) -> LossBytes:
    """What head and loss hold for this many tokens."""
    return _BY_LOSS[workload.loss](architecture, workload, tokens)
