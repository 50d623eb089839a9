"""Find optimizers, schedulers and precisions that DeepSpeed does not build or does not heed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from zerowiz.core.dsconfig.merge import ZERO
from zerowiz.core.dsconfig.schema import NUMERALS, BuiltClass, Kind, Where, kind_of, release
from zerowiz.core.findings import Finding, Rule, Severity
from zerowiz.core.lint.config import AUTO, Config, Entry, Relation, shown
from zerowiz.core.lint.keys import (
    NOT_A_CHOICE,
    NUMBER_IN_QUOTES,
    OUT_OF_RANGE,
    UNKNOWN_KEY,
    WRONG_TYPE,
)

_TOTAL = "scheduler.params.total_num_steps"
_STEPS = "scheduler.params.warmup_num_steps"
_LOWEST, _PEAK = "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr"
# runtime/lr_schedules.py, WarmupLR.
_DEFAULT_WARMUP_STEPS = 1000
# What torch's and DeepSpeed's classes calculate with, or compare with 0. torch/optim/adamw.py,
# __init__, refuses less than 0; DeepSpeed's own classes climb the loss, grow the weights, or divide
# by less.
_AT_LEAST_0 = ("lr", "weight_decay", "eps")
_NUMBERS = (
    *(f"optimizer.params.{name}" for name in (*_AT_LEAST_0, "betas")),
    *(_TOTAL, _STEPS, _LOWEST, _PEAK),
)
_CALCULATES = "the class calculates with it, and fails"
_BETAS = 2
# What they calculate with at once; the rates of a scheduler may be a list, one for each group.
_NO_NULL = (
    *(f"optimizer.params.{name}" for name in (*_AT_LEAST_0, "betas")),
    *(_LOWEST, _TOTAL),
)


def _is_no_number(entry: Entry) -> bool:
    """Whether a class cannot calculate with an argument, which is neither quoted nor `auto`."""
    if entry.kind in {Kind.AUTO, *NUMERALS}:
        return False
    if entry.name == "betas":
        return not isinstance(entry.value, list)
    is_list = isinstance(entry.value, list) and entry.path != _LOWEST
    return entry.value is None or is_list


def _name(config: Config, section: str) -> str | None:
    """What DeepSpeed builds in a section; None where nobody knows yet."""
    name = config.word(f"{section}.type")
    return None if name == AUTO else name


def _optimizer(config: Config) -> BuiltClass | None:
    return config.schema.optimizer(_name(config, "optimizer") or "")


def _scheduler(config: Config) -> BuiltClass | None:
    return config.schema.scheduler(_name(config, "scheduler") or "")


def _is_own_scheduler(config: Config) -> bool:
    built = _scheduler(config)
    return built is not None and built.is_deepspeeds


def _is_nameless(config: Config, section: Entry) -> bool:
    """Whether it is an optimizer without a name; one with other keys may have it in one of them."""
    known = {key.name for key in config.schema.children("optimizer")}
    return (
        isinstance(section.value, dict)
        and known.issuperset(section.value)
        and config.get("optimizer.type") is None
    )


def _is_untested(config: Config) -> bool:
    # runtime/engine.py, _do_optimizer_sanity_check.
    built = _optimizer(config)
    return (
        built is not None
        and not built.refuses_zero
        and built.tested_with_zero is False
        and bool(config.stage)
        and not config.offloads
        and config.truth("zero_allow_untested_optimizer") is False
    )


def _refuses_zero(config: Config) -> bool:
    # 0.18.9, runtime/engine.py, _configure_basic_optimizer.
    built = _optimizer(config)
    return built is not None and built.refuses_zero and bool(config.stage)


def _wrong_betas(config: Config, betas: Entry) -> str:
    """What they must be, and are not."""
    if _name(config, "optimizer") is None or not isinstance(betas.value, list):
        return ""
    if AUTO in betas.value or _has_quotes(betas):
        return ""
    if len(betas.value) != _BETAS:
        return f"two numbers, not an array of {len(betas.value)}"
    is_right = all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas.value)
    return "" if is_right else f"from 0 to below 1, not `{betas.shown}`"


def _has_quotes(entry: Entry) -> bool:
    values = entry.value if isinstance(entry.value, list) else [entry.value]
    return any(kind_of(value) in NUMERALS for value in values)


def _is_deepspeeds_own(config: Config) -> bool:
    """Whether the class that steps is DeepSpeed's."""
    built = _optimizer(config)
    by_torch = config.truth("optimizer.params.torch_adam")
    return built is not None and built.is_deepspeeds and not by_torch


