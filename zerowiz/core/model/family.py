"""The row of a model family: its fields are what may differ between families."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.model import blocks
from zerowiz.core.model.blocks import NEVER, Specs


class Norm(StrEnum):
    """How a family normalizes, which decides what its backward keeps."""

    RMS = "rms"
    RMS_SCALED_IN_FP32 = "rms_scaled_in_fp32"
    RMS_OF_T5 = "rms_of_t5"
    RMS_OF_LIGER = "rms_of_liger"
    LAYER = "layer"


Default = float | str | None


class Family(Struct, frozen=True, kw_only=True):
    """One `model_type`."""

    defaults: Mapping[str, Default]
    """The defaults of its config class; None where the class derives the value from others.

    A key that is not here is not read by the family's code.
    """
    tensors: Specs
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of our keys in its config.json, where they differ."""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """Its boolean keys with their defaults."""
    unsupported: tuple[str, ...] = ()
    """Its boolean keys that add tensors which are not counted here."""
    sliding_every: int = 0
    """The layers with a sliding window: 1 all, n all but every n-th, 0 those of its config."""
    norm: Norm = Norm.RMS
    norms_per_layer: int = 2
    residual_dropouts: int = 2
    """How often a block has a dropout before it adds to the residual stream."""
    mlp_dropout: bool = False
    """Whether the MLP has a dropout between its two layers."""
    gated: str = blocks.ALWAYS
    """The condition under which its MLP has a gate."""
    value_in_qkv: str = NEVER
    """The condition under which values are a slice of the fused projection, which is kept whole."""
    rotated_in_parts: bool = False
    """Whether it rotates a part of queries and keys, and joins the parts anew."""
    softmax_in_fp32: bool = True
    """Whether eager attention computes its softmax in fp32."""
    causal: bool = True
    """Whether a token attends only to earlier ones, so that eager attention needs a mask."""
    masked: bool = False
    """Whether attention gets a mask also where `is_causal` would be enough."""
    loss_in_fp32: bool = True
    """Whether the logits are cast to fp32 before the loss."""
    liger: bool = False
    """Whether Liger has kernels for its norms, its MLP and its loss, and they are counted here."""
    eager_since: tuple[int, int] | None = None
    """The release of transformers since which it has no sdpa."""
    fused_bias_since: tuple[int, int] | None = None
    """The release of transformers since which a fused kernel takes its position bias."""
    packable: bool = True
    """Whether it separates packed sequences by their positions."""
    learned_positions: bool = False
    """Whether a sequence can be longer than there are positions."""
    first_norm: str = blocks.ALWAYS
    """The condition under which a block's first norm reads the residual stream."""
    torch_linear: bool = True
    """Whether its linear layers call torch's function, which DeepSpeed replaces by its own."""
    lora_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names by which peft adapts a tensor, where they differ from its own."""
    default_lora_targets: tuple[str, ...] = ()
    """The layers that peft adapts where a script names none; peft refuses a family without any.

    Source: peft 0.21, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
    """
    moe_block: str | None = None
    """The class whose `experts` attribute holds the experts, for ZeRO-3's `leaf_module.classes`."""
    measured: bool = True
    """Whether a run of tests/measured confirms its formulas, which narrows the bounds."""
