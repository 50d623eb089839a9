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
from zerowiz.translation import _, listing

# Report what an earlier step of a launch refused.

SCRIPT_REFUSED = Rule(
    code="PF101",
    name="script-refused",
    severity=Severity.ERROR,
    why=_("`launch` refuses the script"),
    when=_("the script does not exist, is not Python, or cannot get a config"),
)
PLAN_REFUSED = Rule(
    code="PF104",
    name="plan-refused",
    severity=Severity.ERROR,
    why=_("`launch` refuses the job"),
    when=_("nothing fits, or the script, the config and the options conflict"),
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why=_("`doctor` could not check what depends on the plan"),
    when=_("there is no script, or its model is unknown"),
)
NO_DEEPSPEED = Rule(
    code="PF201",
    name="no-deepspeed",
    severity=Severity.ERROR,
    why=_("zerowiz cannot start a job without `deepspeed`"),
    when=_("`deepspeed` is neither in zerowiz's environment nor on `PATH`"),
)
NO_MACHINE = Rule(
    code="PF301",
    name="no-machine",
    severity=Severity.ERROR,
    why=_("zerowiz cannot train without a GPU"),
    when=_("no driver, no usable GPU"),
)


def refused(rule: Rule, error: ZerowizError) -> PreflightFinding:
    """The error of such a step as a finding."""
    return found(rule, error.message, *error.hints)


