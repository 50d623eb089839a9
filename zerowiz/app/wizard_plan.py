"""What the wizard makes of a plan: its files, and the start of the job."""

import os
import sys
from pathlib import Path

from msgspec import Struct

from zerowiz.app.answers_file import NotTextError, plan_answers, write_answers
from zerowiz.app.command import Command, Person
from zerowiz.app.decide import Plan, note_emulation, require_strategy
from zerowiz.app.launch.start import RunOptions, Start, deliver_plan, note_script, plan_files
from zerowiz.app.machines.machine import find_node, is_here
from zerowiz.app.options import Options, as_words, with_plain
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.core import shell
from zerowiz.core.decision.evaluate import outside
from zerowiz.core.decision.questions import TEMPLATE
from zerowiz.core.launch.plan import needs_rank_program
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.model.types import ModelSource
from zerowiz.core.script.arguments import Option
from zerowiz.core.script.config_delivery import add_settled, add_words
from zerowiz.core.script.facts import RESUME, unsaid_arguments
from zerowiz.core.script.programs import ProgramFile, list_changes
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace
from zerowiz.core.units import keep_batch
from zerowiz.core.workload import FP32_BYTES, SETTINGS, Method, Workload
from zerowiz.emit.files import add_files, refuse_other_files, remove_added, write_files
from zerowiz.errors import UsageError
from zerowiz.probe.config_text import is_yaml, read_program_file
from zerowiz.probe.files import FILE_NAME, read_template
from zerowiz.probe.model.hf import hub_name
from zerowiz.translation import _, listing
from zerowiz.ui.text import gib


class InitOptions(Struct, frozen=True, kw_only=True):
    """What the wizard does with a plan."""

    slurm: bool = False
    """Whether a job script for SLURM is written too."""
    launch: bool = False
    """Whether `Launch now?` is answered with yes."""
    no_script: bool = False
    """Whether a config is wanted alone, for a script that is not there yet."""
    program_file: ProgramFile | None = None
    """The file of a program that the config is for, instead of a script."""


class InitPlan(Struct, frozen=True, kw_only=True):
    """What the wizard writes, and the job that it launches then."""

    script: str | None
    """None where a config is written alone."""
    plan: Plan
    files: tuple[PlannedFile, ...]
    """The config is the last: it is what all others are written for."""
    start: Start | None = None
    """None where nothing is launched."""
    program_file: ProgramFile | None = None
    """Where a program starts the job: its file."""

    @property
    def config_path(self) -> str:
        """What is written for the job; a config of the person's own is read where it lies."""
        return self.files[-1].path if self.files else _("no file")

    @property
    def missing(self) -> tuple[Option, ...]:
        """What the script requires, and neither its words nor zerowiz gives."""
        script = self.plan.script
        if script is None:
            return ()
        return unsaid_arguments(script.facts, add_settled(script.words, self.plan.resolved.settled))

    def answers(self) -> PlannedFile | None:
        """The answers file of the job, as it is to be now.

        None without a script, and where TOML cannot hold an answer.

        Raises:
            ZerowizError: A person's own cannot be read.
        """
        if self.script is None or self.plan.script is None:
            return None
        try:
            return plan_answers(self.script, self.plan.script.words, self.plan.options)
        except NotTextError:
            return None


def plan_written(
    command: Command,
    script: str | None,
    plan: Plan,
    wanted: InitOptions,
    reporter: Reporter,
) -> InitPlan:
    """The plan with its files.

    Args:
        command: What was typed.
        script: Its path, or the name of the module.
        plan: What was decided.
        wanted: What is done with it.
        reporter: Hears what is slow.

    Raises:
        ZerowizError: Nothing fits, or the config cannot reach the script.
    """
    note_emulation(plan, reporter)
    strategy = require_strategy(plan)
    run = plan.script
    if wanted.program_file is not None:
        _refuse_stage(wanted.program_file, strategy, force=plan.options.force)
        _check_loading(wanted.program_file, plan, reporter)
    if run is not None:
        # Refuse now what the launch would refuse later.
        deliver_plan(plan, run, strategy)
        note_script(plan, run, reporter)
    target = None if run is None else run.facts.target
    files = plan_files(plan, strategy, target, command.script_args)
    if wanted.slurm and run is not None:
        files = (plan_job_file(plan, run), *files)
    planned = InitPlan(
        script=script,
        plan=plan,
        files=files,
        program_file=wanted.program_file,
    )
    if run is not None and planned.answers() is None:
        reporter.note(f"{FILE_NAME} is not written: a path in it is not UTF-8, as TOML has to be")
    return planned


