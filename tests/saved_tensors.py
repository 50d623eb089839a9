"""Count what autograd saves while a real model runs forward on the CPU, as CUDA would save it."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import pytest

from zerowiz.core.workload import ALL_LINEAR, Method, Workload

_BUILDERS = {
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}
_STATISTICS = re.compile(r"norm|ln_", re.IGNORECASE)


def _replace_linear(patch: pytest.MonkeyPatch) -> None:
    """Let linear layers save what DeepSpeed's do (runtime/zero/linear.py)."""
    import torch
    from torch.nn import functional

    linear = functional.linear

    class Linear(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(x, weight, bias)
            return linear(x, weight, bias)

    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        return Linear.apply(x, weight, bias)

    patch.setattr(functional, "linear", call)


def _fused_attention() -> Any:
    """Attention that keeps what the flash and the efficient kernel do."""
    import torch

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            # The kernels of 16 bits lay their output as the queries lie (g1-079).
            out = torch.empty_like(q)
            log_sum_exp = torch.empty(q.shape[:3], dtype=torch.float32)
            held = (q, k, v, out, log_sum_exp, mask)
            ctx.save_for_backward(*(tensor for tensor in held if tensor is not None))
            return out

    return Attention.apply


def _fused_dropout() -> Any:
    """Dropout that keeps one byte a value."""
    import torch

    class Dropout(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(torch.ones(x.shape, dtype=torch.bool))
            return x * 1

    return Dropout.apply


def _replace_kernels(patch: pytest.MonkeyPatch) -> None:
    """Let attention and dropout save what their CUDA kernels do; nothing runs backward."""
    import torch
    from torch.nn import functional

    fused_attention, fused_dropout = _fused_attention(), _fused_dropout()

    def attend_plainly(q: Any, k: Any, v: Any, attn_mask: Any, dropout_p: float) -> Any:
        # aten/native/transformers/attention.cpp, _scaled_dot_product_attention_math: in fp32.
        scores = (q.float() * 1) @ (k.float() * 1).transpose(-2, -1) + attn_mask
        dropped = drop(torch.softmax(scores, dim=-1), dropout_p)
        return (dropped @ v.float()).to(q.dtype)

    def attend(
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *_: Any,
        enable_gqa: bool = False,
        **__: Any,
    ) -> Any:
        if attn_mask is not None and attn_mask.stride(-1) != 1:
            return attend_plainly(q, k, v, attn_mask, dropout_p)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype)
        if q.shape[1] != k.shape[1] and (not enable_gqa or q.dtype == torch.float32):
            return torch._scaled_dot_product_attention_math(
                q, k, v, attn_mask, enable_gqa=enable_gqa
            )[0]
        return fused_attention(q, k, v, attn_mask)

    def drop(x: Any, p: float = 0.5, training: Any = True, *_: Any) -> Any:
        return fused_dropout(x) if training and p else x

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
    if not workload.packing:
        return {"input_ids": ids, "labels": ids.clone()}
    row = ids.view(1, -1)
    positions = torch.arange(workload.sequence_tokens).repeat(batch)[None]
    return {"input_ids": row, "labels": row.clone(), "position_ids": positions}


def _with_adapters(model: Any, workload: Workload, *, sharded: bool) -> Any:
    """The model below adapters, in the format that DeepSpeed gives them, or leaves them in."""
    if workload.method is Method.FULL:
        return model
    import peft
    import torch

    modules = workload.lora_target_modules
    targets = list(modules) if modules else ALL_LINEAR
    fan_in_fan_out = model.config.model_type == "gpt2"
    config = peft.LoraConfig(
        r=workload.lora_rank, target_modules=targets, fan_in_fan_out=fan_in_fan_out
    )
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.23 by a name that is on its way out, and doubts its own
        # ranks for experts.
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config)
    return adapted if sharded else adapted.to(torch.bfloat16)


def measure_saved_bytes(
    config: Mapping[str, object], workload: Workload, *, sharded: bool = False
) -> int:
    """Bytes of all storages that forward keeps, beside parameters and inputs.

    Args:
        config: A config.json.
        workload: What is trained, and by how many tokens.
        sharded: Whether ZeRO-3 holds the weights.
    """
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
    model = model.to(torch.bfloat16)
    inputs = _inputs(model, workload)
    model = _with_adapters(model, workload, sharded=sharded).train()
    if workload.gradient_checkpointing:
        # The other kind holds its inputs where no hook of autograd sees them.
        model.activation_checkpointing_enable(
            {"use_reentrant": True}, every_n_layers=workload.every_n_layers
        )
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
        if sharded:
            _replace_linear(patch)
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            model(**inputs)
    return sum(saved.values())
