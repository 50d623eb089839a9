"""Find keys and values that DeepSpeed does not know, has removed, does not read or refuses."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from msgspec import Struct

from zerowiz.core.dsconfig.hjson import JsonTextError, Node, repeated
from zerowiz.core.dsconfig.own_config import truth_of
from zerowiz.core.dsconfig.schema import NUMERALS, Kind, SchemaKey, Unknown
from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import (
    AUTO,
    BATCH_KEYS,
    STAGE_3,
    ZERO,
    Config,
    Entry,
    drop,
    put,
    rename,
    shown,
)
from zerowiz.core.lint.report import ConfigFinding, found_at
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration

# Find texts that are no config: they cannot be read, are no object, or repeat a key.

UNREADABLE = Rule(
    code="ZW001",
    name="unreadable",
    severity=Severity.ERROR,
    why="a strict JSON reader refuses the whole config",
)


def unreadable(
    fault: JsonTextError, severity: Severity = Severity.ERROR, *, is_yaml: bool = False
) -> ConfigFinding:
    """What is found where a reader stops.

    Args:
        fault: Where, and why.
        severity: Of the finding.
        is_yaml: Whether the file is one of YAML.
    """
    return ConfigFinding(
        rule=UNREADABLE,
        severity=severity,
        line=fault.line,
        column=fault.column,
        message=fault.reason,
        because="a YAML reader refuses the whole file" if is_yaml else None,
        fix="write valid JSON" if severity is Severity.INFO else None,
    )


NOT_AN_OBJECT = Rule(
    code="ZW003",
    name="not-an-object",
    severity=Severity.ERROR,
    why="DeepSpeed needs an object with keys",
)


def not_an_object(root: Node) -> ConfigFinding:
    """What is found of an array or a lone scalar."""
    return found_at(
        root.place,
        NOT_AN_OBJECT,
        "a config must be an object, `{...}`",
        fix="put the keys of the config in braces",
    )


DUPLICATE_KEY = Rule(
    code="ZW002",
    name="duplicate-key",
    severity=Severity.ERROR,
    why="DeepSpeed rejects a duplicate key; the Trainer and Accelerate use the last one",
)


def check_structure(config: Config) -> Iterator[ConfigFinding]:
    """Every key that its object has had before."""
    # runtime/config_utils.py, dict_raise_error_on_duplicate_keys; json takes the last one.
    severity = Severity.WARNING if config.by_accelerate else Severity.ERROR
    paths = {id(entry.member): entry for entry in config.entries}
    for earlier, member in repeated(config.root):
        entry = paths.get(id(member))
        yield found_at(
            member.key.place,
            DUPLICATE_KEY,
            (
                f"`{shown(member.key.name)}` is a duplicate of the key on line "
                f"{earlier.key.place.line}"
            ),
            key=entry.path if entry else member.key.name,
            severity=severity,
            fix="remove one of them",
        )


# Find values that DeepSpeed refuses, or reads as something else.

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
        is_auto = isinstance(entry.value, str) and entry.value.lower() == AUTO  # or meant to be
        if entry.key is None or entry.key.removed or is_auto:
            continue
        if entry.key.path in _PARAMS:
            continue  # a class is handed them: rules/optimizer.py
        fault = _fault(entry, entry.key) or _clips_nothing(entry, entry.key)
        if fault is None:
            continue
        if section := _section_for(config, entry, entry.key):
            fault = replace(fault, fix=f"write `{json.dumps(section)}`")
        if config.tunes and _is_choice(entry):
            message = f"{fault.message}: only DeepSpeed's autotuner accepts it"
            fault = replace(fault, severity=Severity.WARNING, message=message, edits=())
        yield fault


def _section_for(config: Config, entry: Entry, key: SchemaKey) -> Mapping[str, object] | None:
    """The section that stands for a bare value: `true` switches it on, `cpu` is its device."""
    name = _BARE.get(type(entry.value)) if "object" in key.types else None
    home = None if name is None else config.schema.keys.get(f"{key.path}.{name}")
    return {home.name: entry.value} if home is not None and home.accepts(entry.value) else None


def _is_choice(entry: Entry) -> bool:
    """Whether it is several values to the autotuner."""
    return entry.kind is Kind.ARRAY or (entry.path, entry.value) == _EVERY_STAGE


_CLIPPING = "gradient_clipping"
_PARAMS = frozenset({"optimizer.params", "scheduler.params"})
# runtime/engine.py, step.
_COMPARED = "DeepSpeed compares it with 0 in the first step, and fails"
_UNCHECKED = "DeepSpeed does not check the value when it reads it"
WRONG_TYPE = Rule(
    code="ZW201",
    name="wrong-type",
    severity=Severity.ERROR,
    why="DeepSpeed rejects the value, or reads it as something else",
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
    code="ZW203", name="out-of-range", severity=Severity.ERROR, why="DeepSpeed rejects the value"
)
NOT_A_CHOICE = Rule(
    code="ZW204", name="not-a-choice", severity=Severity.ERROR, why="DeepSpeed rejects the value"
)


def _not_offered(entry: Entry, key: SchemaKey) -> ConfigFinding:
    if entry.kind in key.takes and replace(key, bounds={}).accepts(entry.value):
        is_switch = "boolean" in key.types
        return _refused(entry, OUT_OF_RANGE, _wants(key) if is_switch else _bounds(key))
    return _refused(entry, NOT_A_CHOICE, f"one of {', '.join(key.choices)}")


def _refused(entry: Entry, rule: Rule, wanted: str) -> ConfigFinding:
    return entry.found(
        rule,
        f"`{entry.label}` must be {wanted}, not `{shown(entry.value)}`",
        fix=f"write {wanted}",
    )


def _unmeant(entry: Entry, key: SchemaKey) -> ConfigFinding | None:
    """A value that a lax section accepts unchecked."""
    # runtime/zero/config.py: pydantic makes 1 of true.
    if key.path == _STAGE and isinstance(entry.value, bool):
        return entry.found(
            WRONG_TYPE,
            f"`stage` is {shown(entry.value)}, which is stage {int(entry.value)}",
            severity=Severity.WARNING,
            because="DeepSpeed reads true as 1 and false as 0",
            fix=f"write {int(entry.value)}, or the stage that you mean",
        )
    is_meant = any(entry.kind in _MEANT[word] for word in key.types)
    if is_meant or not key.types or entry.in_strict_section:
        return None
    return entry.found(
        WRONG_TYPE,
        _not_wanted(entry, key),
        severity=Severity.ERROR if key.path == _CLIPPING else Severity.WARNING,
        because=_COMPARED if key.path == _CLIPPING else _UNCHECKED,
        fix=f"write {_wants(key)}",
    )


def _clips_nothing(entry: Entry, key: SchemaKey) -> ConfigFinding | None:
    """Whether it is a norm that no norm is above, or below: -1, NaN."""
    value = entry.value
    if key.path != _CLIPPING or not isinstance(value, (int, float)) or value >= 0:
        return None
    return entry.found(
        OUT_OF_RANGE,
        f"a `gradient_clipping` of {shown(value)} clips nothing",
        severity=Severity.WARNING,
        because="DeepSpeed clips to a norm above 0 only",
        fix="write 0 to train without clipping, or the norm that you mean",
    )


NUMBER_IN_QUOTES = Rule(
    code="ZW202",
    name="number-in-quotes",
    severity=Severity.WARNING,
    why="some readers do not convert strings: any non-empty string counts as true",
)


def _quoted(entry: Entry, key: SchemaKey) -> ConfigFinding:
    bare = _bare(str(entry.value))
    return entry.found(
        NUMBER_IN_QUOTES,
        f"`{entry.label}` is the string `{shown(entry.value)}`",
        severity=_harm(entry, key),
        fix="remove the quotes" if isinstance(bare, (int, float)) else f"write {_wants(key)}",
        edits=put(entry, bare) if bare is not None and key.accepts(bare) else (),
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
        because=f"DeepSpeed reads it as {shown(read)}",
        fix=f"write {shown(meant)}",
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
    "integer": ("a whole number",),
    "number": ("a number",),
    "string": ("a string",),
    "array": ("an array",),
    "object": ("an object",),
    "null": ("null",),
}
_BOUND_WORDS: Mapping[str, str] = {
    "ge": "at least {bound}",
    "gt": "more than {bound}",
    "le": "at most {bound}",
    "lt": "less than {bound}",
}


def _not_wanted(entry: Entry, key: SchemaKey) -> str:
    return f"`{entry.label}` should be {_wants(key)}, not `{shown(entry.value)}`"


def _wants(key: SchemaKey) -> str:
    if not key.types:
        return "something else"
    *others, last = (words for name in key.types for words in _WORDS[name])
    return " or ".join((", ".join(others), last)) if others else last


def _bounds(key: SchemaKey) -> str:
    bounds = (_BOUND_WORDS[word].format(bound=bound) for word, bound in key.bounds.items())
    return " and ".join(bounds)


# Find keys that do nothing where they stand.

# runtime/engine.py, _configure_zero_optimizer: what only one of the optimizers is handed.
_STAGE_3_ALONE = (STAGE_3,)
_STAGES: Mapping[str, tuple[int, ...]] = {
    f"{ZERO}.sub_group_size": _STAGE_3_ALONE,
    f"{ZERO}.zero_hpz_partition_size": _STAGE_3_ALONE,
    f"{ZERO}.zero_quantized_weights": _STAGE_3_ALONE,
    f"{ZERO}.zero_quantized_nontrainable_weights": _STAGE_3_ALONE,
    f"{ZERO}.zero_quantized_gradients": _STAGE_3_ALONE,
    f"{ZERO}.round_robin_gradients": (1, 2),
}
_STAGE_3_PREFIX = f"{ZERO}.stage3_"
# 0.16.9 to 0.19.8: config.py parses them, and nothing reads them.
_INERT = frozenset({f"{ZERO}.allgather_partitions", "disable_allgather"})
# Many configs keep the settings of the precision that is off.
_OTHER_PRECISION = {"fp16": "bf16", "bf16": "fp16"}


def check_effects(config: Config) -> Iterator[ConfigFinding]:
    """Keys of another stage, keys that nothing reads, and sections that are off."""
    for entry in config.entries:
        if entry.key is not None and not entry.key.deprecated:
            yield from _stage(config, entry)
            yield from _inert(config, entry)
            yield from _disabled(config, entry)


KEY_OF_ANOTHER_STAGE = Rule(
    code="ZW601",
    name="key-of-another-stage",
    severity=Severity.WARNING,
    why="DeepSpeed reads the key only at other stages",
)


def _stage(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    path = entry.known_path
    stages = _STAGE_3_ALONE if path.startswith(_STAGE_3_PREFIX) else _STAGES.get(path)
    if stages is None or config.stage in {None, *stages} or _is_default(entry):
        return
    yield entry.found(
        KEY_OF_ANOTHER_STAGE,
        f"`{entry.label}` has no effect at stage {config.stage}",
        fix=f"remove it, or write stage {' or '.join(map(str, stages))}",
    )


def _is_default(entry: Entry) -> bool:
    """Whether the key would change nothing at its own stage either."""
    default = None if entry.key is None else entry.key.default
    return default is not None and json.loads(default) == entry.value


KEY_DOES_NOTHING = Rule(
    code="ZW602",
    name="key-does-nothing",
    severity=Severity.WARNING,
    why="this version of DeepSpeed does not read the key",
)


def _inert(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    if entry.known_path in _INERT:
        is_default = _is_default(entry)
        yield entry.found(
            KEY_DOES_NOTHING,
            f"DeepSpeed {config.schema.version} does not read `{entry.label}`: remove it",
            severity=Severity.INFO if is_default else Severity.WARNING,
            because="" if is_default else None,
        )
    # runtime/engine.py never asks for it: a model must call deepspeed.checkpointing.configure,
    # and those of transformers do not.
    if entry.known_path == "activation_checkpointing" and config.context.integration is (
        Integration.HF
    ):
        yield entry.found(
            KEY_DOES_NOTHING,
            "transformers models ignore `activation_checkpointing`",
            severity=Severity.INFO,
            fix="set `gradient_checkpointing=True` in TrainingArguments",
        )


SECTION_DISABLED = Rule(
    code="ZW603",
    name="section-disabled",
    severity=Severity.WARNING,
    why="a section is off until its `enabled` is true",
)


def _disabled(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    enabled = config.schema.keys.get(f"{entry.known_path}.enabled")
    if "." in entry.known_path or enabled is None or not isinstance(entry.value, dict):
        return
    rest = [key for key in entry.value if key != "enabled"]
    if not rest or enabled.default != "false":
        return
    if "enabled" not in entry.value:
        yield entry.found(
            SECTION_DISABLED,
            f"`{entry.label}` has no `enabled`, so it is off",
            fix='write `"enabled": true`, or remove the section',
        )
    elif entry.value["enabled"] is False and not _is_harmless(config, entry, rest):
        yield entry.found(
            SECTION_DISABLED,
            f"`{entry.label}` is off, so its other keys have no effect",
            severity=Severity.INFO,
            fix="drop the section, or enable it",
        )


def _is_harmless(config: Config, entry: Entry, names: Sequence[str]) -> bool:
    """Whether it is a precision whose settings do no harm: the other is on, or all are usual."""
    other = _OTHER_PRECISION.get(entry.known_path)
    if other is None:
        return False
    inner = [config.last.get(f"{entry.known_path}.{name}") for name in names]
    usual = all(setting is not None and _is_default(setting) for setting in inner)
    return usual or config.truth(f"{other}.enabled") is not False


# One letter wrong in a name of nine. People have keys of their own in the sections that ignore
# unknown ones: `model_parallel_size` is no misspelt `data_parallel_size`.
_SURE_RATE = 0.88
_LIKELY_RATE = 0.85
# Where every unknown key is refused, a far guess costs nothing.
_REFUSED_RATE = 0.75
# The first words of a long name: `train_micro_batch_size`.
_LONG_CHARACTERS = 10
# The words of torch and of the Trainer.
_OTHER_WORDS = {
    "optimizer.name": "type",
    "scheduler.name": "type",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "train_micro_batch_size_per_device": "train_micro_batch_size_per_gpu",
}
# A name that more sections have does not show where it belongs.
_HOMES = 2
# What is no key of DeepSpeed's, and is said in another way: 0 is dynamic, and the default
# (runtime/precision_config.py, DeepSpeedFP16Config).
_INSTEAD = {
    "fp16.dynamic_loss_scale": "remove it: a `loss_scale` of 0, the default, is dynamic",
}
# A key of these that stands elsewhere was meant for them; a `seed` is anybody's, as is `enabled`.
_DISTINCT_HOMES = frozenset({"", "zero_optimization", "fp16", "bf16"})
_ANYBODYS = "enabled"
# Where unknown keys are ignored: `_comment`, `$schema`, `//`.
_NOTES = ("_", "$", "//", "#", "comment")
# Notes are fewer; a Trainer's state and a model's config have more.
_ANOTHERS = 5
# A limit on time: each guess compares every key of the section.
_MOST_GUESSES = 50


class _Guess(Struct, frozen=True, kw_only=True):
    """The key that an unknown one was meant to be."""

    key: SchemaKey
    name: str
    is_sure: bool


def is_no_config(config: Config) -> bool:
    """Whether it has keys at the top, and none of them is DeepSpeed's, or was meant to be."""
    top = [entry for entry in config.entries if entry.holder is config.root]
    if not top or any(entry.key is not None for entry in top):
        return False
    guessed = top[:_MOST_GUESSES]
    return not any(
        _homes(config, entry) or _guess(config, entry, _LIKELY_RATE) for entry in guessed
    )