def _wanted(entry: Entry) -> str:
    return "two numbers" if entry.name == "betas" else "a number"


def _lacks_params(config: Config) -> bool:
    built = _scheduler(config)
    return built is not None and not built.needs and "scheduler.params" not in config.last


def _missing(config: Config) -> list[str]:
    """The arguments that a scheduler needs, and does not have."""
    built, params = _scheduler(config), config.get("scheduler.params")
    given = params if isinstance(params, dict) else {}
    return [word for word in (built.needs if built else ()) if word not in given]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(f"`{word}`" for word in words)


def _number(config: Config, path: str) -> float | None:
    entry = config.last.get(path)
    return None if entry is None else entry.number


def _are_refused_steps(config: Config, steps: Entry) -> bool:
    # runtime/lr_schedules.py, WarmupLR, from 0.19.3 on.
    if not _is_own_scheduler(config) or steps.kind in {Kind.AUTO, *NUMERALS}:
        return False
    is_counted = isinstance(steps.value, int) and steps.value > 0
    return release(config.schema.version) >= (0, 19, 3) and not is_counted


def _warmup_steps(config: Config) -> float | None:
    return _number(config, _STEPS) if _STEPS in config.last else _DEFAULT_WARMUP_STEPS


def _is_too_short(config: Config, total: Entry) -> bool:
    # runtime/lr_schedules.py, WarmupDecayLR and WarmupCosineLR: they only warn.
    steps = _warmup_steps(config)
    if total.number is None or steps is None:
        return False
    return total.number < steps and _is_own_scheduler(config)


def _falls(config: Config, lowest: Entry) -> bool:
    low, high = lowest.number, _number(config, _PEAK)
    return low is not None and high is not None and low > high and _is_own_scheduler(config)


