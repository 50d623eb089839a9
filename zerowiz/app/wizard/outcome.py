"""What the wizard makes of a plan: its files, and the start of the job."""

from msgspec import Struct

from zerowiz.app.answers_file.write import plan_answers, write_answers
from zerowiz.app.ask.command import Command
from zerowiz.app.ask.kept import keep
from zerowiz.app.decide.decision import Plan, require_strategy
from zerowiz.app.decide.notes import note_emulation
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.decide.sbatch import plan_job_file
from zerowiz.app.launch.start import Start, deliver_plan, plan_files
from zerowiz.app.machines.machine import is_here
from zerowiz.app.machines.node import find_node
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.core.answers_file import NotTextError
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.script.delivery import add_settled
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.options import Required
from zerowiz.core.script.programs.file import ProgramFile
from zerowiz.core.script.said import unsaid_arguments
from zerowiz.core.values import replace
from zerowiz.emit.files import write_files
from zerowiz.errors import UsageError
from zerowiz.probe.answers_file import FILE_NAME
from zerowiz.words import _


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
    script_args: tuple[str, ...]
    facts: ScriptFacts | None
    plan: Plan
    files: tuple[PlannedFile, ...]
    """The config is the last: it is what all others are written for."""
    start: Start | None = None
    """None where nothing is launched."""
    may_overwrite: bool = False
    """Whether a person lets go of what zerowiz did not write."""
    program_file: ProgramFile | None = None
    """Where a program starts the job: its file."""

    @property
    def config_path(self) -> str:
        """What is written for the job; a config of the person's own is read where it lies."""
        return self.files[-1].path if self.files else _("no file")

    @property
    def missing(self) -> tuple[Required, ...]:
        """What the script requires, and neither its words nor zerowiz gives."""
        if self.facts is None:
            return ()
        words = add_settled(self.script_args, self.plan.request.settled)
        return unsaid_arguments(self.facts, words)

    def answers(self) -> PlannedFile | None:
        """The answers file of the job, as it is to be now.

        None without a script, and where TOML cannot hold an answer.

        Raises:
            ZerowizError: A person's own cannot be read.
        """
        if self.script is None or self.facts is None:
            return None
        try:
            return plan_answers(self.script, self.script_args, self.plan.options)
        except NotTextError:
            return None


def plan_written(
    command: Command,
    script: str | None,
    facts: ScriptFacts | None,
    plan: Plan,
    wanted: InitOptions,
    reporter: Reporter,
) -> InitPlan:
    """The plan with its files.

    Args:
        command: What was typed.
        script: Its path, or the name of the module.
        facts: What it shows.
        plan: What was decided.
        wanted: What is done with it.
        reporter: Hears what is slow.

    Raises:
        ZerowizError: Nothing fits, or the config cannot reach the script.
    """
    note_emulation(plan, reporter)
    strategy = require_strategy(plan)
    script_args = command.script_args
    if facts is not None:
        # Refuse now what the launch would refuse later.
        deliver_plan(plan, facts, script_args, strategy)
    target = None if facts is None else facts.target
    files = plan_files(plan, strategy, target, script_args)
    if wanted.slurm and facts is not None:
        files = (plan_job_file(plan, facts, script_args), *files)
    planned = InitPlan(
        script=script,
        script_args=script_args,
        facts=facts,
        plan=plan,
        files=files,
        program_file=wanted.program_file,
    )
    if facts is not None and planned.answers() is None:
        reporter.note(
            _(
                "{file_name} is not written: a path in it is not UTF-8, as TOML has to be",
                file_name=FILE_NAME,
            )
        )
    return planned


def with_start(
    command: Command, planned: InitPlan, facts: ScriptFacts, reporter: LaunchReporter
) -> InitPlan:
    """The plan with the start of its job, once it is seen that nothing ends it.

    Args:
        command: What was typed.
        planned: What is written.
        facts: What the script shows.
        reporter: Hears what may go wrong.

    Raises:
        ZerowizError: It cannot start, or not from here.
    """
    from zerowiz.app.launch.launch import RunOptions, check_node, make_run, start_planned  # noqa: PLC0415 - takes long to load

    plan = planned.plan
    machine, how = plan.request.job.machine, RunOptions()
    if not is_here(machine) and not plan.options.dry_run:
        raise UsageError(
            _(
                "`--launch` conflicts with `$machine {machine}`: a job starts on its own machine",
                machine=plan.options.machine,
            ),
            _("remove `--launch` to write the files, and run the command that it prints there"),
        )
    check_node(plan.options, machine, find_node(plan.options))
    run = make_run(command, plan.options, machine, how)
    start = start_planned(plan, facts, planned.script_args, run, reporter)
    return replace(planned, start=start)


def write_init(init_plan: InitPlan) -> None:
    """Write the files, then the answers.

    Raises:
        ZerowizError: A file was changed by hand, or cannot be written.
    """
    files, options = init_plan.files, init_plan.plan.options
    answers = init_plan.answers()
    with losses_shown(shown=not options.quiet):
        write_files(files, force=init_plan.may_overwrite or options.force)
    if init_plan.script is None or init_plan.facts is None:
        return
    if answers is not None:
        write_answers(answers)
    keep(init_plan.facts, init_plan.script_args, options)


def launch_init(start: Start, reporter: LaunchReporter) -> int:
    """Launch what was written; the status of the job. At a terminal this process becomes it.

    Raises:
        ZerowizError: It did not start.
    """
    from zerowiz.app.launch.launch import RunOptions, run_start  # noqa: PLC0415 - takes long to load

    reporter.start(start.launch_plan)
    return run_start(start, RunOptions().policy, reporter)
