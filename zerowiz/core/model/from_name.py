"""The model that a name, a size such as `7b`, or an unknown config.json stands for."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import (
    MOST_LAYERS,
    list_tensors,
    model_from_config,
    read_architecture,
)
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.structs import Count, replace
from zerowiz.errors import UsageError

_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)([kmbt])", re.IGNORECASE)
_UNITS: Mapping[str, float] = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def parse_size(text: str) -> int | None:
    """The parameter count of a size such as `7b`, `1.5B` or `10m`; None for any other text."""
    match = _SIZE.fullmatch(text.strip())
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match else None


_SMALLEST_PARAMS, _LARGEST_PARAMS = 10**6, 10**12
# Llama 1 to 3 at every size except 1B, which has half of it, as small models have here.
_HEAD_DIM = 128
# Round numbers, as in published models: Llama 7B is 4096 wide and 32 deep, 13B is 5120 and 40.
_WIDTHS = (*range(64, 1024, 64), *range(1024, 32769, 512))
_DEPTHS = range(4, 257, 4)


class _Style(NamedTuple):
    """The proportions of a family."""

    family: str
    width_per_layer: float
    """At 1e9 parameters."""
    widening: float
    """The power of the size that it grows with."""
    mlp_per_width: float
    vocab_size: int
    embeddings: int
    """1 where the head is the embedding."""
    most_embedded: float
    """The part of the parameters that a small model's embeddings take at most."""
    heads_per_kv: int

    def attention_params(self, width: int) -> int:
        """Of one layer: queries and outputs, keys and values."""
        return 2 * width**2 + 2 * width**2 // self.heads_per_kv


# Touvron et al. 2023a, table 2: 128 (7B, 13B) to 102 (65B) channels per layer; section 2.2: an MLP
# of 2/3 times 4 h; section 2.1: the tokenizer of Llama 1 and 2.
_LLAMA = _Style("llama", 120, 0, 8 / 3, 32000, 2, 1 / 2, 1)
# The config.json of each Gemma 3: 36 (270M), 44 (1B), 75 (4B), 80 (12B) and 87 (27B) channels per
# layer; an MLP of 4 h and half as many key heads (4B to 27B); 2/3 of 270M embedded.
_GEMMA = _Style("gemma3_text", 45, 0.2, 4, 262144, 1, 2 / 3, 2)


def _shapes_of(params: int, style: _Style) -> Iterator[dict[str, int]]:
    """Ever nearer shapes: a width and a depth, and the MLP that brings the sum to `params`."""
    nearest = math.inf
    wide_layer = style.width_per_layer * (params / 1e9) ** style.widening
    # Few depths have a shape that is wide: the first ones come near.
    for width in reversed(_WIDTHS):
        most_words = int(style.most_embedded * params / (style.embeddings * width))
        vocab_size = min(style.vocab_size, 8 * (most_words // 8))
        blocks_params = params - style.embeddings * vocab_size * width
        attention_params = style.attention_params(width)
        # With any other depth it is further away than the nearest so far, whatever its MLP is.
        deep, apart = width / wide_layer, math.exp(nearest)
        shallowest = bisect_left(_DEPTHS, deep / apart)
        for layers in _DEPTHS[shallowest : bisect_right(_DEPTHS, deep * apart)]:
            distance = abs(math.log(width / layers / wide_layer))
            if distance >= nearest:
                continue
            mlp_params = blocks_params - layers * attention_params
            wide = 16 * round(mlp_params / (48 * width * layers))
            if wide < width:
                break
            distance += abs(math.log(wide / width / style.mlp_per_width))
            if distance < nearest:
                nearest = distance
                yield {
                    "hidden_size": width,
                    "num_hidden_layers": layers,
                    "intermediate_size": wide,
                    "vocab_size": vocab_size,
                }


def _model_of(name: str, params: int, style: _Style) -> Model:
    """A model of a style with the parameters that were asked for."""
    *_, shape = _shapes_of(params, style)
    width = shape["hidden_size"]
    heads = width // math.gcd(width, _HEAD_DIM)
    architecture = read_architecture(
        name,
        {
            "model_type": style.family,
            **shape,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // style.heads_per_kv),
            "head_dim": width // heads,
        },
    )
    return Model(
        name=name,
        source=ModelSource.SIZE,
        params=params,
        architecture=architecture,
        tensors=list_tensors(architecture),
    )


def model_from_size(name: str, params: int) -> Model:
    """A Llama of this size; its count is exactly `params`, its shape is the most likely one.

    With it comes the Gemma of this size, whose vocabulary is eight times as large.

    Args:
        name: What the model is called.
        params: The parameter count.

    Raises:
        UsageError: The size is not that of a language model.
    """
    if not _SMALLEST_PARAMS <= params <= _LARGEST_PARAMS:
        raise UsageError(
            f"a size such as `{name}` must be between `1m` and `1t`",
            "for another size, pass a folder with the model's config.json",
        )
    return replace(_model_of(name, params, _LLAMA), heaviest=_model_of(name, params, _GEMMA))


_LLAMA_KEYS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "positions",
    "tie_word_embeddings": "tied_embeddings",
}


def config_of_size(model: Model) -> dict[str, object]:
    """The config.json of the Llama that stands for a size; empty for a model that has its own."""
    if model.source is not ModelSource.SIZE:
        return {}
    values = {key: getattr(model.architecture, name) for key, name in _LLAMA_KEYS.items()}
    # A toy's vocabulary can be smaller than the ids that LlamaConfig names by default.
    ids: dict[str, object] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **values, **ids}


