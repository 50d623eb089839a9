"""The model families: the keys that each reads from its config.json, and its tensors."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

# The tensors of the blocks and ends of which families are composed.
#
# A row has a name, a shape in symbols, and a condition. The symbols are those of SYMBOLS in
# hf_config.py: h hidden, q all query heads, kv all key heads, i the MLP, V the vocabulary; `2i` is
# twice i. The condition names switches of the config: all of them must be on, those after `!`
# off. Rows stand in the order of transformers' `model.parameters()`, as the shares of ranks are
# cut by it.

ALWAYS = ""
NEVER = "never"


class Slot(StrEnum):
    """Which blocks have a tensor."""

    ENDS = "ends"
    BLOCK = "block"
    DENSE = "dense"
    EXPERTS = "experts"
    DECODER = "decoder"


class Spec(NamedTuple):
    """One tensor of the table."""

    name: str
    shape: str
    when: str = ALWAYS
    linear: bool = False
    transposed: bool = False
    slot: Slot = Slot.BLOCK
    is_output: bool = False
    """Whether it works behind the blocks, though it is listed in front of them."""


Specs = tuple[Spec, ...]


def linear(name: str, out: str, wide: str, bias: str = NEVER, when: str = ALWAYS) -> Specs:
    """A linear layer, which LoRA can adapt, and its bias."""
    return (
        Spec(name, f"{out} {wide}", when, linear=True),
        Spec(f"{name}.bias", out, f"{when} {bias}".strip()),
    )


def conv1d(name: str, wide: str, out: str) -> Specs:
    """GPT-2's linear layer, whose weight has the shape (in, out), and its bias."""
    weight = Spec(name, f"{wide} {out}", linear=True, transposed=True)
    return (weight, Spec(f"{name}.bias", out))


def layer_norm(name: str, when: str = ALWAYS) -> Specs:
    """A LayerNorm with its bias."""
    return (Spec(name, "h", when), Spec(f"{name}.bias", "h", when))


def at(slot: Slot, *parts: Specs) -> Specs:
    """These tensors in other blocks, or at the model's ends."""
    return tuple(spec._replace(slot=slot) for part in parts for spec in part)


def _outputs(*parts: Specs) -> Specs:
    """These tensors at the model's end, though they are listed at its start."""
    return tuple(spec._replace(slot=Slot.ENDS, is_output=True) for part in parts for spec in part)


def _attention(qkv_bias: str, o_bias: str) -> Specs:
    return (
        *linear("q_proj", "q", "h", qkv_bias),
        *linear("k_proj", "kv", "h", qkv_bias),
        *linear("v_proj", "kv", "h", qkv_bias),
        *linear("o_proj", "h", "q", o_bias),
    )


def _gated_mlp(wide: str, bias: str = NEVER) -> Specs:
    return (
        *linear("gate_proj", wide, "h", bias),
        *linear("up_proj", wide, "h", bias),
        *linear("down_proj", "h", wide, bias),
    )


EMBEDDING = at(Slot.ENDS, (Spec("embed_tokens", "V h"),))
_HEAD = (Spec("lm_head", "V h", "!tie_word_embeddings"),)
RMS_HEAD = at(Slot.ENDS, (Spec("norm", "h"), *_HEAD))
LAYER_NORM_HEAD = at(Slot.ENDS, layer_norm("norm"), _HEAD)
TWO_NORMS: Specs = (Spec("input_layernorm", "h"), Spec("post_attention_layernorm", "h"))
FOUR_NORMS: Specs = (
    *TWO_NORMS,
    Spec("pre_feedforward_layernorm", "h"),
    Spec("post_feedforward_layernorm", "h"),
)
HEAD_NORMS: Specs = (Spec("q_norm", "head_dim"), Spec("k_norm", "head_dim"))
WIDE_NORMS: Specs = (Spec("q_norm", "q"), Spec("k_norm", "kv"))

