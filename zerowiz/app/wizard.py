"""The wizard: detect, ask what is open, decide, then launch or write the config."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from zerowiz.app.ask import Person, open_questions
from zerowiz.app.choose_remedy import Again, Remedying, decide_with
from zerowiz.app.command import (
    DEFAULT_SCRIPT,
    Command,
    answer_for,
    read_as_said,
    require_reachable,
    understand_command,
)
from zerowiz.app.decide import Plan
from zerowiz.app.doctor import find_line_edits, write_line_edits
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.plan_files import losses_shown
from zerowiz.app.reporter import LaunchReporter, Reporter
from zerowiz.app.resolve.workload import check_accounting, check_own_config, check_words
from zerowiz.app.wizard_end import Finish, LastAnswer, Refusals
from zerowiz.app.wizard_plan import (
    CopiedTemplate,
    InitOptions,
    InitPlan,
    find_program_file,
    plan_written,
    with_program_file,
    with_start,
)
from zerowiz.app.wizard_state import Wizard, only_script
from zerowiz.core.decision.questions import (
    ALL_QUESTIONS,
    DELIVERY,
    NO_SCRIPT,
    QUESTIONS,
    STRATEGY,
    AnswerKind,
    Answers,
    Back,
    Choice,
    Question,
    is_relevant,
    next_question,
)
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.programs import ProgramFile
from zerowiz.core.script.settings import ScriptSettings, facts_of
from zerowiz.core.structs import replace
from zerowiz.emit.files import refuse_loss
from zerowiz.emit.processes import ending_as_ctrl_c
from zerowiz.errors import (
    AnswerNeededError,
    DeclinedError,
    InterruptedByUserError,
    LostEdit,
    UnreachableScriptError,
    UsageError,
    ZerowizError,
)
from zerowiz.probe.script.read_script import find_scripts
from zerowiz.translation import _, listing
from zerowiz.ui import remedies

# Ask what is open, one question after the other; Esc goes back to the one before.


def ask_open(person: Person, wizard: Wizard, answers: Answers) -> Iterator[Answers]:
    """The answers after each question, until nothing is open: a refusal loses none of them.

    Args:
        person: Answers.
        wizard: Knows what is open.
        answers: Those that were given before.

    Raises:
        ZerowizError: What the answers name cannot be used, or cannot be read any more.
    """
    while True:
        wizard.prepare(answers)
        known = wizard.known(answers)
        # What does not matter after the latest answer is not kept.
        answers = answers.only({asked.key for asked in ALL_QUESTIONS if is_relevant(asked, known)})
        yield answers
        question = next_question(known)
        if question is None:
            return
        answer = _answer(person, wizard, question, answers, can_go_back=bool(answers.given))
        answers = (
            answers.back()
            if isinstance(answer, Back)
            else answers.with_answer(question.key, answer)
        )
        yield answers


def change_one(person: Person, wizard: Wizard, answers: Answers) -> Answers:
    """The answers, one of which the person has changed, or none."""
    while True:
        undoable = [
            Choice(
                value=f"remedy {index}",
                title=remedies.options(change),
                detail=_("you chose this change; Enter undoes it"),
            )
            for index, change in enumerate(answers.taken)
        ]
        listed = (*_listed(wizard, answers, wizard.planned(answers)), *undoable, _NOTHING)
        key = person.ask(replace(_WHICH, choices=listed, default=listed[0].value))
        if isinstance(key, Back) or key == _NOTHING.value:
            return answers
        keys = [choice.value for choice in undoable]
        if key in keys:
            return answers.without_taken(keys.index(key))
        question = next(row for row in ALL_QUESTIONS if row.key == key)
        changed = _change(person, wizard, question, answers)
        if changed is not None:
            return changed


def can_change(wizard: Wizard, answers: Answers) -> bool:
    """Whether an answer could be another one; not where what is open cannot be read."""
    try:
        return bool(_listed(wizard, answers, {}) or answers.taken)
    except ZerowizError:
        return False


def note_spared(wizard: Wizard, answers: Answers, reporter: Reporter) -> None:
    """Say which answers nobody was asked for."""
    spared = wizard.spared(answers)
    took = [f"{_NAMES[q.key]} ({_shown(q, spared)})" for q in QUESTIONS if q.key in spared]
    if took:
        reporter.note(
            _(
                "not asked: {took}; choose `change something` for another one",
                took=listing(took),
            )
        )


def ask_other(person: Person, wizard: Wizard, key: str, answers: Answers) -> Answers:
    """The answers with a script or a strategy that the person names now.

    As they were where the person goes back.
    """
    question = next(row for row in ALL_QUESTIONS if row.key == key)
    return _change(person, wizard, question, answers) or answers


def _listed(wizard: Wizard, answers: Answers, planned: Mapping[str, str]) -> list[Choice]:
    """The answers that matter, and what else the plan could have otherwise, as a menu."""
    known = wizard.known(answers)
    relevant = {q.key: known[q.key] for q in ALL_QUESTIONS if is_relevant(q, known)}
    shown = {**planned, **relevant, **{k: v for k, v in planned.items() if k == STRATEGY.key}}
    return [
        Choice(value=question.key, title=f"{_NAMES[question.key]}: {_shown(question, shown)}")
        for question in ALL_QUESTIONS
        if question.key in shown
    ]


_NAMES = {
    "strategy": _("strategy"),
    "machine": _("machine"),
    "script": _("script"),
    "config": _("base of the config"),
    "model": _("model"),
    "method": _("trained parameters"),
    "goal": _("goal"),
    "micro_batch": _("micro-batch"),
    "sequence_tokens": _("tokens per sequence"),
    "lr": _("learning rate"),
    "gradient_checkpointing": _("gradient checkpointing"),
    "global_batch": _("global batch"),
    "precision": _("precision"),
    "optimizer": _("optimizer"),
    "attention": _("attention"),
    "sequence_parallel": _("GPUs for each sequence"),
}
_WHICH = Question(key="change", flag="$yes", text=_("Change which answer?"), kind=AnswerKind.CHOICE)
_NOTHING = Choice(value="nothing", title=_("nothing, go on"))


def _shown(question: Question, known: Mapping[str, str | None]) -> str:
    """An answer, as a menu names it."""
    answer = known[question.key] or ""
    return next((_(choice.title) for choice in question.choices if choice.value == answer), answer)


def _change(person: Person, wizard: Wizard, question: Question, answers: Answers) -> Answers | None:
    """The answers with another one to this question; None where the person goes back."""
    answer = _answer(person, wizard, question, answers, can_go_back=True)
    return None if isinstance(answer, Back) else wizard.with_answer(question.key, answer, answers)


def _answer(
    person: Person, wizard: Wizard, question: Question, answers: Answers, *, can_go_back: bool
) -> str | Back:
    asked = wizard.question(question, answers)
    return person.ask(
        asked,
        check=wizard.check(question.key, answers),
        consequence=wizard.consequence(asked, answers),
        can_go_back=can_go_back,
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
    command, wanted = _understand(script, script_args, options, wanted, reporter)
    options = command.options
    machine = find_machine(options, os.environ, reporter=reporter)
    path = run = None
    if not wanted.no_script:
        path = command.script or only_script([*find_scripts(Path())]) or DEFAULT_SCRIPT
        run = read_as_said(path, command.script_args, options)
        require_reachable(run, options)
        check_words(run)
    elif open_questions(options, ScriptSettings())["model"] is None:
        raise AnswerNeededError(
            _("without a script, zerowiz cannot see which model is trained"),
            _("set it with `$model`"),
        )
    check_own_config(options, machine, run, reporter)
    if run is not None:
        options = answer_for(options, run, None)
    plan = decide_with(None, options, machine, run, reporter)
    planned = plan_written(command, path, plan, wanted, reporter)
    if options.dry_run:
        # Said now what a writing run would say.
        with losses_shown(shown=not options.quiet):
            refuse_loss(*planned.files, force=options.force)
    return with_start(planned, reporter) if wanted.launch else planned


def ask_init(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: LaunchReporter,
    person: Person,
    before: Mapping[str, str],
) -> InitPlan | None:
    """Show what was detected, ask what is open, decide, and do with the plan what the person says.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        wanted: What is done with the plan, where that was said already.
        reporter: Hears what was decided, and why.
        person: Answers.
        before: What was answered in an earlier conversation, by the keys of the questions.

    Returns:
        What was written, unless `options.dry_run`; None where the person wants nothing of it.

    Raises:
        ZerowizError: What was typed cannot be used, before anything is asked.
    """
    command, wanted = _understand(script, script_args, options, wanted, reporter)
    template = CopiedTemplate(person)
    done: InitPlan | None = None
    with ending_as_ctrl_c():
        try:
            wizard = Wizard(command, template, reporter, wanted)
            # What was typed and cannot be used ends it here, whatever is shown.
            detected = wizard.named.detected()
            if not options.quiet:
                person.tell(detected)
            done = _Conversation(command, wizard, wanted, reporter, person, before).run()
        finally:
            if done is None or options.dry_run:
                template.take_off()
            else:
                template.keep()
    if done is None:
        person.tell([_("nothing was written")])
    return done


class _Conversation:
    """Asks until the answers lead to files, or to nothing; whatever happens, no answer is lost."""

    def __init__(
        self,
        command: Command,
        wizard: Wizard,
        wanted: InitOptions,
        reporter: LaunchReporter,
        person: Person,
        before: Mapping[str, str],
    ) -> None:
        self._command, self._wizard, self._wanted = command, wizard, wanted
        self._reporter, self._person = reporter, person
        self._refusals = Refusals(person, reporter)
        self._answers = Answers(before=before)
        self._edits: tuple[LostEdit, ...] = ()
        """What the last refusal asks to write into scripts."""

    def run(self) -> InitPlan | None:
        """What was written; None where the person wants nothing of it."""
        after: LastAnswer | Back | None = None
        while True:
            try:
                self._go_on(after)
                for given in ask_open(self._person, self._wizard, self._answers):
                    # A refusal loses none of them.
                    self._answers = given
                outcome = self._decide_and_finish()
            except InterruptedByUserError:
                raise
            except DeclinedError:
                return None
            except ZerowizError as error:
                outcome = self._ask_refused(error)
            if isinstance(outcome, InitPlan):
                return outcome
            if outcome is LastAnswer.STOP:
                return None
            after = outcome

    def _ask_refused(self, error: ZerowizError) -> LastAnswer | Back:
        changes = [LastAnswer.CHANGE] if can_change(self._wizard, self._answers) else []
        others = [] if self._wanted.no_script else [LastAnswer.SCRIPT]
        if isinstance(error, UnreachableScriptError):
            others += [LastAnswer.DELIVERY, LastAnswer.NO_SCRIPT]
        self._edits = find_line_edits(error.edits)
        others += [LastAnswer.EDIT] if self._edits else []
        offers = (LastAnswer.RETRY, *changes, *others, LastAnswer.STOP)
        can_go_back = bool(self._answers.given)
        return self._refusals.ask(error, offers, edits=self._edits, can_go_back=can_go_back)

    def _go_on(self, after: LastAnswer | Back | None) -> None:
        """Go on with the questions as the person has said, if they have."""
        person, wizard, answers = self._person, self._wizard, self._answers
        if after is not None:
            wizard.named.forget()
        match after:
            case Back.BACK:
                self._answers = answers.back()
            case LastAnswer.CHANGE:
                self._answers = change_one(person, wizard, answers)
            case LastAnswer.SCRIPT | LastAnswer.STRATEGY:
                self._answers = ask_other(person, wizard, after.value, answers)
            case LastAnswer.DELIVERY:
                person.ask(DELIVERY, check=partial(wizard.named.pass_config, answers=answers))
            case LastAnswer.EDIT:
                write_line_edits(self._edits)
            case LastAnswer.NO_SCRIPT:
                self._answers = answers.with_answer("script", NO_SCRIPT)
            case _:
                pass

    def _decide_and_finish(self) -> InitPlan | LastAnswer | Back:
        """The plan that is written, or what the person does instead."""
        wizard, reporter, person = self._wizard, self._reporter, self._person
        command = replace(self._command, script_args=wizard.named.script_args)
        answers = self._answers
        script, run, machine = wizard.job(answers)
        options = wizard.options(answers)
        if run is not None:
            check_own_config(options, machine, run, reporter)
        remedying = Remedying(person, run, reporter, can_read_again=run is not None)
        can_go_back = bool(answers.given)
        plan = remedying.decide(options, machine, can_go_back=can_go_back)
        if isinstance(plan, Plan) and not plan.options.dry_run:
            # Said once, where somebody can still change them.
            note_spared(wizard, answers.taking(*remedying.taken), reporter)
        while True:
            # A remedy is kept as an answer is.
            self._answers = answers.taking(*remedying.taken)
            if isinstance(plan, Back):
                return plan
            if isinstance(plan, Again):
                return self._read_again(facts_of(run))
            planned = plan_written(command, script, plan, self._wanted, reporter)
            if plan.options.dry_run:
                return planned
            finish = Finish(
                command,
                self._wanted,
                wizard,
                self._answers,
                can_change=can_change(wizard, self._answers),
                can_go_back=can_go_back or bool(remedying.taken),
                reporter=reporter,
                person=person,
                refusals=self._refusals,
            )
            outcome = finish.run(planned)
            if outcome is LastAnswer.SURER:
                plan = remedying.make_surer(plan)
                continue
            if outcome is not Back.BACK or not remedying.taken:
                return outcome
            plan = remedying.undo(can_go_back=can_go_back)

    def _read_again(self, before: ScriptFacts | None) -> LastAnswer:
        """Read the script as it is now, and decide again."""
        self._wizard.named.forget()
        if before is not None and facts_of(self._wizard.named.run(self._answers)) == before:
            self._person.tell(
                [_("zerowiz still reads the same settings from {path}", path=before.path)]
            )
        return LastAnswer.RETRY


def _understand(
    script: str | None,
    script_args: tuple[str, ...],
    options: Options,
    wanted: InitOptions,
    reporter: Reporter,
) -> tuple[Command, InitOptions]:
    """What was typed, and what is done with it: of a program's file a config alone."""
    check_accounting(options)
    if wanted.no_script:
        _refuse_script(script, wanted)
    command = understand_command(script, script_args, options)
    file = find_program_file(command, reporter)
    if file is not None:
        _refuse_start(file, wanted)
        return with_program_file(command, file), replace(wanted, no_script=True, program_file=file)
    return command, wanted


def _refuse_start(file: ProgramFile, wanted: InitOptions) -> None:
    for flag, is_said in (("--launch", wanted.launch), ("--slurm", wanted.slurm)):
        if is_said:
            raise UsageError(
                _(
                    "`{flag}` conflicts with `{path}`: {program} starts its own ranks",
                    flag=flag,
                    path=file.path,
                    program=file.program.name,
                ),
                _("remove `{flag}`; `zerowiz init` prints the command that trains", flag=flag),
            )


def _refuse_script(script: str | None, wanted: InitOptions) -> None:
    reasons = {f"`{script}`": script, "`--launch`": wanted.launch, "`--slurm`": wanted.slurm}
    for words, is_said in reasons.items():
        if is_said:
            raise UsageError(
                _("{words} conflicts with `--no-script`, which writes a config alone", words=words),
                _("remove one of them"),
            )
