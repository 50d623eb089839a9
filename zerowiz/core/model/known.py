"""The models that are known without asking anybody, and which of them are one family."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.values import Count


class KnownModel(Struct, frozen=True, kw_only=True):
    """One row of `data/models.json`."""

    id: str
    """On the hub."""
    series: str
    """Those that were made together share a tokenizer, and train on the same data."""
    params: Count
    """As its publisher counts them; `build` counts as many."""
    config: Mapping[str, int | float | bool | str]
    """What its config.json says of its shape."""

    def build(self) -> Model:
        """The model, counted by its config."""
        return model_from_config(self.id.rpartition("/")[2], self.config)


class _ModelTable(Struct, frozen=True, kw_only=True):
    models: tuple[KnownModel, ...]


def decode_known_models(value: object) -> tuple[KnownModel, ...]:
    """The rows of `data/models.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_ModelTable, value, "model table").models


def find_siblings(model: Model, table: Sequence[KnownModel]) -> tuple[KnownModel, ...]:
    """The smaller models of the same series, the largest first; none where that is not known.

    A model belongs to a series that has its family and its vocabulary: a folder can have any name.
    """
    a = model.architecture
    shape = (a.family, a.vocab_size)
    own = {
        row.series for row in table if (row.config["model_type"], row.config["vocab_size"]) == shape
    }
    smaller = (row for row in table if row.series in own and row.params < model.params)
    return tuple(sorted(smaller, key=lambda row: -row.params))
