"""Find values that DeepSpeed refuses, or reads as something else."""

import json
import re
from collections.abc import Iterator, Mapping

from zerowiz.core.dsconfig.lint.config import AUTO, BATCH_KEYS, ZERO, Config, Entry, shown
from zerowiz.core.dsconfig.lint.edits import put
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, Edit
from zerowiz.core.dsconfig.schema import NUMERALS, Kind, SchemaKey
from zerowiz.core.dsconfig.user_config import truth_of
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.values import replace
from zerowiz.words import _, joined, listing

# What counts as meant, by JSON Schema's words. Python takes 1 for true, true for 1, and null is
# what is not set.
_TEXTS = {Kind.DIGITS, Kind.DECIMAL, Kind.NUMERAL, Kind.SWITCH, Kind.WORD, Kind.AUTO}
_MEANT: Mapping[str, frozenset[Kind]] = {
    "boolean": frozenset({Kind.BOOLEAN, Kind.WHOLE}),
    "integer": frozenset({Kind.WHOLE, Kind.BOOLEAN}),
    "number": frozenset({Kind.WHOLE, Kind.FRACTION, Kind.BOOLEAN}),
    "string": frozenset(_TEXTS),
    "array": frozenset({Kind.ARRAY}),
    "object": frozenset({Kind.OBJECT}),
    "null": frozenset({Kind.NULL}),
}
_QUOTED: Mapping[str, frozenset[Kind]] = {
    "boolean": frozenset({Kind.SWITCH}),
    "integer": NUMERALS,
    "number": NUMERALS,
}
# What a value of this type is in a section, where somebody wrote it in place of the section.
_BARE: Mapping[type, str] = {bool: "enabled", str: "device"}
_STAGE = f"{ZERO}.stage"
# autotuning/autotuner.py, Autotuner.tune.
_EVERY_STAGE = (_STAGE, "all")
# RFC 8259, section 6.
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


def check_values(config: Config) -> Iterator[ConfigFinding]:
    """Values that are wrong by themselves."""
    for entry in config.entries:
        if entry.key is None or entry.key.removed or _is_auto(entry.value):
            continue
        if entry.key.path in _PARAMS:
            continue  # a class is handed them: rules/optimizer.py
        fault = _fault(entry, entry.key) or _clips_nothing(entry, entry.key)
        if fault is not None and (section := _section_for(config, entry, entry.key)):
            fault = replace(fault, fix=_("write `{meant}`", meant=json.dumps(section)))
        if fault is not None:
            yield _for_the_tuner(fault) if config.tunes and _is_choice(entry) else fault


def _section_for(config: Config, entry: Entry, key: SchemaKey) -> Mapping[str, object] | None:
    """The section that stands for a bare value: `true` switches it on, `cpu` is its device."""
    name = _BARE.get(type(entry.value)) if "object" in key.types else None
    home = None if name is None else config.schema.keys.get(f"{key.path}.{name}")
    return {home.name: entry.value} if home is not None and home.accepts(entry.value) else None


def _is_choice(entry: Entry) -> bool:
    """Whether it is several values to the autotuner."""
    return entry.kind is Kind.ARRAY or (entry.path, entry.value) == _EVERY_STAGE


def _for_the_tuner(fault: ConfigFinding) -> ConfigFinding:
    message = _("{message}: only DeepSpeed's autotuner accepts it", message=fault.message)
    return replace(fault, severity=Severity.WARNING, message=message, edits=())


def _is_auto(value: object) -> bool:
    """Whether it is the word, or was meant to be."""
    return isinstance(value, str) and value.lower() == AUTO


_CLIPPING = "gradient_clipping"
_PARAMS = frozenset({"optimizer.params", "scheduler.params"})
# runtime/engine.py, step.
_COMPARED = _("DeepSpeed compares it with 0 in the first step, and fails")
_UNCHECKED = _("DeepSpeed does not check the value when it reads it")
WRONG_TYPE = Rule(
    code="ZW201",
    name="wrong-type",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects the value, or reads it as something else"),
)


def _fault(entry: Entry, key: SchemaKey) -> ConfigFinding | None:
    kind = entry.kind
    if (
        kind is Kind.NULL
        and key.path != _CLIPPING
        and (key.path in BATCH_KEYS or kind in key.takes)
    ):
        return None
    if any(kind in _QUOTED.get(word, ()) for word in key.types) and "string" not in key.types:
        is_word = kind is Kind.SWITCH and _bare(str(entry.value)) is None
        return _switch(entry, key) if is_word else _quoted(entry, key)
    if kind in _TEXTS and kind not in key.takes and key.choices and "string" in key.types:
        return _not_offered(entry, key)
    if kind not in key.takes:
        return _refused(entry, WRONG_TYPE, _wants(key))
    if key.accepts(entry.value):
        return _unmeant(entry, key)
    return _not_offered(entry, key)


OUT_OF_RANGE = Rule(
    code="ZW203", name="out-of-range", severity=Severity.ERROR, why=_("DeepSpeed rejects the value")
)
NOT_A_CHOICE = Rule(
    code="ZW204", name="not-a-choice", severity=Severity.ERROR, why=_("DeepSpeed rejects the value")
)


def _not_offered(entry: Entry, key: SchemaKey) -> ConfigFinding:
    if entry.kind in key.takes and replace(key, bounds={}).accepts(entry.value):
        is_switch = "boolean" in key.types
        return _refused(entry, OUT_OF_RANGE, _wants(key) if is_switch else _bounds(key))
    return _refused(entry, NOT_A_CHOICE, _("one of {choices}", choices=listing(key.choices)))


