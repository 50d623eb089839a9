"""The wizard: detect, ask what is open, decide, then launch or write the config."""

import os
import shlex
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.command import Command, understand_command
from zerowiz.app.ask.init_record import encode_record
from zerowiz.app.ask.kept import keep, recall_kept
from zerowiz.app.ask.person import Person
from zerowiz.app.ask.script import DEFAULT_SCRIPT, answer_for, read_as_said, require_reachable
from zerowiz.app.decide.decision import (
    NoStrategyError,
    Plan,
    decide_or_back,
    decide_with,
    note_emulation,
    require_strategy,
    takeable,
)
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.decide.sbatch import plan_job_file
from zerowiz.app.launch.start import Start, deliver_plan, plan_files
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.machines.node import find_node
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.guards import check_accounting, check_own_config, check_words
from zerowiz.app.wizard.conversation import ask_open, ask_other_script, can_change, change_one
from zerowiz.app.wizard.last_question import LastAnswer, ask_last, ask_refused, confirms_loss
from zerowiz.app.wizard.wizard import Wizard
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import Back
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.script import ScriptFacts
from zerowiz.core.values import replace
from zerowiz.emit.files import find_losses, refuse_loss, replace_file, write_files
from zerowiz.errors import InterruptedByUserError, PreflightError, UsageError, ZerowizError
from zerowiz.probe.launch.init_record import record_path
from zerowiz.probe.launch.programs import find_programs


class InitPlan(Struct, frozen=True, kw_only=True):
    """What the wizard writes, before it does, and the job that it launches then."""

    script: str
    script_args: tuple[str, ...]
    facts: ScriptFacts
    plan: Plan
    files: tuple[PlannedFile, ...]
    """The config is the last: it is what all others are written for."""
    start: Start | None = None
    """None where nothing is launched."""
    may_overwrite: bool = False
    """Whether a person lets go of what was changed by hand."""


class InitOptions(Struct, frozen=True, kw_only=True):
    """What the wizard does with a plan."""

    slurm: bool = False
    """Whether a job script for SLURM is written too."""
    launch: bool = False
    """Whether `Launch now?` is answered with yes."""


def plan_init(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: LaunchReporter,
) -> InitPlan:
    """Decide, and plan the files, asking nobody.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        wanted: What is done with the plan.
        reporter: Hears what was decided, and why.

    Raises:
        ZerowizError: An answer is missing, nothing fits, or no config can reach the script.
    """
    command = _understand(script, script_args, options, reporter)
    script_args, options = command.script_args, command.options
    machine = find_machine(options, os.environ, reporter=reporter)
    path = command.script or DEFAULT_SCRIPT
    options = recall_kept(path, options, reporter)
    facts = read_as_said(path, script_args, options)
    require_reachable(facts, script_args, options)
    check_words(facts, script_args)
    check_own_config(options, machine, facts, script_args, reporter)
    options = answer_for(options, facts, script_args, None)
    plan = decide_with(None, options, machine, facts, script_args, reporter)
    planned = _with_files(command, path, facts, plan, wanted, reporter)
    if options.dry_run:
        # Said now what a writing run would say.
        with losses_shown(shown=not options.quiet):
            refuse_loss(*planned.files, force=options.force)
    return _with_start(command, planned, reporter) if wanted.launch else planned


def ask_init(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
) -> InitPlan | None:
    """Show what was detected, ask what is open, decide, and ask what becomes of the plan.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        wanted: What is done with the plan, where that was said already.
        reporter: Hears what was decided, and why.
        person: Answers.

    Returns:
        None where the person wants nothing of it.

    Raises:
        ZerowizError: What was typed cannot be used, before anything is asked; or nothing fits, and
            the person takes no remedy.
    """
    command = _understand(script, script_args, options, reporter)
    wizard = Wizard(command, reporter)
    if not options.quiet:
        person.tell(wizard.detected())
    answers = Answers()
    done: LastAnswer | Back | None = None
    while True:
        try:
            answers = _go_on(person, wizard, answers, done)
            for given in ask_open(person, wizard, answers):
                # A refusal loses none of them.
                answers = given
            outcome = _decide_and_finish(command, wizard, answers, wanted, reporter, person)
        except ZerowizError as error:
            was_asked = done is not None or answers.given or answers.before
            if _ends_it(error) or not was_asked:
                raise
            outcome = ask_refused(
                person,
                error,
                can_change=can_change(wizard, answers),
                can_go_back=bool(answers.given),
            )
        if isinstance(outcome, InitPlan):
            return outcome
        if outcome is LastAnswer.STOP:
            person.tell(["nothing was written"])
            return None
        done = outcome


