"""Replace operations of torch by stand-ins that keep the tensors that CUDA's kernels keep.

Theory: attention, dropout and RMSNorm have fused CUDA kernels, which keep other tensors for
backward than the CPU's implementation. On tensors without data, all that matters of a kernel is the
shapes that it keeps and returns. These are kept:

    flash, efficient   q, k, v, output, 4 bytes per head and query, the seed, the mask in w
    dropout            one byte per value
    RMSNorm            its input, 4 bytes per row

(w is the precision of the weights.)
"""
# ruff: noqa: A002, ANN401, ARG001, ARG004, FBT003, SLF001 -- torch need not be installed, so it has
# no types; the signatures are torch's.

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash.
_FLASH_HEAD_DIM = 256
# flash_attn/flash_api.cpp: q, k, v are padded to this; mha_bwd rounds queries to 128 in its sums.
_FLASH_ALIGNMENT, _FLASH_ROWS = 8, 128
# The dimensions that the fused kernels take: batch, head, row, dim.
_BATCHED = 4


def _rounded(count: int, to: int) -> int:
    return -(-count // to) * to


def _attention() -> Any:
    """Flash and efficient attention, which differ only in the mask."""
    import torch

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            batch, heads, rows, _ = q.shape
            if q.dtype in (torch.float16, torch.bfloat16):
                # flash_attn/flash_api.cpp, mha_fwd, and cudnn/MHA.cpp,
                # alloc_with_matching_layout: the output lies as the queries do.
                out = torch.empty_like(q)
            else:
                # attention.cu: (batch, row, head, dim), and a view of it is returned.
                out = q.new_empty(batch, rows, heads, v.shape[-1]).transpose(1, 2)
            sums = q.new_empty(batch, heads, rows, dtype=torch.float32)
            seed = q.new_empty(2, dtype=torch.int64)
            ctx.save_for_backward(q, k, v, out, sums, seed, *(() if mask is None else (mask,)))
            ctx.mask_needs_gradient = mask is not None and mask.requires_grad
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            q, k, v, _, _, _, *masks = ctx.saved_tensors
            batch, heads, rows, dim = q.shape
            dq = torch.empty_like(q)
            sums = q.new_empty(batch, heads, _rounded(rows, _FLASH_ROWS), dtype=torch.float32)
            accumulated = sums.new_empty(*sums.shape, dim)
            # With grouped heads each query head gets a gradient, which are then summed (mha_bwd,
            # dk_expanded).
            wide = [x.new_empty(batch, heads, x.shape[2], x.shape[3]) for x in (k, v)]
            dk, dv = (
                w if heads == x.shape[1] else torch.empty_like(x)
                for w, x in zip(wide, (k, v), strict=True)
            )
            del accumulated, sums, wide
            return dq, dk, dv, torch.empty_like(masks[0]) if ctx.mask_needs_gradient else None

    return Attention


def _padded(tensor: Any) -> Any:
    from torch.nn.functional import pad

    missing = -tensor.shape[-1] % _FLASH_ALIGNMENT
    return pad(tensor, (0, missing)) if missing else tensor


def flash_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Attention over (batch, head, row, dim) by a fused kernel."""
    out = _attention().apply(_padded(q), _padded(k), _padded(v), mask)
    return out[..., : v.shape[-1]]


def _as_bias(mask: Any, q: Any, k: Any) -> Any:
    """The mask as a bias, which is a new tensor in w for each call.

    Source: attention.cpp, convert_boolean_attn_mask. Then preprocess_mask expands the bias, and
    with it its gradient, to the shape of the scores.
    """
    import torch

    if mask is None:
        return None
    bias = q.new_zeros(mask.shape) if mask.dtype is torch.bool else mask
    return bias.expand(*q.shape[:-1], k.shape[-2])


def _scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Choose flash, then efficient, then plain matmuls (sdp_utils.cpp, _select_sdp_backend).

    Flash takes no mask. Efficient takes no grouped heads, and no mask whose rows are not
    contiguous, such as T5's position bias. Neither takes fewer key heads than query heads without
    `enable_gqa`, as in Falcon (sdp_utils_cpp.h, check_last_dim_stride_equals_1_dense and
    check_batch_size_and_num_heads_dense).
    """
    import torch
    from torch._dispatch.python import enable_python_dispatcher

    half = query.dtype in (torch.float16, torch.bfloat16)
    narrow = query.shape[-1] == value.shape[-1] <= _FLASH_HEAD_DIM
    flash = half and narrow and attn_mask is None
    efficient = not enable_gqa and (attn_mask is None or attn_mask.stride(-1) == 1)
    matched = enable_gqa or query.shape[1] == key.shape[1]
    if query.dim() == _BATCHED and matched and (flash or efficient):
        return flash_attention(query, key, value, _as_bias(attn_mask, query, key))
    # torch/_decomp/decompositions.py: the decomposition in Python calls the fused dropout.
    with enable_python_dispatcher():
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Keep a mask of one byte per value (Dropout.cpp, is_fused_kernel_acceptable)."""
    import torch

    if not training or p in (0, 1):
        return input
    return torch.ops.aten.native_dropout(input, p, True)[0]


def _rms_norm() -> Any:
    import torch

    class RmsNorm(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            rows = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
            ctx.save_for_backward(x, weight, rows)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, weight, _ = ctx.saved_tensors
            return torch.empty_like(x), None if weight is None else torch.empty_like(weight)

    return RmsNorm


@contextmanager
def fused_kernels() -> Iterator[None]:
    """In this block, these functions of torch keep what their CUDA kernels keep."""
    import torch
    from torch.nn import functional

    norm = _rms_norm()

    def rms_norm(input: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        return norm.apply(input, weight)

    stand_ins = (
        (functional, "scaled_dot_product_attention", _scaled_dot_product_attention),
        (functional, "dropout", _dropout),
        (torch, "dropout", _dropout),
        (functional, "rms_norm", rms_norm),
        (torch, "rms_norm", rms_norm),
    )
    own = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
    try:
        for module, name, stand_in in stand_ins:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, name, function in own:
            setattr(module, name, function)
