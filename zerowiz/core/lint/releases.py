"""Find what a release, a pair of settings or the script makes DeepSpeed refuse."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.accelerate import PRECISION_KEYS
from zerowiz.core.dsconfig.schema import Schema, SchemaKey
from zerowiz.core.findings import Rule, Severity
from zerowiz.core.lint.config import AUTO, BATCH_KEYS, STAGE_3, ZERO, Config, Entry, shown
from zerowiz.core.lint.keys import OUT_OF_RANGE
from zerowiz.core.lint.offload import offloads
from zerowiz.core.lint.report import ConfigFinding, found_at
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.workload import SWITCHED, Integration, Precision

# runtime/config.py, GRADIENT_CLIPPING_DEFAULT, since 0.19.3.
_DEFAULT_CLIPPING = 1.0


def check_refused(config: Config) -> Iterator[ConfigFinding]:
    """Each refused pair."""
    for refused in (_no_zero, _sum, _prescale, _legacy, _no_norm, _odd_bucket, *_TOGETHER):
        yield from refused(config)


NO_ZERO_SECTION = Rule(
    code="ZW516",
    name="no-zero-section",
    severity=Severity.ERROR,
    why="Accelerate rejects a config without zero_optimization",
)


def _no_zero(config: Config) -> Iterator[ConfigFinding]:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
    is_known = config.context.integration is not None
    if is_known and config.by_accelerate and ZERO not in config.last:
        yield config.found(
            NO_ZERO_SECTION,
            "there is no `zero_optimization`",
            fix='write `"zero_optimization": {"stage": 0}` to train without ZeRO',
        )


SUM_REFUSED = Rule(
    code="ZW511",
    name="sum-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot sum gradients with this setting",
)


def _sum(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    entry = config.last.get("gradient_allreduce_op")
    if entry is None or str(entry.value).lower() != "sum":
        return
    others = (
        ("stage 3", config.stage == STAGE_3),
        ("ZenFlow", isinstance(config.get(f"{ZERO}.zenflow"), dict)),
        ("DeepCompile", config.truth("compile.deepcompile")),
    )
    for name, is_there in others:
        if is_there:
            yield entry.found(
                SUM_REFUSED,
                f"`sum` cannot be combined with {name}",
                fix="write `mean`",
            )


PRESCALE_REFUSED = Rule(
    code="ZW514",
    name="prescale-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot scale gradients before it scatters them",
)


def _prescale(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage3.py and stage_1_and_2.py, __init__ of the optimizers.
    scatters = config.stage in {2, 3} and config.truth(f"{ZERO}.reduce_scatter", default=True)
    if not scatters or config.get("gradient_allreduce_op") is not None:
        return
    refused = []
    if config.truth("prescale_gradients"):
        refused.append(config.last["prescale_gradients"])
    factor = config.last.get("gradient_predivide_factor")
    if factor is not None and isinstance(factor.value, (int, float)) and factor.value != 1:
        refused.append(factor)
    for entry in refused:
        yield entry.found(
            PRESCALE_REFUSED,
            f"`{entry.name}` cannot be combined with `reduce_scatter` at stage {config.stage}",
            fix="remove it",
        )


LEGACY_STAGE_1 = Rule(
    code="ZW515",
    name="legacy-stage-1",
    severity=Severity.ERROR,
    why="DeepSpeed removed the old stage 1",
)


def _legacy(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _configure_zero_optimizer.
    if config.stage and config.truth(f"{ZERO}.legacy_stage1"):
        yield config.last[f"{ZERO}.legacy_stage1"].found(
            LEGACY_STAGE_1, "DeepSpeed has no `legacy_stage1` any more", fix="remove it"
        )


NO_GRAD_NORM = Rule(
    code="ZW517",
    name="no-grad-norm",
    severity=Severity.ERROR,
    why=(
        "DeepSpeed can skip the gradient norm only at stages 1 and 2, without clipping and offload"
    ),
)


def _no_norm(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/config.py, compute_grad_norm_valid; runtime/zero/stage_1_and_2.py, __init__.
    entry = config.last.get(f"{ZERO}.compute_grad_norm")
    if entry is None or config.truth(f"{ZERO}.compute_grad_norm") is not False:
        return
    clipping = config.last.get("gradient_clipping")
    clips = _DEFAULT_CLIPPING if clipping is None else clipping.value
    refused = (
        ("`compute_grad_norm: false` needs stage 1 or 2", config.stage in {0, 3}),
        (
            "`compute_grad_norm: false` needs a `gradient_clipping` of 0",
            clips not in (AUTO, 0),
        ),
        (
            "`compute_grad_norm: false` cannot be combined with `offload_optimizer`",
            offloads(config),
        ),
    )
    for message, is_so in refused:
        if is_so:
            yield entry.found(NO_GRAD_NORM, message, fix="remove it")


def _odd_bucket(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage_1_and_2.py, nccl_start_alignment_factor.
    path = f"{ZERO}.allgather_bucket_size"
    elements = config.number(path)
    if elements is not None and elements % 2 and config.stage in {1, 2}:
        yield config.last[path].found(
            OUT_OF_RANGE,
            f"`allgather_bucket_size` must be even, not {elements}",
            fix=f"write {elements + 1}",
        )


REFUSED_TOGETHER = Rule(
    code="ZW521",
    name="refused-together",
    severity=Severity.ERROR,
    why="DeepSpeed rejects these settings together",
)


def _muon(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage3.py, __init__.
    kind = config.last.get("optimizer.type")
    scatters = config.truth(f"{ZERO}.reduce_scatter", default=True)
    if kind and str(kind.value).lower() == "muon" and config.stage == STAGE_3 and scatters:
        finding = kind.found(
            REFUSED_TOGETHER,
            "Muon at stage 3 cannot be combined with `reduce_scatter`, which is on by default",
            fix='write `"reduce_scatter": false` in `zero_optimization`',
        )
        yield config.if_built(finding)


def _zenflow(config: Config) -> Iterator[ConfigFinding]:
    path = f"{ZERO}.zenflow"
    if not isinstance(config.get(path), dict) or config.stage not in {1, 2, STAGE_3}:
        return
    # runtime/zenflow/engine.py, configure_zenflow; `epoch` counts in epochs, of unknown length.
    select, update = (config.number(f"{path}.{name}_interval") for name in ("select", "update"))
    by_step = config.get(f"{path}.select_strategy") == "step"
    if by_step and select is not None and update is not None and 0 != select < update:
        yield config.last[f"{path}.select_interval"].found(
            REFUSED_TOGETHER,
            f"a `select_interval` of {select} is below the `update_interval` of {update}",
            fix=f"write {update} or more",
        )
    # runtime/zenflow/zenflow_stage_1_and_2.py, __init__ and create.
    overlaps = config.truth(f"{ZERO}.overlap_comm")
    if config.truth(f"{path}.offload") and config.stage != STAGE_3 and overlaps is False:
        yield config.last[f"{path}.offload"].found(
            REFUSED_TOGETHER,
            "`offload` of ZenFlow needs `overlap_comm`",
            fix='write `"overlap_comm": true` in `zero_optimization`',
        )
    if config.stage != STAGE_3 and offloads(config) is False:
        yield config.last[path].found(
            REFUSED_TOGETHER,
            f"ZenFlow at stage {config.stage} needs the optimizer on the CPU",
            fix='write `"offload_optimizer": {"device": "cpu"}` beside it',
        )


def _passes(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, get_deepspeed_compile_backend.
    if not config.truth("compile.deepcompile"):
        return
    passes = config.get("compile.passes")
    if (
        isinstance(passes, list)
        and "autotp" in passes
        and {"autosp", "z1", "z3"} & {pass_ for pass_ in passes if isinstance(pass_, str)}
    ):
        yield config.last["compile.passes"].found(
            REFUSED_TOGETHER,
            "the pass `autotp` cannot be combined with `autosp`, `z1` or `z3`",
            fix='write `["autotp"]`, or remove it',
        )
    # compile/init_z3.py, init_z3.
    offloaded = [
        name
        for name in ("offload_activation", "offload_opt_states", "offload_parameters")
        if config.truth(f"compile.{name}")
    ]
    if len(offloaded) > 1 and config.stage == STAGE_3:
        yield config.last[f"compile.{offloaded[0]}"].found(
            REFUSED_TOGETHER,
            "{offloaded} exclude each other".format(
                offloaded=" and ".join(f"`{name}`" for name in offloaded)
            ),
            fix="keep one of them",
        )


def _hpz(config: Config) -> Iterator[ConfigFinding]:
    path, ranks = f"{ZERO}.zero_hpz_partition_size", config.context.world_size
    size = config.number(path)
    if size is None or size < 2 or config.stage != STAGE_3:  # noqa: PLR2004 - 1 is no group
        return
    # utils/groups.py, _create_zero_param_parallel_group.
    if ranks is not None and size < ranks and ranks % size:
        yield config.last[path].found(
            REFUSED_TOGETHER,
            f"a `zero_hpz_partition_size` of {size} does not divide {ranks} ranks",
            fix="write the number of GPUs of a node",
        )
    # runtime/engine.py, _validate_zero3_moe_compatibility.
    if config.truth("expert_parallel.enabled"):
        yield config.last[path].found(
            REFUSED_TOGETHER,
            "`expert_parallel` at stage 3 cannot be combined with `zero_hpz_partition_size`",
            fix="remove it",
        )


_TOGETHER = (_muon, _zenflow, _passes, _hpz)

# Find what a version of DeepSpeed makes of a config: other defaults, and known faults.

DEFAULT_CHANGED = Rule(
    code="ZW604",
    name="default-changed",
    severity=Severity.WARNING,
    why="the config does not set the key, so it trains with another value than before",
)

# A file of Accelerate has few keys.
_IN_ANOTHER_FILE = ", in a file that `deepspeed_config_file` names"


def check_versions(config: Config) -> Iterator[ConfigFinding]:
    """What is known against this version, and what was another default in the one before."""
    yield from _bad_releases(config)
    yield from _defaults(config)


BAD_RELEASE = Rule(
    code="ZW605",
    name="bad-release",
    severity=Severity.ERROR,
    why="the job trains wrongly, and ends without an error",
)


def _bad_releases(config: Config) -> Iterator[ConfigFinding]:
    entry = config.last.get(f"{ZERO}.stage") or config.last.get(ZERO)
    for row in config.context.bad_releases:
        is_other = row.precision is Precision.BF16 and config.truth("bf16.enabled") is False
        if entry is None or config.stage not in row.stages or is_other:
            continue
        yield entry.found(
            BAD_RELEASE,
            f"DeepSpeed from {row.since} until {row.until}: {row.words}",
            severity=row.severity,
            fix=f"install DeepSpeed {row.upgrade}, or write another stage",
        )


def _defaults(config: Config) -> Iterator[ConfigFinding]:
    before = config.context.before
    if before is None:
        return
    for key in config.schema.keys.values():
        old = before.keys.get(key.path)
        # The config has its section, and leaves the key to DeepSpeed.
        is_left = key.path not in config.last and (not key.section or key.section in config.last)
        if old is not None and is_left and _has_changed(old, key):
            yield _changed(config, before, old, key)


def _has_changed(old: SchemaKey, new: SchemaKey) -> bool:
    gone = old.removed or new.removed or new.deprecated
    return not gone and None not in (old.default, new.default) and old.default != new.default


def _changed(config: Config, before: Schema, old: SchemaKey, new: SchemaKey) -> ConfigFinding:
    section = config.last.get(new.section)
    where = f" in `{new.section}`" if section else ""
    write = f'write `"{new.name}": {old.default}`{where} to keep what it was'
    return found_at(
        section.member.key.place if section else config.root.place,
        DEFAULT_CHANGED,
        (
            f"the default of `{new.name}`{where} was {old.default} in DeepSpeed "
            f"{before.version}, and is {new.default} in {config.schema.version}"
        ),
        key=new.path,
        fix=write + (_IN_ANOTHER_FILE if config.context.file_keys else ""),
    )


# Find values that the script contradicts.

SCRIPT_DISAGREES = Rule(
    code="ZW701",
    name="script-disagrees",
    severity=Severity.ERROR,
    why="the Trainer fails if the config and its TrainingArguments have different values",
)


def check_against_script(config: Config) -> Iterator[ConfigFinding]:
    """What the Trainer compares (transformers, HfTrainerDeepSpeedConfig.fill_match)."""
    yield from _two_rates(config)
    settings = config.context.settings
    if settings is None:
        return
    for path, value, source in _set_by_script(settings, config.context.world_size):
        entry = config.last.get(path)
        if entry is None or entry.value in (None, value) or isinstance(entry.value, str):
            continue
        is_trainer = config.context.integration is Integration.HF
        takes_auto = is_trainer and entry.file_key not in PRECISION_KEYS
        here, there = _compared(entry, value, settings)
        yield entry.found(
            SCRIPT_DISAGREES,
            (
                f"`{path if entry.file_key is None else entry.label}` is {here} here and "
                f"{there} in {source}"
            ),
            severity=Severity.ERROR if is_trainer else Severity.WARNING,
            fix='write `"auto"`' if takes_auto else "set both to the same value",
        )


def _compared(entry: Entry, value: object, settings: ScriptSettings) -> tuple[str, str]:
    """What stands in the file and in the script.

    Accelerate's file names the precision, and what is built of it has a switch for each.
    """
    if entry.file_key in PRECISION_KEYS and settings.precision is not None:
        return entry.known_path.partition(".")[0], settings.precision.value
    return shown(entry.value), shown(value)


def _two_rates(config: Config) -> Iterator[ConfigFinding]:
    rate = config.get("optimizer.params.lr")
    peak = config.last.get("scheduler.params.warmup_max_lr")
    if config.context.integration is not Integration.HF or peak is None:
        return
    if None not in (rate, peak.value) and AUTO not in (rate, peak.value) and rate != peak.value:
        yield peak.found(
            SCRIPT_DISAGREES,
            (
                f"`warmup_max_lr` is {shown(peak.value)}, `lr` is {shown(rate)}: the Trainer "
                "has one learning rate"
            ),
            fix='write `"auto"` for both',
        )


def _set_by_script(
    settings: ScriptSettings, ranks: int | None
) -> Iterator[tuple[str, object, str]]:
    """Keys, what the script makes of them, and where."""
    micro, steps, precision = settings.micro_batch, settings.accumulation_steps, settings.precision
    whole, per_gpu, accumulated = BATCH_KEYS
    if micro is not None:
        yield per_gpu, micro.value, micro.source
    if steps is not None:
        yield accumulated, steps.value, steps.source
    if micro is not None and steps is not None and ranks is not None:
        product = micro.value * steps.value * ranks
        yield (
            whole,
            product,
            f"{micro.value} * {steps.value} * {ranks} ranks",
        )
    if precision is not None:
        for name in SWITCHED:
            yield f"{name}.enabled", precision.value is name, precision.source