ATTENTION = _attention("attention_bias", "attention_bias")
QKV_BIASED_ATTENTION = _attention(ALWAYS, NEVER)
QKV_BIAS_ATTENTION = _attention("qkv_bias", NEVER)
GATED_MLP = at(Slot.DENSE, _gated_mlp("dense_i", "mlp_bias"))
# transformers stores the experts of a layer as two tensors of three dimensions.
EXPERTS = at(
    Slot.EXPERTS,
    (Spec("experts.gate_up_proj", "experts 2i h"), Spec("experts.down_proj", "experts h i")),
)
ROUTER = at(Slot.EXPERTS, (Spec("mlp.gate", "experts h"),))
SHARED_EXPERT = at(Slot.EXPERTS, _gated_mlp("shared_i"), linear("shared_expert_gate", "1", "h"))

PHI3 = (
    *EMBEDDING,
    *linear("o_proj", "h", "q"),
    *linear("qkv_proj", "q+2kv", "h"),
    *linear("gate_up_proj", "2i", "h"),
    *linear("down_proj", "h", "i"),
    *TWO_NORMS,
    *RMS_HEAD,
)

GPT2 = (
    *EMBEDDING,
    *at(Slot.ENDS, (Spec("wpe", "positions h"),)),
    *layer_norm("ln_1"),
    *conv1d("c_attn", "h", "3h"),
    *conv1d("attn.c_proj", "h", "h"),
    *layer_norm("ln_2"),
    *conv1d("c_fc", "h", "i"),
    *conv1d("mlp.c_proj", "i", "h"),
    *LAYER_NORM_HEAD,
)

GPT_NEOX = (
    *EMBEDDING,
    *layer_norm("input_layernorm"),
    *layer_norm("post_attention_layernorm"),
    *linear("query_key_value", "3h", "h", "attention_bias"),
    *linear("dense", "h", "h", "attention_bias"),
    *linear("dense_h_to_4h", "i", "h", ALWAYS),
    *linear("dense_4h_to_h", "h", "i", ALWAYS),
    *LAYER_NORM_HEAD,
)

FALCON = (
    *EMBEDDING,
    *linear("query_key_value", "q+2kv", "h", "bias"),
    *linear("dense", "h", "h", "bias"),
    *linear("dense_h_to_4h", "i", "h", "bias"),
    *linear("dense_4h_to_h", "h", "i", "bias"),
    *layer_norm("input_layernorm"),
    *layer_norm("ln_mlp", "two_norms"),
    *LAYER_NORM_HEAD,
)

OPT = (
    *at(
        Slot.ENDS,
        (Spec("embed_tokens", "V embedding"), Spec("embed_positions", "positions+2 h")),
    ),
    *_outputs(linear("project_out", "embedding", "h", when="projected")),
    *at(Slot.ENDS, linear("project_in", "h", "embedding", when="projected")),
    *_outputs(layer_norm("norm", "layer_norm_elementwise_affine final_norm")),
    *linear("k_proj", "h", "h", "enable_bias"),
    *linear("v_proj", "h", "h", "enable_bias"),
    *linear("q_proj", "h", "h", "enable_bias"),
    *linear("out_proj", "h", "h", "enable_bias"),
    *layer_norm("self_attn_layer_norm", "layer_norm_elementwise_affine"),
    *linear("fc1", "i", "h", "enable_bias"),
    *linear("fc2", "h", "i", "enable_bias"),
    *layer_norm("final_layer_norm", "layer_norm_elementwise_affine"),
    *at(Slot.ENDS, (Spec("lm_head", "V embedding", "!tie_word_embeddings"),)),
)