CLASSES: Mapping[Rule, tuple[Relation, ...]] = {
    Rule(
        code="ZW508",
        name="unknown-optimizer",
        severity=Severity.ERROR,
        why="DeepSpeed fails on a name that it does not know",
    ): (
        # runtime/engine.py, _do_sanity_check.
        Relation(
            at="optimizer.type",
            when=lambda config, _: (
                _name(config, "optimizer") is not None and _optimizer(config) is None
            ),
            says=lambda config, entry: (
                f"neither DeepSpeed {config.schema.version} nor `torch.optim` has an optimizer"
                f" `{entry.shown}`"
            ),
            fix="write `AdamW`",
        ),
        Relation(
            at="optimizer",
            when=_is_nameless,
            says="the `optimizer` has no `type`",
            because="DeepSpeed then builds no optimizer, and the first backward pass fails",
            fix='write `"type": "AdamW"` in it',
        ),
    ),
    Rule(
        code="ZW507",
        name="untested-optimizer",
        severity=Severity.ERROR,
        why="DeepSpeed rejects optimizers that it has not tested with ZeRO, unless a key allows"
        " them",
    ): (
        Relation(
            at="optimizer.type",
            when=lambda config, _: _refuses_zero(config),
            says=lambda _, entry: f"`{entry.value}` cannot be combined with ZeRO",
            fix="write stage 0",
        ),
        Relation(
            at="optimizer.type",
            when=lambda config, _: _is_untested(config),
            says=lambda _, entry: (
                f"`{entry.value}` with ZeRO needs `zero_allow_untested_optimizer`"
            ),
            fix='write `"zero_allow_untested_optimizer": true` at the top level',
        ),
    ),
    # What cannot be handed over as keyword arguments; a scheduler needs some, if empty.
    # runtime/engine.py looks into an optimizer's even where a script has its own.
    WRONG_TYPE: (
        *(
            Relation(
                at=f"{section}.params",
                when=lambda _, entry: (
                    not isinstance(entry.value, dict)
                    and (entry.value is not None or entry.path.startswith("scheduler"))
                ),
                says=lambda _, entry: f"`{entry.label}` must be an object, not `{entry.shown}`",
                because="DeepSpeed hands them over as keyword arguments",
                fix="write `{}`",
                if_built=section == "scheduler",
            )
            for section in ("optimizer", "scheduler")
        ),
        *(
            Relation(
                at=path,
                when=lambda _, entry: _is_no_number(entry),
                says=lambda _, entry: (
                    f"`{entry.label}` must be {_wanted(entry)}, not `{entry.shown}`"
                ),
                because=_CALCULATES,
                fix=lambda _, entry: f"write {_wanted(entry)}, or remove it to use the default",
            )
            for path in _NO_NULL
        ),
    ),
    OUT_OF_RANGE: (
        *(
            Relation(
                at=f"optimizer.params.{name}",
                when=lambda config, entry: (
                    _name(config, "optimizer") is not None and (entry.number or 0) < 0
                ),
                says=lambda _, entry: f"`{entry.name}` must be at least 0, not {entry.value}",
                because="torch's optimizers reject it; with DeepSpeed's own the loss rises"
                if name == "lr"
                else "torch's optimizers reject it; DeepSpeed's own do not check it",
                severity=lambda config, entry: (
                    Severity.WARNING
                    if entry.name != "lr" and _is_deepspeeds_own(config)
                    else Severity.ERROR
                ),
                fix=lambda _, entry: f"write {-(entry.number or 0)}",
            )
            for name in _AT_LEAST_0
        ),
        Relation(
            at="optimizer.params.betas",
            when=_wrong_betas,
            says=lambda config, entry: f"`betas` must be {_wrong_betas(config, entry)}",
            because=lambda config, entry: (
                "the first step fails"
                if _wrong_betas(config, entry).startswith("two")
                else "torch's optimizers reject it; with DeepSpeed's own the loss becomes NaN"
            ),
            fix="write `[0.9, 0.999]`, the default",
        ),
        Relation(
            at=_LOWEST,
            when=_falls,
            says=lambda config, entry: (
                f"`warmup_min_lr` is {entry.value}, above the `warmup_max_lr` of"
                f" {config.get(_PEAK)}"
            ),
            because="the learning rate falls while it is meant to warm up",
            fix="swap them",
            severity=Severity.WARNING,
        ),
        Relation(
            at=_TOTAL,
            when=_is_too_short,
            says=lambda config, entry: (
                f"`{entry.name}` is {entry.value}, less than the {_warmup_steps(config)} steps of"
                " the warm-up"
            ),
            because="the learning rate never reaches its maximum, nor decays from it",
            fix="write all steps of the run, or shorten `warmup_num_steps`",
            severity=Severity.WARNING,
        ),
    ),
    Rule(
        code="ZW513",
        name="clipping-in-optimizer",
        severity=Severity.ERROR,
        why="DeepSpeed rejects max_grad_norm among the arguments of the optimizer",
    ): (
        # runtime/engine.py, _configure_basic_optimizer.
        Relation(
            at="optimizer.params.max_grad_norm",
            when=lambda config, _: _name(config, "optimizer") is not None,
            says="`max_grad_norm` is not an argument of the optimizer",
            fix="write `gradient_clipping` at the top level",
        ),
    ),
    Rule(
        code="ZW504",
        name="scheduler-without-optimizer",
        severity=Severity.INFO,
        why="the scheduler needs an optimizer, and the config has none",
    ): (
        # transformers/integrations/deepspeed.py, deepspeed_optim_sched brings its own optimizer.
        Relation(
            at="scheduler.type",
            when=lambda config, _: (
                _name(config, "scheduler") is not None
                and config.get("optimizer") is None
                and config.by_deepspeed
            ),
            says=lambda _, entry: (
                f"`{entry.shown}` needs an optimizer: the config has none, so the script must pass"
                " one"
            ),
            fix="make sure that the script passes an optimizer to `deepspeed.initialize`",
        ),
    ),
    Rule(
        code="ZW520",
        name="unknown-scheduler",
        severity=Severity.ERROR,
        why="DeepSpeed fails on a name that it does not know",
    ): (
        # runtime/engine.py, _scheduler_from_config.
        Relation(
            at="scheduler.type",
            when=lambda config, _: (
                _name(config, "scheduler") is not None and _scheduler(config) is None
            ),
            says=lambda _, entry: f"neither DeepSpeed nor torch has a scheduler `{entry.shown}`",
            fix=lambda config, _: f"write one of {', '.join(config.schema.own_schedulers)}",
        ),
    ),
    NOT_A_CHOICE: (
        # runtime/lr_schedules.py, WarmupLR warns and takes `log`.
        Relation(
            at="scheduler.params.warmup_type",
            when=lambda config, entry: (
                _is_own_scheduler(config) and entry.value not in (AUTO, "log", "linear")
            ),
            says=lambda _, entry: f"`{entry.shown}` is no `warmup_type`",
            because=lambda _, entry: (
                "DeepSpeed looks it up, and fails"
                if entry.kind in {Kind.ARRAY, Kind.OBJECT}
                else "DeepSpeed warns, and trains with `log` instead"
            ),
            fix="write `log` or `linear`",
            severity=lambda _, entry: (
                Severity.ERROR if entry.kind in {Kind.ARRAY, Kind.OBJECT} else Severity.WARNING
            ),
        ),
    ),
    NUMBER_IN_QUOTES: tuple(
        Relation(
            at=path,
            when=lambda _, entry: _has_quotes(entry),
            says=lambda _, entry: f"`{entry.label}` has a number in quotes: `{entry.shown}`",
            because=_CALCULATES,
            fix="remove the quotes",
            severity=Severity.ERROR,
        )
        for path in _NUMBERS
    ),
}

