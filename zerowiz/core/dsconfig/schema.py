"""Define which keys a DeepSpeed config may hold, and which values DeepSpeed accepts for each.

The rows come out of DeepSpeed itself, version by version (`tests/schema/make_schema.py`). What
DeepSpeed accepts was tried on its own config class: a row states what happens when the config is
read, not what a key is for.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.codec import decode
from zerowiz.core.dsconfig.classes import BuiltClass, Classes, classes_of
from zerowiz.core.dsconfig.user_config import TRUTHS
from zerowiz.core.values import Count


class Kind(StrEnum):
    """What a JSON value looks like, as far as DeepSpeed treats them differently."""

    NULL = "null"
    BOOLEAN = "boolean"
    WHOLE = "whole"
    """`8`, and `5e8`, which JSON makes a float."""
    FRACTION = "fraction"
    DIGITS = "digits"
    """`"8"`."""
    DECIMAL = "decimal"
    """`"8.0"`: digits in quotes, and a fraction of nothing."""
    NUMERAL = "numeral"
    """`"5e8"`, `"1.5"`: any other number in quotes."""
    SWITCH = "switch"
    """`"true"`, `"off"`: a word that stands for a truth."""
    WORD = "word"
    AUTO = "auto"
    """`"auto"`, which the Trainer or Accelerate replaces before DeepSpeed reads it."""
    ARRAY = "array"
    OBJECT = "object"


NUMERALS = frozenset({Kind.DIGITS, Kind.DECIMAL, Kind.NUMERAL})
"""Numbers in quotes."""


class Unknown(StrEnum):
    """What DeepSpeed does with a key of a section that it does not know."""

    REFUSED = "refused"
    IGNORED = "ignored"
    FREE = "free"
    """The keys are the reader's own: an optimizer's arguments, names of layers."""


# pydantic's words for the bounds of a field.
BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


class SchemaKey(Struct, frozen=True, kw_only=True):
    """One key of a config; a section is one too, and the path of the whole config is empty."""

    path: str
    """As DeepSpeed's documentation spells it: `zero_optimization.stage3_max_live_parameters`."""
    types: tuple[str, ...] = ()
    """What is meant, in JSON Schema's words; empty when no type of JSON is."""
    takes: tuple[Kind, ...] = ()
    """What DeepSpeed reads without an error, meant or not."""
    default: str | None = None
    """As JSON; `None` when the section has none, or DeepSpeed names none."""
    choices: tuple[str, ...] = ()
    """As JSON; of the items, where the value is an array."""
    any_case: bool = False
    """Whether a choice may be spelled in capitals or without."""
    bounds: Mapping[str, Count] = field(default_factory=dict)
    """By the words of BOUNDS."""
    deprecated: bool = False
    new_path: str | None = None
    """Where the value of a deprecated key goes."""
    aliases: tuple[str, ...] = ()
    """Other names that it has in its section."""
    unknown: Unknown | None = None
    """What happens to unknown keys in it; `None` for what is no section."""
    about: str | None = None
    source: str | None = None
    """The file of DeepSpeed, and the class or function in it that reads the key."""

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it has in its section."""
        return (self.name, *self.aliases)

    @property
    def section(self) -> str:
        """The path of what holds it."""
        return self.path.rpartition(".")[0]

    @property
    def removed(self) -> bool:
        """Whether DeepSpeed knows the key only to refuse it."""
        return not self.takes

    def accepts(self, value: object) -> bool:
        """Whether DeepSpeed reads this value of the key without an error.

        It does not look at other keys, nor inside a section.
        """
        return (
            kind_of(value) in self.takes
            and all(self._offers(item) for item in _items(value))
            and all(self._bounds(item) for item in _items(value))
        )

    def _offers(self, item: object) -> bool:
        if not self.choices or kind_of(item) in _NO_CHOICE:
            return True
        choices = [json.loads(choice) for choice in self.choices]
        if self.any_case and isinstance(item, str):
            return item.lower() in [choice.lower() for choice in choices]
        return item in choices or _number(item) in choices

    def _bounds(self, item: object) -> bool:
        number = _number(item)
        if number is None:
            return True
        return all(BOUNDS[word](number, bound) for word, bound in self.bounds.items())


_NO_CHOICE = frozenset({Kind.NULL, Kind.AUTO, Kind.OBJECT})

# Words alone: "1" and "0" are digits first.
_SWITCHES = TRUTHS.keys() - {"1", "0"}


def kind_of(value: object) -> Kind:
    """What a value of a parsed JSON text looks like."""
    if isinstance(value, str):
        return _kind_of_text(value)
    if isinstance(value, float):
        return Kind.WHOLE if value.is_integer() else Kind.FRACTION
    return next(kind for of, kind in _KINDS if isinstance(value, of))


# In this order: a bool is an int to Python.
_KINDS: Sequence[tuple[type, Kind]] = (
    (bool, Kind.BOOLEAN),
    (int, Kind.WHOLE),
    (type(None), Kind.NULL),
    (Mapping, Kind.OBJECT),
    (Sequence, Kind.ARRAY),
)
_TEXTS: Sequence[tuple[re.Pattern[str], Kind]] = (
    (re.compile(r"auto"), Kind.AUTO),
    (re.compile(r"[+-]?\d+"), Kind.DIGITS),
    (re.compile(r"[+-]?\d+\.0+"), Kind.DECIMAL),
    (re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE), Kind.NUMERAL),
    (re.compile("|".join(sorted(_SWITCHES)), re.IGNORECASE), Kind.SWITCH),
)


def _kind_of_text(text: str) -> Kind:
    return next((kind for form, kind in _TEXTS if form.fullmatch(text)), Kind.WORD)


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str) and kind_of(value) in NUMERALS:
        return float(value)
    return None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


class Schema(Struct, frozen=True, kw_only=True):
    """Every key that one version of DeepSpeed knows."""

    version: str
    keys: Mapping[str, SchemaKey]
    """By their paths."""
    classes: Classes = Classes(rows={})

    def find(self, path: str) -> SchemaKey | None:
        """The key of this path, whichever of its names the path uses."""
        key: SchemaKey | None = self.keys[""]
        for name in filter(None, path.split(".")):
            key = key and self._child(key, name)
        return key

    def _child(self, section: SchemaKey, name: str) -> SchemaKey | None:
        exact = self.keys.get(f"{section.path}.{name}".lstrip("."))
        return exact or next((k for k in self.children(section.path) if name in k.aliases), None)

    def children(self, section: str) -> tuple[SchemaKey, ...]:
        """The keys right inside a section."""
        return tuple(key for key in self.keys.values() if key.path and key.section == section)

    @property
    def top_names(self) -> frozenset[str]:
        """Every name at the top level of a config."""
        return frozenset(name for key in self.children("") for name in key.names)

    def fate(self, path: str) -> Unknown:
        """What DeepSpeed does with a key of this path that `find` does not know."""
        above = path.rpartition(".")[0]
        while (section := self.find(above)) is None:
            above = above.rpartition(".")[0]
        return section.unknown or Unknown.FREE


class _Step(Struct, frozen=True, kw_only=True):
    """A version, as it differs from the one before it in the file."""

    version: str
    keys: tuple[SchemaKey, ...]
    classes: tuple[BuiltClass, ...] = ()
    dropped: tuple[str, ...] = ()


class _File(Struct, frozen=True, kw_only=True):
    versions: tuple[_Step, ...]


def decode_schemas(value: object) -> tuple[Schema, ...]:
    """The schemas of `zerowiz/data/ds_schema.json`, the newest first."""
    schemas: list[Schema] = []
    keys: dict[str, SchemaKey] = {}
    classes: dict[str, BuiltClass] = {}
    for step in decode(_File, value, "ds_schema").versions:
        kept = {path: key for path, key in keys.items() if path not in step.dropped}
        keys = dict(sorted((kept | {key.path: key for key in step.keys}).items()))
        left = {path: each for path, each in classes.items() if path not in step.dropped}
        classes = left | {each.path: each for each in step.classes}
        schemas.append(
            Schema(version=step.version, keys=keys, classes=classes_of(classes.values()))
        )
    return tuple(schemas)


def choose_schema(schemas: Sequence[Schema], version: str | None) -> Schema:
    """The schema to hold a config of this version against.

    The version's own; else the newest that is not newer; else the oldest. Without a version, the
    newest. A version without a patch is the last of its patches: `0.19` is 0.19.8.

    Args:
        schemas: The newest first.
        version: Of DeepSpeed, as in `deepspeed.__version__`.
    """
    if version is None:
        return schemas[0]
    wanted = release(version)
    size = len(wanted)
    return next((s for s in schemas if release(s.version)[:size] <= wanted), schemas[-1])


def release(version: str) -> tuple[int, ...]:
    """`0.19.8+cu13` is (0, 19, 8)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
