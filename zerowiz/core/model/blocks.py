"""The tensors of the blocks and ends of which families are composed.

A row has a name, a shape in symbols, and a condition. The symbols are those of SYMBOLS in
tensors.py: h hidden, q all query heads, kv all key heads, i the MLP, V the vocabulary; `2i` is
twice i. The condition names switches of the config: all of them must be on, those after `!` off.
Rows stand in the order of transformers' `model.parameters()`, as the shares of ranks are cut by it.
"""

from enum import StrEnum
from typing import NamedTuple

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