SCHEDULER_REFUSED = Rule(
    code="ZW518",
    name="scheduler-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot build the scheduler",
)
SCHEDULERS: Mapping[Rule, tuple[Relation, ...]] = {
    SCHEDULER_REFUSED: (
        Relation(
            at="scheduler.type",
            when=lambda config, _: _lacks_params(config),
            says=lambda _, entry: f"`{entry.value}` has no `params`",
            because="DeepSpeed fails on a scheduler without `params`",
            fix='write `"params": {}` beside it',
        ),
        Relation(
            at="scheduler.type",
            when=lambda config, _: _missing(config),
            says=lambda config, entry: (
                f"`{entry.value}` needs {_listed(_missing(config))} in its params"
            ),
            fix=lambda config, _: (
                f"write {_listed(_missing(config))}"
                + (
                    ', for the Trainer as `"auto"`'
                    if _missing(config) == ["total_num_steps"]
                    else ""
                )
            ),
        ),
        Relation(
            at=_STEPS,
            when=_are_refused_steps,
            says="`warmup_num_steps` must be an integer above 0, without a decimal point or an"
            " exponent",
            fix="write 1 or more",
        ),
    ),
}

# Find arguments that the class of an optimizer or a scheduler refuses.

# Theory. runtime/engine.py, _configure_basic_optimizer (0.19.8; the same since 0.16.9) hands
# `optimizer.params` over as keyword arguments. What each class takes is in the schema, tried on
# DeepSpeed and torch themselves; mup's classes, which pass on what they do not know, are not.

