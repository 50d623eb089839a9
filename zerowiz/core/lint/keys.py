"""Find keys and values that DeepSpeed does not know, has removed, does not read or refuses."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher

from msgspec import Struct

from zerowiz.core.dsconfig.hjson import JsonTextError, repeated
from zerowiz.core.dsconfig.merge import BATCH_KEYS, ZERO, truth_of
from zerowiz.core.dsconfig.schema import NUMERALS, Kind, SchemaKey, Unknown
from zerowiz.core.findings import Edit, Finding, Rule, Severity
from zerowiz.core.lint.config import AUTO, Config, Entry, Relation, drop, put, rename, shown
from zerowiz.core.structs import replace
from zerowiz.core.workload import SWITCHED, Integration

# Find texts that are no config: they cannot be read, are no object, or repeat a key.

UNREADABLE = Rule(
    code="ZW001",
    name="unreadable",
    severity=Severity.ERROR,
    why="its reader refuses the whole config",
)


def unreadable(
    fault: JsonTextError, severity: Severity = Severity.ERROR, because: str | None = None
) -> Finding:
    """What is found where a reader stops.

    Args:
        fault: Where, and why.
        severity: Of the finding.
        because: Who refuses it, where not every reader does.
    """
    return Finding(
        rule=UNREADABLE,
        severity=severity,
        line=fault.line,
        column=fault.column,
        message=fault.reason,
        because=because,
        fixes=() if because is None else ("write valid JSON",),
    )


NOT_AN_OBJECT = Rule(
    code="ZW003",
    name="not-an-object",
    severity=Severity.ERROR,
    why="DeepSpeed needs an object with keys",
)
DUPLICATE_KEY = Rule(
    code="ZW002",
    name="duplicate-key",
    severity=Severity.ERROR,
    why="DeepSpeed rejects a duplicate key; the Trainer and Accelerate use the last one",
)


def check_structure(config: Config) -> Iterator[Finding]:
    """Every key that its object has had before."""
    entries = {id(entry.member): entry for entry in config.entries}
    for earlier, member in repeated(config.root.member.value):
        # What stands in an array, or in a section that was removed, is no entry.
        entry = entries.get(id(member)) or replace(config.root, member=member, path=member.key.name)
        yield entry.found(
            DUPLICATE_KEY,
            f"`{shown(entry.name)}` is a duplicate of the key on line {earlier.key.place.line}",
            "remove one of them",
            # runtime/config_utils.py, dict_raise_error_on_duplicate_keys; json takes the last one.
            severity=Severity.WARNING if config.by_accelerate else Severity.ERROR,
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
_WORDS: Mapping[str, str] = {
    "boolean": "true, false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_BOUND_WORDS: Mapping[str, str] = {
    "ge": "at least",
    "gt": "more than",
    "le": "at most",
    "lt": "less than",
}
# What a value of this type is in a section, where somebody wrote it in place of the section.
_BARE: Mapping[type, str] = {bool: "enabled", str: "device"}
_STAGE = f"{ZERO}.stage"
_CLIPPING = "gradient_clipping"
_MATCHED = frozenset({"bf16.enabled", "fp16.enabled"})
_PRINTS = "steps_per_print"
# What fails although the config class does not check it: it is compared (runtime/engine.py, step),
# counted or divided by, asked for its keys or for a text (runtime/config.py), combined bit by bit,
# or made a folder of (autotuning/config.py). Accelerate writes steps_per_print itself.
_FAILS: Mapping[str, Callable[[Config, object], object]] = {
    _CLIPPING: lambda _, _value: True,
    "expert_parallel": lambda _, value: value,
    "flops_profiler.enabled": lambda _, value: isinstance(value, float),
    "wall_clock_breakdown": lambda _, value: isinstance(value, float),
    BATCH_KEYS[2]: lambda _, value: isinstance(value, float),
    "sequence_parallel_size": lambda _, value: not isinstance(value, (int, float)),
    _PRINTS: lambda config, value: (
        not (config.by_accelerate or isinstance(value, (int, float, type(None))))
    ),
    "vocabulary_size": lambda _, value: isinstance(value, list),
    **dict.fromkeys(
        ("scheduler.type", "log_level", "data_types.grad_accum_dtype", "data_types.param_dtype"),
        lambda _, value: value is not None,
    ),
    **dict.fromkeys(
        ("autotuning.exps_dir", "autotuning.results_dir"), lambda _, value: value in (0, "")
    ),
}
_USED = "DeepSpeed uses it all the same, and fails"
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
# A class is handed them: optimizer.py.
_PARAMS = frozenset({"optimizer.params", "scheduler.params"})
# `{{ stage }}`, `${STAGE}`, `<stage>`, `__stage__`, `%stage%`, `ZERO_STAGE` without quotes.
_PLACEHOLDER = re.compile(
    r"\{+[^{}]*\}+,?|\$\{?\w+\}?|<[^<>]+>|__\w+__|%\w+%|[A-Z][A-Z0-9]*_[A-Z0-9_]+,?"
)
# RFC 8259, section 6.
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)

WRONG_TYPE = Rule(
    code="ZW201",
    name="wrong-type",
    severity=Severity.ERROR,
    why="DeepSpeed rejects the value, or reads it as something else",
)
NUMBER_IN_QUOTES = Rule(
    code="ZW202",
    name="number-in-quotes",
    severity=Severity.WARNING,
    why="some readers do not convert strings: any non-empty string counts as true",
)
OUT_OF_RANGE = Rule(
    code="ZW203", name="out-of-range", severity=Severity.ERROR, why="DeepSpeed rejects the value"
)
NOT_A_CHOICE = Rule(
    code="ZW204", name="not-a-choice", severity=Severity.ERROR, why="DeepSpeed rejects the value"
)


def check_values(config: Config) -> Iterator[Finding]:
    """Values that are wrong by themselves."""
    # autotuning/utils.py, get_all_configs: it takes a list of values to try wherever one goes, and
    # "all" stages (autotuning/autotuner.py, Autotuner.tune).
    tunes = bool(config.truth("autotuning.enabled"))
    placeholders: list[Entry] = []
    for entry in config.entries:
        key = entry.key
        is_auto = isinstance(entry.value, str) and entry.value.lower() == AUTO  # or meant to be
        if key is None or key.removed or is_auto or key.path in _PARAMS:
            continue
        fault = _fault(config, entry, key)
        if fault is None:
            continue
        if isinstance(entry.value, str) and _PLACEHOLDER.fullmatch(entry.value):
            placeholders.append(entry)
            continue
        fault = config.if_built(fault)
        name = _BARE.get(type(entry.value)) if "object" in key.types else None
        home = config.schema.keys.get(f"{key.path}.{name}")
        if home is not None and home.accepts(entry.value):
            # The section that stands for a bare value: `true` switches it on, `cpu` is its device.
            fault = replace(fault, fixes=(f"write `{json.dumps({home.name: entry.value})}`",))
        if tunes and (entry.kind is Kind.ARRAY or (entry.path, entry.value) == (_STAGE, "all")):
            message = f"{fault.message}: only DeepSpeed's autotuner accepts it"
            fault = replace(fault, severity=Severity.WARNING, message=message, edits=())
        yield fault
    for entry in placeholders[:1]:
        others = f", as are {len(placeholders) - 1} others" if placeholders[1:] else ""
        yield entry.found(
            WRONG_TYPE,
            f"`{entry.label}` is a placeholder, `{entry.shown}`{others}",
            "fill in the template, and check what comes out",
            because="DeepSpeed gets the words as they stand",
        )


def _fault(config: Config, entry: Entry, key: SchemaKey) -> Finding | None:
    """What is wrong with a value of this key, by what DeepSpeed takes and by what is meant."""
    kind = entry.kind
    is_taken = key.path in BATCH_KEYS or kind in key.takes
    if kind is Kind.NULL and is_taken and not _fails(config, entry):
        return None
    if any(kind in _QUOTED.get(word, ()) for word in key.types) and "string" not in key.types:
        return _quoted(config, entry, key)
    is_choice = kind in _TEXTS and key.choices and "string" in key.types
    if kind not in key.takes and not is_choice:
        return _refused(entry, WRONG_TYPE, _wants(key))
    if not key.accepts(entry.value):
        if kind not in key.takes or not replace(key, bounds={}).accepts(entry.value):
            return _refused(entry, NOT_A_CHOICE, f"one of {', '.join(key.choices)}")
        bounds = " and ".join(f"{_BOUND_WORDS[word]} {n}" for word, n in key.bounds.items())
        return _refused(entry, OUT_OF_RANGE, _wants(key) if "boolean" in key.types else bounds)
    return _unmeant(config, entry, key)


def _fails(config: Config, entry: Entry) -> bool:
    fails = _FAILS.get(entry.known_path)
    return fails is not None and bool(fails(config, entry.value))


def _refused(entry: Entry, rule: Rule, wanted: str) -> Finding:
    message = f"`{entry.label}` must be {wanted}, not `{entry.shown}`"
    return entry.found(rule, message, f"write {wanted}")


def _unmeant(config: Config, entry: Entry, key: SchemaKey) -> Finding | None:
    """A value that a lax section accepts unchecked."""
    # runtime/zero/config.py: pydantic makes 1 of true.
    if key.path == _STAGE and isinstance(entry.value, bool):
        return entry.found(
            WRONG_TYPE,
            f"`stage` is {entry.shown}, which is stage {int(entry.value)}",
            f"write {int(entry.value)}, or the stage that you mean",
            severity=Severity.WARNING,
            because="DeepSpeed reads true as 1 and false as 0",
        )
    if key.path == _CLIPPING and isinstance(entry.value, (int, float)) and not entry.value >= 0:
        # A norm that no norm is above, or below: -1, NaN.
        return entry.found(
            OUT_OF_RANGE,
            f"a `gradient_clipping` of {entry.shown} clips nothing",
            "write 0 to train without clipping, or the norm that you mean",
            severity=Severity.WARNING,
            because="DeepSpeed clips to a norm above 0 only",
        )
    is_meant = any(entry.kind in _MEANT[word] for word in key.types)
    if is_meant or not key.types or entry.in_strict_section:
        return None
    fails = _fails(config, entry)
    return entry.found(
        WRONG_TYPE,
        f"`{entry.label}` should be {_wants(key)}, not `{entry.shown}`",
        f"write {_wants(key)}",
        severity=Severity.ERROR if fails else Severity.WARNING,
        because=_USED if fails else "DeepSpeed does not check the value when it reads it",
    )


def _quoted(config: Config, entry: Entry, key: SchemaKey) -> Finding:
    """A number or a truth in quotes, or a word such as `yes` that stands for a truth."""
    bare = _bare(str(entry.value))
    is_accepted = key.accepts(entry.value)
    if entry.kind is not Kind.SWITCH or bare is not None:
        return entry.found(
            NUMBER_IN_QUOTES,
            f"`{entry.label}` is the string `{entry.shown}`",
            "remove the quotes" if isinstance(bare, (int, float)) else f"write {_wants(key)}",
            severity=_harm(config, entry, key),
            because=_USED if _fails(config, entry) else None if is_accepted else OUT_OF_RANGE.why,
            edits=put(entry, bare) if bare is not None and key.accepts(bare) else (),
        )
    if not is_accepted:
        return _refused(entry, WRONG_TYPE, _wants(key))
    meant = truth_of(entry.value)
    return entry.found(
        WRONG_TYPE,
        f"`{entry.label}` should be {_wants(key)}, not `{entry.shown}`",
        f"write {shown(meant)}",
        severity=_harm(config, entry, key),
        because=f"DeepSpeed reads it as {shown(meant if entry.in_strict_section else True)}",
        edits=put(entry, meant),
    )


def _harm(config: Config, entry: Entry, key: SchemaKey) -> Severity:
    """How bad the quotes are.

    A strict section converts what it takes (pydantic). accelerate/utils/deepspeed.py compares the
    stage as it stands, so that "3" is not stage 3 to it. Elsewhere a word is true.
    """
    if not key.accepts(entry.value) or _fails(config, entry):
        return Severity.ERROR
    # transformers, HfTrainerDeepSpeedConfig.fill_match: no argument equals a word.
    if key.path in _MATCHED and config.context.integration is Integration.HF:
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


def _wants(key: SchemaKey) -> str:
    words = ", ".join(_WORDS[name] for name in key.types) or "something else"
    others, _, last = words.rpartition(", ")
    return f"{others} or {last}" if others else last


# Find keys that do nothing where they stand.

# runtime/engine.py, _configure_zero_optimizer: what only one of the optimizers is handed.
_STAGES: Mapping[str, tuple[int, ...]] = {
    f"{ZERO}.sub_group_size": (3,),
    f"{ZERO}.zero_hpz_partition_size": (3,),
    f"{ZERO}.zero_quantized_weights": (3,),
    f"{ZERO}.zero_quantized_nontrainable_weights": (3,),
    f"{ZERO}.zero_quantized_gradients": (3,),
    f"{ZERO}.round_robin_gradients": (1, 2),
}
# 0.16.9 to 0.19.8: config.py parses them, and nothing reads them.
_INERT = frozenset({f"{ZERO}.allgather_partitions", "disable_allgather"})
# Many configs keep the settings of the precision that is off.
_OTHER_PRECISION = {"fp16": "bf16", "bf16": "fp16"}

KEY_OF_ANOTHER_STAGE = Rule(
    code="ZW601",
    name="key-of-another-stage",
    severity=Severity.WARNING,
    why="DeepSpeed reads the key only at other stages",
)
KEY_DOES_NOTHING = Rule(
    code="ZW602",
    name="key-does-nothing",
    severity=Severity.WARNING,
    why="this version of DeepSpeed does not read the key",
)
SECTION_DISABLED = Rule(
    code="ZW603",
    name="section-disabled",
    severity=Severity.WARNING,
    why="a section is off until its `enabled` is true",
)


def check_effects(config: Config) -> Iterator[Finding]:
    """Keys of another stage, keys that nothing reads, and sections that are off."""
    for entry in config.entries:
        if entry.key is None or entry.key.deprecated:
            continue
        path, is_default = entry.known_path, entry.key.is_default(entry.value)
        stages = (3,) if path.startswith(f"{ZERO}.stage3_") else _STAGES.get(path)
        if stages is not None and config.stage not in {None, *stages} and not is_default:
            yield entry.found(
                KEY_OF_ANOTHER_STAGE,
                f"`{entry.label}` has no effect at stage {config.stage}",
                f"remove it, or write stage {' or '.join(map(str, stages))}",
            )
        if path in _INERT:
            yield entry.found(
                KEY_DOES_NOTHING,
                f"DeepSpeed {config.schema.version} does not read `{entry.label}`: remove it",
                severity=Severity.INFO if is_default else Severity.WARNING,
                because="" if is_default else None,
            )
        # accelerate/utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision adds a `bf16` of its
        # own; runtime/precision_config.py, get_bfloat16_config reads that first.
        is_old = entry.path == "bfloat16"
        if is_old and (config.by_accelerate or config.last["bf16"] is not entry):
            yield entry.found(
                KEY_DOES_NOTHING,
                "`bfloat16` has no effect because `bf16` is set too",
                "remove it",
                because="DeepSpeed reads it only where there is no `bf16`",
            )
        if isinstance(entry.value, dict) and "." not in path:
            yield from _disabled(config, entry, entry.value)


def _disabled(config: Config, entry: Entry, section: Mapping[str, object]) -> Iterator[Finding]:
    enabled = config.schema.keys.get(f"{entry.known_path}.enabled")
    rest = [key for key in section if key != "enabled"]
    if enabled is None or enabled.default != "false" or not rest:
        return
    if "enabled" not in section:
        yield entry.found(
            SECTION_DISABLED,
            f"`{entry.label}` has no `enabled`, so it is off",
            'write `"enabled": true`, or remove the section',
        )
    if section.get("enabled") is False:
        # The settings of a precision do no harm where the other is on, or all are usual.
        other = _OTHER_PRECISION.get(entry.known_path)
        inner = [config.last.get(f"{entry.known_path}.{name}") for name in rest]
        usual = all(
            setting and setting.key and setting.key.is_default(setting.value) for setting in inner
        )
        if other is None or not (usual or config.truth(f"{other}.enabled") is not False):
            yield entry.found(
                SECTION_DISABLED,
                f"`{entry.label}` is off, so its other keys have no effect",
                "drop the section, or enable it",
                severity=Severity.INFO,
            )


# Find keys that DeepSpeed does not know, or knows by another name.

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

NOT_A_CONFIG = Rule(
    code="ZW004",
    name="not-a-config",
    severity=Severity.WARNING,
    why="DeepSpeed ignores keys that it does not know, and may train with its defaults",
)
UNKNOWN_CODE = Rule(
    code="ZW005",
    name="unknown-code",
    severity=Severity.WARNING,
    why="what names no code of zerowiz ignores nothing",
)
UNKNOWN_KEY = Rule(
    code="ZW101",
    name="unknown-key",
    severity=Severity.WARNING,
    why="DeepSpeed rejects unknown keys in some sections and ignores them in others",
)
MISPLACED_KEY = Rule(
    code="ZW102",
    name="misplaced-key",
    severity=Severity.WARNING,
    why="DeepSpeed rejects the key here, or ignores it and uses the default",
)
DEPRECATED_KEY = Rule(
    code="ZW103",
    name="deprecated-key",
    severity=Severity.WARNING,
    why="a later version of DeepSpeed will reject the key",
)
REMOVED_KEY = Rule(
    code="ZW104",
    name="removed-key",
    severity=Severity.ERROR,
    why="this version of DeepSpeed rejects a config with the key",
)


def unknown_code(code: str, line: int, column: int) -> Finding:
    """What a file ignores is no code."""
    return Finding(
        rule=UNKNOWN_CODE,
        severity=UNKNOWN_CODE.severity,
        message=f"no code begins with `{code}`",
        fixes=("take one of `zerowiz check --explain all`, or remove it",),
        line=line,
        column=column,
    )


def check_whole(config: Config) -> Finding | None:
    """What is found of a file that no reader accepts: it has not one key of DeepSpeed's."""
    top = [entry for entry in config.entries if entry.holder is config.root.holder]
    if not top or any(entry.key is not None for entry in top):
        return None
    if any(_homes(config, entry) or _guess(config, entry) for entry in top[:_MOST_GUESSES]):
        return None
    known = config.context.integration is not None
    return config.root.found(
        NOT_A_CONFIG,
        "this is not a DeepSpeed config: DeepSpeed knows none of its keys",
        "check the file that the script passes to DeepSpeed",
        severity=Severity.ERROR if known else Severity.WARNING,
    )


