"""Find batch sizes that do not multiply to each other."""

from collections.abc import Iterator

from msgspec import Struct

from zerowiz.core.dsconfig.lint.config import AUTO, BATCH_KEYS, Config
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.values import OUT_OF_RANGE
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.values import replace
from zerowiz.words import _

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
            _(
                "`{sequence_ranks}` must be at least 1, not {ranks}",
                sequence_ranks=_SEQUENCE_RANKS,
                ranks=ranks,
            ),
            because=_("DeepSpeed divides the number of ranks by it"),
            fix=_("write 1, or remove it"),
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
        yield from _equation(config, _with_default(config, batch))


BATCH_MISSING = Rule(
    code="ZW402",
    name="batch-missing",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects a config without train_batch_size and train_micro_batch_size_per_gpu"),
)


def _missing(config: Config) -> ConfigFinding:
    known = config.context.integration is not None
    return config.found(
        BATCH_MISSING,
        _("neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is set"),
        severity=Severity.ERROR if known else Severity.WARNING,
        fix=_("write `train_micro_batch_size_per_gpu`")
        + ("" if config.by_deepspeed else _(', as `"auto"` for the Trainer')),
    )


def _is_whole(config: Config, batch: _Batch) -> bool:
    """Whether all that is set is a positive whole number; other rules report the rest."""
    numbers = (batch.train_size, batch.micro_batch, batch.accumulation_steps)
    return all(
        config.get(key) is None or (number is not None and number > 0)
        for key, number in zip(BATCH_KEYS, numbers, strict=True)
    )


def _with_default(config: Config, batch: _Batch) -> _Batch:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__: 1 where it is missing.
    if config.by_accelerate and batch.accumulation_steps is None:
        return replace(batch, accumulation_steps=1)
    return batch


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
            _("{train} is not a multiple of {product}", train=train, product=_product(batch)),
        )
    elif ranks is not None and not _holds(batch, train, ranks):
        yield _unequal(
            config,
            _(
                "{train} is not {product} * {ranks} ranks",
                train=train,
                product=_product(batch),
                ranks=ranks,
            ),
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
    why=_(
        "DeepSpeed requires train_batch_size = train_micro_batch_size_per_gpu *"
        " gradient_accumulation_steps * number of ranks"
    ),
)


def _unequal(config: Config, message: str) -> ConfigFinding:
    return config.last[BATCH_KEYS[0]].found(
        BATCH_EQUATION,
        _("the `train_batch_size` of {message}", message=message),
        fix=_("remove `train_batch_size`: DeepSpeed computes it"),
    )