# It has a rule of its own.
_REFUSED_BEFORE = "max_grad_norm"
# What people write; Adam's own names are in most examples.
_OTHER_WORDS: Mapping[str, str] = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def check_arguments(config: Config) -> Iterator[Finding]:
    """Each argument that a class does not take."""
    scheduler, optimizers = _scheduler(config), _possible(config)
    if scheduler is not None:
        for entry in _params(config, "scheduler"):
            if entry.name not in (scheduler.arguments or ()):
                message = f"`{scheduler.name}` has no argument `{shown(entry.name)}`"
                yield config.if_built(entry.found(SCHEDULER_REFUSED, message, "remove it"))
    if not optimizers or any(row.arguments is None for row in optimizers):
        return
    known = frozenset(word for row in optimizers for word in row.arguments or ())
    ignores = all(row.ignores_others for row in optimizers)
    verb = "ignores the" if ignores else "has no"
    for entry in _params(config, "optimizer"):
        if entry.name in known or entry.name == _REFUSED_BEFORE:
            continue
        near = get_close_matches(entry.name, sorted(known), n=1)
        other = _OTHER_WORDS.get(entry.name)
        meant = other if other in known else near[0] if near else None
        finding = entry.found(
            UNKNOWN_KEY,
            f"{_who(config, optimizers)} {verb} argument `{shown(entry.name)}`",
            f"write `{meant}`" if meant else "remove it",
            severity=Severity.WARNING if ignores else Severity.ERROR,
            because="DeepSpeed does not look at it"
            if ignores
            else "DeepSpeed passes it to the class, which stops with a TypeError",
        )
        yield config.if_built(finding)


def _params(config: Config, section: str) -> list[Entry]:
    """The arguments of a section's class; of equal keys, the last one."""
    params = config.get(f"{section}.params")
    paths = (f"{section}.params.{word}" for word in (params if isinstance(params, dict) else ()))
    return [config.last[path] for path in paths if path in config.last]


def _possible(config: Config) -> tuple[BuiltClass, ...]:
    """What DeepSpeed may build for a name: two, as long as nobody knows where it steps."""
    name = _name(config, "optimizer")
    places = {True: (Where.CPU,), False: (Where.GPU,), None: (Where.GPU, Where.CPU)}
    possible = places[config.offloads]
    if config.truth("optimizer.params.torch_adam"):
        possible = (Where.TORCH_ADAM,)
    rows = (config.schema.optimizer(name or "", where) for where in possible)
    return tuple(row for row in rows if row is not None)


def _who(config: Config, built: Sequence[BuiltClass]) -> str:
    """The name, and the class where that has another."""
    name = _name(config, "optimizer") or ""
    kinds = dict.fromkeys(row.class_name for row in built if row.class_name)
    others = [kind for kind in kinds if kind.lower() != name.lower()]
    return f"`{shown(name)}`" + (f" (here {' or '.join(others)})" if others else "")


# Find number formats that contradict each other.

_MASTER = "bf16.bf16_master_weights_and_grads"
_FP16_MASTER = "fp16.fp16_master_weights_and_grads"
_STATES = "bf16.bf16_optimizer_states"
# runtime/config.py, DtypeEnum.
_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("torch.float32", "fp32", "float32", "float"), "fp32"),
}
_SWITCHES = ("bf16.enabled", "fp16.enabled", "torch_autocast.enabled")

# torch/cuda/__init__.py, is_bf16_supported: below that torch emulates it, and reports it as there.
_BF16_CAPABILITY = (8, 0)
# accelerator/cuda_accelerator.py, is_fp16_supported; DS_ALLOW_DEPRECATED_FP16=1 lets 6.x through.
_FP16_CAPABILITY = (7, 0)


