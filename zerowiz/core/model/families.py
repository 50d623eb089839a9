"""The model families: what each reads from its config.json, and the tensors it is made of."""

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
_LLAMA_BLOCK: Specs = (
    *blocks.ATTENTION,
    *blocks.GATED_MLP,
    *blocks.TWO_NORMS,
    *blocks.RMS_ENDS,
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
# the experts had as linear layers; those of a dense MLP are taken for them, and adapt nothing.
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

# Rule: what a family is, is said here and in blocks.py and nowhere else.
# Source of every row: transformers 5.23, models/<family>/configuration_<family>.py for the
# defaults and modeling_<family>.py for the rest; tests/core/model/test_types.py builds them all.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        liger=True,
        defaults=_LLAMA,
        switches={**_UNTIED, **_BIASED, "mlp_bias": False},
        tensors=_LLAMA_BLOCK,
        default_lora_targets=_QV,
    ),
    "mistral": Family(
        liger=True,
        defaults=_MISTRAL,
        switches=_UNTIED,
        tensors=_LLAMA_BLOCK,
        sliding_every=1,
        default_lora_targets=_QV,
    ),
    "qwen2": Family(
        liger=True,
        defaults=_QWEN2,
        switches={**_UNTIED, **_SLIDES},
        tensors=(
            *blocks.QKV_BIASED_ATTENTION,
            *blocks.GATED_MLP,
            *blocks.TWO_NORMS,
            *blocks.RMS_ENDS,
        ),
        default_lora_targets=_QV,
    ),
    "qwen3": Family(
        liger=True,
        defaults={**_QWEN2, "head_dim": 128},
        switches={**_UNTIED, **_BIASED, **_SLIDES},
        tensors=(*_LLAMA_BLOCK, *blocks.HEAD_NORMS),
        default_lora_targets=_QV,
    ),
    "gemma": Family(
        liger=True,
        defaults=_GEMMA,
        switches={**_TIED, **_BIASED},
        tensors=_LLAMA_BLOCK,
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
            *blocks.ATTENTION,
            *blocks.GATED_MLP,
            *blocks.FOUR_NORMS,
            *blocks.RMS_ENDS,
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
            *blocks.ATTENTION,
            *blocks.HEAD_NORMS,
            *blocks.GATED_MLP,
            *blocks.FOUR_NORMS,
            *blocks.RMS_ENDS,
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
            *blocks.ATTENTION,
            *blocks.EXPERTS,
            *blocks.TWO_NORMS,
            *blocks.RMS_ENDS,
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
            *blocks.QKV_BIAS_ATTENTION,
            *blocks.GATED_MLP,
            *blocks.EXPERTS,
            *blocks.SHARED_EXPERT,
            *blocks.TWO_NORMS,
            *blocks.RMS_ENDS,
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
        tensors=(*_LLAMA_BLOCK, *blocks.HEAD_NORMS, *blocks.EXPERTS),
        sliding_every=1,
        lora_targets=_LORA_OF_QWEN3_MOE,
        moe_block="Qwen3MoeSparseMoeBlock",
    ),
    "olmo2": Family(
        liger=True,
        defaults={**_LLAMA, "vocab_size": 50304},
        switches={**_UNTIED, **_BIASED},
        tensors=(*_LLAMA_BLOCK, *blocks.WIDE_NORMS),
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
        tensors=blocks.PHI3,
        sliding_every=1,
        value_in_qkv=blocks.ALWAYS,
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
        tensors=blocks.GPT2,
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
        tensors=blocks.GPT_NEOX,
        norm=Norm.LAYER,
        gated=NEVER,
        value_in_qkv=blocks.ALWAYS,
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
        tensors=blocks.FALCON,
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
        tensors=blocks.OPT,
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
        tensors=blocks.BERT,
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
        tensors=blocks.BERT,
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
        # integrations/sdpa_attention.py: its rows lie together since then.
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
        tensors=blocks.T5,
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
        tensors=blocks.VIT,
        norm=Norm.LAYER,
        gated=NEVER,
        causal=False,
        loss_in_fp32=False,
    ),
}