def _ends_it(error: ZerowizError) -> bool:
    """Whether it is what the person wants: an interruption, or no remedy of those offered."""
    took_none = isinstance(error, NoStrategyError) and bool(takeable(error.plan))
    return took_none or isinstance(error, InterruptedByUserError)


def _go_on(
    person: Person, wizard: Wizard, answers: Answers, after: LastAnswer | Back | None
) -> Answers:
    """The answers with which the questions go on, once the person has said how; None at first."""
    if after is None:
        return answers
    wizard.forget()
    match after:
        case Back.BACK:
            return answers.back()
        case LastAnswer.CHANGE:
            return change_one(person, wizard, answers)
        case LastAnswer.SCRIPT:
            return ask_other_script(person, wizard, answers)
        case _:
            return answers


def _understand(
    script: str | None, script_args: tuple[str, ...], options: Options, reporter: Reporter
) -> Command:
    check_accounting(options)
    command = understand_command(script, script_args, options, reporter)
    if command.no_local_rank:
        # It is an option of DeepSpeed's launcher, and none of zerowiz that a record could hold.
        words = ("zerowiz", "launch", "deepspeed", "--no_local_rank", str(command.script))
        typed = shlex.join(words)
        reporter.note(f"`--no_local_rank` is not recorded: launch by `{typed}`, with all its words")
    return command


def _decide_and_finish(
    command: Command,
    wizard: Wizard,
    answers: Answers,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
) -> InitPlan | LastAnswer | Back:
    """The plan that is written, or what the person does instead."""
    planned = _decide(command, wizard, answers, wanted, reporter, person)
    if isinstance(planned, Back) or planned.plan.options.dry_run:
        return planned
    return _finish(command, planned, wanted, reporter, person, wizard, answers)


def _decide(
    command: Command,
    wizard: Wizard,
    answers: Answers,
    wanted: InitOptions,
    reporter: Reporter,
    person: Person,
) -> InitPlan | Back:
    """The plan that these answers lead to, with its files; or the person goes back."""
    job = wizard.job(answers, reporter)
    check_own_config(job.options, job.machine, job.facts, command.script_args, reporter)
    script_args = command.script_args
    plan = decide_or_back(
        person,
        job.options,
        job.machine,
        job.facts,
        script_args,
        reporter,
        can_go_back=bool(answers.given),
    )
    if isinstance(plan, Back):
        return plan
    return _with_files(command, job.script, job.facts, plan, wanted, reporter)


def _with_files(
    command: Command,
    script: str,
    facts: ScriptFacts,
    plan: Plan,
    wanted: InitOptions,
    reporter: Reporter,
) -> InitPlan:
    note_emulation(plan, reporter)
    strategy = require_strategy(plan)
    script_args = command.script_args
    # Refuse now what the launch would refuse later.
    deliver_plan(plan, facts, script_args, strategy)
    files = plan_files(plan, strategy, facts.target, script_args)
    if wanted.slurm:
        files = (plan_job_file(plan, facts, script_args), *files)
    return InitPlan(script=script, script_args=script_args, facts=facts, plan=plan, files=files)


def _with_start(command: Command, planned: InitPlan, reporter: LaunchReporter) -> InitPlan:
    """With the start of the job, once it is seen that nothing ends it.

    Raises:
        ZerowizError: It cannot start, or not from here.
    """
    from zerowiz.app.launch.launch import RunOptions, check_node, make_run, start_planned  # noqa: PLC0415 - takes long to load

    plan = planned.plan
    machine, how = plan.request.job.machine, RunOptions()
    check_node(plan.options, machine, find_node(plan.options))
    run = make_run(command, plan.options, machine, how)
    start = start_planned(plan, planned.facts, planned.script_args, run, reporter)
    return replace(planned, start=start)


