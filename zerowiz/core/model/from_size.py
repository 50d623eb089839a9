"""Make the model that stands for a size such as `7b`."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from zerowiz.core.model.hf_config import read_architecture
from zerowiz.core.model.tensors import list_tensors
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmbt])", re.IGNORECASE)
_UNITS: Mapping[str, float] = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def parse_size(text: str) -> int | None:
    """The parameter count of a size such as `7b`, `1.5B` or `10m`; None for any other text."""
    match = _SIZE.fullmatch(text.strip())
    return round(float(match[1]) * _UNITS[match[2].lower()]) if match else None


_SMALLEST_PARAMS, _LARGEST_PARAMS = 10**6, 10**12
# Touvron et al. 2023a, table 2: 128 (7B, 13B) to 102 (65B) channels per layer.
_WIDTH_PER_LAYER = 120
# Touvron et al. 2023a, section 2.2: an MLP of 2/3 times 4 h.
_MLP_PER_WIDTH = 8 / 3
# Touvron et al. 2023a, section 2.1: the tokenizer of Llama 1 and 2.
_VOCAB_SIZE = 32000
# Llama 1 to 3 at every size except 1B, which has half of it, as small models have here.
_HEAD_DIM = 128
# Round numbers, as in published models: 7B is 4096 wide and 32 deep, 13B is 5120 and 40.
_WIDTHS = (*range(64, 1024, 64), *range(1024, 32769, 512))
_DEPTHS = range(4, 257, 4)


class _Shape(NamedTuple):
    """A Llama with as many key heads as query heads, and untied embeddings."""

    hidden_size: int
    layers: int
    intermediate_size: int
    vocab_size: int

    @property
    def distance(self) -> float:
        """How much its proportions differ from those of a published Llama."""
        width_per_layer = self.hidden_size / self.layers
        mlp_per_width = self.intermediate_size / self.hidden_size
        return abs(math.log(width_per_layer / _WIDTH_PER_LAYER)) + abs(
            math.log(mlp_per_width / _MLP_PER_WIDTH)
        )


def _shapes_of(params: int) -> Iterator[_Shape]:
    """Every width and depth, each with the width of the MLP that brings the sum to `params`."""
    for width in _WIDTHS:
        # A small model has a small vocabulary: the embeddings take at most half of the parameters.
        vocab_size = min(_VOCAB_SIZE, 8 * (params // (4 * width) // 8))
        for layers in _DEPTHS:
            mlp_params = params - 2 * vocab_size * width - layers * 4 * width**2
            wide = 16 * round(mlp_params / (3 * width * layers) / 16)
            if wide >= width:
                yield _Shape(width, layers, wide, vocab_size)


def model_from_size(name: str, params: int) -> Model:
    """A Llama of this size; its count is exactly `params`, its shape is the most likely one.

    Args:
        name: What the model is called.
        params: The parameter count.

    Raises:
        UsageError: The size is not that of a language model.
    """
    if not _SMALLEST_PARAMS <= params <= _LARGEST_PARAMS:
        raise UsageError(
            f"a model of {params} parameters (`{name}`) cannot be planned from its size",
            "a size lies between `1m` and `1t`; any other model needs a folder with config.json",
        )
    shape = min(_shapes_of(params), key=lambda shape: shape.distance)
    architecture = read_architecture(
        name,
        {
            "model_type": "llama",
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.hidden_size // math.gcd(shape.hidden_size, _HEAD_DIM),
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
