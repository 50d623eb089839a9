"""The wizard: ask what could not be detected, decide, write the config."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import Ask
from zerowiz.app.ask.command import understand_command
from zerowiz.app.ask.init_record import encode_record
from zerowiz.app.ask.kept import keep, recall_kept
from zerowiz.app.ask.person import Person, confirms
from zerowiz.app.ask.prompts import asker
from zerowiz.app.ask.script import answer_for, read_as_said, require_reachable
from zerowiz.app.decide.decision import Plan, decide_with, note_emulation, require_strategy
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.decide.sbatch import plan_job_file
from zerowiz.app.launch.start import deliver_plan, plan_files
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.guards import check_accounting, check_own_config, check_words
from zerowiz.core.decision.questions import (
    QUESTIONS,
    Question,
    answer_or_default,
    confirmation,
)
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import ScriptFacts
from zerowiz.core.values import replace
from zerowiz.emit.files import find_losses, refuse_loss, replace_file, write_files
from zerowiz.errors import InterruptedByUserError, LostEdit, PreflightError
from zerowiz.probe.launch.init_record import record_path


class InitPlan(Struct, frozen=True, kw_only=True):
    """What the wizard writes, before it does."""

    script: str
    script_args: tuple[str, ...]
    facts: ScriptFacts
    plan: Plan
    files: tuple[PlannedFile, ...]
    """The config is the last: it is what all others are written for."""


def plan_init(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    reporter: Reporter,
    person: Person | None,
    *,
    slurm: bool,
) -> InitPlan:
    """Ask, decide, and plan the files.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        reporter: Hears what was decided, and why.
        person: Who answers what is open; None where nobody can be asked.
        slurm: Whether a job script for SLURM is written too.

    Raises:
        ZerowizError: A question has no answer, or nothing fits, or no config can reach the script.
    """
    check_accounting(options)
    command = understand_command(script, script_args, options, reporter)
    script_args, options = command.script_args, command.options
    if command.no_local_rank:
        # It is an option of DeepSpeed's launcher, and none of zerowiz that a record could hold.
        words = ("zerowiz", "launch", "deepspeed", "--no_local_rank", str(command.script))
        typed = shlex.join(words)
        reporter.note(f"`--no_local_rank` is not recorded: launch by `{typed}`, with all its words")
    ask_person = None if person is None else asker(person, options)
    options, machine = _with_machine(options, reporter, ask_person)
    path = _find_script(command.script, ask_person)
    options = recall_kept(path, options, reporter)
    facts = read_as_said(path, script_args, options)
    require_reachable(facts, script_args, options)
    check_words(facts, script_args)
    check_own_config(options, machine, facts, script_args, reporter)
    options = answer_for(options, facts, script_args, ask_person)
    plan = decide_with(person, options, machine, facts, script_args, reporter)
    note_emulation(plan, reporter)
    strategy = require_strategy(plan)
    options = plan.options
    # Refuse now what the launch would refuse later.
    deliver_plan(plan, facts, script_args, strategy)
    files = plan_files(plan, strategy, facts.target, script_args)
    if slurm:
        files = (plan_job_file(plan, facts, script_args), *files)
    if options.dry_run and person is None:
        # Said now what a writing run would say.
        with losses_shown(shown=not options.quiet):
            refuse_loss(*files, force=options.force)
    return InitPlan(script=path, script_args=script_args, facts=facts, plan=plan, files=files)


def write_init(init_plan: InitPlan, reporter: Reporter, person: Person | None) -> None:
    """Write the files, then the record; what somebody changed is asked about first.

    Raises:
        ZerowizError: A file was changed by hand, or cannot be written.
        InterruptedByUserError: The person did not want it.
    """
    files, options = init_plan.files, init_plan.plan.options
    if files and person is not None:
        _confirm(files, options, reporter, person)
    with losses_shown(shown=not options.quiet):
        write_files(files, force=person is not None or options.force)
    record = encode_record(init_plan.script, init_plan.script_args, options)
    replace_file(record_path(options.output_dir or Path()), record)
    keep(init_plan.facts, init_plan.script_args, options)


def _with_machine(
    options: Options, reporter: Reporter, ask_person: Ask | None
) -> tuple[Options, Machine]:
    """The machine, and the options; if there is none to see, one that the person names."""
    try:
        return options, find_machine(options, os.environ, reporter=reporter)
    except PreflightError as error:
        if ask_person is None:
            raise
        reporter.event(error.message)
        options = replace(options, machine=ask_person(_question("machine")))
        return options, find_machine(options, os.environ, reporter=reporter)


def _question(key: str) -> Question:
    return next(question for question in QUESTIONS if question.key == key)


def _find_script(script: str | None, ask_person: Ask | None) -> str:
    """The script that was named, or lies here, or that the person names."""
    question = _question("script")
    if script is not None:
        return script
    if Path(question.default or "").is_file() or ask_person is None:
        return answer_or_default(question)
    # Only what lies here is offered.
    here = sorted(path.name for path in Path().glob("*.py"))
    return ask_person(replace(question, default=here[0] if len(here) == 1 else None))


def _confirm(
    files: Sequence[PlannedFile], options: Options, reporter: Reporter, person: Person
) -> None:
    """Ask before writing; what somebody changed is shown first."""
    losses = () if options.force else find_losses(files)
    reporter.losses(losses)
    if not confirms(person, confirmation("write", _go_on(files, losses), default=not losses)):
        raise InterruptedByUserError("stopped; nothing was written")


def _go_on(files: Sequence[PlannedFile], losses: Sequence[LostEdit]) -> str:
    """The question; the config alone is named where nothing is lost."""
    match [loss.path for loss in losses]:
        case []:
            return f"{files[-1].path} will be written; go on?"
        case [path]:
            return f"{path} was changed by hand; overwrite it?"
        case paths:
            return f"{' and '.join(paths)} were changed by hand; overwrite them?"
