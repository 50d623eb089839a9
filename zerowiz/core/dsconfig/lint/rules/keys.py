"""Find keys that DeepSpeed does not know, knows in another section, or has removed."""

import json
from collections.abc import Iterator
from difflib import SequenceMatcher

from msgspec import Struct

from zerowiz.core.dsconfig.lint.config import BATCH_KEYS, Config, Entry
from zerowiz.core.dsconfig.lint.edits import drop, put, rename
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, Edit
from zerowiz.core.dsconfig.lint.rules.effects import KEY_DOES_NOTHING
from zerowiz.core.dsconfig.schema import SchemaKey, Unknown
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _, joined

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
    "fp16.dynamic_loss_scale": _("remove it: a `loss_scale` of 0, the default, is dynamic"),
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
    return not any(_homes(config, each) or _guess(config, each, _LIKELY_RATE) for each in guessed)


NOT_A_CONFIG = Rule(
    code="ZW004",
    name="not-a-config",
    severity=Severity.WARNING,
    why=_("DeepSpeed ignores keys that it does not know, and may train with its defaults"),
)


def no_config(config: Config) -> ConfigFinding:
    """The finding for a file that no reader accepts, because it has no batch size either."""
    known = config.context.integration is not None
    return config.found(
        NOT_A_CONFIG,
        _("this is not a DeepSpeed config: DeepSpeed knows none of its keys"),
        severity=Severity.ERROR if known else Severity.WARNING,
        fix=_("check the file that the script passes to DeepSpeed"),
    )


def check_keys(config: Config) -> Iterator[ConfigFinding]:
    """Names of keys that are wrong."""
    anothers = _of_another_program(config)
    if anothers:
        yield config.found(
            NOT_A_CONFIG,
            _(
                "DeepSpeed does not know {anothers} of the top-level keys, and ignores them",
                anothers=len(anothers),
            ),
            fix=_("make sure that the script passes this very file to DeepSpeed"),
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
    why=_("a later version of DeepSpeed will reject the key"),
)


