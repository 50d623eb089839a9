"""Find optimizers, schedulers and precisions that DeepSpeed does not build or does not heed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from zerowiz.core.dsconfig.schema import NUMERALS, BuiltClass, Kind, Where, release
from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import AUTO, Config, Entry, shown
from zerowiz.core.lint.keys import (
    NOT_A_CHOICE,
    NUMBER_IN_QUOTES,
    OUT_OF_RANGE,
    UNKNOWN_KEY,
    WRONG_TYPE,
)
from zerowiz.core.lint.offload import offloads
from zerowiz.core.lint.report import ConfigFinding
from zerowiz.core.workload import Integration

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
    why="DeepSpeed fails on a name that it does not know",
)
UNTESTED_OPTIMIZER = Rule(
    code="ZW507",
    name="untested-optimizer",
    severity=Severity.ERROR,
    why="DeepSpeed rejects optimizers that it has not tested with ZeRO, unless a key allows them",
)


def _optimizer(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    built = config.schema.classes.optimizer(name)
    if built is None:
        # runtime/engine.py, _do_sanity_check.
        yield kind.found(
            UNKNOWN_OPTIMIZER,
            (
                f"neither DeepSpeed {config.schema.version} nor `torch.optim` has an "
                f"optimizer `{shown(name)}`"
            ),
            fix="write `AdamW`",
        )
    elif built.refuses_zero and config.stage:
        # 0.18.9, runtime/engine.py, _configure_basic_optimizer.
        yield kind.found(
            UNTESTED_OPTIMIZER,
            f"`{kind.value}` cannot be combined with ZeRO",
            fix="write stage 0",
        )
    elif (
        built.tested_with_zero is False
        and config.stage
        and not offloads(config)
        # runtime/engine.py, _do_optimizer_sanity_check.
        and config.truth("zero_allow_untested_optimizer") is False
    ):
        yield kind.found(
            UNTESTED_OPTIMIZER,
            f"`{name}` with ZeRO needs `zero_allow_untested_optimizer`",
            fix='write `"zero_allow_untested_optimizer": true` at the top level',
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
            "the `optimizer` has no `type`",
            because="DeepSpeed then builds no optimizer, and the first backward pass fails",
            fix='write `"type": "AdamW"` in it',
        )


def _not_params(config: Config) -> Iterator[ConfigFinding]:
    """What cannot be handed over as keyword arguments; a scheduler needs some, if empty."""
    optimizer = config.last.get("optimizer.params")
    scheduler = config.last.get("scheduler.params")
    for entry in (optimizer, scheduler):
        is_unset = entry is optimizer and entry is not None and entry.value is None
        if entry is not None and not is_unset and not isinstance(entry.value, dict):
            finding = entry.found(
                WRONG_TYPE,
                f"`{entry.label}` must be an object, not `{shown(entry.value)}`",
                because="DeepSpeed hands them over as keyword arguments",
                fix="write `{}`",
            )
            # runtime/engine.py looks into an optimizer's even where a script has its own.
            yield finding if entry is optimizer else config.if_built(finding)


def _out_of_range(config: Config) -> Iterator[ConfigFinding]:
    for name in _AT_LEAST_0:
        value = _number(config, f"optimizer.params.{name}")
        if value is not None and value < 0:
            yield config.last[f"optimizer.params.{name}"].found(
                OUT_OF_RANGE,
                f"`{name}` must be at least 0, not {value}",
                because="torch's optimizers reject it; with DeepSpeed's own the loss rises"
                if name == "lr"
                else "torch's optimizers reject it; DeepSpeed's own do not check it",
                fix=f"write {-value}",
            )
    betas = config.last.get("optimizer.params.betas")
    if betas is None or not isinstance(betas.value, list) or AUTO in betas.value:
        return
    if len(betas.value) != _BETAS:
        message, because = (
            f"two numbers, not {len(betas.value)}",
            "the first step fails",
        )
    elif all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas.value):
        return
    else:
        message = f"from 0 to below 1, not `{shown(betas.value)}`"
        because = "torch's optimizers reject it; with DeepSpeed's own the loss becomes NaN"
    yield betas.found(
        OUT_OF_RANGE,
        f"`betas` must be {message}",
        because=because,
        fix="write `[0.9, 0.999]`, the default",
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
            fix="write `gradient_clipping` at the top level",
        )


SCHEDULER_WITHOUT_OPTIMIZER = Rule(
    code="ZW504",
    name="scheduler-without-optimizer",
    severity=Severity.INFO,
    why="the scheduler needs an optimizer, and the config has none",
)
SCHEDULER_REFUSED = Rule(
    code="ZW518",
    name="scheduler-refused",
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
            (
                f"`{shown(name)}` needs an optimizer: the config has none, so the script "
                "must pass one"
            ),
            fix="make sure that the script passes an optimizer to `deepspeed.initialize`",
        )
    built = config.schema.classes.scheduler(name)
    if built is None:
        # runtime/engine.py, _scheduler_from_config.
        yield scheduler.found(
            UNKNOWN_SCHEDULER,
            f"neither DeepSpeed nor torch has a scheduler `{shown(name)}`",
            fix=f"write one of {', '.join(config.schema.classes.own_schedulers)}",
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
                f"`{built.name}` has no argument `{shown(word)}`",
                fix="remove it",
            )
    if not isinstance(params, dict) and "scheduler.params" not in config.last and not built.needs:
        yield scheduler.found(
            SCHEDULER_REFUSED,
            f"`{built.name}` has no `params`",
            because="DeepSpeed fails on a scheduler without `params`",
            fix='write `"params": {}` beside it',
        )
    missing = [word for word in built.needs if word not in given]
    if missing:
        names = " and ".join(f"`{word}`" for word in missing)
        auto = ', for the Trainer as `"auto"`' if missing == [_TOTAL] else ""
        yield scheduler.found(
            SCHEDULER_REFUSED,
            f"`{built.name}` needs {names} in its params",
            fix=f"write {names}{auto}",
        )


def _warmup(config: Config) -> Iterator[ConfigFinding]:
    steps = config.last.get("scheduler.params.warmup_num_steps")
    if steps is not None and _is_refused(config.schema.version, steps):
        yield steps.found(
            SCHEDULER_REFUSED,
            (
                "`warmup_num_steps` must be an integer above 0, without a decimal point or "
                "an exponent"
            ),
            fix="write 1 or more",
        )
    form = config.last.get("scheduler.params.warmup_type")
    if form is not None and form.value not in (AUTO, *_WARMUP_TYPES):
        # runtime/lr_schedules.py, WarmupLR warns and takes `log`.
        yield form.found(
            NOT_A_CHOICE,
            f"`{shown(form.value)}` is no `warmup_type`",
            because="DeepSpeed warns, and trains with `log` instead",
            fix="write `log` or `linear`",
        )
    yield from _warmup_rates(config)
    yield from _warmup_length(config)


def _warmup_rates(config: Config) -> Iterator[ConfigFinding]:
    low, high = (_number(config, f"scheduler.params.warmup_{end}_lr") for end in ("min", "max"))
    if low is not None and high is not None and low > high:
        yield config.last["scheduler.params.warmup_min_lr"].found(
            OUT_OF_RANGE,
            f"`warmup_min_lr` is {low}, above the `warmup_max_lr` of {high}",
            severity=Severity.WARNING,
            because="the learning rate falls while it is meant to warm up",
            fix="swap them",
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
            f"`{_TOTAL}` is {total}, less than the {steps} steps of the warm-up",
            severity=Severity.WARNING,
            because="the learning rate never reaches its maximum, nor decays from it",
            fix="write all steps of the run, or shorten `warmup_num_steps`",
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
                f"`{entry.label}` is the string `{shown(entry.value)}`",
                severity=Severity.ERROR,
                fix="remove the quotes",
            )


# Find arguments that the class of an optimizer refuses.

# Theory. runtime/engine.py, _configure_basic_optimizer (0.19.8; the same since 0.16.9) hands
# `optimizer.params` over as keyword arguments. What each class takes is in the schema, tried on
# DeepSpeed and torch themselves; mup's classes, which pass on what they do not know, are not.

# It has a rule of its own.
_REFUSED_BEFORE = "max_grad_norm"
# What people write; Adam's own names are in most examples.
_OTHER_WORDS: Mapping[str, str] = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def check_optimizer_arguments(config: Config) -> Iterator[ConfigFinding]:
    """Each argument that the class does not take."""
    name = config.word("optimizer.type")
    params = config.get("optimizer.params")
    if name is None or name == AUTO or not isinstance(params, dict):
        return
    built = _built(config, name)
    if not built or any(row.arguments is None for row in built):
        return
    known = frozenset(word for row in built for word in row.arguments or ())
    ignores = all(row.ignores_others for row in built)
    for word in params:
        entry = config.last.get(f"optimizer.params.{word}")
        if entry is None or word in known or word == _REFUSED_BEFORE:
            continue
        finding = entry.found(
            UNKNOWN_KEY,
            f"{_who(name, built)} ignores the argument `{shown(word)}`"
            if ignores
            else f"{_who(name, built)} has no argument `{shown(word)}`",
            severity=Severity.WARNING if ignores else Severity.ERROR,
            because="DeepSpeed does not look at it"
            if ignores
            else "DeepSpeed passes it to the class, which stops with a TypeError",
            fix=_fix(word, known),
        )
        yield config.if_built(finding)


def _built(config: Config, name: str) -> tuple[BuiltClass, ...]:
    """What DeepSpeed may build for a name: two, as long as nobody knows where it steps."""
    find = config.schema.classes.optimizer
    if config.truth("optimizer.params.torch_adam"):
        places: tuple[Where, ...] = (Where.TORCH_ADAM,)
    else:
        offloaded = offloads(config)
        places = tuple(
            where
            for where, is_there in ((Where.GPU, offloaded), (Where.CPU, offloaded is False))
            if not is_there
        )
    return tuple(row for where in places if (row := find(name, where)) is not None)


def _who(name: str, built: Sequence[BuiltClass]) -> str:
    """The name, and the class where that has another."""
    kinds = dict.fromkeys(row.class_name for row in built if row.class_name)
    others = [kind for kind in kinds if kind.lower() != name.lower()]
    return f"`{shown(name)}`" + (f" (here {' or '.join(others)})" if others else "")


def _fix(word: str, known: frozenset[str]) -> str:
    near = get_close_matches(word, sorted(known), n=1)
    other = _OTHER_WORDS.get(word)
    meant = other if other in known else near[0] if near else None
    return f"write `{meant}`" if meant else "remove it"


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

# torch/cuda/__init__.py, is_bf16_supported: below that torch emulates it, and reports it as there.
_BF16_CAPABILITY = (8, 0)
# accelerator/cuda_accelerator.py, is_fp16_supported; DS_ALLOW_DEPRECATED_FP16=1 lets 6.x through.
_FP16_CAPABILITY = (7, 0)
_DEPRECATED_FP16_CAPABILITY = (6, 0)
_SECTIONS: Mapping[str, str] = {
    "bf16": '"bf16": {"enabled": true}',
    # runtime/precision_config.py, DeepSpeedFP16Config: its defaults, written out.
    "fp16": '"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, '
    '"initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}',
}


def check_precision(config: Config) -> Iterator[ConfigFinding]:
    """Precisions, their 16-bit states, and the dtype of the parameters."""
    yield from _two(config)
    yield from _states(config)
    yield from _masters(config)
    yield from _none(config)
    yield from _param_dtype(config)
    yield from _dtypes(config)
    yield from _on_gpu(config)


TWO_PRECISIONS = Rule(
    code="ZW501",
    name="two-precisions",
    severity=Severity.ERROR,
    why="DeepSpeed rejects fp16 together with bf16",
)


def _two(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _initialize_params.
    if config.truth("fp16.enabled") and config.truth("bf16.enabled"):
        places = [config.last[f"{name}.enabled"] for name in ("fp16", "bf16")]
        yield max(places, key=lambda entry: entry.member.key.place.start).found(
            TWO_PRECISIONS, "fp16 and bf16 are both enabled", fix="disable one of them"
        )


STATES_WITHOUT_MASTER = Rule(
    code="ZW505",
    name="states-without-master",
    severity=Severity.ERROR,
    why="DeepSpeed rejects 16-bit states unless these conditions are met",
)


def _states(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    if config.truth(_STATES) and config.truth(_MASTER) is False:
        yield config.last[_STATES].found(
            STATES_WITHOUT_MASTER,
            "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            fix='write `"bf16_master_weights_and_grads": true` beside it',
        )


def _masters(config: Config) -> Iterator[ConfigFinding]:
    for path in (_MASTER, _FP16_MASTER, _STATES):
        if config.truth(path) and config.stage == 0:
            # runtime/config.py, _do_error_check.
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                f"`{config.last[path].name}` needs stage 1, 2 or 3",
                fix="write stage 1, 2 or 3, or remove it",
            )
    # runtime/base_optimizer.py, _configure_master_weights.
    on_gpu = config.truth(_STATES) is not False
    for path, is_free in ((_MASTER, on_gpu), (_FP16_MASTER, False)):
        if config.truth(path) and config.stage and not is_free and offloads(config) is False:
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                f"`{config.last[path].name}` needs the optimizer on the CPU",
                fix='write `"offload_optimizer": {"device": "cpu"}`'
                + (", or `bf16_optimizer_states` too" if path == _MASTER else ""),
            )


ZERO_WITHOUT_16_BIT = Rule(
    code="ZW506",
    name="zero-without-16-bit",
    severity=Severity.INFO,
    why="the model trains in fp32, which takes twice the memory",
)


def _none(config: Config) -> Iterator[ConfigFinding]:
    """For DeepSpeed by itself alone: the others add a precision of their own."""
    switches = ("bf16.enabled", "fp16.enabled", "torch_autocast.enabled")
    off = all(config.truth(path) is False for path in switches)
    meant = any(config.get(path) is False for path in switches)
    if config.by_deepspeed and config.stage and off and not meant:
        yield config.last["zero_optimization"].found(
            ZERO_WITHOUT_16_BIT,
            "neither bf16 nor fp16 is enabled",
            fix='write `"bf16": {"enabled": true}` if the GPU supports bf16',
        )


ANOTHER_PARAM_DTYPE = Rule(
    code="ZW519",
    name="another-param-dtype",
    severity=Severity.ERROR,
    why="DeepSpeed rejects a param_dtype other than the precision in use",
)


def _param_dtype(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _assert_valid_mixed_precision_config.
    wanted = _DTYPES.get(config.word("data_types.param_dtype") or "")
    enabled = [name for name in ("bf16", "fp16") if config.truth(f"{name}.enabled")]
    known = enabled or (["fp32"] if config.by_deepspeed else [])
    entry = config.last.get("data_types.param_dtype")
    if entry and entry.key and wanted and known and wanted not in known:
        yield entry.found(
            ANOTHER_PARAM_DTYPE,
            f"`param_dtype` is {wanted}, but the model trains in {known[0]}",
            fix="remove it",
        )


def _dtypes(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, DtypeEnum, which `torch_autocast` takes too: the engine asks it for these.
    known = config.schema.keys.get("torch_autocast.dtype")
    names = [str(json.loads(choice)) for choice in known.choices] if known else []
    for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        entry = config.last.get(f"data_types.{name}")
        if names and entry and entry.key and isinstance(entry.value, str):
            if entry.value in (AUTO, *names):
                continue
            yield entry.found(
                NOT_A_CHOICE,
                f"`{entry.label}` must be one of {', '.join(names)}, not `{shown(entry.value)}`",
                fix="write `fp32`, `bf16` or `fp16`",
            )


BF16_EMULATED = Rule(
    code="ZW802",
    name="bf16-emulated",
    severity=Severity.WARNING,
    why=(
        "GPUs below compute capability 8.0 do not support bf16: torch emulates it slowly, "
        "without a warning"
    ),
)
FP16_ON_NEW_GPU = Rule(
    code="ZW803",
    name="fp16-on-new-gpu",
    severity=Severity.INFO,
    why="bf16 has the range of fp32, so it needs no loss scale",
)
FP16_REFUSED = Rule(
    code="ZW804",
    name="fp16-refused",
    severity=Severity.ERROR,
    why="DeepSpeed rejects fp16 on GPUs below compute capability 7.0",
)


def _on_gpu(config: Config) -> Iterator[ConfigFinding]:
    """What the GPU makes of the one precision that is enabled."""
    capability = config.context.compute_capability
    bf16, fp16 = config.truth("bf16.enabled"), config.truth("fp16.enabled")
    if capability is None or bf16 is fp16:
        return
    has = ".".join(map(str, capability))
    if bf16 and capability < _BF16_CAPABILITY:
        yield config.last["bf16.enabled"].found(
            BF16_EMULATED,
            f"the GPU has compute capability {has}, which does not support bf16",
            fix=_without_bf16(config, capability),
        )
    if fp16 and capability < _FP16_CAPABILITY:
        by_hand = capability >= _DEPRECATED_FP16_CAPABILITY
        yield config.last["fp16.enabled"].found(
            FP16_REFUSED,
            f"the GPU has compute capability {has}, and DeepSpeed needs 7.0 for fp16",
            fix="train in fp32"
            + (", or set DS_ALLOW_DEPRECATED_FP16=1 in the environment" if by_hand else ""),
        )
    if fp16 and capability >= _BF16_CAPABILITY:
        yield config.last["fp16.enabled"].found(
            FP16_ON_NEW_GPU,
            f"the GPU has compute capability {has}, which supports bf16",
            fix=f"write `{_written(config, 'bf16')}` instead",
        )


def _without_bf16(config: Config, capability: tuple[int, int]) -> str:
    """What trains there: fp16, which TrainingArguments have to name too."""
    if capability < _FP16_CAPABILITY:
        return "train in fp32"
    script = config.context.integration is Integration.HF
    return f"write `{_written(config, 'fp16')}` instead" + (
        ", and `fp16` in TrainingArguments" if script else ""
    )


def _written(config: Config, precision: str) -> str:
    """What stands in the file where it says this precision."""
    return f"mixed_precision: {precision}" if config.context.file_keys else _SECTIONS[precision]
