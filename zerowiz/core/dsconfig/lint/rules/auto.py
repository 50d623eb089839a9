"""Find an "auto" that is never filled."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.lint.config import AUTO, ZERO, Config, Entry
from zerowiz.core.dsconfig.lint.edits import put
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.schema import Kind
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Integration
from zerowiz.words import _

# accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.__post_init__ and set_mixed_precision;
# accelerator.py, Accelerator._prepare_deepspeed. `steps_per_print` is overwritten there.
_ACCELERATE = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("gradient_clipping", "steps_per_print", "fp16.enabled", "bf16.enabled"),
        *(f"{ZERO}.stage", f"{ZERO}.stage3_gather_16bit_weights_on_model_save"),
        *(f"{ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
        *(f"{ZERO}.offload_{part}.nvme_path" for part in ("optimizer", "param")),
        *(f"{ZERO}.reduce_bucket_size", f"{ZERO}.stage3_prefetch_bucket_size"),
        f"{ZERO}.stage3_param_persistence_threshold",
        *("optimizer.params.lr", "optimizer.params.weight_decay"),
        *("scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"),
        *("scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps"),
    }
)
# transformers 5.23, integrations/deepspeed.py, HfTrainerDeepSpeedConfig; then Accelerate.
_TRAINER = _ACCELERATE | {"optimizer.params.betas", "optimizer.params.eps"}
_FILLED = {
    Integration.HF: _TRAINER,
    Integration.ACCELERATE: _ACCELERATE,
    None: _TRAINER,
}
# What DeepSpeed's default turns into another training (runtime/config_utils.py drops every "auto"
# of a strict section).
_ANOTHER_TRAINING = frozenset(
    {
        *("bf16.enabled", "fp16.enabled", f"{ZERO}.stage"),
        *(f"{ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
    }
)
_PARAMS = ("optimizer.params.", "scheduler.params.")
_NO_NUMBER = frozenset({"string"})


def check_auto(config: Config) -> Iterator[ConfigFinding]:
    """Every "auto", and what was meant as one."""
    yield from map(config.if_built, _not_filled(config))


def _not_filled(config: Config) -> Iterator[ConfigFinding]:
    for entry in config.entries:
        if entry.value == AUTO:
            yield from _auto(config, entry)
        elif isinstance(entry.value, str) and entry.value.lower() == AUTO:
            yield from _misspelt(config, entry)
        elif isinstance(entry.value, list) and AUTO in entry.value:
            yield from _in_array(entry)


AUTO_OUT_OF_PLACE = Rule(
    code="ZW302",
    name="auto-out-of-place",
    severity=Severity.ERROR,
    why=_("only `auto` as the whole value of a key is replaced"),
)


def _auto(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    if entry.key and entry.key.unknown and not entry.key.removed:
        yield entry.found(
            AUTO_OUT_OF_PLACE,
            _("`{label}` is a section: `auto` works for single keys only", label=entry.label),
            severity=Severity.ERROR if _fails(config, entry) else Severity.WARNING,
            fix=_("remove it, or write its keys"),
        )
    elif config.by_deepspeed:
        yield from _by_deepspeed(entry)
    elif entry.path not in _FILLED[config.context.integration]:
        yield from _by_accelerate(config, entry)


def _fails(config: Config, entry: Entry) -> bool:
    return config.by_accelerate or entry.key is None or Kind.AUTO not in entry.key.takes


def _is_own_default(entry: Entry) -> bool:
    """Whether `auto` is DeepSpeed's own word here."""
    return entry.key is not None and entry.key.default == f'"{AUTO}"'


AUTO_NOT_FILLED = Rule(
    code="ZW301",
    name="auto-not-filled",
    severity=Severity.ERROR,
    why=_(
        "the Trainer and Accelerate fail on an `auto` that they cannot replace; DeepSpeed alone"
        " uses its default or fails"
    ),
)


def _by_accelerate(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    """Accelerate refuses whatever is left (DeepSpeedPlugin.fill_match)."""
    certain = config.by_accelerate
    if not certain and (_is_own_default(entry) or entry.key is None):
        return
    yield entry.found(
        AUTO_NOT_FILLED,
        _("neither the Trainer nor Accelerate replaces `auto` of `{label}`", label=entry.label),
        severity=Severity.ERROR if certain else Severity.WARNING,
        fix=_("remove it to use the default, or write a value"),
    )


def _by_deepspeed(entry: Entry) -> Iterator[ConfigFinding]:
    severity = _harm_by_deepspeed(entry)
    if severity is not None:
        yield entry.found(
            AUTO_NOT_FILLED,
            _(
                "nothing replaces `auto` of `{label}` when DeepSpeed reads the config itself",
                label=entry.label,
            ),
            severity=severity,
            fix=_("write a value"),
        )


def _harm_by_deepspeed(entry: Entry) -> Severity | None:
    key = entry.key
    if key is None:
        return Severity.ERROR if entry.path.startswith(_PARAMS) else None
    if _is_own_default(entry) or key.removed:
        return None
    # runtime/engine.py compares the clipping with 0 in the first step.
    if Kind.AUTO not in key.takes or key.path in _ANOTHER_TRAINING | {"gradient_clipping"}:
        return Severity.ERROR
    return Severity.WARNING if entry.in_strict_section or not _NO_NUMBER & {*key.types} else None


def _misspelt(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    if entry.path in _TRAINER or (entry.key and not _NO_NUMBER & {*entry.key.types}):
        yield entry.found(
            AUTO_OUT_OF_PLACE,
            _("`{entry}` must be written in lower case: `auto`", entry=entry.value),
            fix=_("write `auto`"),
            edits=() if config.by_deepspeed else put(entry, AUTO),
        )


def _in_array(entry: Entry) -> Iterator[ConfigFinding]:
    # fill_match compares the whole value: betas of ["auto", "auto"] reach the optimizer.
    if entry.path.startswith(_PARAMS):
        yield entry.found(
            AUTO_OUT_OF_PLACE,
            _("nothing replaces an `auto` inside the array of `{label}`", label=entry.label),
            fix=_('write `"auto"` for the whole array'),
        )
