"""Make the model that stands for a size such as `7b`."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from zerowiz.core.model.hf_config import read_architecture
from zerowiz.core.model.tensors import list_tensors
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.words import _

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmbt])", re.IGNORECASE)
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


class _Shape(NamedTuple):
    """A model of a style with the parameters that were asked for."""

    hidden_size: int
    layers: int
    intermediate_size: int
    vocab_size: int


def _shapes_of(params: int, style: _Style) -> Iterator[_Shape]:
    """Ever nearer shapes: a width and a depth, and the MLP that brings the sum to `params`."""
    nearest = math.inf
    wide_layer = style.width_per_layer * (params / 1e9) ** style.widening
    for width in _WIDTHS:
        most_words = int(style.most_embedded * params / (style.embeddings * width))
        vocab_size = min(style.vocab_size, 8 * (most_words // 8))
        blocks_params = params - style.embeddings * vocab_size * width
        attention_params = style.attention_params(width)
        for layers in _DEPTHS:
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
                yield _Shape(width, layers, wide, vocab_size)


def _model_of(name: str, params: int, style: _Style) -> Model:
    *_, shape = _shapes_of(params, style)
    heads = shape.hidden_size // math.gcd(shape.hidden_size, _HEAD_DIM)
    architecture = read_architecture(
        name,
        {
            "model_type": style.family,
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // style.heads_per_kv),
            "head_dim": shape.hidden_size // heads,
            "intermediate_size": shape.intermediate_size,
            "vocab_size": shape.vocab_size,
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
            _("a size such as `{name}` must be between `1m` and `1t`", name=name),
            _("for another size, pass a folder with the model's config.json"),
        )
    return replace(_model_of(name, params, _LLAMA), heaviest=_model_of(name, params, _GEMMA))