# A GPT of a script's own classes, by the sizes that it shows.

_GPT = re.compile(
    r"gpt-(?P<layers>\d{1,9})x(?P<width>\d{1,9})-v(?P<vocabulary>\d{1,9})(?P<tied>-tied)?"
)


def config_of_gpt(text: str) -> dict[str, object] | None:
    """The config of a GPT that is named by its sizes; None for any other text.

    Args:
        text: Layers, width and vocabulary: `gpt-12x768-v50304`; `-tied` where the head is the
            embedding.

    Example:
        >>> guess_model("own", config_of_gpt("gpt-12x768-v50257-tied")).params
        123551232
    """
    match = _GPT.fullmatch(text)
    if match is None:
        return None
    width = int(match["width"])
    return {
        "model_type": "gpt",
        "num_hidden_layers": int(match["layers"]),
        "hidden_size": width,
        # Radford et al. 2019: heads of 64, and two matrices of 4 h.
        "num_attention_heads": max(1, width // math.gcd(width, 64)),
        "intermediate_size": 4 * width,
        "hidden_act": "gelu",
        "vocab_size": int(match["vocabulary"]),
        "tie_word_embeddings": match["tied"] is not None,
        # Nothing says how long its sequences may be.
        "max_position_embeddings": 2**20,
    }


# Guess a model of an unknown family by the sizes in its config.json.

Config = Mapping[str, object]

# The keys of Llama and Qwen3-MoE, each with the names that families use for it (transformers,
# attribute_map of models/*/configuration_*.py).
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
_KEYS: Mapping[str, tuple[str, ...]] = {
    **_NEEDED,
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "d_kv"),
    "tie_word_embeddings": ("tie_word_embeddings",),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "attention_bias": ("attention_bias",),
    "mlp_bias": ("mlp_bias",),
    "attention_dropout": ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size",),
    "decoder_sparse_step": ("decoder_sparse_step",),
    "mlp_only_layers": ("mlp_only_layers",),
}
# transformers, modeling_{bert,gpt2,clip,opt,nemotron,apertus}.py: an MLP with one of these has two
# matrices, where Llama's has three.
_WITHOUT_GATE = frozenset({"gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2", "xielu"})
_BY_SIZE = "or plan with a Llama of about the same size: `$model 7b`"


def is_unknown(config: Config) -> bool:
    """Whether the model's family is not in FAMILIES."""
    wraps = isinstance(config.get("text_config"), dict)
    model_type = config.get("model_type")
    return isinstance(model_type, str) and (wraps or model_type not in FAMILIES)