def _later_precision(config: Config) -> str:
    """The second switch of two that are on; a path of no key where they are not."""
    on = [config.last[path] for path in _SWITCHES[:2] if config.truth(path)]
    last = max(on, key=lambda entry: entry.member.key.place.start) if on[1:] else None
    return "two precisions" if last is None else last.known_path


def _lacks_16_bit(config: Config) -> bool:
    """For DeepSpeed by itself alone: the others add a precision of their own."""
    off = all(config.truth(path) is False for path in _SWITCHES)
    meant = any(config.get(path) is False for path in _SWITCHES)
    return config.by_deepspeed and bool(config.stage) and off and not meant


def _trained_in(config: Config) -> str | None:
    """The precision of the weights; None where nobody knows it yet."""
    enabled = [name for name in ("bf16", "fp16") if config.truth(f"{name}.enabled")]
    return enabled[0] if enabled else "fp32" if config.by_deepspeed else None


def _is_another_dtype(config: Config, entry: Entry) -> bool:
    # runtime/engine.py, _assert_valid_mixed_precision_config.
    wanted = _DTYPES.get(str(entry.value))
    is_enabled = wanted in {"bf16", "fp16"} and config.truth(f"{wanted}.enabled")
    is_known = entry.key is not None and wanted is not None and not is_enabled
    return is_known and _trained_in(config) not in {wanted, None}


def _dtype_names(config: Config) -> list[str]:
    # runtime/config.py, DtypeEnum, which `torch_autocast` takes too: the engine asks it for these.
    known = config.schema.keys.get("torch_autocast.dtype")
    return [str(json.loads(choice)) for choice in known.choices] if known else []


def _is_no_dtype(config: Config, entry: Entry) -> bool:
    names = _dtype_names(config)
    is_word = bool(names) and entry.key is not None and isinstance(entry.value, str)
    return is_word and entry.value not in (AUTO, *names)


def _capability(config: Config, precision: str) -> tuple[int, int] | None:
    """That of the GPU, where this is the one precision that is enabled."""
    bf16, fp16 = config.truth("bf16.enabled"), config.truth("fp16.enabled")
    is_alone = bf16 is not fp16 and (bf16 if precision == "bf16" else fp16)
    return config.context.compute_capability if is_alone else None


def _has(config: Config) -> str:
    capability = ".".join(map(str, config.context.compute_capability or ()))
    return f"the GPU has compute capability {capability}"