def check_keys(config: Config) -> Iterator[Finding]:
    """Names of keys that are wrong."""
    # Some programs keep their keys in the file too, spelled nearly as DeepSpeed's: GPT-NeoX does.
    top = [entry for entry in config.entries if entry.holder is config.root.holder]
    anothers = {entry.known_path for entry in top if entry.key is None}
    if len(anothers) < max(_ANOTHERS, len(top) - len(anothers) + 1):
        anothers = set()
    if anothers:
        yield config.root.found(
            NOT_A_CONFIG,
            f"DeepSpeed does not know {len(anothers)} of the top-level keys, and ignores them",
            "make sure that the script passes this very file to DeepSpeed",
        )
    guesses, renamed = 0, set[tuple[int, str]]()
    for entry in config.entries:
        finding = None
        if entry.key is None and entry.known_path not in anothers:
            guesses += 1
            finding = _unknown(config, entry, guessed=guesses <= _MOST_GUESSES)
        elif entry.key is not None and entry.key.removed:
            finding = _removed(config, entry)
        elif entry.key is not None and entry.key.deprecated:
            finding = _deprecated(config, entry, entry.key.new_path)
        if finding is not None:
            # Two keys of one section do not get one name.
            names = {(id(entry.holder), edit.text) for edit in finding.edits if edit.text}
            yield finding if names.isdisjoint(renamed) else replace(finding, edits=())
            renamed |= names