# What configs of transformers call the longest sequence; of an encoder-decoder that it writes.
LENGTHS = ("max_target_positions", "max_position_embeddings", "n_positions", "max_seq_len")
"""In the order of what counts."""


def made_for(config: Config) -> int | None:
    """The longest sequence that the model of a config was made for; None where it says none.

    Example:
        >>> made_for({"model_type": "whisper", "max_target_positions": 448})
        448
    """
    text = config.get("text_config")
    sizes = text if isinstance(text, dict) else config
    said = (sizes.get(key) for key in LENGTHS)
    return next((length for length in said if isinstance(length, int) and length > 0), None)


def _obstacle(text: Config, sizes: Config) -> str | None:
    """Why no Llama can stand for this model; None where one can."""
    if text.get("is_encoder_decoder"):
        return "zerowiz does not estimate unknown encoder-decoders"
    missing = [key for key in _NEEDED if key not in sizes]
    if "vocab_size" in missing and "image_size" in text:
        return "zerowiz does not estimate unknown image models"
    return f"`{missing[0]}` is missing" if missing else None


def _read_sizes(text: Config) -> dict[str, object]:
    """The values of the config, by Llama's keys."""
    sizes = {
        key: next((text[name] for name in names if text.get(name) is not None), None)
        for key, names in _KEYS.items()
    }
    return {key: value for key, value in sizes.items() if value is not None}


def _experts(text: Config, sizes: Config) -> dict[str, object]:
    """The family that stands for the model, with the keys that a mixture of experts needs."""
    if not sizes.get("num_experts"):
        return {"model_type": "llama"}
    wide = sizes.get("moe_intermediate_size", sizes["intermediate_size"])
    shared, dense = text.get("n_shared_experts"), text.get("first_k_dense_replace")
    keys: dict[str, object] = {"model_type": "qwen3_moe", "moe_intermediate_size": wide}
    # transformers, models/deepseek_v3/modeling_deepseek_v3.py: the first layers are dense.
    if isinstance(dense, int):
        keys["mlp_only_layers"] = list(range(min(dense, MOST_LAYERS)))
    if isinstance(shared, int) and isinstance(wide, int) and shared > 0:
        keys["shared_expert_intermediate_size"] = shared * wide
    if "shared_expert_intermediate_size" in {**sizes, **keys}:
        keys |= {"model_type": "qwen2_moe", "qkv_bias": sizes.get("attention_bias", False)}
    return keys


def _as_llama(text: Config, read: Config) -> Config:
    """The config of the Llama that stands for the model.

    Args:
        text: The keys of the language model.
        read: Its sizes, of `_read_sizes`.
    """
    hidden_size, wide = read["hidden_size"], read.get("intermediate_size")
    if wide is None and isinstance(hidden_size, int):
        # Vaswani et al. 2017, section 3.3: two matrices of 4 h.
        wide = 8 * hidden_size // 3
    elif isinstance(wide, int) and str(read.get("hidden_act")) in _WITHOUT_GATE:
        wide = 2 * wide // 3
    heads = {"num_key_value_heads": 1} if text.get("multi_query") is True else {}
    # transformers 4, configuration_utils.py, PretrainedConfig: the default is true, and a file has
    # the key only for false.
    sizes = {"tie_word_embeddings": True, **heads, **read, "intermediate_size": wide}
    return {**sizes, **_experts(text, sizes)}


def guess_model(name: str, config: Config) -> Model:
    """A model of an unknown family, counted as a Llama with the sizes of its config.

    Of a multimodal model whose language model is known, only the language model is counted.

    Args:
        name: What the model is called.
        config: The content of its config.json.

    Raises:
        UsageError: A size is missing, or no Llama resembles the model.
    """
    # The keys of the language model, which a multimodal model has in a section of their own.
    section = config.get("text_config")
    text = {**config, **section} if isinstance(section, dict) else config
    if text is not config and str(text.get("model_type")) in FAMILIES:
        model = model_from_config(name, {**text, "text_config": None})
        return replace(model, source=ModelSource.GUESS, wrapped=True)
    sizes = _read_sizes(text)
    obstacle = _obstacle(text, sizes)
    if obstacle is not None:
        raise UsageError(
            (
                f"config.json of `{name}`: `{config.get('model_type')}` is not supported "
                f"yet, and {obstacle}"
            ),
            f"supported: {', '.join(sorted(FAMILIES))}",
            _BY_SIZE,
        )
    model = model_from_config(name, _as_llama(text, sizes))
    return replace(model, source=ModelSource.GUESS, wrapped=text is not config)