PRECISIONS: Mapping[Rule, tuple[Relation, ...]] = {
    Rule(
        code="ZW501",
        name="two-precisions",
        severity=Severity.ERROR,
        why="DeepSpeed rejects fp16 together with bf16",
    ): (
        # runtime/config.py, _initialize_params.
        Relation(
            at=_later_precision,
            when=lambda _config, _entry: True,
            says="fp16 and bf16 are both enabled",
            fix="disable one of them",
        ),
    ),
    OUT_OF_RANGE: tuple(
        # runtime/precision_config.py, _validate_dynamic_loss_scale_params; a release that takes
        # truths here does not look.
        Relation(
            at=f"fp16.{name}",
            when=lambda config, entry: (
                config.truth("fp16.enabled")
                and config.get("fp16.loss_scale") in (None, 0, "0", AUTO)
                and entry.number is not None
                and entry.number <= 0
                and entry.key is not None
                and Kind.BOOLEAN not in entry.key.takes
            ),
            says=lambda _, entry: (
                f"`{entry.label}` must be more than 0 with a dynamic loss scale, not {entry.shown}"
            ),
            fix="remove it to use the default",
        )
        for name in ("min_loss_scale", "loss_scale_window")
    ),
    Rule(
        code="ZW505",
        name="states-without-master",
        severity=Severity.ERROR,
        why="DeepSpeed rejects 16-bit states unless these conditions are met",
    ): (
        # runtime/config.py, _do_error_check.
        Relation(
            at=_STATES,
            when=lambda config, _: config.truth(_STATES) and config.truth(_MASTER) is False,
            says="`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            fix='write `"bf16_master_weights_and_grads": true` beside it',
        ),
        *(
            Relation(
                at=path,
                when=lambda config, entry: config.truth(entry.known_path) and config.stage == 0,
                says=lambda _, entry: f"`{entry.name}` needs stage 1, 2 or 3",
                fix="write stage 1, 2 or 3, or remove it",
            )
            for path in (_MASTER, _FP16_MASTER, _STATES)
        ),
        # runtime/base_optimizer.py, _configure_master_weights.
        *(
            Relation(
                at=path,
                when=lambda config, entry: (
                    config.truth(entry.known_path)
                    and config.stage
                    and config.offloads is False
                    and (entry.known_path != _MASTER or config.truth(_STATES) is False)
                ),
                says=lambda _, entry: f"`{entry.name}` needs the optimizer on the CPU",
                fix='write `"offload_optimizer": {"device": "cpu"}`' + others,
            )
            for path, others in (
                (_MASTER, ", or `bf16_optimizer_states` too"),
                (_FP16_MASTER, ""),
            )
        ),
    ),
    Rule(
        code="ZW506",
        name="zero-without-16-bit",
        severity=Severity.INFO,
        why="the model trains in fp32, which takes twice the memory",
    ): (
        Relation(
            at=ZERO,
            when=lambda config, _: _lacks_16_bit(config),
            says="neither bf16 nor fp16 is enabled",
            fix='write `"bf16": {"enabled": true}` if the GPU supports bf16',
        ),
    ),
    Rule(
        code="ZW519",
        name="another-param-dtype",
        severity=Severity.ERROR,
        why="DeepSpeed rejects a param_dtype other than the precision in use",
    ): (
        Relation(
            at="data_types.param_dtype",
            when=_is_another_dtype,
            says=lambda config, entry: (
                f"`param_dtype` is {_DTYPES[str(entry.value)]}, but the model trains in"
                f" {_trained_in(config)}"
            ),
            fix="remove it",
        ),
    ),
    NOT_A_CHOICE: tuple(
        Relation(
            at=f"data_types.{name}",
            when=_is_no_dtype,
            says=lambda config, entry: (
                f"`{entry.label}` must be one of {', '.join(_dtype_names(config))}, not"
                f" `{entry.shown}`"
            ),
            fix="write `fp32`, `bf16` or `fp16`",
            severity=Severity.WARNING if name == "buffer_dtype" else Severity.ERROR,
        )
        for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype")
    ),
    Rule(
        code="ZW802",
        name="bf16-emulated",
        severity=Severity.WARNING,
        why="GPUs below compute capability 8.0 do not support bf16: torch emulates it slowly,"
        " without a warning",
    ): (
        Relation(
            at="bf16.enabled",
            when=lambda config, _: (
                (_capability(config, "bf16") or _BF16_CAPABILITY) < _BF16_CAPABILITY
            ),
            says=lambda config, _: f"{_has(config)}, which does not support bf16",
            fix="use fp16 on GPUs from compute capability 7.0 on, and fp32 on older ones",
        ),
    ),
    Rule(
        code="ZW804",
        name="fp16-refused",
        severity=Severity.ERROR,
        why="DeepSpeed rejects fp16 on GPUs below compute capability 7.0",
    ): (
        Relation(
            at="fp16.enabled",
            when=lambda config, _: (
                (_capability(config, "fp16") or _FP16_CAPABILITY) < _FP16_CAPABILITY
            ),
            says=lambda config, _: f"{_has(config)}, and DeepSpeed needs 7.0 for fp16",
            fix="train in fp32; from 6.0 on, DS_ALLOW_DEPRECATED_FP16=1 in the environment allows"
            " fp16",
        ),
    ),
}