NOT_A_CONFIG = Rule(
    code="ZW004",
    name="not-a-config",
    severity=Severity.WARNING,
    why="DeepSpeed ignores keys that it does not know, and may train with its defaults",
)


def no_config(config: Config) -> ConfigFinding:
    """The finding for a file that no reader accepts, because it has no batch size either."""
    known = config.context.integration is not None
    return config.found(
        NOT_A_CONFIG,
        "this is not a DeepSpeed config: DeepSpeed knows none of its keys",
        severity=Severity.ERROR if known else Severity.WARNING,
        fix="check the file that the script passes to DeepSpeed",
    )


def check_keys(config: Config) -> Iterator[ConfigFinding]:
    """Names of keys that are wrong."""
    anothers = _of_another_program(config)
    if anothers:
        yield config.found(
            NOT_A_CONFIG,
            f"DeepSpeed does not know {len(anothers)} of the top-level keys, and ignores them",
            fix="make sure that the script passes this very file to DeepSpeed",
        )
    guesses = 0
    for entry in config.entries:
        if entry.key is None and entry.known_path not in anothers:
            guesses += 1
            yield from _unknown(config, entry, guessed=guesses <= _MOST_GUESSES)
        elif entry.key is None:
            continue
        elif entry.key.removed:
            yield _removed(config, entry)
        elif entry.key.deprecated:
            yield _deprecated(config, entry)
        else:
            yield from _old_form(config, entry)


