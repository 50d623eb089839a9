"""Build the model of a case from its config, with random weights, and random batches for it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import deepspeed
import torch
import transformers
from measured.ranks import Case, MissingLibraryError, write_json
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled
from transformers.modeling_outputs import CausalLMOutput

# Replace the loss of a model, as a trainer does before training starts.

# TRL's value when its `chunked_nll` was new (trl/trainer/sft_trainer.py).
CHUNK_TOKENS = 256


def _chunk(model: Any) -> None:
    """Compute head and loss for CHUNK_TOKENS tokens at a time, and again in backward."""
    model.forward = MethodType(_forward_in_chunks, model)


def _forward_in_chunks(model: Any, labels: torch.Tensor, **inputs: Any) -> CausalLMOutput:
    hidden = model.base_model(**inputs).last_hidden_state[:, :-1].flatten(0, 1)
    wanted = labels[:, 1:].flatten()
    head = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)

    def sum_of(states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = head(states)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return functional.cross_entropy(logits.float(), tokens, reduction="sum")

    chunks = zip(hidden.split(CHUNK_TOKENS), wanted.split(CHUNK_TOKENS), strict=True)
    sums = [checkpoint(sum_of, *chunk, use_reentrant=False) for chunk in chunks]
    return CausalLMOutput(loss=torch.stack(sums).sum() / wanted.numel())


def _liger(model: Any) -> None:
    """Do what `TrainingArguments(use_liger_kernel=True)` does."""
    try:
        from liger_kernel.transformers import (
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise MissingLibraryError(f"liger-kernel cannot be loaded: {error}") from error
    _apply_liger_kernel_to_instance(model=model)


LOSSES: Mapping[str, Callable[[Any], None]] = {
    "plain": lambda _: None,
    "chunked": _chunk,
    "liger": _liger,
}


def replace_loss(model: Any, name: str) -> None:
    """Give the model the loss of this name; `plain` is the model's own."""
    LOSSES[name](model)


# Build the optimizer of a case, by the name that measured rows use for it.

# Small enough that a model does not diverge on random tokens within three steps.
_RATE = 1e-5

Parameters = list[Any]
Config = Mapping[str, Any]


def _torch_adamw(**how: bool) -> Callable[[Parameters, Config], Any]:
    return lambda parameters, _: torch.optim.AdamW(parameters, lr=_RATE, **how)


def _cpu_adam(parameters: Parameters, config: Config) -> Any:
    half = config.get("bf16", {}).get("bf16_optimizer_states", False)
    return deepspeed.ops.adam.DeepSpeedCPUAdam(parameters, lr=_RATE, fp32_optimizer_states=not half)


def _adamw_8bit(parameters: Parameters, _: Config) -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingLibraryError(f"bitsandbytes cannot be loaded: {error}") from error
    return bitsandbytes.optim.AdamW8bit(parameters, lr=_RATE)


def _adafactor(parameters: Parameters, _: Config) -> Any:
    return transformers.Adafactor(parameters, lr=_RATE, scale_parameter=False, relative_step=False)


# The names are those of OptimizerKernel (`trials.py`). One of them is
# missing here: DeepSpeed builds it from the config.
BUILDERS: Mapping[str, Callable[[Parameters, Config], Any]] = {
    "torch AdamW fused=True": _torch_adamw(fused=True),
    "torch AdamW foreach=True": _torch_adamw(foreach=True),
    "FusedAdam": lambda parameters, _: deepspeed.ops.adam.FusedAdam(parameters, lr=_RATE),
    "DeepSpeedCPUAdam": _cpu_adam,
    "AdamW8bit": _adamw_8bit,
    "Adafactor": _adafactor,
    "FusedLion": lambda parameters, _: deepspeed.ops.lion.FusedLion(parameters, lr=_RATE),
    "DeepSpeedCPULion": lambda parameters, _: deepspeed.ops.lion.DeepSpeedCPULion(
        parameters, lr=_RATE
    ),
    "torch SGD": lambda parameters, _: torch.optim.SGD(parameters, lr=_RATE),
}


def build_optimizer(name: str, parameters: Parameters, config: Config) -> Any:
    """The optimizer; None where the config has a section for it, so that DeepSpeed builds it."""
    return None if "optimizer" in config else BUILDERS[name](parameters, config)


# Quantize the linear layers of a model to 4 bits, as QLoRA does.


