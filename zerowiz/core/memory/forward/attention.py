"""Predict what attention saves for backward, by the kernel that runs.

Theory: a fused kernel keeps queries, keys, values, its output and the log-sum-exp. Plain matmuls
keep the scores too: eager attention in the model's precision, torch's own fallback in fp32. A mask
(a sliding window that ends inside the sequence, a position bias) is kept by every layer in w, and
the keys are repeated for it; some masks and biases are one for all layers.
Held exactly against the `forward_backward` runs acts-000 to acts-045 of tests/measured/h200.jsonl.
"""

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.tensors import holds
from zerowiz.core.model.types import Architecture
from zerowiz.core.workload.choices import FP32_BYTES, Attention, Loss, Method, Precision
from zerowiz.core.workload.workload import Workload


def runs_eager(architecture: Architecture, workload: Workload) -> bool:
    """Whether transformers takes eager attention, whatever was set."""
    since = FAMILIES[architecture.family].eager_since
    if workload.attention is not Attention.SDPA or since is None:
        return workload.attention is Attention.EAGER
    return workload.transformers_version >= since


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


def _repeated_size(architecture: Architecture) -> int:
    """Width of the keys of all query heads; a single key is not copied for them."""
    a = architecture
    return a.kv_size if a.kv_heads == 1 else a.query_size


def _slices_size(architecture: Architecture, *, repeated: bool) -> int:
    """What values keep besides themselves where they are a slice of a fused projection."""
    a = architecture
    copied = repeated and a.kv_heads not in {1, a.heads}
    fused = holds(a, FAMILIES[a.family].value_in_qkv) and not copied
    return a.query_size + a.kv_size if fused else 0


def _fused_attention_bytes(architecture: Architecture, size_bytes: int, *, masked: bool) -> int:
    """Per token, kept by a kernel that keeps no scores."""
    a, w = architecture, size_bytes
    # transformers/integrations/sdpa_attention.py, use_gqa_in_sdpa: a mask wants repeated keys.
    kv_size = _repeated_size(a) if masked else a.kv_size
    slices_size = _slices_size(a, repeated=masked)
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


def _falls_back(architecture: Architecture, workload: Workload) -> bool:
    """Whether torch finds no fused kernel and takes plain matmuls, in fp32.

    No fused kernel takes fp32 grouped queries (acts-044), nor the single key of a Falcon, which is
    not passed as grouped (torch/aten transformers/cuda/sdp_utils, check_batch_size_and_num_heads),
    nor a position bias whose rows are not contiguous (f2-003).
    """
    a = architecture
    if workload.attention is not Attention.SDPA:
        return False
    fused_since = FAMILIES[a.family].fused_bias_since
    if fused_since is not None:
        return workload.transformers_version < fused_since
    if a.kv_heads == a.heads:
        return False
    if FAMILIES[a.family].masked:
        return "new_decoder_architecture" not in a.switches
    # A mask of packed sequences wants repeated keys, which are no longer grouped.
    return workload.precision is Precision.FP32 and not workload.packing


def is_fused(architecture: Architecture, workload: Workload) -> bool:
    """Whether a kernel runs that keeps no scores."""
    eager = workload.attention is Attention.EAGER
    return not eager and not _falls_back(architecture, workload)


def copies_output(architecture: Architecture, workload: Workload) -> bool:
    """Whether what attention gives is copied for the next layer, which reads it token by token.

    The kernels of 16 bits lay their output as the queries lie (flash_api.cpp, mha_fwd; cuDNN's MHA
    .cpp, alloc_with_matching_layout), and queries that are joined of two parts lie head by head
    (g1-079; with a mask h1-045). The one of fp32 writes token by token, and Liger's rotation leaves
    queries where they are (h1-017).
    """
    joined = FAMILIES[architecture.family].rotated_in_parts and workload.loss is not Loss.LIGER
    half = workload.precision is not Precision.FP32
    return joined and half and is_fused(architecture, workload)


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
    if workload.attention is Attention.EAGER:
        return _eager_attention_bytes(a, workload)
    if _falls_back(a, workload):
        return _plain_attention_bytes(a, workload)
    masked = _masked(a, workload) and workload.attention is Attention.SDPA
    copied = w * a.query_size if copies_output(a, workload) else 0
    return _fused_attention_bytes(a, w, masked=masked) + copied + _mask_bytes(a, workload)