def _of_another_program(config: Config) -> frozenset[str]:
    """The keys at the top, if most of them are not DeepSpeed's: some programs keep both in a file.

    GPT-NeoX does, with keys that are spelled nearly as DeepSpeed's.
    """
    top = [entry for entry in config.entries if entry.holder is config.root]
    unknown = frozenset(entry.known_path for entry in top if entry.key is None)
    return unknown if len(unknown) >= max(_ANOTHERS, len(top) - len(unknown) + 1) else frozenset()


DEPRECATED_KEY = Rule(
    code="ZW103",
    name="deprecated-key",
    severity=Severity.WARNING,
    why="a later version of DeepSpeed will reject the key",
)


def _old_form(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision adds a `bf16` of its
    # own; runtime/precision_config.py, get_bfloat16_config reads that first.
    has_bf16 = config.last["bf16"].path == "bf16" if "bf16" in config.last else False
    if entry.path == "bfloat16" and (has_bf16 or config.by_accelerate):
        yield entry.found(
            KEY_DOES_NOTHING,
            "`bfloat16` has no effect because `bf16` is set too",
            fix="remove it",
        )
    # runtime/zero/config.py, read_zero_config_deprecated; Accelerate looks for a stage in it.
    if entry.path == "zero_optimization" and isinstance(entry.value, bool):
        yield entry.found(
            DEPRECATED_KEY,
            f"`zero_optimization` as {str(entry.value).lower()} is deprecated",
            severity=Severity.ERROR if config.by_accelerate else Severity.WARNING,
            fix=f'write `"zero_optimization": {{"stage": {int(entry.value)}}}`',
        )


UNKNOWN_KEY = Rule(
    code="ZW101",
    name="unknown-key",
    severity=Severity.WARNING,
    why="DeepSpeed rejects unknown keys in some sections and ignores them in others",
)


def _unknown(config: Config, entry: Entry, *, guessed: bool) -> Iterator[ConfigFinding]:
    if entry.section is None or entry.section.unknown in {None, Unknown.FREE}:
        return
    refused = entry.in_strict_section
    if not refused and entry.name.startswith(_NOTES):
        return
    homes = _homes(config, entry) if guessed else ()
    guess = _guess(config, entry, _REFUSED_RATE if refused else _LIKELY_RATE) if guessed else None
    if homes and not (guess and guess.is_sure):
        yield _misplaced(config, entry, homes)
    elif guess:
        yield config.if_built(_misspelt(config, entry, guess))
    else:
        instead = _INSTEAD.get(entry.known_path) or _in_params(entry) or "remove it"
        yield entry.found(
            UNKNOWN_KEY,
            f"`{entry.label}` is not a key of {_section(entry.section)}",
            severity=Severity.ERROR if refused else Severity.WARNING,
            because=_fate(refused=refused),
            fix=instead,
        )


def _in_params(entry: Entry) -> str | None:
    """The way out for what was meant for the class: an `lr` beside `params`."""
    path = entry.section.path if entry.section else ""
    if path not in {"optimizer", "scheduler"}:
        return None
    return f"move it into `{path}.params`, or remove it"


def _fate(*, refused: bool) -> str:
    """What becomes of a key that DeepSpeed does not know."""
    if refused:
        return "DeepSpeed rejects a config with an unknown key in this section"
    return "DeepSpeed ignores the key"


def _misspelt(config: Config, entry: Entry, guess: _Guess) -> ConfigFinding:
    """An error where the right key is not there, so that its default counts."""
    refused = entry.in_strict_section
    is_free = guess.key.path not in config.last
    is_lost = guess.is_sure and is_free and not _comes_anyway(config, guess.key, entry.value)
    fix, edits = f"rename it to `{guess.name}`", rename(config.text, entry, guess.name)
    return entry.found(
        UNKNOWN_KEY,
        (
            f"`{entry.label}` is not a key of {_section(entry.section)}, did you mean "
            f"`{guess.name}`?"
        ),
        severity=Severity.ERROR if refused or is_lost else Severity.WARNING,
        because=_fate(refused=refused),
        fix=fix if is_free else f"remove it: `{guess.name}` is set too",
        edits=edits if guess.is_sure and is_free and not guess.key.deprecated else (),
    )


MISPLACED_KEY = Rule(
    code="ZW102",
    name="misplaced-key",
    severity=Severity.WARNING,
    why="DeepSpeed rejects the key here, or ignores it and uses the default",
)


def _misplaced(config: Config, entry: Entry, homes: tuple[SchemaKey, ...]) -> ConfigFinding:
    home = homes[0]
    is_sure = len(homes) == 1 and home.path not in config.last
    is_lost = is_sure and not _comes_anyway(config, home, entry.value)
    refused = entry.in_strict_section
    places = " or ".join(_section(config.schema.keys[key.section]) for key in homes)
    # bf16 is strict since 0.17.1 (runtime/precision_config.py, DeepSpeedBF16Config), and a key of
    # fp16 is not needed under it.
    useless = entry.section is not None and entry.section.path == "bf16"
    return entry.found(
        MISPLACED_KEY,
        f"`{entry.label}` belongs to {places}, not to {_section(entry.section)}",
        severity=Severity.ERROR if refused or is_lost else Severity.WARNING,
        because=_fate(refused=refused),
        fix="remove it: bf16 needs no loss scale" if useless else f"move it to {places}",
        edits=drop(config.text, entry) if useless else (),
    )


def _comes_anyway(config: Config, key: SchemaKey, value: object) -> bool:
    """Whether nothing is lost where the key is not read: the default, or the script's batch."""
    if config.by_accelerate and key.path in BATCH_KEYS[:2]:
        return True
    return key.default is not None and json.loads(key.default) == value


def _homes(config: Config, entry: Entry) -> tuple[SchemaKey, ...]:
    """The sections that have a key of exactly this name, if they are few."""
    keys = () if entry.name == _ANYBODYS else config.schema.keys.values()
    refused = entry.in_strict_section
    homes = tuple(
        key
        for key in keys
        if entry.name in key.names
        and not key.removed
        and (refused or key.section in _DISTINCT_HOMES)
        and key.accepts(entry.value)
    )
    return homes if len(homes) <= _HOMES else ()


def _guess(config: Config, entry: Entry, likely_rate: float) -> _Guess | None:
    section = entry.section.path if entry.section else ""
    if entry.known_path in _INSTEAD:
        return None
    rates = sorted(
        (
            (_likeness(entry.known_path, entry.name, name), name, key.path)
            for key in config.schema.children(section)
            for name in (() if key.removed else key.names)
        ),
        reverse=True,
    )
    (rate, name, path), second = rates[0], rates[1][0] if rates[1:] else 0
    if rate < likely_rate:
        return None
    is_sure = rate >= _SURE_RATE and rate > second
    return _Guess(key=config.schema.keys[path], name=name, is_sure=is_sure)


def _likeness(path: str, name: str, known: str) -> float:
    if _OTHER_WORDS.get(path) == known:
        return 1
    begins = len(name) >= _LONG_CHARACTERS and known.startswith(name)
    rate = SequenceMatcher(None, name.lower(), known).ratio()
    return max(rate, _LIKELY_RATE) if begins else rate


REMOVED_KEY = Rule(
    code="ZW104",
    name="removed-key",
    severity=Severity.ERROR,
    why="this version of DeepSpeed rejects a config with the key",
)


def _removed(config: Config, entry: Entry) -> ConfigFinding:
    # runtime/config.py, _reject_removed_config_keys: the key alone is refused, on or off.
    value = entry.value
    is_off = value is False or (isinstance(value, dict) and value.get("enabled") is False)
    return entry.found(
        REMOVED_KEY,
        f"DeepSpeed {config.schema.version} rejects `{entry.label}`, which was removed",
        fix="remove it: it was off" if is_off else "remove it, or install an older DeepSpeed",
        edits=drop(config.text, entry) if is_off else (),
    )


def _deprecated(config: Config, entry: Entry) -> ConfigFinding:
    # runtime/config_utils.py, DeepSpeedConfigModel._process_deprecated_field.
    new_path = entry.key.new_path if entry.key else None
    if new_path is None:
        return entry.found(DEPRECATED_KEY, f"`{entry.label}` is deprecated", fix="remove it")
    new_name = new_path.rpartition(".")[2]
    if new_path in config.last:
        return entry.found(
            DEPRECATED_KEY,
            f"`{entry.label}` is deprecated, and DeepSpeed rejects it together with `{new_name}`",
            severity=Severity.ERROR,
            fix="remove it",
        )
    # accelerate/accelerator.py, _prepare_deepspeed looks at offload_optimizer.device, and keeps
    # an optimizer that runtime/engine.py, _configure_optimizer refuses.
    unseen = entry.name == "cpu_offload" and entry.value is True and config.by_accelerate
    raises = unseen and bool(config.stage) and "optimizer" not in config.last
    is_section = Unknown.REFUSED is getattr(config.schema.keys.get(new_path), "unknown", None)
    fix, edits = f"rename it to `{new_name}`", rename(config.text, entry, new_name)
    if is_section:
        # runtime/zero/config.py, new_param_fn of cpu_offload and cpu_offload_param.
        fix = f'write `"{new_name}": {{"device": "cpu"}}`'
        edits = (*edits, *put(entry, {"device": "cpu"})) if entry.value is True else ()
    return entry.found(
        DEPRECATED_KEY,
        f"`{entry.label}` is deprecated: use `{new_name}`"
        + (", and Accelerate does not see it" if raises else ""),
        severity=Severity.ERROR if raises else Severity.WARNING,
        fix=fix,
        edits=edits,
    )


def _section(section: SchemaKey | None) -> str:
    return f"`{section.path}`" if section and section.path else "the top level"