class _Guess(Struct, frozen=True, kw_only=True):
    """The key that an unknown one was meant to be."""

    key: SchemaKey
    name: str
    is_sure: bool


def _unknown(config: Config, entry: Entry, *, guessed: bool) -> Finding | None:
    section, refused = entry.section, entry.in_strict_section
    if section is None or section.unknown in {None, Unknown.FREE}:
        return None
    if not refused and entry.name.startswith(_NOTES):
        return None
    homes = _homes(config, entry) if guessed else ()
    guess = _guess(config, entry) if guessed else None
    rule, meant = UNKNOWN_KEY, guess.key if guess else None
    edits: tuple[Edit, ...] = ()
    message = f"`{entry.label}` is not a key of {_section(section)}"
    if homes and not (guess and guess.is_sure):
        rule, meant, is_sure = MISPLACED_KEY, homes[0], len(homes) == 1
        places = " or ".join(_section(config.schema.keys[key.section]) for key in homes)
        message = f"`{entry.label}` belongs to {places}, not to {_section(section)}"
        fix = f"move it to {places}"
        if section.path == "bf16":
            # bf16 is strict since 0.17.1 (runtime/precision_config.py, DeepSpeedBF16Config), and a
            # key of fp16 is not needed under it.
            fix, edits = "remove it: bf16 needs no loss scale", drop(config.text, entry)
    elif guess and guess.key.deprecated and guess.key.new_path is not None:
        is_sure, new_name = False, guess.key.new_path.rpartition(".")[2]
        message += f", did you mean `{new_name}`?"
        fix = f"write `{new_name}` in its place"
    elif guess:
        is_sure = guess.is_sure
        message += f", did you mean `{guess.name}`?"
        fix = f"remove it: `{guess.name}` is set too"
        if guess.key.path not in config.last:
            fix = f"rename it to `{guess.name}`"
            edits = rename(config.text, entry, guess.name) if is_sure else ()
    else:
        is_sure, fix = False, _INSTEAD.get(entry.known_path, "remove it")
        if section.path in {"optimizer", "scheduler"}:
            # What was meant for the class: an `lr` beside `params`.
            fix = f"move it into `{section.path}.params`, or remove it"
    # An error where the right key is not there, so that its default counts.
    is_lost = meant is not None and is_sure and _is_lost(config, meant, entry.value)
    because = "DeepSpeed ignores the key"
    if meant is not None and is_sure and meant.is_default(entry.value):
        because += f", and has this value of `{meant.path}` by default"
    finding = entry.found(
        rule,
        message,
        fix,
        severity=Severity.ERROR if refused or is_lost else Severity.WARNING,
        because="DeepSpeed rejects a config with an unknown key in this section"
        if refused
        else because,
        edits=edits,
    )
    return config.if_built(finding) if guess and rule is UNKNOWN_KEY else finding


