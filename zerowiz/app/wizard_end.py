"""The last question of the wizard, and the one after a refusal: what becomes of the answers."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

from zerowiz.app.ask import Person
from zerowiz.app.choose_remedy import can_be_surer
from zerowiz.app.command import Command
from zerowiz.app.machines.machine import find_node
from zerowiz.app.reporter import SILENT, LaunchReporter, Reporter
from zerowiz.app.wizard_plan import InitOptions, InitPlan, plan_written, with_start, write_init
from zerowiz.app.wizard_state import Wizard, ask_words
from zerowiz.core.decision.questions import AnswerKind, Answers, Back, Choice, Question
from zerowiz.core.script.settings import facts_of
from zerowiz.core.structs import replace
from zerowiz.emit.files import find_losses
from zerowiz.errors import (
    InterruptedByUserError,
    LostEdit,
    NothingFitsError,
    PreflightError,
    UsageError,
    ZerowizError,
)
from zerowiz.probe.preflight.interpreter import find_programs
from zerowiz.translation import _
from zerowiz.ui import wizard as wizard_text


class LastAnswer(StrEnum):
    """What becomes of a plan, or of answers that lead to none."""

    LAUNCH = "launch"
    WRITE = "write"
    STRATEGY = "strategy"
    """Choose one in the table of strategies."""
    SURER = "surer"
    """Take a change after which it fits for sure."""
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


class Kept(StrEnum):
    """What becomes of files that zerowiz did not write, and would."""

    FOLDER = "folder"
    """They stay: the new ones go into another folder."""
    OVERWRITE = "overwrite"


_CHANGE = Choice(
    value=LastAnswer.CHANGE, title=_("change something"), detail=_("keeps the other answers")
)
_STOP = Choice(value=LastAnswer.STOP, title=_("stop here"), detail=_("writes nothing"))


def ask_last(
    person: Person,
    config_path: str,
    where: str,
    *,
    can_launch: bool,
    default: LastAnswer | None = None,
    can_be_surer: bool,
    can_change: bool,
    can_go_back: bool,
) -> LastAnswer | Back:
    """What the person wants with a plan that is decided.

    Args:
        person: Answers.
        config_path: What would be written.
        where: One line: the machine that the job runs on.
        can_launch: Whether this machine trains it.
        default: What Enter alone means; None for the launch where there can be one.
        can_be_surer: Whether it may not fit, and there are changes after which it does.
        can_change: Whether there are answers that could be others.
        can_go_back: Whether there is a question before.
    """
    chosen = default or (LastAnswer.LAUNCH if can_launch else LastAnswer.WRITE)
    choices = [
        Choice(
            value=LastAnswer.LAUNCH,
            title=_("yes, launch it"),
            detail=_("writes {config_path} and starts deepspeed with it", config_path=config_path),
        ),
        Choice(
            value=LastAnswer.WRITE,
            title=_("no, only write the files") if can_launch else _("yes, write the files"),
            detail=_("writes {config_path} and says how to go on", config_path=config_path),
        ),
        Choice(
            value=LastAnswer.SURER,
            title=_("make it fit for sure"),
            detail=_("lists what would, then asks again"),
        ),
        Choice(
            value=LastAnswer.STRATEGY,
            title=_("another strategy"),
            detail=_("chooses one in a table of all"),
        ),
        _CHANGE,
        _STOP,
    ]
    offered: dict[str, bool] = {
        LastAnswer.LAUNCH: can_launch,
        LastAnswer.SURER: can_be_surer,
        LastAnswer.STRATEGY: can_change,
        LastAnswer.CHANGE: can_change,
    }
    question = Question(
        key="outcome",
        flag="$yes",
        text=_("Launch now?") if can_launch else _("Write the files?"),
        why=where,
        kind=AnswerKind.CHOICE,
        default=chosen,
        choices=tuple(choice for choice in choices if offered.get(choice.value, True)),
    )
    answer = person.ask(question, can_go_back=can_go_back)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


# What a menu may offer after a refusal.
_OFFERS = (
    Choice(
        value=LastAnswer.WORDS,
        title=_("type the missing arguments"),
        detail=_("keeps all your answers"),
    ),
    Choice(value=LastAnswer.RETRY, title=_("try again"), detail=_("reads the script as it is now")),
    Choice(
        value=LastAnswer.FOLDER, title=_("use another folder"), detail=_("keeps all your answers")
    ),
    Choice(value=LastAnswer.WRITE, title=_("only write the files")),
    _CHANGE,
    Choice(
        value=LastAnswer.SCRIPT, title=_("take another script"), detail=_("keeps the other answers")
    ),
    Choice(
        value=LastAnswer.DELIVERY,
        title=_("say how it gets its config"),
        detail=_("where zerowiz cannot see it"),
    ),
    Choice(
        value=LastAnswer.NO_SCRIPT,
        title=_("plan without the script"),
        detail=_("only writes a config"),
    ),
    Choice(
        value=LastAnswer.EDIT,
        title=_("write this into the script"),
        detail=_("keeps all your answers"),
    ),
    _STOP,
)


class Refusals:
    """Asks after each refusal what the person wants.

    Where Enter alone has led to the same refusal again, the next line of the menu is the default:
    no number of Enters goes in a circle.

    Args:
        person: Answers.
        reporter: Hears the refusals.
    """

    def __init__(self, person: Person, reporter: Reporter) -> None:
        self._person, self._reporter = person, reporter
        self._defaults_taken: Counter[str] = Counter()

    def ask(
        self,
        error: ZerowizError,
        offers: Collection[LastAnswer],
        *,
        config_path: str | None = None,
        edits: Sequence[LostEdit] = (),
        can_go_back: bool = True,
    ) -> LastAnswer | Back:
        """What the person wants after a refusal, which is shown with its hints.

        Args:
            error: The refusal.
            offers: What can be done about it; to stop is one of them.
            config_path: What `WRITE` writes.
            edits: What `EDIT` writes.
            can_go_back: Whether there is a question before.
        """
        self._reporter.error(error)
        if edits:
            self._reporter.losses(edits)
        listed = [offer for offer in _OFFERS if offer.value in offers]
        values = [choice.value for choice in listed]
        # To try again would help no job that is too big.
        changes = isinstance(error, NothingFitsError) and LastAnswer.CHANGE in offers
        first = values.index(LastAnswer.CHANGE) if changes else 0
        default = values[min(first + self._defaults_taken[error.message], len(values) - 1)]
        question = Question(
            key="refused",
            flag="$yes",
            text=_("What do you want to do?"),
            why=_("Your answers are kept; you can edit a file in another window, and try again."),
            kind=AnswerKind.CHOICE,
            default=default,
            choices=tuple(
                replace(choice, detail=_("writes {config_path}", config_path=config_path))
                if choice.value == LastAnswer.WRITE
                else choice
                for choice in listed
            ),
        )
        answer = self._person.ask(question, can_go_back=can_go_back)
        self._defaults_taken[error.message] += answer == default
        return answer if isinstance(answer, Back) else LastAnswer(answer)


_LINES_LOST = _("Lines with a minus are in the file now. Lines with a plus would replace them.")


def ask_loss(person: Person, paths: tuple[str, ...], *, is_shown: bool) -> Kept | Back:
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
        default=Kept.FOLDER,
        choices=(
            Choice(
                value=Kept.FOLDER,
                title=_("no, use another folder"),
                detail=_("keeps it, and asks where the new files go")
                if is_single
                else _("keeps them, and asks where the new files go"),
            ),
            Choice(
                value=Kept.OVERWRITE,
                title=_("yes, overwrite"),
                detail=_("what is in it is lost") if is_single else _("what is in them is lost"),
            ),
        ),
    )
    answer = person.ask(question)
    return answer if isinstance(answer, Back) else Kept(answer)


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


# The end of a conversation: the files are written, and the job is launched if that is wanted.

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
        answered: LastAnswer | Back | None = LastAnswer.LAUNCH if self._wanted.launch else None
        default: LastAnswer | None = None
        while True:
            answer = answered or self._ask(planned, default, can_launch=can_launch)
            answered = None
            if not isinstance(answer, LastAnswer) or answer not in _GOES_ON:
                return answer
            default = LastAnswer.WRITE
            done = self._do(planned, launch=answer is LastAnswer.LAUNCH)
            if isinstance(done, InitPlan):
                return done
            if done is LastAnswer.FOLDER:
                planned, answered = self._moved(planned), answer
            elif done is LastAnswer.WORDS:
                return self._with_words(planned)
            elif done is not Back.BACK:
                answered = done

    def _ask(
        self, planned: InitPlan, default: LastAnswer | None, *, can_launch: bool
    ) -> LastAnswer | Back:
        machine = planned.plan.resolved.job.machine
        where = wizard_text.where(machine, is_here=can_launch)
        if planned.program_file is not None:
            where = wizard_text.where_program(planned.program_file)
        return ask_last(
            self._person,
            planned.config_path,
            where=where,
            can_launch=can_launch,
            default=default,
            can_be_surer=can_be_surer(planned.plan),
            can_change=self._can_change,
            can_go_back=self._can_go_back,
        )

    def _can_launch(self, planned: InitPlan) -> bool:
        """Whether this machine trains the plan; if it only lacks a program, the person hears it."""
        from zerowiz.app.launch.launch import check_node  # noqa: PLC0415 - takes long to load

        plan = planned.plan
        if planned.plan.script is None:
            return False
        try:
            node = find_node(plan.options)
            check_node(plan.options, plan.resolved.job.machine, node)
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
        if launch and planned.plan.script is not None:
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
                planned = with_start(planned, self._reporter)
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
        read = self._wizard.named.run(self._answers)
        return facts_of(read) != facts_of(planned.plan.script)

    def _refused(
        self, error: ZerowizError, *, writes: bool, planned: InitPlan | None = None
    ) -> LastAnswer | Back:
        """What the person does where the files cannot be written, or the job cannot start."""
        if isinstance(error, InterruptedByUserError):
            raise error
        offers = [LastAnswer.RETRY, *([LastAnswer.FOLDER] if writes else [])]
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
        script = planned.script
        try:
            planned = plan_written(self._command, script, moved, self._wanted, SILENT)
        except ZerowizError as error:
            self._reporter.error(error)
            return planned
        self._wizard.named.write_to(Path(folder))
        return planned
