"""Find optimizers and schedulers that DeepSpeed does not build."""

from collections.abc import Iterator, Mapping

from zerowiz.core.dsconfig.lint.config import AUTO, Config, Entry, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.keys import UNKNOWN_KEY
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.dsconfig.lint.rules.values import NOT_A_CHOICE, NUMBER_IN_QUOTES
from zerowiz.core.dsconfig.schema import NUMERALS, Kind, release
from zerowiz.core.rule import Rule, Severity

# runtime/zero/utils.py, ZERO_SUPPORTED_OPTIMIZERS; mup's Adams are torch's.
_TESTED = frozenset({"adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw"})
# runtime/config.py, DEEPSPEED_OPTIMIZERS, whose case it ignores; up to 0.19.6 the 1-bit ones too.
_DEEPSPEED = _TESTED | {"lamb", "musgd"}
_ONE_BIT = frozenset({"onebitadam", "zerooneadam", "onebitlamb"})
# torch 2.x, optim/__init__.py, as it is spelled.
_TORCH = frozenset(
    {
        *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon"),
        *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
    }
)
# ops/adam/fused_adam.py, ops/adam/cpu_adam.py and torch/optim/adamw.py, __init__; what
# runtime/engine.py, get_optimizer_configuration takes out; max_grad_norm has a rule of its own.
_ADAM_PARAMS = frozenset(
    {
        *("lr", "betas", "eps", "weight_decay", "amsgrad", "bias_correction", "adam_w_mode"),
        *("adamw_mode", "set_grad_none", "torch_adam", "fp32_optimizer_states", "foreach"),
        *("fused", "maximize", "capturable", "differentiable", "decoupled_weight_decay"),
        "max_grad_norm",
    }
)
_WARMUP = frozenset({"warmup_num_steps", "warmup_type", "last_batch_iteration"})
_WARMUP_RATES = frozenset({"warmup_min_lr", "warmup_max_lr"})
_TOTAL = "total_num_steps"
# What __init__ takes, by the type: runtime/lr_schedules.py.
_PARAMS: Mapping[str, frozenset[str]] = {
    "WarmupLR": _WARMUP | _WARMUP_RATES,
    "WarmupDecayLR": _WARMUP | _WARMUP_RATES | {_TOTAL},
    "WarmupCosineLR": _WARMUP | {_TOTAL, "warmup_min_ratio", "cos_min_ratio"},
}
_WARMUP_TYPES = frozenset({"log", "linear"})
# runtime/lr_schedules.py, VALID_LR_SCHEDULES.
_SCHEDULERS = frozenset({"LRRangeTest", "OneCycle", *_PARAMS})
# torch 2.x, optim/lr_scheduler.py, __all__.
_TORCH_SCHEDULERS = frozenset(
    {
        *("LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR"),
        *("ExponentialLR", "SequentialLR", "CosineAnnealingLR", "ChainedScheduler"),
        *("ReduceLROnPlateau", "CyclicLR", "CosineAnnealingWarmRestarts", "OneCycleLR"),
        *("PolynomialLR", "LRScheduler"),
    }
)
# What torch's and DeepSpeed's classes calculate with, or compare with 0.
_NUMBERS = frozenset(
    {
        *(f"optimizer.params.{name}" for name in ("lr", "eps", "weight_decay")),
        *(f"scheduler.params.{name}" for name in (*_WARMUP_RATES, _TOTAL)),
    }
)


def check(config: Config) -> Iterator[ConfigFinding]:
    """The optimizer and the scheduler of the config."""
    kind = config.last.get("optimizer.type")
    if kind is not None and isinstance(kind.value, str) and kind.value != AUTO:
        yield from _optimizer(config, kind, kind.value)
        yield from _clipping(config)
    scheduler = config.last.get("scheduler.type")
    if scheduler is not None and isinstance(scheduler.value, str) and scheduler.value != AUTO:
        yield from _scheduler(config, scheduler, scheduler.value)
    yield from _quoted(config)


UNKNOWN_OPTIMIZER = Rule(
    code="ZW508",
    name="unknown-optimizer",
    severity=Severity.ERROR,
    why="DeepSpeed fails on a name that it does not know",
)