_EMBEDDING_NORM = layer_norm("embeddings.LayerNorm")
_WORDS, _POSITIONS, _TYPES = (
    (Spec("word_embeddings", "V h"),),
    (Spec("position_embeddings", "positions h"),),
    (Spec("token_type_embeddings", "types h"),),
)
_BERT_BLOCK: Specs = (
    *linear("query", "h", "h", ALWAYS),
    *linear("key", "h", "h", ALWAYS),
    *linear("value", "h", "h", ALWAYS),
    *linear("attention.output.dense", "h", "h", ALWAYS),
    *layer_norm("attention.output.LayerNorm"),
    *linear("intermediate.dense", "i", "h", ALWAYS),
    *linear("output.dense", "h", "i", ALWAYS),
    *layer_norm("output.LayerNorm"),
)
_BERT_HEAD: Specs = (
    Spec("predictions.bias", "V"),
    *linear("transform.dense", "h", "h", ALWAYS),
    *layer_norm("transform.LayerNorm"),
    Spec("decoder", "V h", "!tie_word_embeddings"),
    # Another bias; the one above is never used then. With tied embeddings they are the same.
    Spec("decoder.bias", "V", "!tie_word_embeddings"),
)
BERT = (
    *at(Slot.ENDS, _WORDS, _POSITIONS, _TYPES, _EMBEDDING_NORM),
    *_BERT_BLOCK,
    *at(Slot.ENDS, _BERT_HEAD),
)
ROBERTA = (
    *at(Slot.ENDS, _WORDS, _TYPES, _EMBEDDING_NORM, _POSITIONS),
    *_BERT_BLOCK,
    *at(Slot.ENDS, _BERT_HEAD),
)

_T5_ATTENTION = (
    *linear("q", "q", "h"),
    *linear("k", "q", "h"),
    *linear("v", "q", "h"),
    *linear("o", "h", "q"),
    Spec("layer_norm", "h"),
)
# What only the first block of the encoder, or of the decoder, has is listed in front of the blocks.
T5 = (
    *at(
        Slot.ENDS,
        (
            Spec("shared", "V h"),
            Spec("encoder.relative_attention_bias", "buckets heads"),
            Spec("decoder.relative_attention_bias", "buckets heads"),
        ),
    ),
    *_T5_ATTENTION,
    *at(Slot.DECODER, _T5_ATTENTION),
    *linear("wi", "i", "h", when="!gated"),
    *linear("wi_0", "i", "h", when="gated"),
    *linear("wi_1", "i", "h", when="gated"),
    *linear("wo", "h", "i"),
    Spec("ff.layer_norm", "h"),
    *at(
        Slot.ENDS,
        (Spec("encoder.final_layer_norm", "h"), Spec("decoder.final_layer_norm", "h")),
    ),
)

VIT = (
    *at(
        Slot.ENDS,
        (
            Spec("cls_token", "1 1 h"),
            Spec("position_embeddings", "1 image_tokens h"),
            Spec("patch_embeddings", "h patch"),
            Spec("patch_embeddings.bias", "h"),
        ),
    ),
    *linear("q_proj", "q", "h", "qkv_bias"),
    *linear("k_proj", "q", "h", "qkv_bias"),
    *linear("v_proj", "q", "h", "qkv_bias"),
    *linear("o_proj", "h", "q", ALWAYS),
    *layer_norm("layernorm_before"),
    *layer_norm("layernorm_after"),
    *linear("fc1", "i", "h", ALWAYS),
    *linear("fc2", "h", "i", ALWAYS),
    *at(Slot.ENDS, layer_norm("norm"), linear("classifier", "labels", "h", ALWAYS, "labelled")),
)

# The row of a model family: its fields are what may differ between families.


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
    gated: str = ALWAYS
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
    first_norm: str = ALWAYS
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


