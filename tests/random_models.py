"""Draw random but valid models of every family, through the keys of their config.json."""

from collections.abc import Mapping

from hypothesis import strategies as st

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model

MOST_LAYERS = 48

_DROPOUTS = st.sampled_from((0.0, 0.1))
_WIDTHS = st.integers(1, 40_000)
_PLAIN_ACTS = st.sampled_from(("silu", "relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu"))
_GATED_ACTS = st.sampled_from(("relu", "gelu_new", "gated-gelu", "gated-silu"))
_LAYERS = st.integers(0, MOST_LAYERS)
_HEAD_DIMS = st.integers(1, 32).map(lambda n: 8 * n)

# What a key of a family's defaults may say; a family with a new key fails here until it is taught.
KEYS: Mapping[str, st.SearchStrategy[object]] = {
    "vocab_size": st.integers(1, 300_000),
    "hidden_size": st.integers(1, 128).map(lambda n: 64 * n),
    "intermediate_size": _WIDTHS,
    "dense_intermediate_size": _WIDTHS,
    "shared_expert_intermediate_size": st.integers(0, 10_000),
    "embedding_size": st.sampled_from((None, 64, 512, 3000)),
    "num_hidden_layers": st.integers(1, MOST_LAYERS),
    "num_decoder_layers": st.none() | st.integers(1, MOST_LAYERS),
    "num_attention_heads": st.sampled_from((1, 2, 3, 6, 8, 12, 32, 64, 71)),
    "num_key_value_heads": st.just(None),
    "head_dim": _HEAD_DIMS,
    "max_position_embeddings": st.sampled_from((16, 512, 2048, 131_072)),
    "type_vocab_size": st.integers(1, 3),
    "relative_attention_num_buckets": st.integers(1, 64),
    "num_experts": st.integers(1, 160),
    "num_experts_per_tok": st.integers(1, 8),
    "decoder_sparse_step": st.integers(1, 4),
    "mlp_only_layers": st.none() | st.lists(_LAYERS, max_size=4),
    "sliding_window": st.none() | st.integers(1, 8192),
    "sliding_window_pattern": st.integers(1, 8),
    "max_window_layers": _LAYERS,
    "layer_types": st.none(),
    "final_logit_softcapping": st.sampled_from((None, 30.0)),
    "attn_logit_softcapping": st.sampled_from((None, 50.0)),
    "num_ln_in_parallel_attn": st.sampled_from((None, 1, 2)),
    "image_size": st.sampled_from((32, 224, [64, 96])),
    "patch_size": st.sampled_from((8, 16, [8, 16])),
    "num_channels": st.integers(1, 4),
    "num_labels": st.integers(0, 1000),
    "hidden_act": _PLAIN_ACTS,
    "attention_dropout": _DROPOUTS,
    "residual_dropout": _DROPOUTS,
    "embedding_dropout": _DROPOUTS,
}


def _spell(family: str, key: str) -> str | None:
    """How the config.json of this family names a key; None where it cannot say it."""
    return next(iter(FAMILIES[family].spellings.get(key, (key,))), None)


@st.composite
def configs(draw: st.DrawFn, family: str) -> dict[str, object]:
    """The content of a config.json that says every key of its family."""
    row = FAMILIES[family]
    said = {key: draw(KEYS[key]) for key in row.defaults}
    said |= {switch: draw(st.booleans()) for switch in row.switches}
    heads = said["num_attention_heads"]
    assert isinstance(heads, int)
    divisors = [count for count in range(1, heads + 1) if heads % count == 0]
    # One key or value head serves as many query heads as another.
    said["num_key_value_heads"] = draw(st.sampled_from((None, *divisors)))
    uncut = "head_dim" in row.defaults and (row.defaults["head_dim"] or draw(st.booleans()))
    if not uncut:
        # The hidden size is cut into heads.
        said |= {"head_dim": None, "hidden_size": heads * draw(_HEAD_DIMS)}
    if "gated" in row.gated:
        said["hidden_act"] = draw(_GATED_ACTS)
    if row.sliding_every == 0 and "layer_types" in row.defaults:
        layers = said["num_hidden_layers"]
        assert isinstance(layers, int)
        kinds = st.sampled_from(("sliding_attention", "full_attention"))
        said["layer_types"] = draw(st.none() | st.lists(kinds, min_size=layers, max_size=layers))
    named = {_spell(family, key): value for key, value in said.items()}
    return {"model_type": family, **{key: value for key, value in named.items() if key}}


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A model of any family, counted as one that a person names would be."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    return model_from_config(f"random {family}", draw(configs(family)))
