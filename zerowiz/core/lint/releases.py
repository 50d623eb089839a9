"""Find what a release, a pair of settings or the script makes DeepSpeed refuse."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from zerowiz.core.dsconfig.accelerate import PRECISION_KEYS
from zerowiz.core.dsconfig.merge import BATCH_KEYS, BETAS, LEARNED_BY, ZERO
from zerowiz.core.dsconfig.schema import PARALLEL_KEYS, PLANNED_KEYS, shares_work
from zerowiz.core.findings import MOST_MICRO_BATCHES, Finding, Rule, Severity, shown_by
from zerowiz.core.lint.config import AUTO, Config, Entry, Relation, shown
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.settings import OF_ADAM
from zerowiz.core.workload import SWITCHED, Integration, Precision

if TYPE_CHECKING:
    from zerowiz.core.script.facts import SettledValue
    from zerowiz.core.script.settings import ScriptSettings

_ZENFLOW = f"{ZERO}.zenflow"
_HPZ = f"{ZERO}.zero_hpz_partition_size"
_TOTAL_STEPS = "scheduler.params.total_num_steps"
# runtime/data_pipeline/config.py, get_curriculum_learning and get_dynamic_batching.
_NEEDED: Mapping[str, str] = {
    f"data_efficiency.data_sampling.{section}.enabled": needed
    for section, needed in (
        ("curriculum_learning", "curriculum_metrics"),
        ("dynamic_batching", "max_tokens"),
    )
}
_COMPILE_OFFLOADS = ("offload_activation", "offload_opt_states", "offload_parameters")


def _scatters(config: Config) -> bool | None:
    return config.truth(f"{ZERO}.reduce_scatter", default=True)


def _scales_before(config: Config) -> bool:
    # runtime/zero/stage3.py and stage_1_and_2.py, __init__ of the optimizers.
    is_open = config.get("gradient_allreduce_op") is None
    return config.stage in {2, 3} and bool(_scatters(config)) and is_open


def _is_sum(entry: Entry) -> bool:
    return str(entry.value).lower() == "sum"


def _skips_norm(config: Config) -> bool:
    return config.truth(f"{ZERO}.compute_grad_norm") is False


def _deals_experts(config: Config, entry: Entry) -> bool:
    is_trainer = config.context.integration is Integration.HF
    return is_trainer and config.stage in {1, 2} and bool(config.truth(entry.known_path))


def _clips(config: Config) -> bool:
    clipping = config.last.get("gradient_clipping")
    return clipping is None or clipping.value not in (AUTO, 0)


def _has_zenflow(config: Config, *stages: int) -> bool:
    return isinstance(config.get(_ZENFLOW), dict) and config.stage in stages


def _selects_too_often(config: Config) -> bool:
    # runtime/zenflow/engine.py, configure_zenflow; `epoch` counts in epochs, of unknown length.
    select, update = (config.number(f"{_ZENFLOW}.{name}_interval") for name in ("select", "update"))
    by_step = config.get(f"{_ZENFLOW}.select_strategy") == "step"
    return by_step and select is not None and update is not None and 0 != select < update


def _refused_passes(entry: Entry) -> bool:
    passes = entry.value if isinstance(entry.value, list) else []
    names = {name for name in passes if isinstance(name, str)}
    return "autotp" in names and bool(names & {"autosp", "z1", "z3"})


def _compile_offloads(config: Config) -> list[str]:
    """What DeepCompile offloads at stage 3 (compile/init_z3.py, init_z3)."""
    if not config.truth("compile.deepcompile") or not config.is_stage_3:
        return []
    return [name for name in _COMPILE_OFFLOADS if config.truth(f"compile.{name}")]


def _has_groups(config: Config) -> bool:
    """Whether hpZ shards within groups of ranks; one rank is no group."""
    return config.is_stage_3 and (config.number(_HPZ) or 0) > 1


def _divides_badly(config: Config) -> bool:
    # utils/groups.py, _create_zero_param_parallel_group.
    size, ranks = config.number(_HPZ) or 1, config.context.world_size
    return _has_groups(config) and ranks is not None and size < ranks and bool(ranks % size)


def _said(config: Config) -> "Mapping[str, SettledValue]":
    """What the script says of its settings; nothing where none is known."""
    settings = cast("ScriptSettings | None", config.context.settings)
    return {} if settings is None else settings.values


def _two_rates(config: Config, peak: Entry) -> bool:
    values = (config.get("optimizer.params.lr"), peak.value)
    is_open = None in values or AUTO in values
    return config.context.integration is Integration.HF and not is_open and values[0] != values[1]


REFUSED_TOGETHER = Rule(
    code="ZW521",
    name="refused-together",
    severity=Severity.ERROR,
    why="DeepSpeed rejects these settings together, or what is saved is not the whole model",
)
SCRIPT_DISAGREES = Rule(
    code="ZW701",
    name="script-disagrees",
    severity=Severity.ERROR,
    why="the Trainer fails if the config and its TrainingArguments have different values",
)
OTHER_PARALLELISM = Rule(
    code="ZW606",
    name="other-parallelism",
    severity=Severity.WARNING,
    why="zerowiz has no plan for ranks that share work so: `plan` and `launch` refuse the file",
)
WITHOUT_ZEROWIZ = "keep it to train so, and start the job without zerowiz"
RELATIONS: Mapping[Rule, tuple[Relation, ...]] = {
    Rule(
        code="ZW516",
        name="no-zero-section",
        severity=Severity.ERROR,
        why="Accelerate rejects a config without zero_optimization",
    ): (
        # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
        Relation(
            at="",
            when=lambda config, _: (
                config.context.integration is not None
                and config.by_accelerate
                and ZERO not in config.last
            ),
            says="there is no `zero_optimization`",
            fix='write `"zero_optimization": {"stage": 0}` to train without ZeRO',
        ),
    ),
    Rule(
        code="ZW511",
        name="sum-refused",
        severity=Severity.ERROR,
        why="DeepSpeed cannot sum gradients with this setting",
    ): (
        # runtime/config.py, _do_error_check.
        Relation(
            at="gradient_allreduce_op",
            when=lambda config, entry: _is_sum(entry) and config.is_stage_3,
            says="`sum` cannot be combined with stage 3",
            fix="write `mean`",
        ),
        Relation(
            at="gradient_allreduce_op",
            when=lambda config, entry: _is_sum(entry) and isinstance(config.get(_ZENFLOW), dict),
            says="`sum` cannot be combined with ZenFlow",
            fix="write `mean`",
        ),
        Relation(
            at="gradient_allreduce_op",
            when=lambda config, entry: _is_sum(entry) and config.truth("compile.deepcompile"),
            says="`sum` cannot be combined with DeepCompile",
            fix="write `mean`",
        ),
    ),
    Rule(
        code="ZW514",
        name="prescale-refused",
        severity=Severity.ERROR,
        why="DeepSpeed cannot scale gradients before it scatters them",
    ): tuple(
        Relation(
            at=path,
            when=lambda config, entry: (
                _scales_before(config)
                and (entry.value if entry.known_path == "prescale_gradients" else entry.value != 1)
            ),
            says=lambda config, entry: (
                f"`{entry.name}` cannot be combined with `reduce_scatter` at stage {config.stage}"
            ),
            fix="remove it",
        )
        for path in ("prescale_gradients", "gradient_predivide_factor")
    ),
    Rule(
        code="ZW515",
        name="legacy-stage-1",
        severity=Severity.ERROR,
        why="DeepSpeed removed the old stage 1",
    ): (
        # runtime/engine.py, _configure_zero_optimizer.
        Relation(
            at=f"{ZERO}.legacy_stage1",
            when=lambda config, entry: config.stage and config.truth(entry.known_path),
            says="DeepSpeed has no `legacy_stage1` any more",
            fix="remove it",
        ),
    ),
    Rule(
        code="ZW517",
        name="no-grad-norm",
        severity=Severity.ERROR,
        why="DeepSpeed can skip the gradient norm only at stages 1 and 2, without clipping and"
        " offload",
    ): (
        # runtime/zero/config.py, compute_grad_norm_valid; runtime/zero/stage_1_and_2.py, __init__.
        Relation(
            at=f"{ZERO}.compute_grad_norm",
            when=lambda config, _: _skips_norm(config) and config.stage in {0, 3},
            says="`compute_grad_norm: false` needs stage 1 or 2",
            fix="remove it",
        ),
        Relation(
            at=f"{ZERO}.compute_grad_norm",
            when=lambda config, _: _skips_norm(config) and _clips(config),
            says="`compute_grad_norm: false` needs a `gradient_clipping` of 0",
            fix="remove it",
        ),
        Relation(
            at=f"{ZERO}.compute_grad_norm",
            when=lambda config, _: _skips_norm(config) and config.offloads,
            says="`compute_grad_norm: false` cannot be combined with `offload_optimizer`",
            fix="remove it",
        ),
    ),
    OUT_OF_RANGE: (
        # runtime/zero/stage_1_and_2.py, nccl_start_alignment_factor.
        Relation(
            at=f"{ZERO}.allgather_bucket_size",
            when=lambda config, entry: (
                config.stage in {1, 2}
                and (entry.value is True or (config.number(entry.known_path) or 0) % 2)
            ),
            says=lambda _, entry: f"`allgather_bucket_size` must be even, not {entry.shown}",
            fix=lambda config, entry: f"write {(config.number(entry.known_path) or 1) + 1}",
        ),
    ),
    REFUSED_TOGETHER: (
        # runtime/zero/stage3.py, __init__.
        Relation(
            at="optimizer.type",
            when=lambda config, entry: (
                str(entry.value).lower() == "muon" and config.is_stage_3 and _scatters(config)
            ),
            says="Muon at stage 3 cannot be combined with `reduce_scatter`, which is on by default",
            fix='write `"reduce_scatter": false` in `zero_optimization`',
        ),
        Relation(
            at=f"{_ZENFLOW}.select_interval",
            when=lambda config, _: _has_zenflow(config, 1, 2, 3) and _selects_too_often(config),
            says=lambda config, entry: (
                f"a `select_interval` of {config.number(entry.known_path)} is below the"
                f" `update_interval` of {config.number(f'{_ZENFLOW}.update_interval')}"
            ),
            fix=lambda config, _: f"write {config.number(f'{_ZENFLOW}.update_interval')} or more",
        ),
        *(
            Relation(
                at=path,
                when=lambda config, entry: (
                    entry.value
                    and config.get(entry.known_path.replace("enabled", _NEEDED[entry.known_path]))
                    is None
                ),
                says=lambda _, entry: (
                    f"`{entry.path}` is set without `{_NEEDED[entry.known_path]}`"
                ),
                because="DeepSpeed rejects the one without the other",
                fix=lambda _, entry: f"write `{_NEEDED[entry.known_path]}` beside it",
            )
            for path in _NEEDED
        ),
        # runtime/zenflow/zenflow_stage_1_and_2.py, __init__ and create.
        Relation(
            at=f"{_ZENFLOW}.offload",
            when=lambda config, entry: (
                _has_zenflow(config, 1, 2)
                and config.truth(entry.known_path)
                and config.truth(f"{ZERO}.overlap_comm") is False
            ),
            says="`offload` of ZenFlow needs `overlap_comm`",
            fix='write `"overlap_comm": true` in `zero_optimization`',
        ),
        Relation(
            at=_ZENFLOW,
            when=lambda config, _: _has_zenflow(config, 1, 2) and config.offloads is False,
            says=lambda config, _: (
                f"ZenFlow at stage {config.stage} needs the optimizer on the CPU"
            ),
            fix='write `"offload_optimizer": {"device": "cpu"}` beside it',
        ),
        # runtime/engine.py, get_deepspeed_compile_backend.
        Relation(
            at="compile.passes",
            when=lambda config, entry: (
                config.truth("compile.deepcompile") and _refused_passes(entry)
            ),
            says="the pass `autotp` cannot be combined with `autosp`, `z1` or `z3`",
            fix='write `["autotp"]`, or remove it',
        ),
        Relation(
            at=lambda config: f"compile.{next(iter(_compile_offloads(config)), '')}",
            when=lambda config, _: len(_compile_offloads(config)) > 1,
            says=lambda config, _: (
                " and ".join(f"`{name}`" for name in _compile_offloads(config))
                + " exclude each other"
            ),
            fix="keep one of them",
        ),
        Relation(
            at=_HPZ,
            when=lambda config, _: _divides_badly(config),
            says=lambda config, _: (
                f"a `zero_hpz_partition_size` of {config.number(_HPZ)} does not divide"
                f" {config.context.world_size} ranks"
            ),
            fix="write the number of GPUs of a node",
        ),
        # runtime/engine.py, _validate_zero3_moe_compatibility.
        Relation(
            at=_HPZ,
            when=lambda config, _: _has_groups(config) and config.truth("expert_parallel.enabled"),
            says="`expert_parallel` at stage 3 cannot be combined with `zero_hpz_partition_size`",
            fix="remove it",
        ),
        Relation(
            at=f"{ZERO}.zero_quantized_gradients",
            when=lambda config, entry: (
                config.is_stage_3
                and config.truth("expert_parallel.enabled")
                and config.truth(entry.known_path)
            ),
            says="`expert_parallel` at stage 3 cannot be combined with `zero_quantized_gradients`",
            fix="remove it",
        ),
        # runtime/zero/stage_1_and_2.py, __init__ of the optimizer.
        Relation(
            at="expert_parallel.enabled",
            when=lambda config, entry: (
                _deals_experts(config, entry) and config.get("optimizer") is None
            ),
            says="`expert_parallel` at stages 1 and 2 does not take the optimizer of the Trainer",
            fix="name the `optimizer` in the config",
        ),
        Relation(
            at="expert_parallel.enabled",
            when=lambda config, entry: (
                _deals_experts(config, entry) and config.get("optimizer") is not None
            ),
            says="with `expert_parallel`, the Trainer saves the experts of the first rank alone",
            fix="train without `expert_parallel`",
            severity=Severity.WARNING,
        ),
    ),
    OTHER_PARALLELISM: tuple(
        Relation(
            at=key,
            when=lambda config, entry: shares_work(config.root.value, entry.known_path),
            says=f"`{key}` asks for {kind}",
            fix=WITHOUT_ZEROWIZ,
        )
        for key, kind in PARALLEL_KEYS.items()
        if key not in PLANNED_KEYS
    ),
    SCRIPT_DISAGREES: (
        # accelerate 1.15, accelerator.py, _prepare_deepspeed.
        Relation(
            at="optimizer",
            when=lambda config, _: (
                config.context.integration is Integration.ACCELERATE
                and "optimizer" in _said(config)
            ),
            says=lambda config, _: (
                f"an `optimizer` is here, and one is in {_said(config)['optimizer'].source}"
            ),
            fix="remove it, or build `accelerate.utils.DummyOptim` there",
            because="Accelerate ends the job in `prepare`",
        ),
        Relation(
            at="scheduler.params.warmup_max_lr",
            when=_two_rates,
            says=lambda config, peak: (
                f"`warmup_max_lr` is {peak.shown}, `lr` is"
                f" {shown(config.get('optimizer.params.lr'))}: the Trainer has one learning rate"
            ),
            fix='write `"auto"` for both',
        ),
        # It may be right: zerowiz does not know how many batches the data has.
        Relation(
            at=_TOTAL_STEPS,
            when=lambda config, entry: (
                config.context.integration is Integration.HF
                and entry.number is not None
                and "max_steps" in _said(config)
                and _said(config)["max_steps"].value <= 0
            ),
            says=lambda _, entry: (
                f"`total_num_steps` is {entry.shown}, and the Trainer counts the steps by its data"
            ),
            fix='write `"auto"`, or set `max_steps` to the same number',
            severity=Severity.WARNING,
        ),
    ),
}

# Find what is known against a version of DeepSpeed.

BAD_RELEASE = Rule(
    code="ZW605",
    name="bad-release",
    severity=Severity.ERROR,
    why="the job trains wrongly, loses its weights, or ends where another release would not",
)


def check_release(config: Config) -> Iterator[Finding]:
    """What is known against this version."""
    entry = config.last.get(f"{ZERO}.stage") or config.last.get(ZERO) or config.root
    job = _kind_of_job(config) if config.context.bad_releases else {}
    for row in config.context.bad_releases:
        severity = row.severity_for(job)
        if severity is not None:
            yield entry.found(
                BAD_RELEASE,
                f"DeepSpeed from {row.since} until {row.until}: {row.words}",
                f"install DeepSpeed {row.upgrade}, or {row.instead}",
                severity=severity,
            )


def _kind_of_job(config: Config) -> Mapping[str, object]:
    """What a config says of the conditions of bad releases."""
    halves = {half.value: config.truth(f"{half}.enabled") for half in SWITCHED}
    unknown = None if None in halves.values() else Precision.FP32.value
    steps, integration = config.number(BATCH_KEYS[2]), config.context.integration
    return {
        **shown_by(cast("Mapping[str, object]", config.root.value)),
        "stage": config.stage,
        "precision": next((half for half, enabled in halves.items() if enabled), unknown),
        "offload": config.offloads,
        "micro_batches": None if steps is None else min(steps, MOST_MICRO_BATCHES),
        "integration": None if integration is None else integration.value,
        "on_cpu": config.context.on_cpu,
        "sequence_parallel": (config.number("sequence_parallel_size") or 1) > 1,
    }


# Find values that the script contradicts.


_OF_LOOP = (
    "nothing compares the two: a loop trains the micro-batch that it draws, and DeepSpeed takes all"
    " else from the config"
)


def check_against_script(config: Config) -> Iterator[Finding]:
    """What the Trainer compares (transformers, HfTrainerDeepSpeedConfig.fill_match)."""
    is_trainer = config.context.integration is Integration.HF
    if config.context.settings is None:
        return
    settings = cast("ScriptSettings", config.context.settings)
    compared = {**_OF_BATCH, **(_OF_TRAINER if is_trainer else {})}
    for path, value, source, setting in _set_by_script(
        settings, compared, config.context.world_size
    ):
        entry = config.last.get(path)
        if entry is None or entry.value in (None, value) or isinstance(entry.value, str):
            continue
        here, there, fix = entry.shown, shown(value), "set both to the same value"
        if entry.file_key in PRECISION_KEYS and settings.precision is not None:
            # Accelerate's file names the precision, and what is built of it has a switch for each.
            here, there = entry.known_path.partition(".")[0], settings.precision.value
        elif is_trainer:
            fix = 'write `"auto"`'
        label = path if entry.file_key is None else entry.label
        yield entry.found(
            SCRIPT_DISAGREES,
            f"`{label}` is {here} here and {there} in {source}",
            fix,
            *((setting.change_to(entry.value),) if is_trainer and setting is not None else ()),
            severity=Severity.ERROR if is_trainer else Severity.WARNING,
            because=None if is_trainer else _OF_LOOP,
        )


_OF_BATCH = dict(zip(BATCH_KEYS[1:], ("micro_batch", "accumulation_steps"), strict=True))
_OF_TRAINER = {**LEARNED_BY, _TOTAL_STEPS: "max_steps"}


class _ByScript(NamedTuple):
    """What a script makes of a key."""

    path: str
    value: object
    source: str
    """Where."""
    setting: "SettledValue | None" = None
    """The setting that has the value, if it is one alone."""


def _set_by_script(
    settings: "ScriptSettings", compared: Mapping[str, str], ranks: int | None
) -> Iterator[_ByScript]:
    """The keys whose value the script decides."""
    for path, name in compared.items():
        setting = settings.values.get(name)
        value = None if setting is None else _as_compared(name, setting.value)
        if setting is not None and value is not None:
            yield _ByScript(path, value, setting.source, setting)
    micro, steps, precision = settings.micro_batch, settings.accumulation_steps, settings.precision
    betas = [settings.values[name] for name in OF_ADAM[:2] if name in settings.values]
    if len(betas) == len(OF_ADAM[:2]):
        source = " and ".join(dict.fromkeys(beta.source for beta in betas))
        yield _ByScript(BETAS, [beta.value for beta in betas], source)
    if micro is not None and steps is not None and ranks is not None:
        product = micro.value * steps.value * ranks
        source = f"the script: {micro.value} * {steps.value} * {ranks} ranks"
        yield _ByScript(BATCH_KEYS[0], product, source)
    if precision is not None:
        for name in SWITCHED:
            yield _ByScript(f"{name}.enabled", precision.value is name, precision.source)


def _as_compared(name: str, value: float) -> float | None:
    """What the Trainer makes of an argument; None where the number of all steps decides it.

    Source: transformers 5.23, integrations/deepspeed.py, trainer_config_finalize.
    """
    if name == "max_steps":
        return int(value) if value > 0 else None
    if name == "warmup_steps":
        return None if 0 < value < 1 else max(1, int(value))
    return value