_LLAMA: Mapping[str, Default] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
}
_QV = ("q_proj", "v_proj")
_UNTIED: Mapping[str, bool] = {"tie_word_embeddings": False}
_TIED: Mapping[str, bool] = {"tie_word_embeddings": True}
_BIASED: Mapping[str, bool] = {"attention_bias": False}
_LLAMA_TENSORS: Specs = (
    *EMBEDDING,
    *ATTENTION,
    *GATED_MLP,
    *TWO_NORMS,
    *RMS_HEAD,
)
_MISTRAL: Mapping[str, Default] = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_QWEN2: Mapping[str, Default] = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_SLIDES: Mapping[str, bool] = {"use_sliding_window": False}
_MOE: Mapping[str, Default] = {
    **_QWEN2,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
_MOE_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts"),
    "intermediate_size": ("moe_intermediate_size",),
    "dense_intermediate_size": ("intermediate_size",),
}
# peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING of 0.21: the names that
# the experts had as linear layers. peft takes the names of a dense MLP for those of the experts, so
# they adapt nothing.
_LORA_OF_MIXTRAL: Mapping[str, tuple[str, ...]] = {
    "mlp.gate": ("gate",),
    "experts.gate_up_proj": ("w1", "w3"),
    "experts.down_proj": ("w2",),
}
_LORA_OF_QWEN3_MOE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), ()),
    "mlp.gate": ("gate",),
    "experts.gate_up_proj": ("gate_proj", "up_proj"),
    "experts.down_proj": ("down_proj",),
}
_GEMMA: Mapping[str, Default] = {
    **_LLAMA,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
}
_GEMMA2: Mapping[str, Default] = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_HIDDEN_ACTIVATION: Mapping[str, tuple[str, ...]] = {"hidden_act": ("hidden_activation",)}
_BERT: Mapping[str, Default] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "attention_dropout": 0.1,
    "residual_dropout": 0.1,
    "embedding_dropout": 0.1,
    "hidden_act": "gelu",
}
_BERT_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "attention_dropout": ("attention_probs_dropout_prob",),
    "residual_dropout": ("hidden_dropout_prob",),
    "embedding_dropout": ("hidden_dropout_prob",),
}