def _is_lost(config: Config, key: SchemaKey, value: object) -> bool:
    """Whether a value is nowhere: it is not the default, nor the script's batch."""
    is_filled = config.by_accelerate and key.path in BATCH_KEYS[:2]
    return not (is_filled or key.path in config.last or key.is_default(value))


def _homes(config: Config, entry: Entry) -> tuple[SchemaKey, ...]:
    """The sections that have a key of exactly this name, if they are few."""
    keys = () if entry.name == _ANYBODYS else config.schema.keys.values()
    homes = tuple(
        key
        for key in keys
        if entry.name in key.names
        and not key.removed
        and (entry.in_strict_section or key.section in _DISTINCT_HOMES)
        and key.accepts(entry.value)
    )
    return homes if len(homes) <= _HOMES else ()


def _guess(config: Config, entry: Entry) -> _Guess | None:
    if entry.known_path in _INSTEAD:
        return None
    section = entry.section.path if entry.section else ""
    rates = sorted(
        (_likeness(entry, name), name, key.path)
        for key in config.schema.children(section)
        for name in (() if key.removed else key.names)
    )
    second = rates[-2][0] if rates[1:] else 0
    rate, name, path = rates[-1]
    if rate < (_REFUSED_RATE if entry.in_strict_section else _LIKELY_RATE):
        return None
    is_sure = rate >= _SURE_RATE and rate > second
    return _Guess(key=config.schema.keys[path], name=name, is_sure=is_sure)