def with_start(planned: InitPlan, reporter: LaunchReporter) -> InitPlan:
    """The plan with the start of its job, once it is seen that nothing ends it.

    Args:
        planned: What is written.
        reporter: Hears what may go wrong.

    Raises:
        ZerowizError: It cannot start, or not from here.
    """
    from zerowiz.app.launch.launch import check_node, make_run, start_planned  # noqa: PLC0415 - takes long to load

    plan, script = planned.plan, planned.plan.script
    if script is None:
        return planned
    machine, how = plan.resolved.job.machine, RunOptions()
    if not is_here(machine) and not plan.options.dry_run:
        raise UsageError(
            f"`--launch` conflicts with `$machine {plan.options.machine}`: a job starts on its own"
            " machine",
            "remove `--launch` to write the files, and run the command that it prints there",
        )
    check_node(plan.options, machine, find_node(plan.options))
    run = make_run(plan.options, machine, how)
    start = start_planned(plan, script, run, reporter)
    return replace(planned, start=start)


def write_init(init_plan: InitPlan, *, may_overwrite: bool = False) -> None:
    """Write the files, then the answers.

    Args:
        init_plan: What is written.
        may_overwrite: Whether a person lets go of what zerowiz did not write.

    Raises:
        ZerowizError: A file was changed by hand, or cannot be written.
    """
    files, options = init_plan.files, init_plan.plan.options
    answers = init_plan.answers()
    write_files(files, force=may_overwrite or options.force)
    if answers is not None:
        write_answers(answers)


def plain_command(init_plan: InitPlan) -> tuple[str, ...]:
    """The words by which DeepSpeed alone starts the job; none where only zerowiz can."""
    plan, run = init_plan.plan, init_plan.plan.script
    machine = plan.resolved.job.machine
    if run is None or machine.nodes > 1:
        return ()
    delivery, accelerator = deliver_plan(plan, run, require_strategy(plan)), machine.accelerator
    of_device = {} if accelerator is Accelerator.CUDA else {"DS_ACCELERATOR": accelerator.value}
    env = {**delivery.env, **of_device}
    if delivery.copy is not None or needs_rank_program(env):
        return ()
    variables = [f"{name}={value}" for name, value in env.items()]
    module = () if run.facts.module is None else ("--module",)
    starts = (*variables, "deepspeed", "--num_gpus", str(len(machine.gpus)), *module)
    return (*starts, run.facts.target, *delivery.script_args)


# A job of a program that starts its own ranks: its file says the step, and takes the config.

# What the config says, and the file need not.
_OF_CONFIG = frozenset({"optimizer_state_dtype", "torch_autocast"})
_OF_ADAPTERS = frozenset(name for name, row in SETTINGS.items() if row.of_adapters)


def find_program_file(command: Command, reporter: Reporter) -> ProgramFile | None:
    """The file of a program that was named instead of a script; None where none was.

    Args:
        command: What was typed.
        reporter: Hears what of the file is not counted.

    Raises:
        ZerowizError: A YAML file was named that cannot be read, or is of no known program; or it
            has no key for an option.
    """
    path = command.script
    if path is None or command.options.module or not is_yaml(path):
        return None
    file = read_program_file(path)
    if command.script_args:
        raise UsageError(
            f"`{command.script_args[0]}` after `{path}` has no effect",
            f"set it in `{path}`",
        )
    _refuse_unsayable(command.options, file)
    for key in file.job.not_counted:
        reporter.note(f"`{key}` in {path} is not counted in what is predicted")
    for keys in file.job.without_effect:
        reporter.note(f"{keys} has no effect in {path}")
    return file