def _refused(entry: Entry, rule: Rule, wanted: str) -> ConfigFinding:
    return entry.found(
        rule,
        _(
            "`{label}` must be {wanted}, not `{entry}`",
            label=entry.label,
            wanted=wanted,
            entry=shown(entry.value),
        ),
        fix=_("write {wanted}", wanted=wanted),
    )


def _unmeant(entry: Entry, key: SchemaKey) -> ConfigFinding | None:
    """A value that a lax section accepts unchecked."""
    # runtime/zero/config.py: pydantic makes 1 of true.
    if key.path == _STAGE and isinstance(entry.value, bool):
        return entry.found(
            WRONG_TYPE,
            _(
                "`stage` is {entry}, which is stage {entry_value}",
                entry=shown(entry.value),
                entry_value=int(entry.value),
            ),
            severity=Severity.WARNING,
            because=_("DeepSpeed reads true as 1 and false as 0"),
            fix=_("write {entry}, or the stage that you mean", entry=int(entry.value)),
        )
    is_meant = any(entry.kind in _MEANT[word] for word in key.types)
    if is_meant or not key.types or entry.in_strict_section:
        return None
    return entry.found(
        WRONG_TYPE,
        _not_wanted(entry, key),
        severity=Severity.ERROR if key.path == _CLIPPING else Severity.WARNING,
        because=_COMPARED if key.path == _CLIPPING else _UNCHECKED,
        fix=_("write {wants}", wants=_wants(key)),
    )


def _clips_nothing(entry: Entry, key: SchemaKey) -> ConfigFinding | None:
    """Whether it is a norm that no norm is above, or below: -1, NaN."""
    value = entry.value
    if key.path != _CLIPPING or not isinstance(value, (int, float)) or value >= 0:
        return None
    return entry.found(
        OUT_OF_RANGE,
        _("a `gradient_clipping` of {value} clips nothing", value=shown(value)),
        severity=Severity.WARNING,
        because=_("DeepSpeed clips to a norm above 0 only"),
        fix=_("write 0 to train without clipping, or the norm that you mean"),
    )


NUMBER_IN_QUOTES = Rule(
    code="ZW202",
    name="number-in-quotes",
    severity=Severity.WARNING,
    why=_("some readers do not convert strings: any non-empty string counts as true"),
)


def _quoted(entry: Entry, key: SchemaKey) -> ConfigFinding:
    bare = _bare(str(entry.value))
    return entry.found(
        NUMBER_IN_QUOTES,
        _("`{label}` is the string `{entry}`", label=entry.label, entry=shown(entry.value)),
        severity=_harm(entry, key),
        fix=_("remove the quotes")
        if isinstance(bare, (int, float))
        else _("write {wants}", wants=_wants(key)),
        edits=_unquote(entry, key, bare),
    )


def _switch(entry: Entry, key: SchemaKey) -> ConfigFinding:
    """A word such as `yes`, which stands for a truth; the quotes are not what is wrong with it."""
    if not key.accepts(entry.value):
        return _refused(entry, WRONG_TYPE, _wants(key))
    meant = truth_of(entry.value)
    read = meant if entry.in_strict_section else True
    return entry.found(
        WRONG_TYPE,
        _not_wanted(entry, key),
        severity=_harm(entry, key),
        because=_("DeepSpeed reads it as {read}", read=shown(read)),
        fix=_("write {meant}", meant=shown(meant)),
        edits=put(entry, meant),
    )


def _harm(entry: Entry, key: SchemaKey) -> Severity:
    """How bad the quotes are.

    A strict section converts what it takes (pydantic). accelerate/utils/deepspeed.py compares the
    stage as it stands, so that "3" is not stage 3 to it. Elsewhere a word is true.
    """
    # runtime/engine.py compares the clipping with 0 in the first step.
    if not key.accepts(entry.value) or key.path == _CLIPPING:
        return Severity.ERROR
    if entry.in_strict_section and key.path != _STAGE:
        return Severity.INFO
    if entry.kind is not Kind.SWITCH or entry.in_strict_section:
        return Severity.WARNING
    return Severity.ERROR if truth_of(entry.value) is False else Severity.INFO


def _unquote(entry: Entry, key: SchemaKey, bare: object) -> tuple[Edit, ...]:
    return put(entry, bare) if bare is not None and key.accepts(bare) else ()


def _bare(word: str) -> object:
    """The number or the truth in quotes; None where JSON would write it in another way."""
    if _JSON_NUMBER.fullmatch(word):
        try:
            return json.loads(word)
        except ValueError:
            return None
    return {"true": True, "false": False}.get(word.lower())


_WORDS: Mapping[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "integer": (_("a whole number"),),
    "number": (_("a number"),),
    "string": (_("a string"),),
    "array": (_("an array"),),
    "object": (_("an object"),),
    "null": ("null",),
}
_BOUND_WORDS: Mapping[str, str] = {
    "ge": _("at least {bound}"),
    "gt": _("more than {bound}"),
    "le": _("at most {bound}"),
    "lt": _("less than {bound}"),
}


def _not_wanted(entry: Entry, key: SchemaKey) -> str:
    return _(
        "`{label}` should be {wants}, not `{entry}`",
        label=entry.label,
        wants=_wants(key),
        entry=shown(entry.value),
    )


def _wants(key: SchemaKey) -> str:
    if not key.types:
        return _("something else")
    *others, last = (words for name in key.types for words in _WORDS[name])
    return joined(_(" or "), (listing(others), last)) if others else last


def _bounds(key: SchemaKey) -> str:
    bounds = (_BOUND_WORDS[word].format(bound=bound) for word, bound in key.bounds.items())
    return joined(_(" and "), bounds)
