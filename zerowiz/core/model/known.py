"""The models that are known without asking anybody, and which of them are one family."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.values import Count
from zerowiz.words import _


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


class _ModelTable(Struct, frozen=True, kw_only=True):
    models: tuple[KnownModel, ...]


def decode_known_models(value: object) -> tuple[KnownModel, ...]:
    """The rows of `data/models.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_ModelTable, value, _("model table")).models


# Rule: the words of an id that say nothing of a model's shape.
_TRAINED = frozenset(
    ("meta", "hf", "base", "instruct", "chat", "it", "pt", "sft", "dpo", "deduped", "thinking")
)
# A version, a date, a length of context: people leave them out, and they can tell shapes apart.
_RELEASE = re.compile(r"v\d+(?:\.\d+)?|\d{4}|\d+k")


def find_known(text: str, table: Sequence[KnownModel]) -> KnownModel | None:
    """The row that a hub id or a short name means: `llama-3.1-8b`, `Qwen2.5-7B-Instruct`, `8x7b`.

    None where there is none. Of an id its own name counts: a copy of a model keeps it. Of two rows
    with one short name the first is meant.
    """
    own = _own_name(text).strip().lower()
    rows = {_own_name(name).lower(): row for row in reversed(table) for name in _names(row)}
    if own in rows or "/" in text:
        return rows.get(own)
    return _by_short_name(table).get(_shorten(own))


def close_known(text: str, table: Sequence[KnownModel]) -> tuple[str, ...]:
    """Names like this one, each of which `find_known` knows."""
    names = {_shorten(row.name.lower()): row.name for row in table}
    found = get_close_matches(_shorten(_own_name(text).lower()), names, n=3, cutoff=0.7)
    return tuple(names[key] for key in found)


def _names(row: KnownModel) -> tuple[str, ...]:
    return (row.id, *row.aliases)


def _own_name(model_id: str) -> str:
    return model_id.rpartition("/")[2]


def _by_short_name(table: Sequence[KnownModel]) -> dict[str, KnownModel]:
    found: dict[str, KnownModel] = {}
    for row in table:
        for name in map(_own_name, _names(row)):
            found.setdefault(_shorten(name.lower()), row)
            found.setdefault(_shorten(name.lower(), without_release=True), row)
    return found


def _shorten(name: str, *, without_release: bool = False) -> str:
    """A name without punctuation and the words that say nothing of the shape."""
    words = [word for word in re.split(r"[\s_-]+", name) if word not in _TRAINED]
    if without_release:
        words = [word for word in words if not _RELEASE.fullmatch(word)]
    return "".join(words)


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
