"""The wizard: detect, ask what is open, decide, then launch or write the config."""

import os
import shlex

from zerowiz.app.ask.answers import open_questions
from zerowiz.app.ask.command import Command, understand_command
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.ask.person import Person
from zerowiz.app.ask.script import DEFAULT_SCRIPT, answer_for, read_as_said, require_reachable
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.decide.remedies import Remedying, decide_with
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.guards import check_accounting, check_own_config, check_words
from zerowiz.app.wizard.conversation import ask_open, ask_other_script, can_change, change_one
from zerowiz.app.wizard.finish import Finish
from zerowiz.app.wizard.last_question import LastAnswer, ask_refused
from zerowiz.app.wizard.outcome import InitOptions, InitPlan, plan_written, with_start
from zerowiz.app.wizard.template import CopiedTemplate
from zerowiz.app.wizard.wizard import Wizard
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import Back
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import ScriptSettings
from zerowiz.emit.files import refuse_loss
from zerowiz.errors import (
    AnswerNeededError,
    DeclinedError,
    InterruptedByUserError,
    UsageError,
    ZerowizError,
)


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
    command = _understand(script, script_args, options, wanted, reporter)
    script_args, options = command.script_args, command.options
    machine = find_machine(options, os.environ, reporter=reporter)
    if wanted.no_script:
        return _plan_config(command, machine, wanted, reporter)
    path = command.script or DEFAULT_SCRIPT
    options = recall_kept(path, options, reporter)
    facts = read_as_said(path, script_args, options)
    require_reachable(facts, script_args, options)
    check_words(facts, script_args)
    check_own_config(options, machine, facts, script_args, reporter)
    options = answer_for(options, facts, script_args, None)
    plan = decide_with(None, options, machine, facts, script_args, reporter)
    planned = plan_written(command, path, facts, plan, wanted, reporter)
    if options.dry_run:
        # Said now what a writing run would say.
        with losses_shown(shown=not options.quiet):
            refuse_loss(*planned.files, force=options.force)
    return with_start(command, planned, facts, reporter) if wanted.launch else planned


def _plan_config(
    command: Command, machine: Machine, wanted: InitOptions, reporter: Reporter
) -> InitPlan:
    """The plan of a config without a script."""
    options = command.options
    if open_questions(options, ScriptSettings())["model"] is None:
        raise AnswerNeededError(
            "without a script, zerowiz cannot see which model is trained", "set it with `$model`"
        )
    plan = decide_with(None, options, machine, None, (), reporter)
    return plan_written(command, None, None, plan, wanted, reporter)


def ask_init(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
) -> InitPlan | None:
    """Show what was detected, ask what is open, decide, and do with the plan what the person says.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        wanted: What is done with the plan, where that was said already.
        reporter: Hears what was decided, and why.
        person: Answers.

    Returns:
        What was written, unless `options.dry_run`; None where the person wants nothing of it.

    Raises:
        ZerowizError: What was typed cannot be used, before anything is asked.
    """
    command = _understand(script, script_args, options, wanted, reporter)
    template = CopiedTemplate(person)
    done: InitPlan | None = None
    try:
        wizard = Wizard(command, template, reporter, no_script=wanted.no_script)
        if not options.quiet:
            person.tell(wizard.detected())
        done = _converse(command, wizard, wanted, reporter, person)
    finally:
        if done is None or options.dry_run:
            template.take_off()
    if done is None:
        person.tell(["nothing was written"])
    return done


def _converse(
    command: Command,
    wizard: Wizard,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
) -> InitPlan | None:
    """Ask until the answers lead to files, or to nothing."""
    answers = Answers()
    after: LastAnswer | Back | None = None
    while True:
        try:
            answers = _go_on(person, wizard, answers, after)
            for given in ask_open(person, wizard, answers):
                # A refusal loses none of them.
                answers = given
            outcome = _decide_and_finish(command, wizard, answers, wanted, reporter, person)
        except InterruptedByUserError:
            raise
        except DeclinedError:
            return None
        except ZerowizError as error:
            changes = [LastAnswer.CHANGE] if can_change(wizard, answers) else []
            others = [] if wanted.no_script else [LastAnswer.SCRIPT]
            offers = (LastAnswer.RETRY, *changes, *others, LastAnswer.STOP)
            outcome = ask_refused(person, error, offers, can_go_back=bool(answers.given))
        if isinstance(outcome, InitPlan):
            return outcome
        if outcome is LastAnswer.STOP:
            return None
        after = outcome


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
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: Reporter,
) -> Command:
    check_accounting(options)
    if wanted.no_script:
        _refuse_script(script, wanted)
    command = understand_command(script, script_args, options, reporter)
    if command.no_local_rank:
        # It is an option of DeepSpeed's launcher, and none of zerowiz that a record could hold.
        words = ("zerowiz", "launch", "deepspeed", "--no_local_rank", str(command.script))
        typed = shlex.join(words)
        reporter.note(f"`--no_local_rank` is not recorded: launch by `{typed}`, with all its words")
    return command


def _refuse_script(script: str | None, wanted: InitOptions) -> None:
    said = {f"`{script}`": script, "`--launch`": wanted.launch, "`--slurm`": wanted.slurm}
    for words, is_said in said.items():
        if is_said:
            raise UsageError(
                f"{words} conflicts with `--no-script`, which writes a config alone",
                "remove one of them",
            )


def _decide_and_finish(
    command: Command,
    wizard: Wizard,
    answers: Answers,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
) -> InitPlan | LastAnswer | Back:
    """The plan that is written, or what the person does instead."""
    job = wizard.job(answers, reporter)
    if job.facts is not None:
        check_own_config(job.options, job.machine, job.facts, command.script_args, reporter)
    remedying = Remedying(person, job.facts, command.script_args, reporter)
    can_go_back = bool(answers.given)
    plan = remedying.decide(job.options, job.machine, can_go_back=can_go_back)
    while True:
        if isinstance(plan, Back):
            return plan
        planned = plan_written(command, job.script, job.facts, plan, wanted, reporter)
        if plan.options.dry_run:
            return planned
        finish = Finish(
            command,
            wanted,
            wizard,
            answers,
            can_change=can_change(wizard, answers),
            can_go_back=can_go_back or remedying.can_undo,
            reporter=reporter,
            person=person,
        )
        outcome = finish.run(planned)
        if outcome is not Back.BACK or not remedying.can_undo:
            return outcome
        plan = remedying.undo(can_go_back=can_go_back)