KEY_MISSING = Rule(
    code="PF106",
    name="config-key-missing",
    severity=Severity.ERROR,
    why=_("every rank fails there with a KeyError"),
    when=_('the script reads a key that the config does not have: `ds_config["scheduler"]`'),
)
KEY_CHANGED = Rule(
    code="PF107",
    name="config-key-changed",
    severity=Severity.ERROR,
    why=_("the job would differ from the plan"),
    when=_(
        "the script overwrites a key that the plan depends on, such as `zero_optimization`, with"
        " a value that zerowiz cannot read; a warning if it only may"
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
        _(
            "`{code}` in {where} line {line} needs `{lacking}`, which the config does not have",
            code=key.code,
            where=where,
            line=key.line,
            lacking=".".join(lacking),
        ),
        _(
            "read it with `.get(...)` in {where} line {line}, or remove the line",
            where=where,
            line=key.line,
        ),
        _("or use your own config that has it: `$config FILE`"),
    )


def _changed(
    key: KeyUse, config: Mapping[str, object], run: Resolver, *, surely: bool
) -> Iterator[PreflightFinding]:
    place = _("{path} line {line}", path=run.facts.text_path, line=key.line)
    if not key.all_seen and not key.keys:
        yield found(
            KEY_CHANGED,
            _("`{code}` in {place} may change any key of the config", code=key.code, place=place),
            _("write the keys out in {place}", place=place),
            severity=Severity.WARNING,
        )
        return
    if key.keys[0] not in _PLANNED or key.keys[:2] in _HARMLESS:
        return
    is_there = not _first_lacking(config, key.keys)
    planned, value = _value(config, key.keys), run.setting(key.value)
    if (key.removes and not is_there) or (is_there and value and value.value == planned):
        return
    verb = _("removes") if key.removes else _("overwrites") if is_there else _("sets")
    by_option = value if key.value.flag is not None else None
    yield found(
        KEY_CHANGED,
        _(
            "`{code}` in {place} {verb} `{keys}` of the config",
            code=key.code,
            place=place,
            verb=verb,
            keys=".".join(key.keys),
        ),
        *((by_option.change_to(planned),) if by_option and isinstance(planned, int | str) else ()),
        _("remove {place}: the plan depends on `{keys}`", place=place, keys=key.keys[0]),
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
    why=_("DeepSpeed places the model itself, one replica or shard per rank"),
    when=_(
        'the script loads the model with `device_map=` at stage 3, or with `"auto"` where a rank'
        " sees several GPUs; a warning if every rank loads it onto GPU 0"
    ),
)
FSDP = Rule(
    code="PF109",
    name="fsdp",
    severity=Severity.ERROR,
    why=_("the Trainer fails if both are set"),
    when=_("`fsdp` of TrainingArguments beside DeepSpeed"),
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
            yield _placed(placement, script.text_path, _("at stage 3, which transformers refuses"))
        elif several and place in _SHARED:
            # accelerate 1.15, accelerator.py, verify_device_map: a ValueError in `prepare`.
            yield _placed(
                placement,
                script.text_path,
                _(
                    "but each rank sees {gpus} GPUs, and would spread it over all of them",
                    gpus=len(machine.gpus),
                ),
                None if library else Severity.WARNING,
            )
        elif several and place in _FIRST_GPU:
            yield _placed(
                placement,
                script.text_path,
                _("so every rank loads it onto GPU 0"),
                Severity.WARNING,
            )


def _placed(
    placement: Placement, path: str, what: str, severity: Severity | None = None
) -> PreflightFinding:
    where = _("{path} line {line}", path=path, line=placement.line)
    return found(
        DEVICE_MAP,
        _(
            "`{code}` in {where} places the model, {what}",
            code=placement.code,
            where=where,
            what=what,
        ),
        _("remove `device_map=` in {where}", where=where),
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
            _("{source} asks for FSDP, but the job runs with DeepSpeed", source=setting.source),
            _("remove {source}", source=setting.source),
        )


PIPELINE = Rule(
    code="PF110",
    name="pipeline-sharded",
    severity=Severity.ERROR,
    why=_("every rank fails in `deepspeed.initialize`"),
    when=_("the script trains a `PipelineModule`, and the stage is 2 or 3"),
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
                _(
                    "`{code}` in {path} line {line} builds a pipeline, which DeepSpeed "
                    "rejects at stage {stage}",
                    code=pipeline.code,
                    path=run.facts.text_path,
                    line=pipeline.line,
                    stage=planned.strategy.stage,
                ),
                _("use ZeRO-1, which works with pipelines: `$stage 1`"),
            )


REMOVED = Rule(
    code="PF113",
    name="removed-option",
    severity=Severity.ERROR,
    why=_("every rank ends at the start, with an unexpected argument"),
    when=_(
        "an option of TrainingArguments that your transformers no longer has, such as"
        " `--evaluation_strategy`; a warning if transformers is not installed here"
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
            where = _("{path} line {line}", path=script.text_path, line=removed_field.line)
            uses.append(
                (removed_field.name, _("`{code}` in {where}", code=removed_field.code, where=where))
            )
    for name, source in uses:
        since, instead = REMOVED_FIELDS[name]
        version = ".".join(map(str, since))
        if release is not None and release < since:
            continue
        yield found(
            REMOVED,
            _(
                "{source}: TrainingArguments has no `{name}` since transformers {version}",
                source=source,
                name=name,
                version=version,
            ),
            _("use `{instead}`, which replaces it", instead=instead)
            if instead
            else _("remove {source}", source=source),
            _('run `pip install "transformers<{version}"`', version=version),
            severity=None if release is not None else Severity.WARNING,
        )


MISSING = Rule(
    code="PF116",
    name="missing-argument",
    severity=Severity.ERROR,
    why=_("every rank prints the usage of the script and ends"),
    when=_("you do not pass an argument that the parser of the script requires"),
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
            _(
                "{path} requires {names}, which you did not pass",
                path=script.text_path,
                names=listing(map(_named, missing)),
            ),
            _("put `{words}` after {path}", words=words, path=script.path),
        )


def _named(argument: Required) -> str:
    name = f"`{argument.name}`"
    return name if argument.line is None else name + _(" (line {line})", line=argument.line)


SHARDS_SAVED = Rule(
    code="PF117",
    name="shards-saved",
    severity=Severity.ERROR,
    why=_("at stage 3 each rank has a shard of the weights, so the file has empty tensors"),
    when=_(
        "the script saves the model by itself (`model.save_pretrained(...)`,"
        " `torch.save(model.state_dict(), ...)`) at stage 3; a warning if only `--escalate` can go"
        " there"
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
    calls = listing(
        _("`{code}` (line {line})", code=weight_save.code, line=weight_save.line)
        for weight_save in script.weight_saves
        if not (weight_save.adapters_only and planned.uses_peft and adapters_stay)
        and _holds(run, weight_save.conditions) is not False
    )
    if calls:
        yield found(
            SHARDS_SAVED,
            _("{path} saves empty weights at stage 3: {calls}", path=script.text_path, calls=calls)
            if is_sharded
            else _(
                "{path} would save empty weights at stage 3, to which `--escalate` can go: {calls}",
                path=script.text_path,
                calls=calls,
            ),
            planned.integration.row.gathers,
            _(
                "enter `with deepspeed.zero.GatheredParameters(model.parameters()):` on all ranks,"
                " and save inside it"
            ),
            _("use a stage that keeps the weights whole: `$stage 2`"),
            severity=None if surely else Severity.WARNING,
        )


OPTIMIZERS_DROPPED = Rule(
    code="PF118",
    name="optimizers-dropped",
    severity=Severity.WARNING,
    why=_("the job trains with another optimizer or learning rate than your script sets"),
    when=_("the script passes `optimizers=` to a Trainer, which ignores it under DeepSpeed"),
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
            _(
                "`{code}` in {path} line {line} has no effect: under DeepSpeed, the Trainer makes"
                " its own optimizer and scheduler",
                code=optimizer.code,
                path=script.text_path,
                line=optimizer.line,
            ),
            _(
                "set them in the `optimizer` and `scheduler` sections of the config: it has an"
                " `optimizer` section, which the Trainer uses"
            )
            if "optimizer" in (planned.config or {})
            else _(
                "override `create_optimizer` or `create_scheduler` in a subclass of the Trainer"
            ),
            _("choose them by `--optim` and `--lr_scheduler_type`"),
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