def _old_form(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision adds a `bf16` of its
    # own; runtime/precision_config.py, get_bfloat16_config reads that first.
    has_bf16 = config.last["bf16"].path == "bf16" if "bf16" in config.last else False
    if entry.path == "bfloat16" and (has_bf16 or config.by_accelerate):
        yield entry.found(
            KEY_DOES_NOTHING,
            _("`bfloat16` has no effect because `bf16` is set too"),
            fix=_("remove it"),
        )
    # runtime/zero/config.py, read_zero_config_deprecated; Accelerate looks for a stage in it.
    if entry.path == "zero_optimization" and isinstance(entry.value, bool):
        yield entry.found(
            DEPRECATED_KEY,
            _("`zero_optimization` as {entry} is deprecated", entry=str(entry.value).lower()),
            severity=Severity.ERROR if config.by_accelerate else Severity.WARNING,
            fix=_('write `"zero_optimization": {{"stage": {entry}}}`', entry=int(entry.value)),
        )


UNKNOWN_KEY = Rule(
    code="ZW101",
    name="unknown-key",
    severity=Severity.WARNING,
    why=_("DeepSpeed rejects unknown keys in some sections and ignores them in others"),
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
        instead = _INSTEAD.get(entry.known_path) or _in_params(entry) or _("remove it")
        yield entry.found(
            UNKNOWN_KEY,
            _(
                "`{label}` is not a key of {section}",
                label=entry.label,
                section=_section(entry.section),
            ),
            severity=Severity.ERROR if refused else Severity.WARNING,
            because=_fate(refused=refused),
            fix=instead,
        )


def _in_params(entry: Entry) -> str | None:
    """The way out for what was meant for the class: an `lr` beside `params`."""
    path = entry.section.path if entry.section else ""
    if path not in {"optimizer", "scheduler"}:
        return None
    return _("move it into `{path}.params`, or remove it", path=path)


def _fate(*, refused: bool) -> str:
    """What becomes of a key that DeepSpeed does not know."""
    if refused:
        return _("DeepSpeed rejects a config with an unknown key in this section")
    return _("DeepSpeed ignores the key")


def _misspelt(config: Config, entry: Entry, guess: _Guess) -> ConfigFinding:
    """An error where the right key is not there, so that its default counts."""
    refused = entry.in_strict_section
    is_free = guess.key.path not in config.last
    is_lost = guess.is_sure and is_free and not _comes_anyway(config, guess.key, entry.value)
    fix, edits = _("rename it to `{guess}`", guess=guess.name), rename(entry, guess.name)
    return entry.found(
        UNKNOWN_KEY,
        _(
            "`{label}` is not a key of {section}, did you mean `{guess}`?",
            label=entry.label,
            section=_section(entry.section),
            guess=guess.name,
        ),
        severity=Severity.ERROR if refused or is_lost else Severity.WARNING,
        because=_fate(refused=refused),
        fix=fix if is_free else _("remove it: `{guess}` is set too", guess=guess.name),
        edits=edits if guess.is_sure and is_free and not guess.key.deprecated else (),
    )


MISPLACED_KEY = Rule(
    code="ZW102",
    name="misplaced-key",
    severity=Severity.WARNING,
    why=_("DeepSpeed rejects the key here, or ignores it and uses the default"),
)


def _misplaced(config: Config, entry: Entry, homes: tuple[SchemaKey, ...]) -> ConfigFinding:
    home = homes[0]
    is_sure = len(homes) == 1 and home.path not in config.last
    is_lost = is_sure and not _comes_anyway(config, home, entry.value)
    refused = entry.in_strict_section
    places = joined(_(" or "), (_section(config.schema.keys[key.section]) for key in homes))
    useless = _is_loss_scaling(entry)
    return entry.found(
        MISPLACED_KEY,
        _(
            "`{label}` belongs to {places}, not to {section}",
            label=entry.label,
            places=places,
            section=_section(entry.section),
        ),
        severity=Severity.ERROR if refused or is_lost else Severity.WARNING,
        because=_fate(refused=refused),
        fix=_("remove it: bf16 needs no loss scale")
        if useless
        else _("move it to {places}", places=places),
        edits=drop(config.text, entry) if useless else (),
    )


def _comes_anyway(config: Config, key: SchemaKey, value: object) -> bool:
    """Whether nothing is lost where the key is not read: the default, or the script's batch."""
    if config.by_accelerate and key.path in BATCH_KEYS[:2]:
        return True
    return key.default is not None and json.loads(key.default) == value


def _is_loss_scaling(entry: Entry) -> bool:
    """Whether it is a key of fp16 under bf16, where it is not needed.

    Strict since 0.17.1 (runtime/precision_config.py, DeepSpeedBF16Config).
    """
    return entry.section is not None and entry.section.path == "bf16"


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
    why=_("this version of DeepSpeed rejects a config with the key"),
)


def _removed(config: Config, entry: Entry) -> ConfigFinding:
    # runtime/config.py, _reject_removed_config_keys: the key alone is refused, on or off.
    value = entry.value
    is_off = value is False or (isinstance(value, dict) and value.get("enabled") is False)
    return entry.found(
        REMOVED_KEY,
        _(
            "DeepSpeed {version} rejects `{label}`, which was removed",
            version=config.schema.version,
            label=entry.label,
        ),
        fix=_("remove it: it was off") if is_off else _("remove it, or install an older DeepSpeed"),
        edits=drop(config.text, entry) if is_off else (),
    )


def _deprecated(config: Config, entry: Entry) -> ConfigFinding:
    # runtime/config_utils.py, DeepSpeedConfigModel._process_deprecated_field.
    new_path = entry.key.new_path if entry.key else None
    if new_path is None:
        return entry.found(
            DEPRECATED_KEY, _("`{label}` is deprecated", label=entry.label), fix=_("remove it")
        )
    new_name = new_path.rpartition(".")[2]
    if new_path in config.last:
        return entry.found(
            DEPRECATED_KEY,
            _(
                "`{label}` is deprecated, and DeepSpeed rejects it together with `{new_name}`",
                label=entry.label,
                new_name=new_name,
            ),
            severity=Severity.ERROR,
            fix=_("remove it"),
        )
    # accelerate/accelerator.py, _prepare_deepspeed looks at offload_optimizer.device, and keeps
    # an optimizer that runtime/engine.py, _configure_optimizer refuses.
    unseen = entry.name == "cpu_offload" and entry.value is True and config.by_accelerate
    raises = unseen and bool(config.stage) and "optimizer" not in config.last
    is_section = Unknown.REFUSED is getattr(config.schema.keys.get(new_path), "unknown", None)
    fix = (
        _('write `"{new_name}": {{"device": "cpu"}}`', new_name=new_name)
        if is_section
        else _("rename it to `{new_name}`", new_name=new_name)
    )
    return entry.found(
        DEPRECATED_KEY,
        _("`{label}` is deprecated: use `{new_name}`", label=entry.label, new_name=new_name)
        + (_(", and Accelerate does not see it") if raises else ""),
        severity=Severity.ERROR if raises else Severity.WARNING,
        fix=fix,
        edits=_modern(entry, new_name, is_section=is_section),
    )


def _modern(entry: Entry, new_name: str, *, is_section: bool) -> tuple[Edit, ...]:
    if not is_section:
        return rename(entry, new_name)
    # runtime/zero/config.py, new_param_fn of cpu_offload and cpu_offload_param.
    if entry.value is True:
        return (*rename(entry, new_name), *put(entry, {"device": "cpu"}))
    return ()


def _section(section: SchemaKey | None) -> str:
    return f"`{section.path}`" if section and section.path else _("the top level")