def _can_launch(plan: Plan, person: Person) -> bool:
    """Whether this machine trains the plan; the person hears why not where that can be changed."""
    from zerowiz.app.launch.launch import check_node  # noqa: PLC0415 - takes long to load

    options = plan.options
    try:
        check_node(options, plan.request.job.machine, find_node(options))
    except UsageError:
        return False
    try:
        find_programs(os.environ)
    except PreflightError as error:
        person.tell([f"it cannot be launched here yet: {error.message}", *error.hints])
        return False
    return find_node(options) is None


def _finish(
    command: Command,
    planned: InitPlan,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
    wizard: Wizard,
    answers: Answers,
) -> InitPlan | LastAnswer | Back:
    """What becomes of the plan: itself, ready to be written; or what the person does instead."""
    can_launch = _can_launch(planned.plan, person)
    config_path = planned.files[-1].path if planned.files else "no file"
    said: LastAnswer | Back | None = LastAnswer.LAUNCH if wanted.launch else None
    default: LastAnswer | None = None
    while True:
        answer = said or ask_last(
            person,
            config_path,
            can_launch=can_launch,
            default=default,
            can_change=bool(answers.given),
            can_go_back=bool(answers.given),
        )
        said = None
        match answer:
            case LastAnswer.EXPLAIN:
                reporter.strategies(planned.plan.decision)
            case LastAnswer.LAUNCH | LastAnswer.WRITE:
                default = LastAnswer.WRITE
                ready = _confirm_losses(planned, reporter, person)
                if ready is None:
                    continue
                if answer is LastAnswer.WRITE:
                    return ready
                planned = ready
                launched = _launch(command, planned, config_path, reporter, person, wizard, answers)
                if not isinstance(launched, LastAnswer | Back):
                    return launched
                said = None if launched is Back.BACK else launched
            case _:
                return answer


def _launch(
    command: Command,
    planned: InitPlan,
    config_path: str,
    reporter: LaunchReporter,
    person: Person,
    wizard: Wizard,
    answers: Answers,
) -> InitPlan | LastAnswer | Back:
    """The plan with its start; where it cannot start, what the person does instead."""
    try:
        if not _was_edited(wizard, answers, planned):
            return _with_start(command, planned, reporter)
    except ZerowizError as error:
        return ask_refused(
            person,
            error,
            config_path=config_path,
            can_change=can_change(wizard, answers),
            can_go_back=True,
        )
    person.tell([f"{planned.script} was edited meanwhile; it is planned again"])
    return LastAnswer.RETRY


def _was_edited(wizard: Wizard, answers: Answers, planned: InitPlan) -> bool:
    """Whether the script is another one than the one that was planned for.

    Raises:
        ZerowizError: It cannot be read any more.
    """
    wizard.forget()
    return wizard.facts(answers) != planned.facts


def _confirm_losses(planned: InitPlan, reporter: Reporter, person: Person) -> InitPlan | None:
    """The plan; None where what somebody changed by hand is to be kept."""
    may_overwrite = planned.may_overwrite or planned.plan.options.force
    losses = () if may_overwrite else find_losses(planned.files)
    if not losses:
        return planned
    reporter.losses(losses)
    if not confirms_loss(person, tuple(loss.path for loss in losses)):
        return None
    return replace(planned, may_overwrite=True)


def write_init(init_plan: InitPlan) -> None:
    """Write the files, then the record.

    Raises:
        ZerowizError: A file was changed by hand, or cannot be written.
    """
    files, options = init_plan.files, init_plan.plan.options
    with losses_shown(shown=not options.quiet):
        write_files(files, force=init_plan.may_overwrite or options.force)
    record = encode_record(init_plan.script, init_plan.script_args, options)
    replace_file(record_path(options.output_dir or Path()), record)
    keep(init_plan.facts, init_plan.script_args, options)


def launch_init(start: Start, reporter: LaunchReporter) -> int:
    """Launch what was written; the status of the job. At a terminal this process becomes it.

    Raises:
        ZerowizError: It did not start.
    """
    from zerowiz.app.launch.launch import RunOptions, run_start  # noqa: PLC0415 - takes long to load

    reporter.start(start.launch_plan)
    return run_start(start, RunOptions().policy, reporter)
