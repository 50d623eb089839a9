"""Build the model that a config names, and inputs for it, on tensors without data."""
# ruff: noqa: ANN401, SLF001 -- torch need not be installed, so it has no types; only `_from_config`
# builds a model with a custom kernel.

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

from zerowiz.core.workload.choices import Attention, Precision
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.probe.model.trace.kernels import flash_attention
from zerowiz.words import _

# Without "flash" in the name: transformers would take that for a package to load.
_FLASH = "zerowiz_fused"
_ATTENTION = {
    Attention.SDPA: ("sdpa", "eager"),
    Attention.FLASH: (_FLASH, "sdpa", "eager"),
    Attention.EAGER: ("eager",),
}
_TORCH_NAMES = {Precision.BF16: "bfloat16", Precision.FP16: "float16", Precision.FP32: "float32"}
# The usual crop of ImageNet, for a config that leaves the size to the preprocessor.
IMAGE_SIZE = 224
# Where config.json names no class: the first head that transformers has for its config. An encoder
# has a causal head as well, and an encoder-decoder has all three.
HEADS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForImageTextToText",
    "AutoModel",
)


def is_buildable(content: Mapping[str, object]) -> bool:
    """Whether transformers knows a model of this type; loads transformers."""
    from transformers import CONFIG_MAPPING

    return content.get("model_type") in CONFIG_MAPPING


def _model_class(config: Any) -> Any:
    import transformers

    for name in config.architectures or ():
        if (found := getattr(transformers, name, None)) is not None:
            return found
    for name in HEADS:
        mapping = getattr(transformers, name)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise UsageError(
        _("transformers has no model for `{model_type}`", model_type=config.model_type)
    )


def _register_flash() -> None:
    """Register a kernel that keeps what flash-attn keeps, which need not be installed.

    It takes no mask, and keys and values without repeated heads.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def forward(_module: Any, query: Any, key: Any, value: Any, *_: Any, **_options: Any) -> Any:
        return flash_attention(query, key, value).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(_FLASH, forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_FLASH, flash_attention_mask)


def build_model(content: Mapping[str, object], workload: Workload) -> Any:
    """The model on the meta device, in training mode, with the workload's attention kernel.

    A model that does not support that kernel gets the one that transformers falls back to.

    Args:
        content: The content of config.json.
        workload: Names the attention kernel and the precision.

    Raises:
        UsageError: transformers has no such model.
    """
    # Before all that takes long to load.
    if not is_buildable(content):
        raise UsageError(
            _("transformers has no model for `{model_type}`", model_type=content.get("model_type"))
        )
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    _register_flash()
    config = transformers.AutoConfig.for_model(**content)
    # transformers/trainer.py: TrainingArguments.use_cache is false; a cache would copy the tensors.
    config.use_cache = False
    model_class = _model_class(config)
    dtype = getattr(torch, _TORCH_NAMES[workload.precision])
    *preferred, last = _ATTENTION[workload.attention]
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        for kernel in preferred:
            with suppress(ValueError, ImportError):
                return model_class._from_config(config, dtype=dtype, attn_implementation=kernel)
        return model_class._from_config(config, dtype=dtype, attn_implementation=last)


def checkpoint_blocks(model: Any) -> None:
    """Recompute each block in backward, as the Trainer's `gradient_checkpointing` does.

    Raises:
        UsageError: The model does not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise UsageError(_("`{name__}` has no gradient checkpointing", name__=type(model).__name__))
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    # The fake device has no state of random numbers.
    enable({"use_reentrant": False, "preserve_rng_state": False})


def move_to_fake_cpu(model: Any) -> None:
    """Replace each parameter and buffer by a fake one on the CPU; a fake mode must be active.

    Tied weights become separate ones. Their gradients would be added at the end of backward, for
    which the ledger has a line of its own.
    """
    import torch

    for module in model.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                module._parameters[name] = torch.nn.Parameter(fake, tensor.requires_grad)
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def find_blocks(model: Any) -> list[Any]:
    """The model's blocks: the outermost modules that transformers can checkpoint.

    A model without such modules has the items of its outermost ModuleLists instead.
    """
    from torch.nn import ModuleList

    with suppress(ImportError):
        from transformers.modeling_layers import GradientCheckpointingLayer

        if found := _outermost(model, lambda m: isinstance(m, GradientCheckpointingLayer)):
            return found
    lists = _outermost(model, lambda m: isinstance(m, ModuleList))
    return [block for each in lists for block in each]


def _outermost(module: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    if wanted(module):
        return [module]
    return [found for child in module.children() for found in _outermost(child, wanted)]


def _image_shape(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    frames = (vision.num_frames,) if getattr(vision, "num_frames", None) else ()
    return (*frames, getattr(vision, "num_channels", 3), height, width)


def _sound_shape(config: Any) -> tuple[int, ...]:
    # transformers, models/whisper/modeling_whisper.py: two frames of the spectrum per position.
    return (config.num_mel_bins, 2 * config.max_source_positions)


# Heads with one label per sequence.
_ONE_LABEL = ("SequenceClassification", "ImageClassification", "VideoClassification")


def make_inputs(model: Any, workload: Workload) -> dict[str, Any]:
    """A micro-batch for this model on the fake CPU, with labels.

    Raises:
        UsageError: The model reads a kind of input that is not known here.
    """
    import torch

    config, batch = model.config, workload.micro_batch
    names = signature(model.forward).parameters
    shape_of: Mapping[str, Callable[[Any], tuple[int, ...]]] = {
        "pixel_values": _image_shape,
        "input_features": _sound_shape,
    }
    tokens = (batch, workload.sequence_tokens)
    main = model.main_input_name
    if main in shape_of:
        inputs = {main: torch.empty(batch, *shape_of[main](config), dtype=model.dtype)}
        tokens = (batch, min(tokens[1], getattr(config, "max_target_positions", tokens[1])))
    elif main == "input_ids":
        inputs = {main: torch.zeros(tokens, dtype=torch.int64)}
    else:
        raise UsageError(
            _(
                "`{name__}` reads `{main}`, for which zerowiz cannot make an input",
                name__=type(model).__name__,
                main=main,
            )
        )
    one = any(word in type(model).__name__ for word in _ONE_LABEL)
    labels = {
        "labels": (batch,) if one else tokens,
        "start_positions": (batch,),
        "end_positions": (batch,),
    }
    shapes = {name: shape for name, shape in labels.items() if name in names}
    return inputs | {n: torch.zeros(shape, dtype=torch.int64) for n, shape in shapes.items()}