def _likeness(entry: Entry, known: str) -> float:
    name = entry.name
    if _OTHER_WORDS.get(entry.known_path) == known:
        return 1
    begins = len(name) >= _LONG_CHARACTERS and known.startswith(name)
    rate = SequenceMatcher(None, name.lower(), known).ratio()
    return max(rate, _LIKELY_RATE) if begins else rate


def _removed(config: Config, entry: Entry) -> Finding:
    # runtime/config.py, _reject_removed_config_keys: the key alone is refused, on or off.
    value = entry.value
    is_off = value is False or (isinstance(value, dict) and value.get("enabled") is False)
    return entry.found(
        REMOVED_KEY,
        f"DeepSpeed {config.schema.version} rejects `{entry.label}`, which was removed",
        "remove it: it was off" if is_off else "remove it, or install an older DeepSpeed",
        edits=drop(config.text, entry) if is_off else (),
    )


def _deprecated(config: Config, entry: Entry, new_path: str | None) -> Finding:
    # runtime/config_utils.py, DeepSpeedConfigModel._process_deprecated_field.
    message = f"`{entry.label}` is deprecated"
    if new_path is None:
        return entry.found(DEPRECATED_KEY, message, "remove it")
    new_name = new_path.rpartition(".")[2]
    if new_path in config.last:
        message += f", and DeepSpeed rejects it together with `{new_name}`"
        return entry.found(DEPRECATED_KEY, message, "remove it", severity=Severity.ERROR)
    message += f": use `{new_name}`"
    # accelerate/accelerator.py, _prepare_deepspeed looks at offload_optimizer.device, and keeps
    # an optimizer that runtime/engine.py, _configure_optimizer refuses.
    unseen = entry.name == "cpu_offload" and entry.value is True and config.by_accelerate
    raises = unseen and bool(config.stage) and "optimizer" not in config.last
    fix, edits = f"rename it to `{new_name}`", rename(config.text, entry, new_name)
    new = config.schema.keys.get(new_path)
    if new is not None and new.unknown is Unknown.REFUSED:
        # runtime/zero/config.py, new_param_fn of cpu_offload and cpu_offload_param.
        fix = f'write `"{new_name}": {{"device": "cpu"}}`'
        edits = (*edits, *put(entry, {"device": "cpu"})) if entry.value is True else ()
    return entry.found(
        DEPRECATED_KEY,
        message + (", and Accelerate does not see it" if raises else ""),
        fix,
        severity=Severity.ERROR if raises else Severity.WARNING,
        edits=edits,
    )