def _optimizer(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    if name.lower() in _ONE_BIT:
        yield from _one_bit(config, kind)
    elif name.lower() not in _DEEPSPEED and name not in _TORCH:
        # runtime/engine.py, _do_sanity_check.
        yield kind.found(
            UNKNOWN_OPTIMIZER,
            f"neither DeepSpeed nor `torch.optim` has an optimizer `{shown(name)}`",
            severity=config.if_built,
            fix="write `AdamW`",
        )
    elif name.lower() not in _TESTED and config.stage and not offloads(config):
        yield from _untested(config, kind, name)
    if name.lower() in {"adam", "adamw"}:
        yield from _unknown_params(config, "optimizer", name, _ADAM_PARAMS, UNKNOWN_KEY)


UNTESTED_OPTIMIZER = Rule(
    code="ZW507",
    name="untested-optimizer",
    severity=Severity.ERROR,
    why="DeepSpeed rejects optimizers that it has not tested with ZeRO, unless a key allows them",
)


def _one_bit(config: Config, kind: Entry) -> Iterator[ConfigFinding]:
    # Removed with the compression library, in 0.19.7.
    library = config.schema.keys.get("compression_training")
    if library is None or library.removed:
        yield kind.found(
            UNKNOWN_OPTIMIZER,
            f"DeepSpeed {config.schema.version} has no `{kind.value}` any more",
            severity=config.if_built,
            fix="write `AdamW`, or install an older DeepSpeed",
        )
    elif config.stage:
        # 0.18.9, runtime/engine.py, _configure_basic_optimizer.
        yield kind.found(
            UNTESTED_OPTIMIZER,
            f"`{kind.value}` cannot be combined with ZeRO",
            severity=config.if_built,
            fix="write stage 0",
        )


def _untested(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _do_optimizer_sanity_check.
    if config.truth("zero_allow_untested_optimizer") is False:
        yield kind.found(
            UNTESTED_OPTIMIZER,
            f"`{name}` with ZeRO needs `zero_allow_untested_optimizer`",
            severity=config.if_built,
            fix='write `"zero_allow_untested_optimizer": true` at the top level',
        )


CLIPPING_IN_OPTIMIZER = Rule(
    code="ZW513",
    name="clipping-in-optimizer",
    severity=Severity.ERROR,
    why="DeepSpeed rejects max_grad_norm among the arguments of the optimizer",
)


def _clipping(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _configure_basic_optimizer.
    entry = config.last.get("optimizer.params.max_grad_norm")
    if entry is not None:
        yield entry.found(
            CLIPPING_IN_OPTIMIZER,
            "`max_grad_norm` is not an argument of the optimizer",
            severity=config.if_built,
            fix="write `gradient_clipping` at the top level",
        )


def _unknown_params(
    config: Config, section: str, name: str, known: frozenset[str], rule: Rule
) -> Iterator[ConfigFinding]:
    """What the class refuses as an argument."""
    params = config.get(f"{section}.params")
    for word in params if isinstance(params, dict) else ():
        entry = config.last.get(f"{section}.params.{word}")
        if entry is not None and word not in known:
            yield entry.found(
                rule,
                f"`{name}` has no argument `{shown(word)}`",
                severity=config.if_built,
                fix="remove it",
            )


SCHEDULER_WITHOUT_OPTIMIZER = Rule(
    code="ZW504",
    name="scheduler-without-optimizer",
    severity=Severity.INFO,
    why="the scheduler needs an optimizer, and the config has none",
)
WARMUP_REFUSED = Rule(
    code="ZW518",
    name="warmup-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot build the scheduler",
)
UNKNOWN_SCHEDULER = Rule(
    code="ZW520",
    name="unknown-scheduler",
    severity=Severity.ERROR,
    why="DeepSpeed fails on a name that it does not know",
)


def _scheduler(config: Config, scheduler: Entry, name: str) -> Iterator[ConfigFinding]:
    # transformers/integrations/deepspeed.py, deepspeed_optim_sched brings its own optimizer.
    if config.get("optimizer") is None and config.by_deepspeed:
        yield scheduler.found(
            SCHEDULER_WITHOUT_OPTIMIZER,
            f"`{shown(name)}` needs an optimizer: the config has none, so the script must pass one",
            fix="make sure that the script passes an optimizer to `deepspeed.initialize`",
        )
    if name not in _SCHEDULERS | _TORCH_SCHEDULERS:
        # runtime/engine.py, _scheduler_from_config.
        yield scheduler.found(
            UNKNOWN_SCHEDULER,
            f"neither DeepSpeed nor torch has a scheduler `{shown(name)}`",
            severity=config.if_built,
            fix=f"write one of {', '.join(sorted(_SCHEDULERS))}",
        )
    elif name in _PARAMS:
        yield from _unknown_params(config, "scheduler", name, _PARAMS[name], WARMUP_REFUSED)
        yield from _warmup(config, scheduler, name)


def _warmup(config: Config, scheduler: Entry, name: str) -> Iterator[ConfigFinding]:
    if _TOTAL in _PARAMS[name] and f"scheduler.params.{_TOTAL}" not in config.last:
        yield scheduler.found(
            WARMUP_REFUSED,
            f"`{name}` needs `{_TOTAL}` in its params",
            severity=config.if_built,
            fix=f'write `"{_TOTAL}"`, for the Trainer as `"auto"`',
        )
    steps = config.last.get("scheduler.params.warmup_num_steps")
    if steps is not None and _is_refused(config.schema.version, steps):
        yield steps.found(
            WARMUP_REFUSED,
            "`warmup_num_steps` must be an integer above 0, without a decimal point or an exponent",
            severity=config.if_built,
            fix="write 1 or more",
        )
    form = config.last.get("scheduler.params.warmup_type")
    if form is not None and form.value not in (AUTO, *_WARMUP_TYPES):
        # runtime/lr_schedules.py, WarmupLR warns and takes `log`.
        yield form.found(
            NOT_A_CHOICE,
            "`warmup_type` must be `log` or `linear`",
            severity=config.if_built,
            fix="write `linear`",
        )


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
                f"`{entry.label}` is the string `{shown(entry.value)}`",
                severity=config.if_built,
                fix="remove the quotes",
            )
