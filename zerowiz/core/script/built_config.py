"""Settle the model config that a script makes in its code."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.model.built_config import may_decide_size
from zerowiz.core.script.bindings import Bindings, Setting, as_count, as_text
from zerowiz.core.script.options import Scalar
from zerowiz.words import _, listing

# A script takes it from its tokenizer, and it changes the model little.
_ASSUMED = frozenset({"vocab_size"})


class ModelConfig(Struct, frozen=True, kw_only=True):
    """The config of the model that a run builds, as far as it is known."""

    base: str | None
    """The model whose config it changes; None for a config of its own, or where nobody names it."""
    family: str | None
    """The `model_type` of a config of its own."""
    values: Mapping[str, Scalar]
    """Those that decide how large the model is, by their keys in a config.json."""
    assumed: Mapping[str, str]
    """The code of values that are not known, and for which the default counts."""
    source: str
    """What makes it, for messages."""

    @property
    def is_whole(self) -> bool:
        """Whether it is known what it changes."""
        return self.base is not None or self.family is not None

    @property
    def name(self) -> str:
        """A short one."""
        return self.base or self.family or ""


class OwnModel(Struct, frozen=True, kw_only=True):
    """A model of the script's own classes, as large as a GPT of the same sizes."""

    layers: int
    hidden_size: int
    vocab_size: int
    source: str
    """Where the sizes stand, for messages."""

    @property
    def parameters(self) -> int:
        """Of a GPT: attention of 4 and an MLP of 8 squares of the width in each layer."""
        return self.layers * 12 * self.hidden_size**2 + self.vocab_size * self.hidden_size


# That of GPT-2.
_VOCABULARY = 50257


def settle_own_model(run: Bindings) -> OwnModel | None:
    """The sizes of the script's own model in this run; None where they are not known."""
    seen = run.facts.own_sizes
    if seen is None:
        return None
    layers, width = (as_count(run.setting(each)) for each in (seen.layers, seen.hidden_size))
    vocabulary = as_count(run.setting(seen.vocab_size))
    if layers is None or width is None:
        return None
    return OwnModel(
        layers=layers.value,
        hidden_size=width.value,
        vocab_size=_VOCABULARY if vocabulary is None else vocabulary.value,
        source=listing(dict.fromkeys((layers.source, width.source))),
    )


class SettledModel(NamedTuple):
    """The model of a run."""

    named: Setting[str] | None
    """The one that it loads, or whose config it changes."""
    made: ModelConfig | None = None
    hidden: str | None = None
    """The code that decides the size of the model, where nothing says what it gives."""


def settle_model(run: Bindings) -> SettledModel:
    """The model that this run loads or builds, as far as that is known."""
    built = run.facts.built_config
    if built is None:
        return SettledModel(as_text(run.setting(run.facts.model)))
    base, family = (as_text(run.setting(each)) for each in (built.base, built.family))
    name = None if family is None else family.value
    values, assumed = dict[str, Scalar](), dict[str, str]()
    for key, binding in built.values.items():
        found, code = run.setting(binding), binding.code or binding.flag
        if (found is None and code is None) or not may_decide_size(name, key):
            continue
        if found is not None:
            values[key] = found.value
        elif key in _ASSUMED:
            assumed[key] = code or ""
        else:
            return SettledModel(None, hidden=_where(run, code or "", binding.line))
    if family is None and not (values or assumed):
        return SettledModel(base)
    config = ModelConfig(
        base=None if base is None else base.value,
        family=name,
        values=values,
        assumed=assumed,
        source=_where(run, built.code, built.line),
    )
    return SettledModel(base, config)


def _where(run: Bindings, code: str, line: int | None) -> str:
    return f"`{code}` " + _("in {path} line {line}", path=run.facts.text_path, line=line)
