"""Merge what zerowiz writes with what a person wrote: a base config, or edits of a written one."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.strategy_types import ZeroKey
from zerowiz.core.structs import replace

# pydantic-core, src/input/shared.rs, str_as_bool and int_as_bool.
TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "on", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "off", "no", "f", "n", "0"), False),
}


def truth_of(value: object) -> bool | None:
    """What pydantic makes of a switch; None where it refuses the value."""
    return TRUTHS.get(str(value).lower()) if isinstance(value, (bool, int, str)) else None


# Build a config on a person's own: ZeRO and the batch are replaced, all else stays as it stands.


def whole_of(value: object) -> int | None:
    """A value as the whole number that pydantic makes of it; None for others, and for a truth."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Section = Mapping[str, object]
ZERO = "zero_optimization"
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
PRECISION_SECTIONS = ("bf16", "bfloat16", "fp16", "torch_autocast")
REPLACED = frozenset({ZERO, *BATCH_KEYS})
"""What zerowiz replaces in every base."""
LEARNED_BY: Mapping[str, str] = {
    "scheduler.params.warmup_max_lr": "lr",
    "optimizer.params.lr": "lr",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "gradient_clipping": "max_grad_norm",
}
"""The keys that say how a model learns, with the names in LEARNING, or of a Trainer's argument; of
two of the same the later counts."""
BETAS = "optimizer.params.betas"
# What a plan needs and a base may lack; of two that say it, the base counts.
_WHERE_MISSING = frozenset(
    {"optimizer", "scheduler", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}
)
SHARDED_PARAMETERS = 3
"""The stage that shards the weights too."""


class RemovedKey(Struct, frozen=True, kw_only=True):
    """A key of the base that the config built on it does not have."""

    key: str
    """Its path, with dots."""
    value: object
    why: str
    is_lost: bool = False
    """Whether it says something that the plan cannot have."""


def says_precision(base: Section) -> bool:
    """Whether a config names the format of its weights, or leaves it to its reader by "auto"."""
    sections = (base.get(name) for name in PRECISION_SECTIONS)
    enabled = (each.get("enabled") for each in sections if isinstance(each, Mapping))
    return any(value == "auto" or truth_of(value) for value in enabled)


def build_on(base: Section, written: Section) -> dict[str, object]:
    """The base with the ZeRO section, the batch and what is open of precision of another config.

    Args:
        base: A person's config; its keys keep their order.
        written: As zerowiz writes it without a base.

    Example:
        >>> base = {"train_batch_size": 8, "gradient_clipping": 0.5, "zero_optimization": {}}
        >>> build_on(base, {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0})
        {'gradient_clipping': 0.5, 'zero_optimization': {'stage': 2}}
    """
    replaced = {*REPLACED, *(() if says_precision(base) else PRECISION_SECTIONS)}
    # Only a plan that offloads to NVMe has it.
    wins = {*replaced, "aio"} & written.keys()
    kept = {
        key: written[key] if key in wins else value
        for key, value in base.items()
        if key in wins or key not in replaced
    }
    missing = {
        key: value
        for key, value in written.items()
        if key not in kept and (key in wins or key in _WHERE_MISSING)
    }
    return {**kept, **missing}


def removed_keys(base: Section, built: Section) -> tuple[RemovedKey, ...]:
    """What of a base left it, and why.

    Args:
        base: The person's config.
        built: What was built on it.
    """
    there = dict(_leaves(built))
    gone = {key: value for key, value in _leaves(base) if key not in there}
    return tuple(
        _removed(key, value, section_of(base, ZERO), section_of(built, ZERO))
        for key, value in gone.items()
        if not _has_below(key, there)
    )


def _has_below(key: str, leaves: Section) -> bool:
    """Whether a key is a section there, with others in it."""
    return any(other.startswith(f"{key}.") for other in leaves)