def _refuse_unsayable(options: Options, file: ProgramFile) -> None:
    """Refuse an option that the file has no key for: the job would not have it."""
    for name in SETTINGS:
        value = getattr(options, name)
        if value is None or name in _OF_CONFIG or file.takes(name, value):
            continue
        words = shell.join(as_words(with_plain(Options(), {name: value})))
        raise UsageError(
            f"zerowiz knows no key of {file.program.name} for `{words}`",
            f"remove `{words}`: the plan takes what `{file.path}` says",
        )


def _refuse_stage(file: ProgramFile, strategy: Strategy, *, force: bool) -> None:
    """Refuse a stage at which the program ends the job."""
    if strategy.shards_weights and file.job.refused_sharded and not force:
        keys = "`, `".join(file.job.refused_sharded)
        raise UsageError(
            f"{file.program.name} refuses `{keys}` in `{file.path}` at stage 3, and the plan takes"
            f" {strategy.words}",
            "plan with another stage: `$stage 2`, or `$stage 2 $offload optimizer`",
            f"remove `{keys}` from `{file.path}`",
        )


def _check_loading(file: ProgramFile, plan: Plan, reporter: Reporter) -> None:
    """Say what a GPU holds while the program loads the weights; refuse what dies then."""
    job, chosen = plan.decision.job, plan.decision.chosen
    if chosen is None or not file.job.loads_fp32 or chosen.strategy.shards_weights:
        return
    held_bytes = FP32_BYTES * job.model.params + outside(job, chosen).context_bytes
    what = f"while {file.program.name} loads the weights, in fp32, each GPU holds {gib(held_bytes)}"
    if chosen.budget_bytes is None or held_bytes <= chosen.budget_bytes or plan.options.force:
        reporter.note(what)
        return
    raise UsageError(
        f"{what} of {gib(chosen.budget_bytes)}",
        "plan with stage 3, where it loads them divided: `$stage 3`",
        f"or set `pure_bf16: true` in `{file.path}`: bf16 weights without fp32",
    )


def with_program_file(command: Command, file: ProgramFile) -> Command:
    """The command with what the file says, where the person says nothing."""
    options = command.options
    silent = {k: v for k, v in file.job.settings.items() if getattr(options, k) is None}
    if options.global_batch is not None:
        silent.pop("accumulation_steps", None)
    elif options.micro_batch is not None and "accumulation_steps" in silent:
        part = int(file.job.settings["micro_batch"]) * int(silent["accumulation_steps"])
        silent["accumulation_steps"] = keep_batch(part, options.micro_batch)
    if options.method is Method.FULL:
        silent = {k: v for k, v in silent.items() if k not in _OF_ADAPTERS}
    return replace(command, script=None, options=with_plain(options, silent))


def lines_to_set(file: ProgramFile, plan: Plan, config_path: str) -> tuple[str, ...]:
    """The lines that the file is to have, and has not."""
    step, default = plan.resolved.job.workload, Workload()
    has_adapters = step.method is not Method.FULL
    lines = {
        name: getattr(step, name)
        for name in SETTINGS
        if (has_adapters or name not in _OF_ADAPTERS)
        and (
            name in file.job.settings
            or name in file.program.without_default
            or getattr(step, name) != getattr(default, name)
        )
    }
    if "lora_target_modules" in lines:
        lines["lora_target_modules"] = step.lora_targets
    # A size describes the model of the file, and names no other.
    model = plan.options.model
    if model is not None and plan.resolved.job.model.source is not ModelSource.SIZE:
        lines["model"] = hub_name(model, os.environ)
    return tuple(list_changes(file, lines, config_path))


def without_said(options: Options, file: ProgramFile) -> Options:
    """The options but for what the file says as well."""
    same = (k for k, v in file.job.settings.items() if getattr(options, k) == v)
    return replace(options, **dict.fromkeys(same))  # type: ignore[arg-type]


# The template that a person starts from: it lies in the folder once they go on with it.


def script_of(answer: str) -> str:
    """The path of the script that is meant, once a template is copied."""
    return answer.removeprefix(TEMPLATE)


