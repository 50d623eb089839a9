"""Find offloads that do nothing, or fail."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.lint.config import AUTO, STAGE_3, ZERO, Config, Entry, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _


def check_offload(config: Config) -> Iterator[ConfigFinding]:
    """Stages, devices, optimizers."""
    yield from _stages(config)
    yield from _nvme(config)
    yield from _ratio(config)
    if offloads(config) and config.stage:
        yield from _optimizer(config)


def offloads(config: Config) -> bool | None:
    """Whether the optimizer goes to the CPU or further; None where it is not known yet."""
    # runtime/zero/config.py: cpu_offload becomes an offload_optimizer.
    if config.device("offload_optimizer") or config.truth(f"{ZERO}.cpu_offload"):
        return True
    return None if config.get(f"{ZERO}.offload_optimizer.device") == AUTO else False


OFFLOAD_WITHOUT_STAGE = Rule(
    code="ZW502",
    name="offload-without-stage",
    severity=Severity.WARNING,
    why=_("the offload has no effect at this stage, or fails in the first step"),
)


def _stages(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, zero_use_cpu_optimizer asks for no stage, and at stage 0 the parameters
    # that the CPU's optimizer gets are on the GPU.
    if offloads(config) and config.stage == 0:
        forced = config.truth("zero_force_ds_cpu_optimizer", default=True)
        entry = _place(config)
        yield entry.found(
            OFFLOAD_WITHOUT_STAGE,
            _("`{last}` needs stage 1, 2 or 3", last=entry.label),
            severity=Severity.ERROR if forced else Severity.WARNING,
            fix=_("write stage 1, 2 or 3, or remove it"),
        )
    # runtime/engine.py, _configure_zero_optimizer hands offload_param to stage 3 alone.
    if config.device("offload_param") and config.stage in {0, 1, 2}:
        entry = _at(config, "offload_param")
        yield entry.found(
            OFFLOAD_WITHOUT_STAGE,
            _("`{label}` has no effect at stage {stage}", label=entry.label, stage=config.stage),
            fix=_("write stage 3, or remove it"),
        )


NVME_WITHOUT_STAGE_3 = Rule(
    code="ZW509",
    name="nvme-without-stage-3",
    severity=Severity.WARNING,
    why=_("below stage 3, DeepSpeed treats `nvme` as host memory"),
)
NVME_WITHOUT_PATH = Rule(
    code="ZW510",
    name="nvme-without-path",
    severity=Severity.ERROR,
    why=_("DeepSpeed needs a path to write to, and fails without one"),
)


def _nvme(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage_1_and_2.py: every device but none is the CPU.
    if config.device("offload_optimizer") == "nvme" and config.stage in {1, 2}:
        yield _at(config, "offload_optimizer.device").found(
            NVME_WITHOUT_STAGE_3,
            _(
                "at stage {stage} DeepSpeed offloads the optimizer to host memory, not to NVMe",
                stage=config.stage,
            ),
            fix=_("write stage 3, or `cpu`"),
        )
    for part in ("offload_optimizer", "offload_param"):
        # runtime/zero/stage3.py, _configure_tensor_swapping and partition_parameters.py.
        path = f"{ZERO}.{part}.nvme_path"
        is_missing = config.get(path) is None
        if config.device(part) == "nvme" and config.stage == STAGE_3 and is_missing:
            entry, key = _at(config, part), config.label(path)
            yield entry.found(
                NVME_WITHOUT_PATH,
                _("`{part}` has no `{key}`", part=entry.label, key=key),
                fix=_("write `{key}`", key=key),
            )


PARTIAL_OFFLOAD = Rule(
    code="ZW512",
    name="partial-offload",
    severity=Severity.ERROR,
    why=_("only stage 3 can offload a part of the states"),
)


def _ratio(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/config.py, offload_ratio_check.
    entry = config.last.get(f"{ZERO}.offload_optimizer.ratio")
    is_part = entry and isinstance(entry.value, float) and entry.value < 1
    if entry and is_part and config.stage in {0, 1, 2}:
        yield entry.found(
            PARTIAL_OFFLOAD,
            _(
                "a `ratio` of {entry} needs stage 3, not {stage}",
                entry=entry.value,
                stage=config.stage,
            ),
            fix=_("remove it, or write stage 3"),
        )


OPTIMIZER_UNDER_OFFLOAD = Rule(
    code="ZW503",
    name="optimizer-under-offload",
    severity=Severity.WARNING,
    why=_("DeepSpeed rejects an optimizer without a CPU version, or runs it slowly"),
)


def _optimizer(config: Config) -> Iterator[ConfigFinding]:
    kind = config.last.get("optimizer.type")
    if kind is not None and isinstance(kind.value, str):
        yield from _named(config, kind, kind.value)
    elif config.by_deepspeed and config.truth("zero_force_ds_cpu_optimizer", default=True):
        # runtime/engine.py, _configure_optimizer.
        yield _place(config).found(
            OPTIMIZER_UNDER_OFFLOAD,
            _("the script must pass a DeepSpeedCPUAdam: DeepSpeed rejects other optimizers here"),
            fix=_('write an `optimizer`, or `"zero_force_ds_cpu_optimizer": false`'),
        )


def _named(config: Config, kind: Entry, name: str) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _do_optimizer_sanity_check.
    untested = config.truth("zero_allow_untested_optimizer")
    built = config.schema.classes.optimizer(name)
    if built is None or not built.has_cpu_form:
        found = kind.found(
            OPTIMIZER_UNDER_OFFLOAD,
            _(
                "`{kind}` has no CPU version, which `offload_optimizer` needs",
                kind=shown(kind.value),
            ),
            severity=Severity.WARNING if untested else Severity.ERROR,
            fix=_("write `AdamW`"),
        )
        yield config.if_built(found)
    # runtime/engine.py, get_optimizer_configuration.
    elif config.truth("optimizer.params.torch_adam"):
        yield config.last["optimizer.params.torch_adam"].found(
            OPTIMIZER_UNDER_OFFLOAD,
            _("`torch_adam` uses torch's own AdamW on the CPU, which is slow"),
            fix=_("remove it"),
        )


def _place(config: Config) -> Entry:
    old = config.last.get(f"{ZERO}.cpu_offload")
    return config.last.get(f"{ZERO}.offload_optimizer") or old or config.last[ZERO]


def _at(config: Config, part: str) -> Entry:
    return config.last[f"{ZERO}.{part}"]
