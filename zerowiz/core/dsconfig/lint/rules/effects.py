"""Find keys that do nothing where they stand."""

import json
from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core.dsconfig.lint.config import STAGE_3, ZERO, Config, Entry
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Integration
from zerowiz.words import _, joined

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
    why=_("DeepSpeed reads the key only at other stages"),
)


def _stage(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    path = entry.known_path
    stages = _STAGE_3_ALONE if path.startswith(_STAGE_3_PREFIX) else _STAGES.get(path)
    if stages is None or config.stage in {None, *stages} or _is_default(entry):
        return
    yield entry.found(
        KEY_OF_ANOTHER_STAGE,
        _("`{label}` has no effect at stage {stage}", label=entry.label, stage=config.stage),
        fix=_("remove it, or write stage {stages}", stages=joined(_(" or "), map(str, stages))),
    )


def _is_default(entry: Entry) -> bool:
    """Whether the key would change nothing at its own stage either."""
    default = None if entry.key is None else entry.key.default
    return default is not None and json.loads(default) == entry.value


KEY_DOES_NOTHING = Rule(
    code="ZW602",
    name="key-does-nothing",
    severity=Severity.WARNING,
    why=_("this version of DeepSpeed does not read the key"),
)


def _inert(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    if entry.known_path in _INERT:
        is_default = _is_default(entry)
        yield entry.found(
            KEY_DOES_NOTHING,
            _(
                "DeepSpeed {version} does not read `{label}`: remove it",
                version=config.schema.version,
                label=entry.label,
            ),
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
            _("transformers models ignore `activation_checkpointing`"),
            severity=Severity.INFO,
            fix=_("set `gradient_checkpointing=True` in TrainingArguments"),
        )


SECTION_DISABLED = Rule(
    code="ZW603",
    name="section-disabled",
    severity=Severity.WARNING,
    why=_("a section is off until its `enabled` is true"),
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
            _("`{label}` has no `enabled`, so it is off", label=entry.label),
            fix=_('write `"enabled": true`, or remove the section'),
        )
    elif entry.value["enabled"] is False and not _is_harmless(config, entry, rest):
        yield entry.found(
            SECTION_DISABLED,
            _("`{label}` is off, so its other keys have no effect", label=entry.label),
            severity=Severity.INFO,
            fix=_("drop the section, or enable it"),
        )


def _is_harmless(config: Config, entry: Entry, names: Sequence[str]) -> bool:
    """Whether it is a precision whose settings do no harm: the other is on, or all are usual."""
    other = _OTHER_PRECISION.get(entry.known_path)
    if other is None:
        return False
    inner = [config.last.get(f"{entry.known_path}.{name}") for name in names]
    usual = all(each is not None and _is_default(each) for each in inner)
    return usual or config.truth(f"{other}.enabled") is not False
