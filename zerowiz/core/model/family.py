"""The row of a model family: what may differ between families, and what it is by default."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.model import blocks
from zerowiz.core.model.blocks import NEVER, Specs


class Norm(StrEnum):
    """How a family normalises, which decides what its backward needs."""

    RMS = "rms"
    RMS_SCALED_IN_FP32 = "rms_scaled_in_fp32"
    RMS_OF_T5 = "rms_of_t5"
    RMS_OF_LIGER = "rms_of_liger"
    LAYER = "layer"


Default = float | str | None


class Family(Struct, frozen=True, kw_only=True):
    """One `model_type`."""

    defaults: Mapping[str, Default]
    """What its config class assumes where config.json is silent, None where it derives the value.

    A key that is not listed is one that its modelling code never reads.
    """
    tensors: Specs
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How its config.json spells our keys, where it does so differently."""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """Its on and off keys with their defaults."""
    unsupported: tuple[str, ...] = ()
    """Switches of its config that add tensors nobody counts here."""
    sliding_every: int = 0
    """1: every layer slides; n: all but every n-th; 0: those its config says."""
    norm: Norm = Norm.RMS
    norms_per_layer: int = 2
    residual_dropouts: int = 2
    """How often a block drops out what it adds to the residual stream."""
    mlp_dropout: bool = False
    """Whether the MLP drops out between its two layers."""
    gated: str = blocks.ALWAYS
    """The condition on which its MLP has a gate."""
    value_in_qkv: str = NEVER
    """When values are a slice of the fused projection, which is then kept whole."""
    softmax_in_fp32: bool = True
    """Whether eager attention takes its softmax in fp32."""
    causal: bool = True
    """Whether a token looks back alone, so that eager attention needs a mask."""
    masked: bool = False
    """Whether attention is given a mask even where causality would do."""
    loss_in_fp32: bool = True
    """Whether the logits are cast to fp32 before the loss."""
    liger: bool = False
    """Whether Liger has kernels for its norms, its MLP and its loss, and they are counted."""
    eager_since: tuple[int, int] | None = None
    """The transformers that no longer gives it sdpa."""
    fused_bias_since: tuple[int, int] | None = None
    """The transformers whose position bias a fused kernel takes."""
    packable: bool = True
    """Whether it keeps packed sequences apart by their positions."""
    learned_positions: bool = False
    """Whether a sequence can be longer than there are positions."""
    first_norm: str = blocks.ALWAYS
    """The condition on which a block's first norm reads the residual stream."""
    torch_linear: bool = True
    """Whether its linear layers call torch's function, in whose place DeepSpeed puts its own."""
    lora_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By what names peft adapts a tensor, where it is not by its own."""
    default_lora_targets: tuple[str, ...] = ()
    """The layers that peft adapts where a script names none; peft refuses a family without any.

    Source: peft 0.21, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
    """
    moe_block: str | None = None
    """The class whose `experts` attribute holds the experts, for ZeRO-3's `leaf_module.classes`."""
    measured: bool = True
    """Whether a run of tests/measured holds its formulas; the bounds of a prediction ask."""
