"""Compare a model that was counted by its config with the checkpoint in the same folder."""

import math
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.values import replace


class StoredTensor(Struct, frozen=True, kw_only=True):
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    """As safetensors writes it: `BF16`, `F32`."""
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


# Buffers that older releases saved with the weights: transformers/models/*/modeling_*.py,
# _keys_to_ignore_on_load_unexpected.
_BUFFERS = (".inv_freq", ".position_ids", ".masked_bias", ".attention.bias", ".attn.bias")
# The names of a tied weight that may be saved twice, by the name of the second copy:
# _tied_weights_keys.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight")
_TIED: Mapping[str, tuple[str, ...]] = {
    "lm_head.weight": _EMBEDDINGS,
    "embed_out.weight": ("embed_in.weight",),
    "encoder.embed_tokens.weight": ("shared.weight",),
    "decoder.embed_tokens.weight": ("shared.weight",),
    "cls.predictions.decoder.weight": _EMBEDDINGS,
    "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    "lm_head.decoder.weight": _EMBEDDINGS,
    "lm_head.decoder.bias": ("lm_head.bias",),
}


class Stored(Struct, frozen=True, kw_only=True):
    """The tensors of a checkpoint."""

    tensors: tuple[StoredTensor, ...]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Each dtype once, the one of most elements first."""
        numel = dict.fromkeys(sorted({tensor.dtype for tensor in self.tensors}), 0)
        for tensor in self.tensors:
            numel[tensor.dtype] += tensor.numel
        return tuple(sorted(numel, key=numel.__getitem__, reverse=True))

    def params(self, *, tied: bool) -> int:
        """Elements of all parameters.

        Args:
            tied: Whether the model ties its embeddings; then a second copy does not count.
        """
        names = [tensor.name for tensor in self.tensors]
        again = {
            name
            for name in names
            for copy, firsts in _TIED.items()
            if tied and name.endswith(copy) and any(other.endswith(firsts) for other in names)
        }
        return sum(
            tensor.numel
            for tensor in self.tensors
            if tensor.name not in again and not tensor.name.endswith(_BUFFERS)
        )


def settle(model: Model, stored: Stored | None) -> Model:
    """The model, with what the checkpoint in the folder of its config.json says of the count.

    The count stays that of the config, because transformers builds the model from the config.
    """
    if stored is None:
        return model
    params = stored.params(tied=model.architecture.tied_embeddings)
    if params != model.params:
        return replace(model, stored_params=params)
    return replace(model, source=ModelSource.SAFETENSORS)
