"""Check what the script itself does with the config and the model, against what was planned."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from zerowiz.core.dsconfig.merge import SHARDED_PARAMETERS
from zerowiz.core.findings import Finding, Rule, Severity, found, parse_release
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.preflight.facts import Installed, PlannedJob, PreflightInput
from zerowiz.core.preflight.stages import check_stages
from zerowiz.core.script.arguments import REMOVED_FIELDS, Option
from zerowiz.core.script.config_delivery import add_settled
from zerowiz.core.script.facts import Resolver, ScriptFacts, unsaid_arguments
from zerowiz.core.strategy_types import Offload
from zerowiz.core.workload import PRECISIONS, Integration, Precision

_Check = Callable[[PlannedJob, Resolver], Iterator[Finding]]

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
    when=("nothing fits, an answer is missing, or the script, the config and the options conflict"),
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why="`doctor` could not check what depends on the plan",
    when="there is no script",
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
# transformers 5.23, integrations/accelerate.py, _get_device_map: they share the model out to every
# GPU that is seen.
_SHARED = frozenset({"auto", "balanced"})
_FIRST_GPU = frozenset({0, "0", "cuda:0"})


def _placements(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    gpus = len(planned.job.machine.gpus)
    several = planned.job.machine.accelerator is Accelerator.CUDA and gpus > 1
    library = planned.integration is not None and not planned.integration.row.as_written
    sharded = planned.strategy.stage == SHARDED_PARAMETERS and library
    for placement in run.facts.placements:
        setting, severity = run.setting(placement.place), None
        place = None if setting is None else setting.value
        is_map = placement.is_map or place not in {None, ""}
        # transformers 5.23, integrations/accelerate.py, check_and_set_device_map: a ValueError.
        if sharded and placement.engine_is_known and is_map:
            what = "at stage 3, which transformers refuses"
        elif several and place in _SHARED:
            # accelerate 1.15, accelerator.py, verify_device_map: a ValueError in `prepare`.
            what = f"but each rank sees {gpus} GPUs, and would spread it over all of them"
            severity = None if library else Severity.WARNING
        elif several and place in _FIRST_GPU:
            what, severity = "so every rank loads it onto GPU 0", Severity.WARNING
        else:
            continue
        if run.holds(placement.conditions) is True:
            where = run.facts.where(placement.line)
            yield found(
                DEVICE_MAP,
                f"`{placement.code}` in {where} places the model, {what}",
                f"remove `device_map=` in {where}",
                severity=severity,
                edits=(run.facts.edit(placement.line, keyword="device_map"),),
            )


def _fsdp(_planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    setting = run.setting(run.facts.fsdp)
    # transformers 5.23, trainer.py, __init__: a ValueError.
    if setting is not None and setting.value and str(setting.value).lower() != "false":
        yield found(
            FSDP,
            f"{setting.source} asks for FSDP, but the job runs with DeepSpeed",
            f"remove {setting.source}",
            edits=run.facts.removal(run.facts.fsdp),
        )


MISSING = Rule(
    code="PF116",
    name="missing-argument",
    severity=Severity.ERROR,
    why="every rank prints the usage of the script and ends",
    when="you do not pass an argument that the parser of the script requires",
)


def _arguments(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    script = run.facts
    missing = unsaid_arguments(script, add_settled(run.words, planned.settled))
    words = " ".join(argument.usage for argument in missing)
    named = ", ".join(map(partial(_named, script), missing))
    if missing:
        yield found(
            MISSING,
            (f"{script.text_path} requires {named}, which you did not pass"),
            f"put `{words}` after {script.path}",
        )


def _named(script: ScriptFacts, argument: Option) -> str:
    name = f"`{argument.flag}`"
    return name if argument.line is None else name + f" ({script.place(argument.line)})"


REMOVED = Rule(
    code="PF113",
    name="removed-option",
    severity=Severity.ERROR,
    why="every rank ends as it reads the words after the script",
    when="you pass a field of TrainingArguments that the installed transformers no longer has",
)


def _removed(planned: PlannedJob, run: Resolver, installed: Installed | None) -> Iterator[Finding]:
    parser, version, severity = run.facts.parser, planned.transformers, Severity.WARNING
    if installed is not None:
        version, severity = installed.version("transformers"), Severity.ERROR
    flags = (word.partition("=")[0] for word in run.words if word.startswith("--"))
    for name in (flag.removeprefix("--") for flag in flags if parser.strict):
        since, instead = REMOVED_FIELDS.get(name, (None, ""))
        # What has a line is a field of a subclass in the script.
        lines = {option.line for option in parser.find(f"--{name}")}
        if since is not None and parse_release(version) >= since and lines <= {None}:
            way = f"write `--{instead}` in its place" if instead else f"remove `--{name}`"
            yield found(
                REMOVED,
                f"transformers {version} has no option `--{name}`",
                way,
                severity=severity,
            )


OPTIMIZERS_DROPPED = Rule(
    code="PF118",
    name="optimizers-dropped",
    severity=Severity.WARNING,
    why="the job trains with another optimizer or learning rate than your script sets",
    when=(
        "the script passes `optimizers=` to a Trainer, which ignores it under DeepSpeed; the "
        "config has an `optimizer`, so Lightning does not call `configure_optimizers`; or "
        "Accelerate replaces an optimizer by DeepSpeed's CPU Adam under offload"
    ),
)


def _optimizers(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    # transformers 5.23, integrations/deepspeed.py, deepspeed_init: `trainer.optimizer = None`, and
    # trainer.py takes what it returns as its scheduler. A section of the config comes before both.
    script = run.facts
    for optimizer in script.optimizers_passed:
        if run.holds(optimizer.conditions) is False:
            continue
        yield found(
            OPTIMIZERS_DROPPED,
            (
                f"`{optimizer.code}` in {script.where(optimizer.line)} has no "
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


UNPREPARED = Rule(
    code="PF121",
    name="optimizer-mismatch",
    severity=Severity.ERROR,
    why="Accelerate ends the job in `prepare`",
    when=("the script has a `DummyOptim` and the config no `optimizer`, or both have an optimizer"),
)


def _accelerated(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    # accelerate 1.15, accelerator.py, _prepare_deepspeed; utils/deepspeed.py,
    # map_pytorch_optim_to_deepspeed: of what is no Adagrad or Lion of its libraries.
    config, own = planned.config or {}, run.facts.optimizer
    where = f"`{own.code}` in {run.facts.where(own.line)}"
    is_known, has_section = own.seen or own.code is not None, "optimizer" in config
    if is_known and own.from_config is not has_section:
        yield found(
            UNPREPARED,
            f"{where} needs an `optimizer` section, which the config does not have"
            if own.from_config
            else f"{where} is an optimizer beside that of the config",
            "use a config with `optimizer` and `scheduler`: `$config ds_config.json`"
            if own.from_config
            else "remove `optimizer` from the config, or build `accelerate.utils.DummyOptim`",
        )
    offloads = planned.strategy.offload is not Offload.NONE
    if offloads and own.code and not own.seen and config.get("zero_force_ds_cpu_optimizer", True):
        yield found(
            OPTIMIZERS_DROPPED,
            f"{where} has no effect: with offload, Accelerate puts DeepSpeed's CPU Adam there",
            "keep the optimizer on the GPU: `$offload none`",
        )


FLOAT_BATCHES = Rule(
    code="PF119",
    name="float-batches",
    severity=Severity.WARNING,
    why="the first matmul fails: `mat1 and mat2 must have the same dtype`",
    when="the job has 16-bit weights, and its loop makes floats that nothing casts",
)


def _float_batches(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    # deepspeed 0.19.8, runtime/engine.py, forward: of fp16 alone, and only if it is asked to.
    floats, precision = run.facts.float_batches, planned.job.workload.precision
    fp16 = (planned.config or {}).get("fp16")
    casts = isinstance(fp16, Mapping) and fp16.get("auto_cast")
    if floats.value and precision is not Precision.FP32 and not casts:
        yield found(
            FLOAT_BATCHES,
            (
                f"`{floats.code}` in {run.facts.where(floats.line)} makes floats, but "
                f"the weights are {precision}"
            ),
            f"cast what the engine gets: `x.to(torch.{PRECISIONS[precision].dtype_names[0]})`",
            f"keep the weights in fp32: `$torch_autocast {precision}`, or `$precision fp32`",
        )


SHARED_SEQUENCES = Rule(
    code="PF125",
    name="sequence-parallel",
    severity=Severity.ERROR,
    why="the job ends with an error at its start, or at its first batch",
    when=(
        "GPUs share sequences, and the script has another `dp_shard_size` than the job, or no "
        "`position_ids` in its batches"
    ),
)


def _shared_sequences(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    step, facts = planned.job.workload, run.facts
    replicas = step.replicas(planned.job.machine.world_size)
    data = run.setting(facts.data_parallel)
    # accelerate 1.15, accelerator.py, _prepare_deepspeed: `train_batch_size` is made of it, and
    # DeepSpeed compares that with all ranks.
    if data is not None and data.value != replicas:
        yield found(
            SHARED_SEQUENCES,
            f"{data.source} says {data.value}, but {replicas} groups of GPUs share data",
            data.change_to(replicas),
        )
    # deepspeed 0.19.8, ulysses_sp.py, UlyssesSPDataLoaderAdapter.refill: a ValueError.
    if not facts.gives_positions and not step.packing:
        yield found(
            SHARED_SEQUENCES,
            f"{facts.text_path} has no `position_ids`, which each batch needs where GPUs share"
            " sequences",
            "add them in your collator: `batch['position_ids'] = torch.arange("
            "batch['input_ids'].shape[1]).expand_as(batch['input_ids'])`",
        )


LIGHTNING_REFUSES = Rule(
    code="PF120",
    name="lightning-refuses",
    severity=Severity.ERROR,
    why="Lightning ends the job at its start, waits for ranks that never come, or trains by DDP",
    when=(
        "the config has `gradient_accumulation_steps`, the Trainer of Lightning has another number "
        "of `devices` or another `strategy`, or the ranks have no CUDA GPUs"
    ),
)


def _lightning(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    # lightning 2.6, pytorch/strategies/deepspeed.py: setup_environment,
    # _format_batch_size_and_grad_accum_config, _initialize_deepspeed_train.
    config, machine = planned.config or {}, planned.job.machine
    if machine.accelerator is not Accelerator.CUDA:
        yield found(
            LIGHTNING_REFUSES,
            f"Lightning trains with DeepSpeed on CUDA GPUs only, not on {machine.accelerator}",
            "plan for GPUs: `$machine 4xA100-80GB`",
        )
    if "gradient_accumulation_steps" in config:
        yield found(
            LIGHTNING_REFUSES,
            "the config has `gradient_accumulation_steps`, which Lightning refuses",
            "remove the key: Lightning takes `accumulate_grad_batches` of its Trainer",
        )
    devices, ranks = run.setting(run.facts.devices), len(machine.gpus)
    if devices is not None and str(devices.value) not in {"auto", "-1", str(ranks)}:
        yield found(
            LIGHTNING_REFUSES,
            f"{devices.source} says {devices.value}, but each node has {ranks} ranks",
            devices.change_to(ranks),
            f"or launch as many ranks: `$gpus_per_node {devices.value}`",
        )
    strategy = run.setting(run.facts.strategy)
    if strategy is not None and not str(strategy.value).startswith("deepspeed"):
        yield found(
            LIGHTNING_REFUSES,
            f"{strategy.source} says {strategy.value}: Lightning would train without DeepSpeed",
            strategy.change_to("deepspeed"),
        )
    if "optimizer" in config:
        yield found(
            OPTIMIZERS_DROPPED,
            "the config has an `optimizer`, so Lightning does not call `configure_optimizers`",
            "remove `optimizer` and `scheduler` from the config",
        )


_BY_INTEGRATION: Mapping[Integration | None, tuple[_Check, ...]] = {
    Integration.HF: (_fsdp, _optimizers),
    Integration.ACCELERATE: (_accelerated,),
    Integration.LIGHTNING: (_lightning,),
}


def check_script(inputs: PreflightInput) -> Iterator[Finding]:
    """What the script does against the plan."""
    planned = inputs.planned
    if planned is None or planned.script is None:
        return
    yield from _removed(planned, planned.script, inputs.facts.installed)
    by_integration = _BY_INTEGRATION.get(planned.integration, ())
    for check in (_arguments, _placements, *by_integration, check_stages, _float_batches):
        yield from check(planned, planned.script)
    if planned.job.workload.sequence_parallel > 1:
        yield from _shared_sequences(planned, planned.script)