# The models that are known without asking anybody, and which of them are one family.


class KnownModel(Struct, frozen=True, kw_only=True):
    """One row of `data/models.json`."""

    id: str
    """On the hub."""
    aliases: tuple[str, ...]
    """Ids of models with the same shape, and short names that no id has."""
    series: str
    """Those that were made together share a tokenizer, and train on the same data."""
    params: Count
    """As its publisher counts them; `build` counts as many."""
    config: Mapping[str, int | float | bool | str | None]
    """What its config.json says of its shape."""
    source: Mapping[str, str]
    """Where the shape and the count are from; `[?]` where nobody was found to publish the count."""

    @property
    def name(self) -> str:
        """The id without its owner."""
        return _own_name(self.id)

    def build(self) -> Model:
        """The model, counted by its config."""
        return model_from_config(self.name, self.config)


# Rule: the words of an id that say nothing of a model's shape.
_TRAINED = frozenset(
    ("meta", "hf", "base", "instruct", "chat", "it", "pt", "sft", "dpo", "deduped", "thinking")
)
# A version, a date, a length of context: people leave them out, and they can tell shapes apart.
_RELEASE = r"v\d+(?:\.\d+)?|\d{4}|\d+k"


def find_known(text: str, table: Sequence[KnownModel]) -> KnownModel | None:
    """The row that a hub id or a short name means: `llama-3.1-8b`, `Qwen2.5-7B-Instruct`, `8x7b`.

    None where there is none. Of an id its own name counts: a copy of a model keeps it. Of two rows
    with one short name the first is meant.
    """
    wanted = _own_name(text).strip().lower()
    rows = {_own_name(name).lower(): row for row in reversed(table) for name in _names(row)}
    if wanted in rows or "/" in text:
        return rows.get(wanted)
    return _by_short_name(table).get(_shorten(wanted))


def close_known(text: str, table: Sequence[KnownModel]) -> tuple[str, ...]:
    """Names like this one, each of which `find_known` knows."""
    names = {_shorten(row.name.lower()): row.name for row in table}
    keys = get_close_matches(_shorten(_own_name(text).lower()), names, n=3, cutoff=0.7)
    return tuple(names[key] for key in keys)


def _names(row: KnownModel) -> tuple[str, ...]:
    return (row.id, *row.aliases)


def _own_name(model_id: str) -> str:
    return model_id.rpartition("/")[2]


def _by_short_name(table: Sequence[KnownModel]) -> dict[str, KnownModel]:
    rows: dict[str, KnownModel] = {}
    for row in table:
        for name in map(_own_name, _names(row)):
            rows.setdefault(_shorten(name.lower()), row)
            rows.setdefault(_shorten(name.lower(), without_release=True), row)
    return rows


def _shorten(name: str, *, without_release: bool = False) -> str:
    """A name without punctuation and the words that say nothing of the shape."""
    words = [word for word in re.split(r"[\s_-]+", name) if word not in _TRAINED]
    if without_release:
        words = [word for word in words if not re.fullmatch(_RELEASE, word)]
    return "".join(words)


def find_siblings(model: Model, table: Sequence[KnownModel]) -> tuple[KnownModel, ...]:
    """The smaller models of the same series, the largest first; none where that is not known.

    A model belongs to a series that has its family and its vocabulary: a folder can have any name.
    """
    a = model.architecture
    shape = (a.family, a.vocab_size)
    series = {
        row.series for row in table if (row.config["model_type"], row.config["vocab_size"]) == shape
    }
    smaller = (row for row in table if row.series in series and row.params < model.params)
    return tuple(sorted(smaller, key=lambda row: -row.params))
