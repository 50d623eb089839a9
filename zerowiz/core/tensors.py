"""List the tensors that transformers builds for an architecture."""

from zerowiz.core.families import FAMILIES
from zerowiz.core.model import Architecture, Tensor


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every trainable tensor of the model, as transformers builds it, tied weights once."""
    a, is_gpt2 = architecture, FAMILIES[architecture.family].gpt2_block
    vocabulary = (a.vocab_size, a.hidden_size)
    ends = (
        ("embed_tokens", vocabulary, True),
        ("embed_positions", (a.positions, a.hidden_size), is_gpt2),
        ("lm_head", vocabulary, not a.tied_embeddings),
    )
    return (
        *(Tensor(name=n, shape=shape, in_block=False) for n, shape, held in ends if held),
        *(_gpt2_block(a) if is_gpt2 else _llama_block(a)),
    )


def _llama_block(a: Architecture) -> tuple[Tensor, ...]:
    family = FAMILIES[a.family]
    h, layers = a.hidden_size, a.layers
    qkv_bias = family.qkv_bias or a.attention_bias
    vectors = (
        ("q_proj.bias", a.query_size, qkv_bias),
        ("k_proj.bias", a.kv_size, qkv_bias),
        ("v_proj.bias", a.kv_size, qkv_bias),
        ("o_proj.bias", h, a.attention_bias),
        ("gate_proj.bias", a.intermediate_size, a.mlp_bias),
        ("up_proj.bias", a.intermediate_size, a.mlp_bias),
        ("down_proj.bias", h, a.mlp_bias),
        ("q_norm", a.head_dim, family.qk_norm),
        ("k_norm", a.head_dim, family.qk_norm),
    )
    return (
        Tensor(name="q_proj", shape=(a.query_size, h), copies=layers, linear=True),
        Tensor(name="k_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="v_proj", shape=(a.kv_size, h), copies=layers, linear=True),
        Tensor(name="o_proj", shape=(h, a.query_size), copies=layers, linear=True),
        *(Tensor(name=n, shape=(size,), copies=layers) for n, size, held in vectors if held),
        *_gated_mlp(a),
        *_fused_experts(a),
        Tensor(name="norm", shape=(h,), copies=family.norms_per_layer * layers),
        Tensor(name="final_norm", shape=(h,), in_block=False),
    )


def _gated_mlp(a: Architecture) -> tuple[Tensor, ...]:
    """Of the layers without experts."""
    h, wide, layers = a.hidden_size, a.dense_intermediate_size, a.layers - a.expert_layers
    if not layers:
        return ()
    return (
        Tensor(name="gate_proj", shape=(wide, h), copies=layers, linear=True),
        Tensor(name="up_proj", shape=(wide, h), copies=layers, linear=True),
        Tensor(name="down_proj", shape=(h, wide), copies=layers, linear=True),
    )


def _fused_experts(a: Architecture) -> tuple[Tensor, ...]:
    """Of the layers with experts, which transformers keeps as two tensors of three dimensions."""
    h, wide, layers = a.hidden_size, a.intermediate_size, a.expert_layers
    if not layers:
        return ()
    return (
        Tensor(name="router", shape=(a.experts, h), copies=layers),
        Tensor(name="experts.gate_up_proj", shape=(a.experts, 2 * wide, h), copies=layers),
        Tensor(name="experts.down_proj", shape=(a.experts, h, wide), copies=layers),
    )


def _gpt2_block(a: Architecture) -> tuple[Tensor, ...]:
    h, wide, layers = a.hidden_size, a.intermediate_size, a.layers
    linears = (("c_attn", h, 3 * h), ("attn.c_proj", h, h), ("c_fc", h, wide), ("c_proj", wide, h))
    return (
        *(Tensor(name=n, shape=(i, o), copies=layers, linear=True) for n, i, o in linears),
        *(Tensor(name=f"{n}.bias", shape=(o,), copies=layers) for n, _, o in linears),
        Tensor(name="ln", shape=(h,), copies=4 * layers),
        Tensor(name="ln_f", shape=(h,), copies=2, in_block=False),
    )
