"""The model families: how each differs from the plain Llama block."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one `model_type` differs from the plain Llama block."""

    defaults: Mapping[str, float | None]
    """What its config class assumes where config.json is silent, None where it derives the value.

    A key that is not listed is one that its modelling code never reads.
    """
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How its config.json spells our keys, where it does so differently."""
    unsupported: tuple[str, ...] = ()
    """Switches of its config that add tensors nobody counts here."""
    qkv_bias: bool = False
    """Biases on q, k and v alone, whatever the config says."""
    qk_norm: bool = False
    norms_per_layer: int = 2
    gated_mlp: bool = True
    gpt2_block: bool = False


_LLAMA: Mapping[str, float | None] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
_BIASED: Mapping[str, float | None] = {"attention_bias": False}
_MISTRAL = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_QWEN2 = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_GEMMA2 = {
    **_LLAMA,
    **_BIASED,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
}

# Rule: what a family adds to or takes from the Llama block is said here and nowhere else.
# Source of every row: transformers 5.23, models/<family>/configuration_<family>.py for the
# defaults and modeling_<family>.py for the rest; tests/core/test_model.py builds them all.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(defaults={**_LLAMA, **_BIASED, "mlp_bias": False}),
    "mistral": Family(defaults=_MISTRAL),
    "qwen2": Family(defaults=_QWEN2, qkv_bias=True),
    "qwen3": Family(defaults={**_QWEN2, **_BIASED, "head_dim": 128}, qk_norm=True),
    "gemma": Family(
        defaults={
            **_LLAMA,
            **_BIASED,
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": Family(defaults=_GEMMA2, norms_per_layer=4),
    "gemma3_text": Family(
        defaults={
            **_GEMMA2,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
        },
        norms_per_layer=4,
        qk_norm=True,
    ),
    "mixtral": Family(
        defaults={**_MISTRAL, "num_experts": 8, "num_experts_per_tok": 2},
        spellings={"num_experts": ("num_local_experts", "num_experts")},
    ),
    "qwen3_moe": Family(
        defaults={
            **_QWEN2,
            **_BIASED,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "intermediate_size": 768,
            "dense_intermediate_size": 6144,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        spellings={
            "num_experts": ("num_experts", "num_local_experts"),
            "intermediate_size": ("moe_intermediate_size",),
            "dense_intermediate_size": ("intermediate_size",),
        },
        qk_norm=True,
    ),
    "gpt2": Family(
        defaults={
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
        },
        spellings={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner",),
            "attention_dropout": ("attn_pdrop",),
            "residual_dropout": ("resid_pdrop",),
        },
        unsupported=("add_cross_attention",),
        gated_mlp=False,
        gpt2_block=True,
    ),
}