def cross_attention_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, kept by cross attention; its empty bias is one for all layers."""
    a, w = architecture, workload.precision.size_bytes
    if workload.attention is Attention.EAGER:
        attended = _eager_attention_bytes(a, workload)
    else:
        attended = _fused_attention_bytes(a, w, masked=False)
    own = 1 if workload.attention is Attention.SDPA else 0
    bias = -(-own * length_tokens(a, workload) // workload.micro_batch)
    return attended + bias


def _mask_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of the mask that one layer keeps in w.

    torch/aten transformers/attention.cpp, convert_boolean_attn_mask: a layer converts its own.
    """
    a, w = architecture, workload.precision.size_bytes
    length = length_tokens(a, workload)
    if workload.attention is not Attention.SDPA:
        return 0
    if a.relative_attention_num_buckets:
        kept = 0 if _falls_back(a, workload) else w * a.heads * length
        return -(-kept // workload.micro_batch)
    # That of alibi is in w already, and one for all layers.
    return w * length if _masked(a, workload) and "alibi" not in a.switches else 0


def masks_window(architecture: Architecture, workload: Workload) -> bool:
    """Whether a layer with a window is given it as a mask, as it ends inside the sequence."""
    inside = 0 < architecture.sliding_window_tokens <= length_tokens(architecture, workload)
    return inside and workload.attention is Attention.SDPA


def masks_all(architecture: Architecture, workload: Workload) -> bool:
    """Whether torch's own attention is given a mask in every layer."""
    return workload.attention is Attention.SDPA and _masked(architecture, workload)


def window_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, what a layer keeps more whose window ends inside the sequence."""
    a, w = architecture, workload.precision.size_bytes
    length = length_tokens(a, workload)
    if not masks_window(a, workload):
        return 0
    masked = _fused_attention_bytes(a, w, masked=True) + w * length
    copied = w * a.query_size if copies_output(a, workload) else 0
    return masked + copied - attention_bytes(a, workload)


def softmax_backward_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, held in the backward of torch's own plain matmuls.

    The softmax' gradient, that of the scores, and the kernel's own product; by then the dropped
    scores are gone (h1-046).
    """
    a = architecture
    if not _falls_back(a, workload):
        return 0
    dropped = FP32_BYTES + 1 if a.dropout_rate else 0
    return (3 * FP32_BYTES - dropped) * a.heads * length_tokens(a, workload)


def scores_pass_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, the scores of one layer in a pass without gradients; a fused kernel makes none.

    transformers, eager_attention_forward: the scores, their softmax in fp32 and its cast; torch's
    own plain matmuls stay in fp32.
    """
    a, w = architecture, workload.precision.size_bytes
    if workload.attention is Attention.EAGER:
        score_bytes = 2 * w + FP32_BYTES
    else:
        score_bytes = 2 * FP32_BYTES if _falls_back(a, workload) else 0
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
        biases = biases if workload.attention is Attention.SDPA else 0
        looked_up = 0 if checkpointing or workload.method is not Method.FULL else 2 * 8
        kept = looked_up + biases * w * a.heads
        return -(-kept * length // workload.micro_batch)
    if workload.attention is Attention.SDPA and "alibi" in a.switches:
        return 0 if _falls_back(a, workload) else w * a.heads * length
    return _mask_argument_bytes(a, workload) if checkpointing else 0


def _mask_argument_bytes(architecture: Architecture, workload: Workload) -> int:
    """Per token, of the mask that a checkpoint keeps as its argument (acts-026, acts-043)."""
    a, length = architecture, length_tokens(architecture, workload)
    inside = a.sliding_layers and a.sliding_window_tokens <= length
    if workload.attention is Attention.EAGER and FAMILIES[a.family].causal:
        masks = 2 if inside and a.sliding_layers < a.layers else 1
        return masks * workload.precision.size_bytes * length
    wanted = inside or _masked(a, workload)
    return length if workload.attention is Attention.SDPA and wanted else 0
