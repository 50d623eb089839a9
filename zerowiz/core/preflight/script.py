"""Check what the script itself does with the config and the model, against what was planned."""

from collections.abc import Iterable, Iterator, Mapping

from zerowiz.core.findings import PreflightFinding, Rule, Severity, found
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.preflight.facts import PlannedJob, PreflightInput
from zerowiz.core.script.arguments import REMOVED_FIELDS, Required
from zerowiz.core.script.bindings import Resolver, removed_words, unsaid_arguments
from zerowiz.core.script.config_delivery import add_settled
from zerowiz.core.script.facts import KeyUse, Placement, ValueSource
from zerowiz.core.workload import Integration
from zerowiz.errors import ZerowizError

# Report what an earlier step of a launch refused.

SCRIPT_REFUSED = Rule(
    code="PF101",
    name="script-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the script",
    when="the script does not exist, is not Python, or cannot get a config",
)
PLAN_REFUSED = Rule(
    code="PF104",
    name="plan-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the job",
    when="nothing fits, or the script, the config and the options conflict",
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why="`doctor` could not check what depends on the plan",
    when="there is no script, or its model is unknown",
)
NO_DEEPSPEED = Rule(
    code="PF201",
    name="no-deepspeed",
    severity=Severity.ERROR,
    why="zerowiz cannot start a job without `deepspeed`",
    when="`deepspeed` is neither in zerowiz's environment nor on `PATH`",
)
NO_MACHINE = Rule(
    code="PF301",
    name="no-machine",
    severity=Severity.ERROR,
    why="zerowiz cannot train without a GPU",
    when="no driver, no usable GPU",
)


def refused(rule: Rule, error: ZerowizError) -> PreflightFinding:
    """The error of such a step as a finding."""
    return found(rule, error.message, *error.hints)


KEY_MISSING = Rule(
    code="PF106",
    name="config-key-missing",
    severity=Severity.ERROR,
    why="every rank fails there with a KeyError",
    when='the script reads a key that the config does not have: `ds_config["scheduler"]`',
)
KEY_CHANGED = Rule(
    code="PF107",
    name="config-key-changed",
    severity=Severity.ERROR,
    why="the job would differ from the plan",
    when=(
        "the script overwrites a key that the plan depends on, such as `zero_optimization`, "
        "with a value that zerowiz cannot read; a warning if it only may"
    ),
)

# What memory and strategy follow from; a script may change any other key.
_PLANNED = frozenset(
    {
        *("zero_optimization", "optimizer", "bf16", "fp16", "amp", "torch_autocast", "data_types"),
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("elasticity", "tensor_parallel", "hybrid_engine", "compression_training"),
        *("zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer"),
    }
)
_HARMLESS = frozenset(
    {
        ("optimizer", "params"),
        ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    }
)


def _keys(planned: PlannedJob) -> Iterator[PreflightFinding]:
    if planned.script is None or planned.config is None:
        return
    run = planned.script
    settings: set[tuple[str, ...]] = set()
    where = run.facts.text_path
    for key in run.facts.config_keys:
        comes_there = _holds(run, key.conditions)
        if comes_there is False:
            continue
        needed = () if key.removes else key.keys[:-1] if key.sets and key.all_seen else key.keys
        lacking = _first_lacking(planned.config, needed)
        if lacking and not any(lacking[: len(keys)] == keys for keys in settings):
            if comes_there:
                yield _missing(key, lacking, where)
            continue
        if key.sets:
            settings.add(key.keys)
            yield from _changed(key, planned.config, run, surely=comes_there is True)


def _holds(run: Resolver, conditions: Iterable[ValueSource]) -> bool | None:
    """Whether the script comes to this place; None where that is not known."""
    told = [run.condition(binding) for binding in conditions]
    if any(answer is not None and not answer.value for answer in told):
        return False
    return None if None in told else True


