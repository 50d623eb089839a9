"""The wizard: detect, ask what is open, decide, then launch or write the config."""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from zerowiz.app.choose_remedy import Again, Remedying, can_be_surer, decide_with
from zerowiz.app.command import (
    DEFAULT_SCRIPT,
    Command,
    Person,
    answer_for,
    read_as_said,
    require_reachable,
    understand_command,
)
from zerowiz.app.decide import Plan
from zerowiz.app.doctor import find_line_edits, write_line_edits
from zerowiz.app.machines.machine import find_machine, find_node
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, LaunchReporter, Reporter
from zerowiz.app.resolve.workload import check_accounting, check_own_config, check_words
from zerowiz.app.wizard_plan import (
    CopiedTemplate,
    InitOptions,
    InitPlan,
    find_program_file,
    plan_written,
    with_program_file,
    with_start,
    write_init,
)
from zerowiz.app.wizard_state import Wizard, ask_words, only_script
from zerowiz.core.command_words import spell_change
from zerowiz.core.decision.flowchart import Reason
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
from zerowiz.core.script.settings import facts_of
from zerowiz.core.structs import replace
from zerowiz.emit.files import find_losses, refuse_loss
from zerowiz.emit.processes import ending_as_ctrl_c
from zerowiz.errors import (
    DeclinedError,
    InterruptedByUserError,
    LostEdit,
    NothingFitsError,
    PreflightError,
    UnreachableScriptError,
    UsageError,
    ZerowizError,
    refuse_any,
)
from zerowiz.probe.preflight.read_facts import find_programs
from zerowiz.probe.script.read_script import find_scripts
from zerowiz.translation import N_, _, listing
from zerowiz.ui import wizard as wizard_text


class LastAnswer(StrEnum):
    """What becomes of a plan, or of answers that lead to none."""

    LAUNCH = "launch"
    WRITE = "write"
    STRATEGY = "strategy"
    """Choose one in the table of strategies."""
    SURER = "surer"
    """Take a change after which it fits for sure."""
    SHARE = "sequence_parallel"
    """Say how many GPUs share each sequence, where it is the sequence that does not fit."""
    CHANGE = "change"
    SCRIPT = "script"
    """Take another script; the other answers stay."""
    DELIVERY = "delivery"
    """Say how the config reaches the script."""
    NO_SCRIPT = "no script"
    """Plan without a script."""
    EDIT = "edit"
    """Write into the script what its refusal asks for."""
    WORDS = "words"
    """Type the arguments that the script requires."""
    RETRY = "retry"
    """Read the script again, and decide again."""
    FOLDER = "folder"
    """Write into another folder."""
    STOP = "stop"


_OFFERS: Mapping[LastAnswer, tuple[str, str]] = {
    LastAnswer.LAUNCH: (
        N_("yes, launch it"),
        N_("writes {config_path} and starts deepspeed with it"),
    ),
    LastAnswer.WORDS: (N_("type the missing arguments"), N_("keeps all your answers")),
    LastAnswer.RETRY: (N_("try again"), N_("reads the script as it is now")),
    LastAnswer.FOLDER: (N_("use another folder"), N_("keeps all your answers")),
    LastAnswer.WRITE: (
        N_("only write the files"),
        N_("writes {config_path} and says how to go on"),
    ),
    LastAnswer.SURER: (N_("make it fit for sure"), N_("lists what would, then asks again")),
    LastAnswer.SHARE: (
        N_("let GPUs share each sequence"),
        N_("it is the sequence that does not fit without offload"),
    ),
    LastAnswer.STRATEGY: (N_("another strategy"), N_("chooses one in a table of all")),
    LastAnswer.CHANGE: (N_("change something"), N_("keeps the other answers")),
    LastAnswer.SCRIPT: (N_("take another script"), N_("keeps the other answers")),
    LastAnswer.DELIVERY: (N_("say how it gets its config"), N_("where zerowiz cannot see it")),
    LastAnswer.NO_SCRIPT: (N_("plan without the script"), N_("only writes a config")),
    LastAnswer.EDIT: (N_("write this into the script"), N_("keeps all your answers")),
    LastAnswer.STOP: (N_("stop here"), N_("writes nothing")),
}
"""What a menu at the end, or after a refusal, says of each answer, in its order."""


