"""Predict what the head and the loss hold, by the way the loss is computed.

Theory: transformers makes all logits at once and upcasts them. At the peak of forward they exist
three times (w + 4 + 4 bytes each), log-softmax is kept, and backward opens with its gradient and
the loss' gradient. The masked and the encoder-decoder models do not upcast.
In chunks, the logits of a few tokens exist at a time and are computed again in backward. Liger's
kernel takes the gradients of hidden states and head while it computes the loss, and keeps those.
TRL's trainers of preferences and rewards want the log-probability of each token alone. Its fused
head makes the logits in tiles, again in backward, and sums the gradients in fp32; before 1.15 the
log-softmax of all logits was kept.
Held against h1-008 to h1-018 of tests/measured/2026-11-h200.jsonl, and 2026-11-trl.jsonl.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Architecture
from zerowiz.core.structs import replace
from zerowiz.core.workload import FP32_BYTES, Head, Loss, Method, Workload
from zerowiz.translation import N_

# trl/trainer/sft_trainer.py, when `chunked_nll` was new; tests/measured/models.py measures it.
CHUNK_TOKENS = 256
# trl 1.16, kernels/chunked_logprob.py and trainer/utils.py: tokens and words of a tile of logits.
_TILE_TOKENS, _TILE_WORDS = 4096, 32768
_FUSED_SINCE = (1, 15)
# Of a token: seven sums in fp32 while the head runs; its label, its place and two sums after it.
_SUMS_BYTES, _KEPT_SUMS_BYTES = 28, 32


class LossBytes(Struct, frozen=True, kw_only=True):
    """Bytes of one micro-step on one rank, without what the embedding and the final norm keep."""

    kept_bytes: int
    """From forward to backward."""
    kept_formula: str
    forward_bytes: int
    """Held for a moment while the loss is computed."""
    backward_bytes: int
    """Held for a moment as backward opens."""
    keeps_input: bool = True
    """Whether the head keeps the last hidden states, as any linear layer does."""


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
    return workload.precision.size_bytes * a.embedding_params if trains else 0


def _chunked(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    w = workload.precision.size_bytes
    logits = a.vocab_size * min(CHUNK_TOKENS, tokens)
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


class LossRow(Struct, frozen=True, kw_only=True):
    """What is known of a way to compute the loss."""

    holds: Callable[[Architecture, Workload, int], LossBytes]
    """For this many tokens."""
    has_liger: bool
    """Whether Liger's kernels replace norms, MLPs and rotations too, where the model trains."""
    package: str | None
    """What has to be installed."""
    needs: str | None
    """What a remedy needs that takes it; None where none does."""
    edit: str | None
    """What a script has to do for it."""


# Of several that help, a remedy takes the first.
LOSS_ROWS: Mapping[Loss, LossRow] = {
    Loss.PLAIN: LossRow(holds=_plain, has_liger=False, package=None, needs=None, edit=None),
    Loss.LIGER: LossRow(
        holds=_liger,
        has_liger=True,
        package="liger_kernel",
        needs=N_("first `pip install liger-kernel`"),
        edit=N_("let liger-kernel compute the loss"),
    ),
    Loss.CHUNKED: LossRow(
        holds=_chunked,
        has_liger=False,
        package=None,
        needs=N_("needs a loss that is computed in chunks"),
        edit=N_("compute the loss in chunks"),
    ),
}


def _scored(workload: Workload, tokens: int) -> int:
    """The tokens whose log-probability is wanted: all, unless what was generated is known."""
    if not workload.trainer.row.generates:
        return tokens
    generated = min(workload.completion_tokens, workload.sequence_tokens)
    return tokens * generated // workload.sequence_tokens


def _fused(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    w, scored = workload.precision.size_bytes, _scored(workload, tokens)
    tile_bytes = w * min(scored, _TILE_TOKENS) * _TILE_WORDS
    # trl 1.16, trainer/utils.py, add_fused_lm_head: the head reads a copy of the scored states.
    copied_bytes = (w * a.hidden_size + _KEPT_SUMS_BYTES) * scored
    read_bytes = w * a.hidden_size * tokens
    # ChunkedLogProbFunction.backward: both gradients in fp32, then in w beside that.
    cast = 0 if w == FP32_BYTES else w
    head = a.embedding_params if workload.method is Method.FULL else 0
    gradients_bytes = (FP32_BYTES + cast) * (a.hidden_size * scored + head)
    return LossBytes(
        kept_bytes=copied_bytes,
        kept_formula="w h scored + ",
        forward_bytes=tile_bytes + _SUMS_BYTES * scored + read_bytes,
        backward_bytes=tile_bytes + gradients_bytes,
        keeps_input=False,
    )


def _whole(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    """The log-softmax of each row is kept (trl 1.14, trainer/utils.py, selective_log_softmax)."""
    w, scored = workload.precision.size_bytes, _scored(workload, tokens)
    logits_bytes = w * a.vocab_size * scored
    # The logits, and those of the reference or over the temperature; the gradients of the rows,
    # then of all of them.
    return LossBytes(
        kept_bytes=logits_bytes,
        kept_formula="w V scored + ",
        forward_bytes=2 * logits_bytes,
        backward_bytes=2 * logits_bytes,
    )


def has_fused_head(workload: Workload) -> bool:
    """Whether TRL's head makes log-probabilities without all logits."""
    by_token = workload.trainer.row.head is Head.LOG_PROBABILITIES
    return by_token and workload.trl_version >= _FUSED_SINCE


def loss_pass_bytes(architecture: Architecture, workload: Workload, tokens: int) -> int:
    """What head and loss hold of a pass without gradients, with the hidden states that they read.

    liger_kernel/transformers/model/llama.py, lce_forward: where the model does not train, all
    logits are made, and the loss is that of transformers.
    """
    if LOSS_ROWS[workload.loss].has_liger:
        workload = replace(workload, loss=Loss.PLAIN)
    loss = loss_bytes(architecture, workload, tokens)
    hidden_bytes = workload.precision.size_bytes * architecture.hidden_size * tokens
    return hidden_bytes + loss.kept_bytes + loss.forward_bytes


def loss_bytes(architecture: Architecture, workload: Workload, tokens: int) -> LossBytes:
    """What head and loss hold for this many tokens."""
    if workload.trainer.row.head is Head.VALUE:
        # A reward is one value a token: backward makes the gradient of the last hidden states.
        hidden_bytes = workload.precision.size_bytes * architecture.hidden_size * tokens
        return LossBytes(
            kept_bytes=0, kept_formula="", forward_bytes=0, backward_bytes=hidden_bytes
        )
    if workload.trainer.row.head is Head.LOG_PROBABILITIES:
        scores = _fused if has_fused_head(workload) else _whole
        return scores(architecture, workload, tokens)
    return LOSS_ROWS[workload.loss].holds(architecture, workload, tokens)