def quantize(model: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every linear layer except the head by a 4-bit layer with the same weights.

    Source: transformers/integrations/bitsandbytes.py, replace_with_bnb_linear; NF4 with double
    quantization, as in Dettmers et al. 2023.

    Raises:
        MissingLibraryError: bitsandbytes cannot be loaded.
    """
    try:
        import bitsandbytes
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
    layers: Any,
    linear: torch.nn.Linear,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.nn.Module:
    """The layer in 4 bits; bitsandbytes quantizes it when it is moved to the device.

    The packed bits are stored as numbers of `dtype`: ZeRO-3 needs it (peft's guide to DeepSpeed).
    """
    has_bias = linear.bias is not None
    layer: torch.nn.Module = layers.Linear4bit(
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
    layer.weight = layers.Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=True,
        quant_type="nf4",
        quant_storage=dtype,
        module=layer,
    )
    if has_bias:
        layer.bias = linear.bias
    return layer.to(device)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# transformers takes sdpa by default where a model supports it, and refuses it by name where not.
ATTENTION = {"sdpa": None, "flash": "flash_attention_2", "eager": "eager"}
# The usual crop of ImageNet, for a config that leaves the size to the preprocessor.
IMAGE_SIZE = 224
# In this order: an encoder has a causal head as well, and an encoder-decoder has all three.
HEADS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
)
_SHARDED_PARAMETERS = 3


def _read_config(case: Case, folder: Path) -> Any:
    """The config as transformers reads it: from a folder, or by the hub id of the case."""
    if not case["config"]:
        return transformers.AutoConfig.from_pretrained(case["model"])
    model_folder = folder / "model"
    model_folder.mkdir(exist_ok=True)
    write_json(model_folder / "config.json", case["config"])
    return transformers.AutoConfig.from_pretrained(model_folder)


def _model_class(config: Any) -> Any:
    """The class that `architectures` names, where it has a loss, else an Auto class with one."""
    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None and not name.endswith("Model"):
            return named
    heads = (getattr(transformers, name) for name in HEADS)
    fitting = (head for head in heads if type(config) in head._model_mapping)
    return next(fitting, transformers.AutoModelForCausalLM)


def in_shards(case: Case) -> bool:
    """Whether stage 3 builds the model in shards; what is quantized has to be whole first."""
    return case["zero_init"] and not case["quantized"]


@contextmanager
def _weights_on(case: Case, device: torch.device) -> Iterator[None]:
    """Create weights whole on this rank's device, or in shards under `zero.Init`.

    transformers builds under `zero.Init` as long as an HfDeepSpeedConfig of stage 3 exists, so the
    variable `keep_alive` must live until the model is built. TrainingArguments hold one themselves.
    """
    stage = case["ds_config"].get("zero_optimization", {}).get("stage")
    sharded = stage == _SHARDED_PARAMETERS and in_shards(case)
    held = is_deepspeed_zero3_enabled()
    keep_alive = HfDeepSpeedConfig(dict(case["ds_config"])) if sharded and not held else None
    # A layer that is quantized goes to its device in 4 bits.
    whole = torch.device("cpu") if case["quantized"] else device
    with nullcontext() if held or keep_alive is not None else whole:
        yield


def _with_adapters(model: Any, case: Case) -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingLibraryError(f"peft cannot be loaded: {error}") from error
    targets = list(case["lora_target_modules"]) or "all-linear"
    config = peft.LoraConfig(r=case["lora_rank"], target_modules=targets)
    return peft.get_peft_model(model, config)


def build_model(case: Case, folder: Path, device: torch.device) -> Any:
    """The model of the case, in training mode.

    Raises:
        MissingLibraryError: peft, bitsandbytes or liger-kernel is needed and cannot be loaded.
    """
    config = _read_config(case, folder)
    config.use_cache = False
    if config.is_encoder_decoder and config.decoder_start_token_id is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    with _weights_on(case, device):
        named = _model_class(config)
        make = getattr(named, "_from_config", None) or named.from_config
        attention = ATTENTION[case["attention"]]
        model = make(config, dtype=DTYPES[case["precision"]], attn_implementation=attention)
    replace_loss(model, case["loss"])
    if case["quantized"]:
        quantize(model, DTYPES[case["precision"]], device)
        model.to(device)
    if case["lora_rank"] is not None:
        model = _with_adapters(model, case)
    # The Trainer turns it on by itself.
    if case["gradient_checkpointing"] and case["kind"] != "trainer":
        every = case["every_n_layers"]
        named = {} if every == 1 else {"every_n_layers": every}
        model.gradient_checkpointing_enable({"use_reentrant": False}, **named)
    return model.train()


def count_params(model: Any, *, trainable: bool) -> int:
    """Elements of all parameters, or of the trainable ones; a shard counts as its whole tensor."""
    return sum(
        _numel(parameter)
        for parameter in model.parameters()
        if parameter.requires_grad or not trainable
    )


def _numel(parameter: Any) -> int:
    """Elements of the whole weight, also where it is sharded by ZeRO-3 or packed in 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    if packed is not None:
        return int(packed.shape.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def make_batch(model: Any, case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """Random tokens, which are their own labels; random images for a model that reads images."""
    if model.main_input_name == "pixel_values":
        return _make_images(model.config, case, device)
    vocab_size = model.config.get_text_config().vocab_size
    shape = (case["micro_batch"], case["sequence_tokens"])
    tokens = torch.randint(vocab_size, shape, device=device)
    if not case["packing"]:
        return {"input_ids": tokens, "labels": tokens}
    # One row of all sequences; a new sequence starts where the positions start again.
    packed = tokens.view(1, -1)
    positions = torch.arange(case["sequence_tokens"], device=device).repeat(case["micro_batch"])
    return {"input_ids": packed, "labels": packed, "position_ids": positions[None]}


def _make_images(config: Any, case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """Random images, each with a class."""
    size = getattr(config, "image_size", None) or IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    shape = (case["micro_batch"], config.num_channels, height, width)
    images = torch.rand(shape, dtype=DTYPES[case["precision"]], device=device)
    labels = torch.randint(config.num_labels, shape[:1], device=device)
    return {"pixel_values": images, "labels": labels}