# A family is described in this module, and nowhere else.
# Source of every row: transformers 5.23, models/<family>/configuration_<family>.py for the
# defaults and modeling_<family>.py for the rest; tests/core/model/test_types.py builds them all.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        liger=True,
        defaults=_LLAMA,
        switches={**_UNTIED, **_BIASED, "mlp_bias": False},
        tensors=_LLAMA_TENSORS,
        default_lora_targets=_QV,
    ),
    "mistral": Family(
        liger=True,
        defaults=_MISTRAL,
        switches=_UNTIED,
        tensors=_LLAMA_TENSORS,
        sliding_every=1,
        default_lora_targets=_QV,
    ),
    "qwen2": Family(
        liger=True,
        defaults=_QWEN2,
        switches={**_UNTIED, **_SLIDES},
        tensors=(
            *EMBEDDING,
            *QKV_BIASED_ATTENTION,
            *GATED_MLP,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        default_lora_targets=_QV,
    ),
    "qwen3": Family(
        liger=True,
        defaults={**_QWEN2, "head_dim": 128},
        switches={**_UNTIED, **_BIASED, **_SLIDES},
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *HEAD_NORMS,
            *GATED_MLP,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        default_lora_targets=_QV,
    ),
    "gemma": Family(
        liger=True,
        defaults=_GEMMA,
        switches={**_TIED, **_BIASED},
        tensors=_LLAMA_TENSORS,
        norm=Norm.RMS_SCALED_IN_FP32,
        default_lora_targets=_QV,
        measured=False,
    ),
    "gemma2": Family(
        # sdpa has no cap for scores.
        eager_since=(5, 21),
        liger=True,
        defaults=_GEMMA2,
        spellings=_HIDDEN_ACTIVATION,
        switches={**_TIED, **_BIASED},
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *GATED_MLP,
            *FOUR_NORMS,
            *RMS_HEAD,
        ),
        sliding_every=2,
        norms_per_layer=4,
        norm=Norm.RMS_SCALED_IN_FP32,
        default_lora_targets=_QV,
    ),
    "gemma3_text": Family(
        liger=True,
        defaults={
            **_GEMMA2,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
            "sliding_window_pattern": 6,
        },
        spellings=_HIDDEN_ACTIVATION,
        switches={**_TIED, **_BIASED},
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *HEAD_NORMS,
            *GATED_MLP,
            *FOUR_NORMS,
            *RMS_HEAD,
        ),
        sliding_every=6,
        norms_per_layer=4,
        norm=Norm.RMS_SCALED_IN_FP32,
        default_lora_targets=_QV,
    ),
    "mixtral": Family(
        defaults={
            **_MISTRAL,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        spellings={"num_experts": ("num_local_experts", "num_experts")},
        switches=_UNTIED,
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *ROUTER,
            *EXPERTS,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        sliding_every=1,
        lora_targets=_LORA_OF_MIXTRAL,
        default_lora_targets=_QV,
        moe_block="MixtralSparseMoeBlock",
    ),
    "qwen2_moe": Family(
        defaults={
            **_MOE,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 1408,
            "dense_intermediate_size": 5632,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
        },
        spellings=_MOE_SPELLINGS,
        switches={**_UNTIED, "qkv_bias": True},
        tensors=(
            *EMBEDDING,
            *QKV_BIAS_ATTENTION,
            *GATED_MLP,
            *ROUTER,
            *EXPERTS,
            *SHARED_EXPERT,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        moe_block="Qwen2MoeSparseMoeBlock",
    ),
    "qwen3_moe": Family(
        defaults={
            **_MOE,
            "num_key_value_heads": 4,
            "intermediate_size": 768,
            "dense_intermediate_size": 6144,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
        spellings=_MOE_SPELLINGS,
        switches={**_UNTIED, **_BIASED, **_SLIDES},
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *HEAD_NORMS,
            *GATED_MLP,
            *EXPERTS,
            *ROUTER,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        sliding_every=1,
        lora_targets=_LORA_OF_QWEN3_MOE,
        moe_block="Qwen3MoeSparseMoeBlock",
    ),
    "olmo2": Family(
        liger=True,
        defaults={**_LLAMA, "vocab_size": 50304},
        switches={**_UNTIED, **_BIASED},
        tensors=(
            *EMBEDDING,
            *ATTENTION,
            *WIDE_NORMS,
            *GATED_MLP,
            *TWO_NORMS,
            *RMS_HEAD,
        ),
        norm=Norm.RMS_SCALED_IN_FP32,
        first_norm=NEVER,
    ),
    "phi3": Family(
        liger=True,
        defaults={
            **_LLAMA,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "residual_dropout": 0.0,
            "sliding_window": None,
        },
        spellings={"residual_dropout": ("resid_pdrop",)},
        switches=_UNTIED,
        tensors=PHI3,
        sliding_every=1,
        value_in_qkv=ALWAYS,
        rotated_in_parts=True,
    ),
    "gpt2": Family(
        defaults={
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
            "embedding_dropout": 0.1,
            "hidden_act": "gelu_new",
        },
        spellings={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner",),
            "attention_dropout": ("attn_pdrop",),
            "residual_dropout": ("resid_pdrop",),
            "embedding_dropout": ("embd_pdrop",),
            "hidden_act": ("activation_function",),
        },
        switches=_TIED,
        unsupported=("add_cross_attention",),
        tensors=GPT2,
        torch_linear=False,
        norm=Norm.LAYER,
        gated=NEVER,
        softmax_in_fp32=False,
        learned_positions=True,
        default_lora_targets=("c_attn",),
    ),
    "gpt_neox": Family(
        defaults={
            **_LLAMA,
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "hidden_act": "gelu",
        },
        spellings={
            "residual_dropout": ("hidden_dropout",),
            "embedding_dropout": ("hidden_dropout",),
        },
        switches={**_UNTIED, "attention_bias": True, "use_parallel_residual": True},
        tensors=GPT_NEOX,
        norm=Norm.LAYER,
        gated=NEVER,
        value_in_qkv=ALWAYS,
        rotated_in_parts=True,
        default_lora_targets=("query_key_value",),
    ),
    "falcon": Family(
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "intermediate_size": None,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_key_value_heads": None,
            "max_position_embeddings": 2048,
            "num_ln_in_parallel_attn": None,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "hidden_act": "gelu",
        },
        spellings={
            "hidden_size": ("n_embed", "hidden_size"),
            "intermediate_size": ("ffn_hidden_size",),
            "num_key_value_heads": ("num_kv_heads",),
            "residual_dropout": ("hidden_dropout",),
            "hidden_act": ("activation",),
        },
        switches={
            **_TIED,
            "alibi": False,
            "bias": False,
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
        },
        tensors=FALCON,
        torch_linear=False,
        norm=Norm.LAYER,
        gated=NEVER,
        value_in_qkv="!multi_query !new_decoder_architecture !alibi",
        residual_dropouts=1,
        softmax_in_fp32=False,
        masked=True,
        default_lora_targets=("query_key_value",),
    ),
    "opt": Family(
        packable=False,
        defaults={
            "vocab_size": 50272,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "embedding_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "attention_dropout": 0.0,
            "residual_dropout": 0.1,
            "hidden_act": "relu",
        },
        spellings={
            "intermediate_size": ("ffn_dim",),
            "embedding_size": ("word_embed_proj_dim",),
            "residual_dropout": ("dropout",),
            "hidden_act": ("activation_function",),
        },
        switches={
            **_TIED,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
        tensors=OPT,
        norm=Norm.LAYER,
        first_norm="do_layer_norm_before",
        gated=NEVER,
        learned_positions=True,
        default_lora_targets=_QV,
    ),
    "bert": Family(
        defaults=_BERT,
        spellings=_BERT_SPELLINGS,
        switches=_TIED,
        unsupported=("add_cross_attention",),
        tensors=BERT,
        norm=Norm.LAYER,
        first_norm=NEVER,
        gated=NEVER,
        softmax_in_fp32=False,
        causal=False,
        loss_in_fp32=False,
        learned_positions=True,
        default_lora_targets=("query", "value"),
    ),
    "roberta": Family(
        defaults={**_BERT, "vocab_size": 50265},
        lora_targets={"transform.dense": ("lm_head.dense",)},
        spellings=_BERT_SPELLINGS,
        switches=_TIED,
        unsupported=("add_cross_attention",),
        tensors=ROBERTA,
        norm=Norm.LAYER,
        first_norm=NEVER,
        gated=NEVER,
        softmax_in_fp32=False,
        causal=False,
        loss_in_fp32=False,
        learned_positions=True,
        default_lora_targets=("query", "value"),
    ),
    "t5": Family(
        # integrations/sdpa_attention.py: since then its rows are contiguous.
        fused_bias_since=(5, 20),
        defaults={
            "vocab_size": 32128,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_decoder_layers": None,
            "num_attention_heads": 8,
            "head_dim": 64,
            "relative_attention_num_buckets": 32,
            "max_position_embeddings": 512,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
            "embedding_dropout": 0.1,
            "hidden_act": "relu",
        },
        spellings={
            "hidden_size": ("d_model", "hidden_size"),
            "intermediate_size": ("d_ff",),
            "num_hidden_layers": ("num_layers", "num_hidden_layers"),
            "num_attention_heads": ("num_heads", "num_attention_heads"),
            "head_dim": ("d_kv", "head_dim"),
            "max_position_embeddings": ("n_positions",),
            "attention_dropout": ("dropout_rate",),
            "residual_dropout": ("dropout_rate",),
            "embedding_dropout": ("dropout_rate",),
            "hidden_act": ("feed_forward_proj",),
            "tie_word_embeddings": (),
        },
        switches=_TIED,
        tensors=T5,
        norm=Norm.RMS_OF_T5,
        mlp_dropout=True,
        gated="gated",
        softmax_in_fp32=False,
        causal=False,
        loss_in_fp32=False,
        default_lora_targets=("q", "v"),
    ),
    "vit": Family(
        defaults={
            "vocab_size": 0,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "head_dim": None,
            "max_position_embeddings": 0,
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "num_labels": 2,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "hidden_act": "gelu",
        },
        spellings={**_BERT_SPELLINGS, "vocab_size": (), "max_position_embeddings": ()},
        switches={"qkv_bias": True},
        tensors=VIT,
        norm=Norm.LAYER,
        gated=NEVER,
        causal=False,
        loss_in_fp32=False,
    ),
}
