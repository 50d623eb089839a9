"""The end of a conversation: the files are written, and the job is launched if that is wanted."""

import os
from pathlib import Path

from zerowiz.app.ask.command import Command
from zerowiz.app.ask.person import Person
from zerowiz.app.decide.remedies import can_be_surer
from zerowiz.app.machines.node import find_node
from zerowiz.app.reporter import SILENT, LaunchReporter
from zerowiz.app.wizard.last_question import (
    Kept,
    LastAnswer,
    Refusals,
    ask_folder,
    ask_last,
    ask_loss,
)
from zerowiz.app.wizard.outcome import (
    InitOptions,
    InitPlan,
    plan_written,
    with_start,
    write_init,
)
from zerowiz.app.wizard.script_words import ask_words
from zerowiz.app.wizard.wizard import Wizard
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import Back
from zerowiz.core.values import replace
from zerowiz.emit.files import find_losses
from zerowiz.errors import InterruptedByUserError, PreflightError, UsageError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.ui.wizard import lines
from zerowiz.words import _

_GOES_ON = frozenset({LastAnswer.LAUNCH, LastAnswer.WRITE})


class Finish:
    """What becomes of a plan that is decided; the person may do something else instead.

    Args:
        command: What was typed.
        wanted: What is done with the plan, where that was said already.
        wizard: Knows the answers' script.
        answers: All of them.
        can_change: Whether there are answers that could be others.
        can_go_back: Whether there is a question before.
        reporter: Hears what may go wrong.
        person: Answers.
        refusals: Asks after a refusal.
    """

    def __init__(
        self,
        command: Command,
        wanted: InitOptions,
        wizard: Wizard,
        answers: Answers,
        *,
        can_change: bool,
        can_go_back: bool,
        reporter: LaunchReporter,
        person: Person,
        refusals: Refusals,
    ) -> None:
        self._command, self._wanted, self._wizard, self._answers = command, wanted, wizard, answers
        self._can_change, self._can_go_back = can_change, can_go_back
        self._reporter, self._person, self._refusals = reporter, person, refusals
        self._let_go: set[str] = set()

    def run(self, planned: InitPlan) -> InitPlan | LastAnswer | Back:
        """The plan once it is written, with its start if it is launched; or what is wanted."""
        can_launch = self._can_launch(planned)
        said: LastAnswer | Back | None = LastAnswer.LAUNCH if self._wanted.launch else None
        default: LastAnswer | None = None
        while True:
            answer = said or self._ask(planned, default, can_launch=can_launch)
            said = None
            if answer is LastAnswer.EXPLAIN:
                self._reporter.strategies(planned.plan.decision)
            elif not isinstance(answer, LastAnswer) or answer not in _GOES_ON:
                return answer
            else:
                default = LastAnswer.WRITE
                done = self._do(planned, launch=answer is LastAnswer.LAUNCH)
                if isinstance(done, InitPlan):
                    return done
                if done is LastAnswer.FOLDER:
                    planned, said = self._moved(planned), answer
                elif done is LastAnswer.WORDS:
                    return self._with_words(planned)
                elif done is not Back.BACK:
                    said = answer if done is LastAnswer.AGAIN else done

    def _ask(
        self, planned: InitPlan, default: LastAnswer | None, *, can_launch: bool
    ) -> LastAnswer | Back:
        machine = planned.plan.request.job.machine
        where = lines.where(machine, is_here=can_launch)
        if planned.program_file is not None:
            where = lines.where_program(planned.program_file)
        elif planned.facts is None:
            where = lines.where_config(machine)
        return ask_last(
            self._person,
            planned.config_path,
            where=where,
            can_launch=can_launch,
            has_script=planned.facts is not None,
            default=default,
            can_be_surer=can_be_surer(planned.plan),
            can_change=self._can_change,
            can_go_back=self._can_go_back,
        )

    def _can_launch(self, planned: InitPlan) -> bool:
        """Whether this machine trains the plan; if it only lacks a program, the person hears it."""
        from zerowiz.app.launch.launch import check_node  # noqa: PLC0415 - takes long to load

        plan = planned.plan
        if planned.facts is None:
            return False
        try:
            node = find_node(plan.options)
            check_node(plan.options, plan.request.job.machine, node)
        except UsageError:
            return False
        try:
            find_programs(os.environ)
        except PreflightError as error:
            self._person.tell(
                [
                    _("it cannot be launched here yet: {message}", message=error.message),
                    *error.hints,
                ]
            )
            return False
        return node is None

    def _do(self, planned: InitPlan, *, launch: bool) -> InitPlan | LastAnswer | Back:
        """The plan once it is written, and its job can start."""
        try:
            lost = () if planned.plan.options.force else find_losses(planned.files)
        except ZerowizError as error:
            return self._refused(error, writes=True)
        if losses := tuple(loss for loss in lost if loss.path not in self._let_go):
            self._reporter.losses(losses)
            paths = tuple(loss.path for loss in losses)
            is_shown = not planned.plan.options.quiet
            kept = ask_loss(self._person, paths, is_shown=is_shown)
            if kept is not Kept.OVERWRITE:
                return LastAnswer.FOLDER if kept is Kept.FOLDER else Back.BACK
            self._let_go |= {*paths}
        planned = replace(planned, may_overwrite=bool(lost))
        if launch and planned.facts is not None:
            try:
                if self._was_edited(planned):
                    self._person.tell(
                        [
                            _(
                                "{script} was edited meanwhile; it is planned again",
                                script=planned.script,
                            )
                        ]
                    )
                    return LastAnswer.RETRY
                planned = with_start(self._command, planned, planned.facts, self._reporter)
            except ZerowizError as error:
                return self._refused(error, writes=False, planned=planned)
        try:
            write_init(planned)
        except ZerowizError as error:
            return self._refused(error, writes=True)
        return planned

    def _was_edited(self, planned: InitPlan) -> bool:
        """Whether the script is another one than the one that was planned for.

        Raises:
            ZerowizError: It cannot be read any more.
        """
        self._wizard.named.forget()
        return self._wizard.named.facts(self._answers) != planned.facts

    def _refused(
        self, error: ZerowizError, *, writes: bool, planned: InitPlan | None = None
    ) -> LastAnswer | Back:
        """What the person does where the files cannot be written, or the job cannot start."""
        if isinstance(error, InterruptedByUserError):
            raise error
        offers = [LastAnswer.AGAIN, LastAnswer.FOLDER] if writes else [LastAnswer.RETRY]
        offers += [LastAnswer.WRITE] if planned is not None else []
        offers += [LastAnswer.WORDS] if planned is not None and planned.missing else []
        offers += [LastAnswer.CHANGE] if self._can_change else []
        offers += [] if writes else [LastAnswer.SCRIPT]
        offers += [LastAnswer.STOP]
        config_path = None if planned is None else planned.config_path
        return self._refusals.ask(error, offers, config_path=config_path)

    def _with_words(self, planned: InitPlan) -> LastAnswer:
        """Decide again, with the words that the person types after the script."""
        words = ask_words(self._person, planned)
        if not isinstance(words, Back):
            self._wizard.named.add_words(words)
        return LastAnswer.RETRY

    def _moved(self, planned: InitPlan) -> InitPlan:
        """The plan with its files in another folder, if the person names one that can be used."""
        folder = ask_folder(self._person, planned.plan.options.output_dir)
        if isinstance(folder, Back):
            return planned
        plan = planned.plan
        moved = replace(plan, options=replace(plan.options, output_dir=Path(folder)))
        script, facts = planned.script, planned.facts
        try:
            planned = plan_written(self._command, script, facts, moved, self._wanted, SILENT)
        except ZerowizError as error:
            self._reporter.error(error)
            return planned
        self._wizard.named.write_to(Path(folder))
        return planned