def value_at(values: object, key: str) -> object:
    """The value of a key, by its path with dots; None for a key that is missing.

    Example:
        >>> value_at({"bf16": {"enabled": True}}, "bf16.enabled")
        True
    """
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def section_of(values: Section, key: str) -> Section:
    """The section under a key; empty where there is no section."""
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _leaves(section: Section, path: str = "") -> Iterator[tuple[str, object]]:
    """Each value by its path, with dots; an empty section is a value."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _removed(key: str, value: object, before: Section, now: Section) -> RemovedKey:
    name = key.removeprefix(f"{ZERO}.")
    why, is_lost = "the plan leaves it at DeepSpeed's default", False
    section = name.partition(".")[0]
    if section in {"offload_optimizer", "offload_param"}:
        is_lost = section not in now and section_of(before, section).get("device") in {
            "cpu",
            "nvme",
        }
        why = "the plan does not offload it" if section not in now else why
    elif name.startswith("stage3_") and now.get("stage") != SHARDED_PARAMETERS:
        why, is_lost = "only stage 3 has it", True
    elif key in BATCH_KEYS:
        why = "DeepSpeed computes it from micro-batch, accumulation and ranks"
    elif key.partition(".")[0] in PRECISION_SECTIONS:
        why = "the plan decides the precision"
    return RemovedKey(key=key, value=value, why=why, is_lost=is_lost)


# Keep a person's edits of a config that zerowiz wrote, where the plan does not decide the key.

_DECIDED_ZERO = frozenset({"stage", "offload_optimizer", "offload_param", *map(str, ZeroKey)})
_DECIDED = frozenset(
    {
        *("optimizer", "optimizer.type"),
        *PRECISION_SECTIONS,
        *(f"{name}.enabled" for name in PRECISION_SECTIONS),
    }
)


class KeyEdit(Struct, frozen=True, kw_only=True):
    """What a person made of a key of a written config."""

    key: str
    """Its path, with dots."""
    value: object
    is_removed: bool = False
    in_new_section: bool = False
    """Whether the person added the section, too."""


class Merged(Struct, frozen=True, kw_only=True):
    """A config with edits."""

    values: dict[str, object]
    kept: tuple[KeyEdit, ...] = ()
    conflicts: tuple[KeyEdit, ...] = ()
    """Those of keys that the plan decides: the plan's values stand."""


def find_edits(wrote: Section, there: Section) -> tuple[KeyEdit, ...]:
    """What a person changed in a config.

    Args:
        wrote: As zerowiz wrote it.
        there: As it is now.

    Example:
        >>> [edit.key for edit in find_edits({"a": {"b": 1}}, {"a": {"b": 2}, "c": 3})]
        ['a.b', 'c']
    """
    before, now = dict(_leaves(wrote)), dict(_leaves(there))
    sections = {key for key, value in wrote.items() if isinstance(value, Mapping)}
    changed = [
        KeyEdit(key=key, value=value, in_new_section=key.partition(".")[0] not in sections)
        for key, value in now.items()
        if key not in before or before[key] != value
    ]
    gone = [
        KeyEdit(key=key, value=None, is_removed=True)
        for key in before
        if key not in now and not _has_below(key, now)
    ]
    return (*gone, *changed)


def with_edits(written: Section, edits: Sequence[KeyEdit]) -> Merged:
    """A config with a person's edits, but for those of keys that the plan decides.

    Args:
        written: As zerowiz would write it by itself.
        edits: What was changed in what it wrote before.
    """
    values = {key: dict(v) if isinstance(v, Mapping) else v for key, v in written.items()}
    leaves = dict(_leaves(written))
    kept, conflicts = list[KeyEdit](), list[KeyEdit]()
    for edit in edits:
        if not edit.is_removed and leaves.get(edit.key, edit) == edit.value:
            continue
        if _is_decided(edit.key):
            conflicts.append(edit)
        elif not _is_homeless(edit, written) and _put(values, edit):
            kept.append(edit)
    return Merged(values=values, kept=tuple(kept), conflicts=tuple(conflicts))


def _is_decided(key: str) -> bool:
    top, _, below = key.partition(".")
    if top == ZERO:
        return not below or below.partition(".")[0] in _DECIDED_ZERO
    return key in _DECIDED or top in {*BATCH_KEYS, "torch_autocast"}


def _is_homeless(edit: KeyEdit, written: Section) -> bool:
    """Whether the plan has no longer the section that a person edited."""
    top, _, below = edit.key.partition(".")
    return bool(below) and not edit.in_new_section and not isinstance(written.get(top), Mapping)


def _put(values: dict[str, object], edit: KeyEdit) -> bool:
    """Put an edit into a section; False where what it removes is gone already."""
    top, _, below = edit.key.partition(".")
    if not below:
        if edit.is_removed:
            return values.pop(top, edit) is not edit
        values[top] = edit.value
        return True
    there = values.get(top)
    section = dict(there) if isinstance(there, Mapping) else {}
    if not _put(section, replace(edit, key=below)):
        return False
    values[top] = section
    # What has lost its last key is no section any more.
    return bool(section) or values.pop(top) is section
