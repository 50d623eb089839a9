"""The last question of the wizard, and the one after a refusal: what becomes of the answers."""

from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from zerowiz.app.ask.person import Person
from zerowiz.app.reporter import Reporter
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.values import replace
from zerowiz.errors import NothingFitsError, ZerowizError
from zerowiz.words import _, joined


class LastAnswer(StrEnum):
    """What becomes of a plan, or of answers that lead to none."""

    LAUNCH = "launch"
    WRITE = "write"
    EXPLAIN = "explain"
    SURER = "surer"
    """Take a change after which it fits for sure."""
    CHANGE = "change"
    SCRIPT = "script"
    """Take another script; the other answers stay."""
    WORDS = "words"
    """Type the arguments that the script requires."""
    RETRY = "retry"
    """Read the script again, and decide again."""
    AGAIN = "again"
    """Do the same once more, with the same plan."""
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
    has_script: bool,
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
        has_script: Whether there is one that a command can start.
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
            detail=_("writes {config_path} and prints the command", config_path=config_path)
            if has_script
            else _("writes {config_path} and says how to use it", config_path=config_path),
        ),
        Choice(
            value=LastAnswer.SURER,
            title=_("make it fit for sure"),
            detail=_("lists what would, then asks again"),
        ),
        Choice(
            value=LastAnswer.EXPLAIN, title=_("show every strategy"), detail=_("then asks again")
        ),
        _CHANGE,
        _STOP,
    ]
    left_out = set() if can_launch else {LastAnswer.LAUNCH.value}
    left_out |= set() if can_be_surer else {LastAnswer.SURER.value}
    left_out |= set() if can_change else {LastAnswer.CHANGE.value}
    question = Question(
        key="outcome",
        flag="$yes",
        text=_("Launch now?") if can_launch else _("Write the files?"),
        why=where,
        kind=AnswerKind.CHOICE,
        default=chosen,
        choices=tuple(choice for choice in choices if choice.value not in left_out),
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
    Choice(value=LastAnswer.AGAIN, title=_("try again"), detail=_("writes the same files")),
    Choice(
        value=LastAnswer.FOLDER, title=_("use another folder"), detail=_("keeps all your answers")
    ),
    Choice(value=LastAnswer.WRITE, title=_("only write the files")),
    _CHANGE,
    Choice(
        value=LastAnswer.SCRIPT, title=_("take another script"), detail=_("keeps the other answers")
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
        can_go_back: bool = True,
    ) -> LastAnswer | Back:
        """What the person wants after a refusal, which is shown with its hints.

        Args:
            error: The refusal.
            offers: What can be done about it; to stop is one of them.
            config_path: What `WRITE` writes.
            can_go_back: Whether there is a question before.
        """
        self._reporter.error(error)
        listed = [each for each in _OFFERS if each.value in offers]
        values = [each.value for each in listed]
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
                replace(each, detail=_("writes {config_path}", config_path=config_path))
                if each.value == LastAnswer.WRITE
                else each
                for each in listed
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
    one = len(paths) == 1
    question = Question(
        key="overwrite",
        flag="$force",
        text=_("{path} was changed, or not written by zerowiz. Overwrite it?", path=paths[0])
        if one
        else _(
            "{paths} were changed, or not written by zerowiz. Overwrite them?",
            paths=joined(_(" and "), paths),
        ),
        why=_LINES_LOST if is_shown else "",
        kind=AnswerKind.CHOICE,
        default=Kept.FOLDER,
        choices=(
            Choice(
                value=Kept.FOLDER,
                title=_("no, use another folder"),
                detail=_("keeps it, and asks where the new files go")
                if one
                else _("keeps them, and asks where the new files go"),
            ),
            Choice(
                value=Kept.OVERWRITE,
                title=_("yes, overwrite"),
                detail=_("what is in it is lost") if one else _("what is in them is lost"),
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