def _menu(
    offers: Collection[LastAnswer], config_path: str, write: str | None = None
) -> tuple[Choice, ...]:
    """The lines of a menu.

    Args:
        offers: The answers that it has.
        config_path: What is written.
        write: What the line that writes it is called, if not as after a refusal.
    """
    titles = {LastAnswer.WRITE: write} if write else {}
    return tuple(
        Choice(
            value=answer,
            title=titles.get(answer, title),
            detail=_(detail, config_path=config_path),
        )
        for answer, (title, detail) in _OFFERS.items()
        if answer in offers
    )


_LINES_LOST = _("Lines with a minus are in the file now. Lines with a plus would replace them.")


def ask_loss(person: Person, paths: tuple[str, ...], *, is_shown: bool) -> LastAnswer | Back:
    """What becomes of files with contents that zerowiz did not write.

    Args:
        person: Answers.
        paths: Of the files.
        is_shown: Whether the lines that would be lost stand above.
    """
    is_single = len(paths) == 1
    question = Question(
        key="overwrite",
        flag="$force",
        text=_("{path} was changed, or not written by zerowiz. Overwrite it?", path=paths[0])
        if is_single
        else _(
            "{paths} were changed, or not written by zerowiz. Overwrite them?",
            paths=_(" and ").join(paths),
        ),
        why=_LINES_LOST if is_shown else "",
        kind=AnswerKind.CHOICE,
        default=LastAnswer.FOLDER,
        choices=(
            Choice(
                value=LastAnswer.FOLDER,
                title=_("no, use another folder"),
                detail=_("keeps it, and asks where the new files go")
                if is_single
                else _("keeps them, and asks where the new files go"),
            ),
            Choice(
                value=LastAnswer.WRITE,
                title=_("yes, overwrite"),
                detail=_("what is in it is lost") if is_single else _("what is in them is lost"),
            ),
        ),
    )
    answer = person.ask(question)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


def ask_folder(person: Person, before: Path | None) -> str | Back:
    """Another folder for the files.

    Args:
        person: Answers.
        before: The one that they would go into; None for the working folder.
    """
    names = ("zerowiz", *(f"zerowiz-{number}" for number in range(2, 100)))
    # Beside the one before, which may not be a folder that can be written.
    beside = Path() if before is None else before.parent
    free = (str(beside / name) for name in names)
    question = Question(
        key="folder",
        flag="$output_dir",
        text=_("Which folder?"),
        why=_("The config and its plan are written there; your script stays where it is."),
        default=next((name for name in free if not Path(name).exists()), None),
        kind=AnswerKind.PATH,
    )
    return person.ask(question)