def _first_lacking(config: Mapping[str, object], keys: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest part of these keys that the config does not have; empty where it has all."""
    section: object = config
    for index, key in enumerate(keys):
        if not isinstance(section, Mapping):
            return ()
        if key not in section:
            return keys[: index + 1]
        section = section[key]
    return ()


def _missing(key: KeyUse, lacking: tuple[str, ...], where: str) -> PreflightFinding:
    return found(
        KEY_MISSING,
        (
            f"`{key.code}` in {where} line {key.line} needs `{'.'.join(lacking)}`, which the "
            "config does not have"
        ),
        f"read it with `.get(...)` in {where} line {key.line}, or remove the line",
        "or use your own config that has it: `$config FILE`",
    )


def _changed(
    key: KeyUse, config: Mapping[str, object], run: Resolver, *, surely: bool
) -> Iterator[PreflightFinding]:
    place = f"{run.facts.text_path} line {key.line}"
    if not key.all_seen and not key.keys:
        yield found(
            KEY_CHANGED,
            f"`{key.code}` in {place} may change any key of the config",
            f"write the keys out in {place}",
            severity=Severity.WARNING,
        )
        return
    if key.keys[0] not in _PLANNED or key.keys[:2] in _HARMLESS:
        return
    is_there = not _first_lacking(config, key.keys)
    planned, value = _value(config, key.keys), run.setting(key.value)
    if (key.removes and not is_there) or (is_there and value and value.value == planned):
        return
    verb = "removes" if key.removes else "overwrites" if is_there else "sets"
    by_option = value if key.value.flag is not None else None
    yield found(
        KEY_CHANGED,
        f"`{key.code}` in {place} {verb} `{'.'.join(key.keys)}` of the config",
        *((by_option.change_to(planned),) if by_option and isinstance(planned, int | str) else ()),
        f"remove {place}: the plan depends on `{key.keys[0]}`",
        severity=None if surely and key.all_seen else Severity.WARNING,
    )


def _value(config: Mapping[str, object], keys: tuple[str, ...]) -> object:
    section: object = config
    for key in keys:
        section = section.get(key) if isinstance(section, Mapping) else None
    return section


DEVICE_MAP = Rule(
    code="PF108",
    name="device-map",
    severity=Severity.ERROR,
    why="DeepSpeed places the model itself, one replica or shard per rank",
    when=(
        'the script loads the model with `device_map=` at stage 3, or with `"auto"` where '
        "a rank sees several GPUs; a warning if every rank loads it onto GPU 0"
    ),
)
FSDP = Rule(
    code="PF109",
    name="fsdp",
    severity=Severity.ERROR,
    why="the Trainer fails if both are set",
    when="`fsdp` of TrainingArguments beside DeepSpeed",
)
_SHARDED_PARAMETERS = 3
# transformers 5.23, integrations/accelerate.py, _get_device_map: they share the model out to every
# GPU that is seen.
_SHARED = frozenset({"auto", "balanced"})
_FIRST_GPU = frozenset({0, "0", "cuda:0"})


def _placements(planned: PlannedJob, machine: Machine) -> Iterator[PreflightFinding]:
    run = planned.script
    if run is None:
        return
    script = run.facts
    several = machine.accelerator is Accelerator.CUDA and len(machine.gpus) > 1
    for placement in script.placements:
        setting = run.setting(placement.place)
        place = None if setting is None else setting.value
        if _holds(run, placement.conditions) is not True or not (
            placement.is_map or place not in {None, ""}
        ):
            continue
        library = planned.integration is not None and not planned.integration.row.as_written
        # transformers 5.23, integrations/accelerate.py, check_and_set_device_map: a ValueError.
        if planned.strategy.stage == _SHARDED_PARAMETERS and library and placement.engine_is_known:
            yield _placed(placement, script.text_path, "at stage 3, which transformers refuses")
        elif several and place in _SHARED:
            # accelerate 1.15, accelerator.py, verify_device_map: a ValueError in `prepare`.
            yield _placed(
                placement,
                script.text_path,
                (
                    f"but each rank sees {len(machine.gpus)} GPUs, and would spread it over "
                    "all of them"
                ),
                None if library else Severity.WARNING,
            )
        elif several and place in _FIRST_GPU:
            yield _placed(
                placement,
                script.text_path,
                "so every rank loads it onto GPU 0",
                Severity.WARNING,
            )


def _placed(
    placement: Placement, path: str, what: str, severity: Severity | None = None
) -> PreflightFinding:
    where = f"{path} line {placement.line}"
    return found(
        DEVICE_MAP,
        f"`{placement.code}` in {where} places the model, {what}",
        f"remove `device_map=` in {where}",
        severity=severity,
    )


def _fsdp(planned: PlannedJob) -> Iterator[PreflightFinding]:
    if planned.script is None or planned.integration is not Integration.HF:
        return
    setting = planned.script.setting(planned.script.facts.fsdp)
    # transformers 5.23, trainer.py, __init__: a ValueError.
    if setting is not None and setting.value and str(setting.value).lower() != "false":
        yield found(
            FSDP,
            f"{setting.source} asks for FSDP, but the job runs with DeepSpeed",
            f"remove {setting.source}",
        )


PIPELINE = Rule(
    code="PF110",
    name="pipeline-sharded",
    severity=Severity.ERROR,
    why="every rank fails in `deepspeed.initialize`",
    when="the script trains a `PipelineModule`, and the stage is 2 or 3",
)
# deepspeed 0.19.8, runtime/pipe/engine.py, PipelineEngine.__init__: an assertion refuses those.
_SHARDED_GRADIENTS = 2


def _pipelines(planned: PlannedJob) -> Iterator[PreflightFinding]:
    if planned.script is None or planned.strategy.stage < _SHARDED_GRADIENTS:
        return
    run = planned.script
    for pipeline in run.facts.pipelines:
        if _holds(run, pipeline.conditions) is True:
            yield found(
                PIPELINE,
                (
                    f"`{pipeline.code}` in {run.facts.text_path} line {pipeline.line} builds "
                    f"a pipeline, which DeepSpeed rejects at stage {planned.strategy.stage}"
                ),
                "use ZeRO-1, which works with pipelines: `$stage 1`",
            )


REMOVED = Rule(
    code="PF113",
    name="removed-option",
    severity=Severity.ERROR,
    why="every rank ends at the start, with an unexpected argument",
    when=(
        "an option of TrainingArguments that your transformers no longer has, such as "
        "`--evaluation_strategy`; a warning if transformers is not installed here"
    ),
)


def _removed(planned: PlannedJob) -> Iterator[PreflightFinding]:
    if planned.script is None or planned.integration is not Integration.HF:
        return
    run, release = planned.script, planned.transformers_version
    script = run.facts
    uses = [*removed_words(script, run.words)]
    for removed_field in script.removed_fields:
        # A script may ask for the release first.
        if _holds(run, removed_field.conditions) is True:
            where = f"{script.text_path} line {removed_field.line}"
            uses.append((removed_field.name, f"`{removed_field.code}` in {where}"))
    for name, source in uses:
        since, instead = REMOVED_FIELDS[name]
        version = ".".join(map(str, since))
        if release is not None and release < since:
            continue
        yield found(
            REMOVED,
            f"{source}: TrainingArguments has no `{name}` since transformers {version}",
            f"use `{instead}`, which replaces it" if instead else f"remove {source}",
            f'run `pip install "transformers<{version}"`',
            severity=None if release is not None else Severity.WARNING,
        )


MISSING = Rule(
    code="PF116",
    name="missing-argument",
    severity=Severity.ERROR,
    why="every rank prints the usage of the script and ends",
    when="you do not pass an argument that the parser of the script requires",
)


def _arguments(planned: PlannedJob) -> Iterator[PreflightFinding]:
    if planned.script is None:
        return
    script = planned.script.facts
    missing = unsaid_arguments(script, add_settled(planned.script.words, planned.settled))
    words = " ".join(argument.usage for argument in missing)
    if missing:
        yield found(
            MISSING,
            (
                f"{script.text_path} requires {', '.join(map(_named, missing))}, which you "
                "did not pass"
            ),
            f"put `{words}` after {script.path}",
        )


def _named(argument: Required) -> str:
    name = f"`{argument.name}`"
    return name if argument.line is None else name + f" (line {argument.line})"


SHARDS_SAVED = Rule(
    code="PF117",
    name="shards-saved",
    severity=Severity.ERROR,
    why="at stage 3 each rank has a shard of the weights, so the file has empty tensors",
    when=(
        "the script saves the model by itself (`model.save_pretrained(...)`, "
        "`torch.save(model.state_dict(), ...)`) at stage 3; a warning if only `--escalate` "
        "can go there"
    ),
)


def _saves(planned: PlannedJob) -> Iterator[PreflightFinding]:
    run, is_sharded = planned.script, planned.strategy.stage == _SHARDED_PARAMETERS
    if run is None or planned.integration is None or not (is_sharded or planned.escalates):
        return
    script, size = run.facts, planned.evaluated.estimate.rank
    # deepspeed 0.19.8, runtime/zero/parameter_offload.py, mark_persistent_parameters: each rank
    # has all of a smaller tensor.
    adapters_stay = is_sharded and size.largest <= size.buffers.stage3_param_persistence_threshold
    may_be_adapters = script.trains_adapters and not (planned.uses_peft or script.adapters.seen)
    surely = is_sharded and not (may_be_adapters or script.builds_elsewhere)
    calls = ", ".join(
        f"`{weight_save.code}` (line {weight_save.line})"
        for weight_save in script.weight_saves
        if not (weight_save.adapters_only and planned.uses_peft and adapters_stay)
        and _holds(run, weight_save.conditions) is not False
    )
    if calls:
        yield found(
            SHARDS_SAVED,
            f"{script.text_path} saves empty weights at stage 3: {calls}"
            if is_sharded
            else (
                f"{script.text_path} would save empty weights at stage 3, to which "
                f"`--escalate` can go: {calls}"
            ),
            planned.integration.row.gathers,
            (
                "enter `with deepspeed.zero.GatheredParameters(model.parameters()):` on all "
                "ranks, and save inside it"
            ),
            "use a stage that keeps the weights whole: `$stage 2`",
            severity=None if surely else Severity.WARNING,
        )


OPTIMIZERS_DROPPED = Rule(
    code="PF118",
    name="optimizers-dropped",
    severity=Severity.WARNING,
    why="the job trains with another optimizer or learning rate than your script sets",
    when="the script passes `optimizers=` to a Trainer, which ignores it under DeepSpeed",
)


def _optimizers(planned: PlannedJob) -> Iterator[PreflightFinding]:
    run = planned.script
    # transformers 5.23, integrations/deepspeed.py, deepspeed_init: `trainer.optimizer = None`, and
    # trainer.py takes what it returns as its scheduler. A section of the config comes before both.
    if run is None or planned.integration is not Integration.HF:
        return
    script = run.facts
    for optimizer in script.optimizers_passed:
        if _holds(run, optimizer.conditions) is False:
            continue
        yield found(
            OPTIMIZERS_DROPPED,
            (
                f"`{optimizer.code}` in {script.text_path} line {optimizer.line} has no "
                "effect: under DeepSpeed, the Trainer makes its own optimizer and scheduler"
            ),
            (
                "set them in the `optimizer` and `scheduler` sections of the config: it has "
                "an `optimizer` section, which the Trainer uses"
            )
            if "optimizer" in (planned.config or {})
            else "override `create_optimizer` or `create_scheduler` in a subclass of the Trainer",
            "choose them by `--optim` and `--lr_scheduler_type`",
        )


def check_script(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """What the script does against the plan."""
    planned = inputs.planned
    if planned is None:
        return
    yield from _arguments(planned)
    yield from _keys(planned)
    yield from _placements(planned, planned.job.machine)
    yield from _fsdp(planned)
    yield from _pipelines(planned)
    yield from _removed(planned)
    yield from _saves(planned)
    yield from _optimizers(planned)
