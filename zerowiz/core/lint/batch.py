"""Find batch sizes that do not multiply to each other, and `auto` that nobody fills."""

from collections.abc import Iterator

from msgspec import Struct

from zerowiz.core.dsconfig.schema import Kind
from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import AUTO, BATCH_KEYS, ZERO, Config, Entry, put
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.lint.report import ConfigFinding
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration

# Find an "auto" that is never filled.

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
FILLED = {
    Integration.HF: _TRAINER,
    Integration.DEEPSPEED: frozenset[str](),
    Integration.ACCELERATE: _ACCELERATE,
    None: _TRAINER,
}
"""The keys whose `"auto"` is replaced, by who hands the config over."""
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


AUTO_OUT_OF_PLACE = Rule(
    code="ZW302",
    name="auto-out-of-place",
    severity=Severity.ERROR,
    why="only `auto` as the whole value of a key is replaced",
)


def _not_filled(config: Config) -> Iterator[ConfigFinding]:
    for entry in config.entries:
        if entry.value == AUTO:
            yield from _auto(config, entry)
        elif isinstance(entry.value, str) and entry.value.lower() == AUTO:
            yield from _misspelt(config, entry)
        # fill_match compares the whole value: betas of ["auto", "auto"] reach the optimizer.
        elif (
            isinstance(entry.value, list) and AUTO in entry.value and entry.path.startswith(_PARAMS)
        ):
            yield entry.found(
                AUTO_OUT_OF_PLACE,
                f"nothing replaces an `auto` inside the array of `{entry.label}`",
                fix='write `"auto"` for the whole array',
            )