def _section(section: SchemaKey) -> str:
    return f"`{section.path}`" if section.path else "the top level"


RELATIONS: Mapping[Rule, tuple[Relation, ...]] = {
    WRONG_TYPE: tuple(
        # accelerate/utils/dataclasses.py, DeepSpeedPlugin, and accelerator.py, _prepare_deepspeed.
        Relation(
            at=path,
            when=lambda config, entry: config.by_accelerate and entry.value is None,
            says=lambda _, entry: f"`{entry.label}` is null",
            because="Accelerate, and so the Trainer, looks for a value in it and fails",
            fix="remove it",
        )
        for path in (*(BATCH_KEYS[2], *SWITCHED, f"{ZERO}.offload_optimizer"),)
    ),
    # utils/logging.py, get_log_level_from_string.
    NOT_A_CHOICE: (
        Relation(
            at="log_level",
            when=lambda _, entry: (
                isinstance(entry.value, str) and entry.value.lower() not in _LOG_LEVELS
            ),
            says=lambda _, entry: f"`{entry.shown}` is no `log_level`",
            fix=f"write one of {', '.join(_LOG_LEVELS)}",
        ),
    ),
    OUT_OF_RANGE: (
        Relation(
            at=_PRINTS,
            when=lambda config, entry: entry.number == 0 and not config.by_accelerate,
            says="DeepSpeed divides by `steps_per_print`",
            fix="write a large number to print nothing",
        ),
    ),
    KEY_DOES_NOTHING: (
        # runtime/engine.py never asks for it: a model must call deepspeed.checkpointing.configure,
        # and those of transformers do not.
        Relation(
            at="activation_checkpointing",
            when=lambda config, _: config.context.integration is Integration.HF,
            says="transformers models ignore `activation_checkpointing`",
            because="a model has to ask DeepSpeed for it, and theirs do not",
            fix="set `gradient_checkpointing=True` in TrainingArguments",
            severity=Severity.INFO,
        ),
    ),
    DEPRECATED_KEY: (
        # runtime/zero/config.py, read_zero_config_deprecated; Accelerate looks for a stage in it.
        Relation(
            at=ZERO,
            when=lambda _, entry: isinstance(entry.value, bool),
            says=lambda _, entry: f"`zero_optimization` as {entry.shown} is deprecated",
            fix=lambda _, entry: (
                f'write `"zero_optimization": {{"stage": {int(entry.value is True)}}}`'
            ),
            severity=lambda config, _: Severity.ERROR if config.by_accelerate else Severity.WARNING,
        ),
    ),
}
