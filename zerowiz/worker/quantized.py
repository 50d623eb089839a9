"""Quantize the linear layers of a model to 4 bits, as QLoRA does."""

from typing import Any

import torch

from zerowiz.worker.errors import MissingLibraryError


def quantize(model: Any, dtype: torch.dtype, device: torch.device) -> None:  # noqa: ANN401 - untyped
    """Replace every linear layer except the head by a 4-bit layer with the same weights.

    Source: transformers/integrations/bitsandbytes.py, replace_with_bnb_linear; NF4 with double
    quantization, as in Dettmers et al. 2023.

    Raises:
        MissingLibraryError: bitsandbytes cannot be loaded.
    """
    try:
        import bitsandbytes  # noqa: PLC0415 - only QLoRA needs it
    except ImportError as error:
        raise MissingLibraryError(f"bitsandbytes cannot be loaded: {error}") from error
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child is not head:
                setattr(parent, name, _four_bits(bitsandbytes.nn, child, dtype, device))
    model.is_loaded_in_4bit = True
    model.requires_grad_(requires_grad=False)


def _four_bits(
    layers: Any,  # noqa: ANN401
    linear: torch.nn.Linear,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.nn.Module:
    """The layer in 4 bits; bitsandbytes quantizes it when it is moved to the device.

    The packed bits are stored as numbers of `dtype`: ZeRO-3 needs it (peft's guide to DeepSpeed).
    """
    has_bias = linear.bias is not None
    made: torch.nn.Module = layers.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=has_bias,
        compute_dtype=dtype,
        compress_statistics=True,
        quant_type="nf4",
        quant_storage=dtype,
        device="meta",
    )
    weight = linear.weight.detach().cpu()
    made.weight = layers.Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=True,
        quant_type="nf4",
        quant_storage=dtype,
        module=made,
    )
    if has_bias:
        made.bias = linear.bias
    return made.to(device)