def _auto(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    if entry.key and entry.key.unknown and not entry.key.removed:
        fails = config.by_accelerate or Kind.AUTO not in entry.key.takes
        yield entry.found(
            AUTO_OUT_OF_PLACE,
            f"`{entry.label}` is a section: `auto` works for single keys only",
            severity=Severity.ERROR if fails else Severity.WARNING,
            fix="remove it, or write its keys",
        )
    elif config.by_deepspeed:
        yield from _by_deepspeed(entry)
    elif entry.path not in FILLED[config.context.integration]:
        yield from _by_accelerate(config, entry)


def _is_own_default(entry: Entry) -> bool:
    """Whether `auto` is DeepSpeed's own word here."""
    return entry.key is not None and entry.key.default == f'"{AUTO}"'


AUTO_NOT_FILLED = Rule(
    code="ZW301",
    name="auto-not-filled",
    severity=Severity.ERROR,
    why=(
        "the Trainer and Accelerate fail on an `auto` that they cannot replace; DeepSpeed "
        "alone uses its default or fails"
    ),
)


def _by_accelerate(config: Config, entry: Entry) -> Iterator[ConfigFinding]:
    """Accelerate refuses whatever is left (DeepSpeedPlugin.fill_match)."""
    certain = config.by_accelerate
    if not certain and (_is_own_default(entry) or entry.key is None):
        return
    yield entry.found(
        AUTO_NOT_FILLED,
        f"neither the Trainer nor Accelerate replaces `auto` of `{entry.label}`",
        severity=Severity.ERROR if certain else Severity.WARNING,
        fix="remove it to use the default, or write a value",
    )


def _by_deepspeed(entry: Entry) -> Iterator[ConfigFinding]:
    severity = _harm_by_deepspeed(entry)
    if severity is not None:
        yield entry.found(
            AUTO_NOT_FILLED,
            f"nothing replaces `auto` of `{entry.label}` when DeepSpeed reads the config itself",
            severity=severity,
            fix="write a value",
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
            f"`{entry.value}` must be written in lower case: `auto`",
            fix="write `auto`",
            edits=() if config.by_deepspeed else put(entry, AUTO),
        )


# runtime/config.py, DeepSpeedConfig.__init__ and engine.py: these make the ranks that share a
# batch fewer than all of them.
_SEQUENCE_RANKS = "sequence_parallel_size"
_FEWER_RANKS = (_SEQUENCE_RANKS, "data_parallel_size", "tensor_parallel", "pipeline")


class _Batch(Struct, frozen=True, kw_only=True):
    """The three numbers of one config, as far as they are set."""

    train_size: int | None
    micro_batch: int | None
    accumulation_steps: int | None

    @property
    def divisor(self) -> int:
        """What the whole batch is a multiple of, whatever the number of ranks."""
        return (self.micro_batch or 1) * (self.accumulation_steps or 1)


def check_batch(config: Config) -> Iterator[ConfigFinding]:
    """The batch equation, as far as its numbers are known."""
    ranks = config.number(_SEQUENCE_RANKS)
    if ranks is not None and ranks < 1:
        # runtime/config.py, DeepSpeedConfig.__init__ divides the ranks by it.
        yield config.last[_SEQUENCE_RANKS].found(
            OUT_OF_RANGE,
            f"`{_SEQUENCE_RANKS}` must be at least 1, not {ranks}",
            because="DeepSpeed divides the number of ranks by it",
            fix="write 1, or remove it",
        )
    if all(config.get(key) is None for key in BATCH_KEYS[:2]):
        yield _missing(config)
        return
    if any(config.get(key) == AUTO for key in BATCH_KEYS):
        return
    whole, per_gpu, accumulated = BATCH_KEYS
    batch = _Batch(
        train_size=config.number(whole),
        micro_batch=config.number(per_gpu),
        accumulation_steps=config.number(accumulated),
    )
    if _is_whole(config, batch):
        if config.by_accelerate and batch.accumulation_steps is None:
            # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
            batch = replace(batch, accumulation_steps=1)
        yield from _equation(config, batch)


BATCH_MISSING = Rule(
    code="ZW402",
    name="batch-missing",
    severity=Severity.ERROR,
    why="DeepSpeed rejects a config without train_batch_size and train_micro_batch_size_per_gpu",
)


def _missing(config: Config) -> ConfigFinding:
    known = config.context.integration is not None
    return config.found(
        BATCH_MISSING,
        "neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is set",
        severity=Severity.ERROR if known else Severity.WARNING,
        fix="write `train_micro_batch_size_per_gpu`"
        + ("" if config.by_deepspeed else ', as `"auto"` for the Trainer'),
    )


def _is_whole(config: Config, batch: _Batch) -> bool:
    """Whether all that is set is a positive whole number; other rules report the rest."""
    numbers = (batch.train_size, batch.micro_batch, batch.accumulation_steps)
    return all(
        config.get(key) is None or (number is not None and number > 0)
        for key, number in zip(BATCH_KEYS, numbers, strict=True)
    )


def _equation(config: Config, batch: _Batch) -> Iterator[ConfigFinding]:
    """What runtime/config.py, _set_batch_related_parameters and _batch_assertion find."""
    train, ranks = batch.train_size, config.context.world_size
    if train is None:
        return
    if any(config.get(key) is not None for key in _FEWER_RANKS):
        ranks = None
    if train % batch.divisor:
        yield _unequal(
            config,
            f"{train} is not a multiple of {_product(batch)}",
        )
    elif ranks is not None and not _holds(batch, train, ranks):
        yield _unequal(
            config,
            f"{train} is not {_product(batch)} * {ranks} ranks",
        )


def _holds(batch: _Batch, train: int, ranks: int) -> bool:
    if batch.micro_batch is None or batch.accumulation_steps is None:
        return not train % (batch.divisor * ranks)
    return train == batch.divisor * ranks


def _product(batch: _Batch) -> str:
    return (
        " * ".join(str(n) for n in (batch.micro_batch, batch.accumulation_steps) if n is not None)
        or "1"
    )


BATCH_EQUATION = Rule(
    code="ZW401",
    name="batch-equation",
    severity=Severity.ERROR,
    why=(
        "DeepSpeed requires train_batch_size = train_micro_batch_size_per_gpu * "
        "gradient_accumulation_steps * number of ranks"
    ),
)


def _unequal(config: Config, message: str) -> ConfigFinding:
    return config.last[BATCH_KEYS[0]].found(
        BATCH_EQUATION,
        f"the `train_batch_size` of {message}",
        fix="remove `train_batch_size`: DeepSpeed computes it",
    )