def check_template(answer: str) -> None:
    """See that a template can be copied here.

    Raises:
        ZerowizError: A file of another content has the name of one of its files.
    """
    refuse_other_files(read_template(script_of(answer)))


class CopiedTemplate:
    """A template in the working folder: taken off again unless the conversation ends in files.

    Args:
        person: Hears what stays.
    """

    def __init__(self, person: Person) -> None:
        self._person = person
        self._script: str | None = None
        self._added: tuple[PlannedFile, ...] = ()

    def follow(self, answer: str | None) -> bool:
        """Copy the template of this answer, if it is one, and take off the one before.

        Returns:
            Whether other files lie in the folder now.

        Raises:
            ZerowizError: It cannot be copied.
        """
        script = None if answer is None else script_of(answer)
        if script == self._script:
            return False
        has_changed = bool(self._added)
        self.take_off()
        if answer is not None and answer.startswith(TEMPLATE):
            self._added = add_files(read_template(script_of(answer)))
            self._script = script
            return True
        return has_changed

    def take_off(self) -> None:
        """Leave the folder as it was, but for what somebody changed."""
        stays = remove_added(self._added)
        self._added, self._script = (), None
        if stays:
            self._person.tell(
                [
                    _(
                        "{stays} stays: it was edited since it was copied",
                        stays=_(" and ").join(stays),
                    )
                ]
            )

    def keep(self) -> None:
        """The files belong to the person from now on, who hears which they are."""
        tops = sorted({file.path.partition("/")[0] for file in self._added})
        if tops:
            self._person.tell([_("copied {files} into this folder", files=listing(tops))])
        self._added = ()


# Plan the file that trains the decided job on a SLURM cluster.

JOB_FILE = "job.sbatch"
# Of the templates: a job that is queued again goes on, and saves when its time is up.
_RESUMES_FROM = (RESUME, "--save_on_signal")


def plan_job_file(plan: Plan, script: ScriptRun) -> PlannedFile:
    """The job script: the nodes of the plan, the answers that were given, the script.

    Args:
        plan: What was decided.
        script: The script as it is run.
    """
    from zerowiz.core.launch.sbatch import JobScript, render_job_script  # noqa: PLC0415 - few plans write a job script

    machine, options = plan.resolved.job.machine, plan.options
    has_gpus = not machine.accelerator.row.on_host
    # Each zerowiz reads its own node; the ranks of a CPU are as many as an option says.
    # Answers that change while the job waits change nothing of it.
    on_node = replace(options, machine=None, nodes=None, hostfile=None, stage=None, isolated=True)
    if has_gpus:
        on_node = replace(on_node, gpus=None, gpus_per_node=None)
    else:
        on_node = replace(
            on_node, accelerator=Accelerator.CPU, gpus_per_node=len(machine.gpus), machine=None
        )
    # Each path below this folder, where `sbatch` runs, as a copy of it has it.
    values = {name: getattr(on_node, name) for name in on_node.__struct_fields__}
    paths = {
        name: Path(_below(str(path))) for name, path in values.items() if isinstance(path, Path)
    }
    model = None if on_node.model is None else _below(on_node.model)
    on_node = replace(on_node, **paths, model=model)  # type: ignore[arg-type]
    virtual = sys.prefix != sys.base_prefix
    resuming = [flag for flag in _RESUMES_FROM if script.facts.parser.spells(flag)]
    missing = [flag for flag in resuming if flag not in script.words]
    path = str((on_node.output_dir or Path()) / JOB_FILE)
    job = JobScript(
        nodes=machine.nodes,
        ranks=len(machine.gpus),
        has_gpus=has_gpus,
        cores=machine.host.cores if is_here(machine) else None,
        activate=str(Path(sys.prefix) / "bin" / "activate") if virtual else None,
        stage=options.stage or "auto",
        options=tuple(as_words(on_node)),
        script=_below(script.facts.target),
        script_args=add_words(script.words, missing),
        path=path,
        elsewhere=not is_here(machine),
    )
    return PlannedFile(path=path, text=render_job_script(job))


def _below(path: str) -> str:
    """A path, relative to this folder if it is in it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
