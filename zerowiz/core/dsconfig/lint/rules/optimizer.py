"""Find optimizers and schedulers that DeepSpeed does not build."""

from collections.abc import Iterator, Sequence

from zerowiz.core.dsconfig.classes import BuiltClass
from zerowiz.core.dsconfig.lint.config import AUTO, Config, Entry, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.dsconfig.lint.rules.values import (
    NOT_A_CHOICE,
    NUMBER_IN_QUOTES,
    OUT_OF_RANGE,
    WRONG_TYPE,
)
from zerowiz.core.dsconfig.schema import NUMERALS, Kind, release
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _, joined, listing

_WARMUP_RATES = frozenset({"warmup_min_lr", "warmup_max_lr"})
_TOTAL = "total_num_steps"
_WARMUP_TYPES = frozenset({"log", "linear"})
# runtime/lr_schedules.py, WarmupLR.
_DEFAULT_WARMUP_STEPS = 1000
# torch/optim/adamw.py, __init__, refuses less; DeepSpeed's own classes climb the loss, grow the
# weights, or divide by less.
_AT_LEAST_0 = ("lr", "weight_decay", "eps")
_BETAS = 2
# What torch's and DeepSpeed's classes calculate with, or compare with 0.
_NUMBERS = frozenset(
    {
        *(f"optimizer.params.{name}" for name in ("lr", "eps", "weight_decay")),
        *(f"scheduler.params.{name}" for name in (*_WARMUP_RATES, _TOTAL)),
    }
)


def check_optimizer(config: Config) -> Iterator[ConfigFinding]:
    """The optimizer and the scheduler of the config."""
    yield from map(config.if_built, _if_built(config))
    yield from _not_params(config)


def _if_built(config: Config) -> Iterator[ConfigFinding]:
    """What matters only where DeepSpeed builds them."""
    kind = config.last.get("optimizer.type")
    if kind is not None and isinstance(kind.value, str) and kind.value != AUTO:
        yield from _optimizer(config, kind, kind.value)
        yield from _clipping(config)
        yield from _out_of_range(config)
    yield from _nameless(config, kind)
    scheduler = config.last.get("scheduler.type")
    if scheduler is not None and isinstance(scheduler.value, str) and scheduler.value != AUTO:
        yield from _scheduler(config, scheduler, scheduler.value)
    yield from _quoted(config)


UNKNOWN_OPTIMIZER = Rule(
    code="ZW508",
    name="unknown-optimizer",
    severity=Severity.ERROR,
    why=_("DeepSpeed fails on a name that it does not know"),
)