# The conversation.

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
                title=spell_change(change),
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
    check_own_config(options, machine, run, reporter)
    if run is not None:
        options = answer_for(options, run, None)
    plan = decide_with(None, options, machine, run, reporter)
    planned = plan_written(command, path, plan, wanted, reporter)
    if options.dry_run:
        # Said now what a writing run would say.
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
    """Asks until the answers lead to files, or to nothing; whatever happens, no answer is lost.

    Args:
        command: What was typed.
        wizard: Knows what is open.
        wanted: What is done with the plan, where that was said already.
        reporter: Hears what was decided, and what is refused.
        person: Answers.
        before: What was answered in an earlier conversation, by the keys of the questions.
    """

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
        self._answers = Answers(before=before)
        self._edits: tuple[LostEdit, ...] = ()
        """What the last refusal asks to write into scripts."""
        self._let_go: set[LostEdit] = set()
        """What of a person's files may be overwritten."""
        self._defaults_taken: Counter[str] = Counter()
        """How often Enter alone has led to each refusal."""

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
                outcome = self._refused_answers(error)
            if isinstance(outcome, InitPlan):
                return outcome
            if outcome is LastAnswer.STOP:
                return None
            after = outcome

    @property
    def _can_change(self) -> bool:
        """Whether an answer could be another one; not where what is open cannot be read."""
        try:
            return bool(_listed(self._wizard, self._answers, {}) or self._answers.taken)
        except ZerowizError:
            return False

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
            case LastAnswer.SCRIPT | LastAnswer.STRATEGY | LastAnswer.SHARE:
                question = next(row for row in ALL_QUESTIONS if row.key == after.value)
                self._answers = _change(person, wizard, question, answers) or answers
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
            planned = self._written(script, plan, reporter)
            if plan.options.dry_run:
                return planned
            outcome = self._finish(planned, can_go_back=can_go_back or bool(remedying.taken))
            if outcome is LastAnswer.SURER:
                plan = remedying.take(plan, can_go_back=True, makes_surer=True)
                continue
            if outcome is LastAnswer.STRATEGY or outcome is LastAnswer.CHANGE:
                before = self._answers
                self._go_on(outcome)
                if self._answers == before:
                    continue  # the plan stands there
                return LastAnswer.RETRY
            if outcome is not Back.BACK or not remedying.taken:
                return outcome
            plan = remedying.take(remedying.undo(), can_go_back=can_go_back)

    def _written(self, script: str | None, plan: Plan, reporter: Reporter) -> InitPlan:
        command = replace(self._command, script_args=self._wizard.named.script_args)
        return plan_written(command, script, plan, self._wanted, reporter)

    def _read_again(self, before: ScriptFacts | None) -> LastAnswer:
        """Read the script as it is now, and decide again."""
        self._wizard.named.forget()
        if before is not None and facts_of(self._wizard.named.run(self._answers)) == before:
            self._person.tell(
                [_("zerowiz still reads the same settings from {path}", path=before.path)]
            )
        return LastAnswer.RETRY

    # The end: the files are written, and the job is launched if that is wanted.

    def _finish(self, planned: InitPlan, *, can_go_back: bool) -> InitPlan | LastAnswer | Back:
        """The plan once it is written, with its start if it is launched; or what is wanted."""
        can_launch = self._can_launch(planned)
        default = LastAnswer.LAUNCH if can_launch else LastAnswer.WRITE
        answer: LastAnswer | Back | None = LastAnswer.LAUNCH if self._wanted.launch else None
        while True:
            answer = answer or self._ask_last(
                planned, can_launch=can_launch, default=default, can_go_back=can_go_back
            )
            if answer not in {LastAnswer.LAUNCH, LastAnswer.WRITE}:
                return answer
            default = LastAnswer.WRITE
            done = self._write(planned, launch=answer is LastAnswer.LAUNCH)
            if isinstance(done, InitPlan):
                return done
            if done is LastAnswer.WORDS:
                words = ask_words(self._person, planned)
                if not isinstance(words, Back):
                    self._wizard.named.add_words(words)
                return LastAnswer.RETRY
            if done is LastAnswer.FOLDER:
                planned = self._moved(planned)
            else:
                answer = None if done is Back.BACK else done

    def _ask_last(
        self, planned: InitPlan, *, can_launch: bool, default: LastAnswer, can_go_back: bool
    ) -> LastAnswer | Back:
        """What the person wants with a plan that is decided; Enter alone means the default."""
        plan = planned.plan
        can_share = (
            Reason.SEQUENCE_TOO_LONG in plan.decision.reasons
            and LastAnswer.SHARE in self._wizard.planned(self._answers)
        )
        offers = {
            LastAnswer.LAUNCH: can_launch,
            LastAnswer.WRITE: True,
            LastAnswer.SURER: can_be_surer(plan),
            LastAnswer.SHARE: can_share,
            LastAnswer.STRATEGY: self._can_change,
            LastAnswer.CHANGE: self._can_change,
            LastAnswer.STOP: True,
        }
        where = wizard_text.where(plan.resolved.job.machine, is_here=can_launch)
        if planned.program_file is not None:
            where = wizard_text.where_program(planned.program_file)
        write = _("no, only write the files") if can_launch else _("yes, write the files")
        question = Question(
            key="outcome",
            flag="$yes",
            text=_("Launch now?") if can_launch else _("Write the files?"),
            why=where,
            kind=AnswerKind.CHOICE,
            default=default,
            choices=_menu([k for k, v in offers.items() if v], planned.config_path, write),
        )
        answer = self._person.ask(question, can_go_back=can_go_back)
        return answer if isinstance(answer, Back) else LastAnswer(answer)

    def _can_launch(self, planned: InitPlan) -> bool:
        """Whether this machine trains the plan; if it only lacks a program, the person hears it."""
        from zerowiz.app.launch.launch import check_node  # noqa: PLC0415 - takes long to load

        plan = planned.plan
        if plan.script is None:
            return False
        try:
            node = find_node(plan.options)
            check_node(plan.options, plan.resolved.job.machine, node)
        except UsageError:
            return False
        try:
            find_programs(os.environ)
        except PreflightError as error:
            cannot = _("it cannot be launched here yet: {message}", message=error.message)
            self._person.tell([cannot, *error.hints])
            return False
        return node is None

    def _write(self, planned: InitPlan, *, launch: bool) -> InitPlan | LastAnswer | Back:
        """The plan once it is written, and its job can start."""
        wizard, plan = self._wizard, planned.plan
        try:
            lost = () if plan.options.force else find_losses(planned.files)
        except ZerowizError as error:
            return self._refused(error, {LastAnswer.FOLDER: True})
        if losses := tuple(loss for loss in lost if loss not in self._let_go):
            self._reporter.losses(losses)
            paths = tuple(loss.path for loss in losses)
            kept = ask_loss(self._person, paths, is_shown=not plan.options.quiet)
            if kept is not LastAnswer.WRITE:
                return kept
            self._let_go |= {*losses}
        if launch and plan.script is not None:
            try:
                wizard.named.forget()
                if facts_of(wizard.named.run(self._answers)) != facts_of(plan.script):
                    edited = _(
                        "{script} was edited meanwhile; it is planned again", script=planned.script
                    )
                    self._person.tell([edited])
                    return LastAnswer.RETRY
                planned = with_start(planned, self._reporter)
            except ZerowizError as error:
                offers = {
                    LastAnswer.WRITE: True,
                    LastAnswer.WORDS: bool(planned.missing),
                    LastAnswer.SCRIPT: True,
                }
                return self._refused(error, offers, config_path=planned.config_path)
        try:
            write_init(planned, may_overwrite=bool(lost))
        except ZerowizError as error:
            return self._refused(error, {LastAnswer.FOLDER: True})
        return planned

    def _moved(self, planned: InitPlan) -> InitPlan:
        """The plan with its files in another folder, if the person names one that can be used."""
        folder = ask_folder(self._person, planned.plan.options.output_dir)
        if isinstance(folder, Back):
            return planned
        options = replace(planned.plan.options, output_dir=Path(folder))
        try:
            planned = self._written(planned.script, replace(planned.plan, options=options), SILENT)
        except ZerowizError as error:
            self._reporter.error(error)
            return planned
        self._wizard.named.write_to(Path(folder))
        return planned

    # After a refusal, the person says what is done about it.

    def _refused_answers(self, error: ZerowizError) -> LastAnswer | Back:
        """What the person does where the answers lead to no plan."""
        self._edits = find_line_edits(error.edits)
        is_unreachable = isinstance(error, UnreachableScriptError)
        offers = {
            LastAnswer.SCRIPT: not self._wanted.no_script,
            LastAnswer.DELIVERY: is_unreachable,
            LastAnswer.NO_SCRIPT: is_unreachable,
            LastAnswer.EDIT: bool(self._edits),
        }
        can_go_back = bool(self._answers.given)
        return self._refused(error, offers, edits=self._edits, can_go_back=can_go_back)

    def _refused(
        self,
        error: ZerowizError,
        offers: Mapping[LastAnswer, bool],
        *,
        config_path: str = "",
        edits: Sequence[LostEdit] = (),
        can_go_back: bool = True,
    ) -> LastAnswer | Back:
        """What the person wants after a refusal, which is shown with its hints.

        Where Enter alone has led to the same refusal again, the next line of the menu is the
        default: no number of Enters goes in a circle.
        """
        if isinstance(error, InterruptedByUserError):
            raise error
        self._reporter.error(error)
        self._reporter.losses(edits)
        offers = {LastAnswer.RETRY: True, LastAnswer.CHANGE: self._can_change, **offers}
        choices = _menu({LastAnswer.STOP, *(k for k, v in offers.items() if v)}, config_path)
        values = [choice.value for choice in choices]
        # To try again would help no job that is too big.
        changes = isinstance(error, NothingFitsError) and LastAnswer.CHANGE in values
        first = values.index(LastAnswer.CHANGE) if changes else 0
        default = values[min(first + self._defaults_taken[error.message], len(values) - 1)]
        question = Question(
            key="refused",
            flag="$yes",
            text=_("What do you want to do?"),
            why=_("Your answers are kept; you can edit a file in another window, and try again."),
            kind=AnswerKind.CHOICE,
            default=default,
            choices=choices,
        )
        answer = self._person.ask(question, can_go_back=can_go_back)
        self._defaults_taken[error.message] += answer == default
        return answer if isinstance(answer, Back) else LastAnswer(answer)


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
        given = {f"{script}": script, "--launch": wanted.launch, "--slurm": wanted.slurm}
        why = "conflicts with `--no-script`, which writes a config alone"
        refuse_any(given, why, "remove one of them")
    command = understand_command(script, script_args, options)
    file = find_program_file(command, reporter)
    if file is not None:
        refuse_any(
            {"--launch": wanted.launch, "--slurm": wanted.slurm},
            f"conflicts with `{file.path}`: {file.program.name} starts its own ranks",
            "remove it; `zerowiz init` prints the command that trains",
        )
        return with_program_file(command, file), replace(wanted, no_script=True, program_file=file)
    return command, wanted
