"""Count what autograd saves while a real model runs forward on the CPU, as CUDA would save it."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from zerowiz.core.workload import Workload

_BUILDERS = {
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}
_STATISTICS = re.compile(r"norm|ln_", re.IGNORECASE)


def _replace_kernels(patch: pytest.MonkeyPatch) -> None:
    """Let attention and dropout save what their CUDA kernels do; nothing runs backward."""
    import torch
    from torch.nn import functional

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            # The kernels write their output as (batch, sequence, heads, width).
            out = torch.empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3], dtype=q.dtype)
            log_sum_exp = torch.empty(q.shape[:3], dtype=torch.float32)
            held = (q, k, v, out.transpose(1, 2), log_sum_exp, mask)
            ctx.save_for_backward(*(tensor for tensor in held if tensor is not None))
            return out.transpose(1, 2)

    class Dropout(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(torch.ones(x.shape, dtype=torch.bool))
            return x * 1

    def attend(
        q: Any, k: Any, v: Any, attn_mask: Any = None, *_: Any, enable_gqa: bool = False, **__: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype)
        if q.shape[1] != k.shape[1] and (not enable_gqa or q.dtype == torch.float32):
            return torch._scaled_dot_product_attention_math(
                q, k, v, attn_mask, enable_gqa=enable_gqa
            )[0]
        return Attention.apply(q, k, v, attn_mask)

    def drop(x: Any, p: float = 0.5, training: Any = True, *_: Any) -> Any:
        return Dropout.apply(x) if training and p else x

    patch.setattr(functional, "scaled_dot_product_attention", attend)
    patch.setattr(functional, "dropout", drop)


def _inputs(model: Any, workload: Workload) -> dict[str, Any]:
    import torch

    config, batch = model.config, workload.micro_batch
    if config.model_type == "vit":
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        pixels = torch.zeros(shape, dtype=model.dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long)}
    ids = torch.full((batch, workload.sequence_tokens), 3)
    return {"input_ids": ids, "labels": ids.clone()}


def measure_saved_bytes(config: Mapping[str, object], workload: Workload) -> int:
    """Bytes of all storages that forward keeps, beside parameters and inputs."""
    import torch
    import transformers

    torch.manual_seed(0)
    # Tensors this small only wait for threads.
    torch.set_num_threads(1)
    keys = {key: value for key, value in config.items() if key != "model_type"}
    model_type = str(config["model_type"])
    built = transformers.AutoConfig.for_model(model_type, **keys, use_cache=False)
    builder = getattr(transformers, _BUILDERS.get(model_type, "AutoModelForCausalLM"))
    model = builder.from_config(built, attn_implementation=workload.attention.value)
    model = model.to(torch.bfloat16).train()
    inputs = _inputs(model, workload)
    known = [*model.parameters(), *model.buffers(), *inputs.values()]
    others = {tensor.untyped_storage().data_ptr() for tensor in known}
    running: list[str] = []
    saved: dict[int, int] = {}
    alive: list[Any] = []

    def save(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in others or storage.data_ptr() in saved:
            return tensor
        # A LayerNorm's statistics are fp32 on CUDA.
        statistic = tensor.dim() and tensor.shape[-1] == 1 and tensor.element_size() == 2
        twice = statistic and running and _STATISTICS.search(running[-1])
        saved[storage.data_ptr()] = storage.nbytes() * (2 if twice else 1)
        alive.append(tensor)
        return tensor

    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
        module.register_forward_hook(lambda *_: running.pop() and None)
    with pytest.MonkeyPatch.context() as patch:
        _replace_kernels(patch)
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            model(**inputs)
    return sum(saved.values())