def _optimizer(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    built = config.schema.classes.optimizer(name)
    if built is None:
        # runtime/engine.py, _do_sanity_check.
        yield kind.found(
            UNKNOWN_OPTIMIZER,
            _(
                "neither DeepSpeed {version} nor `torch.optim` has an optimizer `{name}`",
                version=config.schema.version,
                name=shown(name),
            ),
            fix=_("write `AdamW`"),
        )
    elif built.refuses_zero and config.stage:
        # 0.18.9, runtime/engine.py, _configure_basic_optimizer.
        yield kind.found(
            UNTESTED_OPTIMIZER,
            _("`{kind}` cannot be combined with ZeRO", kind=kind.value),
            fix=_("write stage 0"),
        )
    elif built.tested_with_zero is False and config.stage and not offloads(config):
        yield from _untested(config, kind, name)


UNTESTED_OPTIMIZER = Rule(
    code="ZW507",
    name="untested-optimizer",
    severity=Severity.ERROR,
    why=_(
        "DeepSpeed rejects optimizers that it has not tested with ZeRO, unless a key allows them"
    ),
)


def _untested(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _do_optimizer_sanity_check.
    if config.truth("zero_allow_untested_optimizer") is False:
        yield kind.found(
            UNTESTED_OPTIMIZER,
            _("`{name}` with ZeRO needs `zero_allow_untested_optimizer`", name=name),
            fix=_('write `"zero_allow_untested_optimizer": true` at the top level'),
        )


def _nameless(config: Config, kind: Entry | None) -> Iterator[ConfigFinding]:
    """An optimizer without a name: DeepSpeed builds none, and the first backward fails."""
    section = config.get("optimizer")
    known = {key.name for key in config.schema.children("optimizer")}
    if not isinstance(section, dict) or not known.issuperset(section):
        return
    if kind is None or kind.value is None:
        yield config.last["optimizer"].found(
            UNKNOWN_OPTIMIZER,
            _("the `optimizer` has no `type`"),
            because=_("DeepSpeed then builds no optimizer, and the first backward pass fails"),
            fix=_('write `"type": "AdamW"` in it'),
        )


def _not_params(config: Config) -> Iterator[ConfigFinding]:
    """What cannot be handed over as keyword arguments; a scheduler needs some, if empty."""
    optimizer = config.last.get("optimizer.params")
    scheduler = config.last.get("scheduler.params")
    for entry in (optimizer, scheduler):
        is_unset = entry is optimizer and entry is not None and entry.value is None
        if entry is not None and not is_unset and not isinstance(entry.value, dict):
            found = entry.found(
                WRONG_TYPE,
                _(
                    "`{label}` must be an object, not `{entry}`",
                    label=entry.label,
                    entry=shown(entry.value),
                ),
                because=_("DeepSpeed hands them over as keyword arguments"),
                fix=_("write `{}`"),
            )
            # runtime/engine.py looks into an optimizer's even where a script has its own.
            yield found if entry is optimizer else config.if_built(found)


def _out_of_range(config: Config) -> Iterator[ConfigFinding]:
    for name in _AT_LEAST_0:
        value = _number(config, f"optimizer.params.{name}")
        if value is not None and value < 0:
            yield config.last[f"optimizer.params.{name}"].found(
                OUT_OF_RANGE,
                _("`{name}` must be at least 0, not {value}", name=name, value=value),
                because=_("torch's optimizers reject it; with DeepSpeed's own the loss rises")
                if name == "lr"
                else _("torch's optimizers reject it; DeepSpeed's own do not check it"),
                fix=_("write {value}", value=-value),
            )
    betas = config.last.get("optimizer.params.betas")
    if betas is None or not isinstance(betas.value, list) or AUTO in betas.value:
        return
    if len(betas.value) != _BETAS:
        message, because = (
            _("two numbers, not {betas}", betas=len(betas.value)),
            _("the first step fails"),
        )
    elif all(isinstance(each, (int, float)) and 0 <= each < 1 for each in betas.value):
        return
    else:
        message = _("from 0 to below 1, not `{betas}`", betas=shown(betas.value))
        because = _("torch's optimizers reject it; with DeepSpeed's own the loss becomes NaN")
    yield betas.found(
        OUT_OF_RANGE,
        _("`betas` must be {message}", message=message),
        because=because,
        fix=_("write `[0.9, 0.999]`, the default"),
    )


CLIPPING_IN_OPTIMIZER = Rule(
    code="ZW513",
    name="clipping-in-optimizer",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects max_grad_norm among the arguments of the optimizer"),
)


def _clipping(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _configure_basic_optimizer.
    entry = config.last.get("optimizer.params.max_grad_norm")
    if entry is not None:
        yield entry.found(
            CLIPPING_IN_OPTIMIZER,
            _("`max_grad_norm` is not an argument of the optimizer"),
            fix=_("write `gradient_clipping` at the top level"),
        )


SCHEDULER_WITHOUT_OPTIMIZER = Rule(
    code="ZW504",
    name="scheduler-without-optimizer",
    severity=Severity.INFO,
    why=_("the scheduler needs an optimizer, and the config has none"),
)
SCHEDULER_REFUSED = Rule(
    code="ZW518",
    name="scheduler-refused",
    severity=Severity.ERROR,
    why=_("DeepSpeed cannot build the scheduler"),
)
UNKNOWN_SCHEDULER = Rule(
    code="ZW520",
    name="unknown-scheduler",
    severity=Severity.ERROR,
    why=_("DeepSpeed fails on a name that it does not know"),
)


def _scheduler(config: Config, scheduler: Entry, name: str) -> Iterator[ConfigFinding]:
    # transformers/integrations/deepspeed.py, deepspeed_optim_sched brings its own optimizer.
    if config.get("optimizer") is None and config.by_deepspeed:
        yield scheduler.found(
            SCHEDULER_WITHOUT_OPTIMIZER,
            _(
                "`{name}` needs an optimizer: the config has none, so the script must pass one",
                name=shown(name),
            ),
            fix=_("make sure that the script passes an optimizer to `deepspeed.initialize`"),
        )
    built = config.schema.classes.scheduler(name)
    if built is None:
        # runtime/engine.py, _scheduler_from_config.
        yield scheduler.found(
            UNKNOWN_SCHEDULER,
            _("neither DeepSpeed nor torch has a scheduler `{name}`", name=shown(name)),
            fix=_(
                "write one of {own_schedulers}",
                own_schedulers=listing(config.schema.classes.own_schedulers),
            ),
        )
        return
    yield from _arguments(config, scheduler, built)
    if built.is_deepspeeds:
        yield from _warmup(config)


def _arguments(config: Config, scheduler: Entry, built: BuiltClass) -> Iterator[ConfigFinding]:
    """What the class refuses as an argument, and what it lacks."""
    params = config.get("scheduler.params")
    given: Sequence[str] = tuple(params) if isinstance(params, dict) else ()
    for word in given:
        entry = config.last.get(f"scheduler.params.{word}")
        if entry is not None and word not in (built.arguments or ()):
            yield entry.found(
                SCHEDULER_REFUSED,
                _("`{built}` has no argument `{word}`", built=built.name, word=shown(word)),
                fix=_("remove it"),
            )
    if not isinstance(params, dict) and "scheduler.params" not in config.last and not built.needs:
        yield scheduler.found(
            SCHEDULER_REFUSED,
            _("`{built}` has no `params`", built=built.name),
            because=_("DeepSpeed fails on a scheduler without `params`"),
            fix=_('write `"params": {}` beside it'),
        )
    missing = [word for word in built.needs if word not in given]
    if missing:
        names = joined(_(" and "), (f"`{word}`" for word in missing))
        auto = _(', for the Trainer as `"auto"`') if missing == [_TOTAL] else ""
        yield scheduler.found(
            SCHEDULER_REFUSED,
            _("`{built}` needs {names} in its params", built=built.name, names=names),
            fix=_("write {names}{auto}", names=names, auto=auto),
        )


def _warmup(config: Config) -> Iterator[ConfigFinding]:
    steps = config.last.get("scheduler.params.warmup_num_steps")
    if steps is not None and _is_refused(config.schema.version, steps):
        yield steps.found(
            SCHEDULER_REFUSED,
            _(
                "`warmup_num_steps` must be an integer above 0, without a decimal point or"
                " an exponent"
            ),
            fix=_("write 1 or more"),
        )
    form = config.last.get("scheduler.params.warmup_type")
    if form is not None and form.value not in (AUTO, *_WARMUP_TYPES):
        # runtime/lr_schedules.py, WarmupLR warns and takes `log`.
        yield form.found(
            NOT_A_CHOICE,
            _("`{form}` is no `warmup_type`", form=shown(form.value)),
            because=_("DeepSpeed warns, and trains with `log` instead"),
            fix=_("write `log` or `linear`"),
        )
    yield from _warmup_rates(config)
    yield from _warmup_length(config)


def _warmup_rates(config: Config) -> Iterator[ConfigFinding]:
    low, high = (_number(config, f"scheduler.params.warmup_{end}_lr") for end in ("min", "max"))
    if low is not None and high is not None and low > high:
        yield config.last["scheduler.params.warmup_min_lr"].found(
            OUT_OF_RANGE,
            _("`warmup_min_lr` is {low}, above the `warmup_max_lr` of {high}", low=low, high=high),
            severity=Severity.WARNING,
            because=_("the learning rate falls while it is meant to warm up"),
            fix=_("swap them"),
        )


def _warmup_length(config: Config) -> Iterator[ConfigFinding]:
    # runtime/lr_schedules.py, WarmupDecayLR and WarmupCosineLR: they only warn.
    total = _number(config, f"scheduler.params.{_TOTAL}")
    steps = _number(config, "scheduler.params.warmup_num_steps")
    unset = "scheduler.params.warmup_num_steps" not in config.last
    steps = _DEFAULT_WARMUP_STEPS if unset else steps
    if total is not None and steps is not None and total < steps:
        yield config.last[f"scheduler.params.{_TOTAL}"].found(
            OUT_OF_RANGE,
            _(
                "`{key}` is {total}, less than the {steps} steps of the warm-up",
                key=_TOTAL,
                total=total,
                steps=steps,
            ),
            severity=Severity.WARNING,
            because=_("the learning rate never reaches its maximum, nor decays from it"),
            fix=_("write all steps of the run, or shorten `warmup_num_steps`"),
        )


def _number(config: Config, path: str) -> float | None:
    value = config.get(path)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _is_refused(version: str, steps: Entry) -> bool:
    # runtime/lr_schedules.py, WarmupLR, from 0.19.3 on.
    if steps.kind is Kind.AUTO or release(version) < (0, 19, 3):
        return False
    return not isinstance(steps.value, int) or steps.value <= 0


def _quoted(config: Config) -> Iterator[ConfigFinding]:
    for path in sorted(_NUMBERS & config.last.keys()):
        entry = config.last[path]
        if entry.kind in NUMERALS:
            yield entry.found(
                NUMBER_IN_QUOTES,
                _("`{label}` is the string `{entry}`", label=entry.label, entry=shown(entry.value)),
                severity=Severity.ERROR,
                fix=_("remove the quotes"),
            )
