"""The last question of the wizard, and the one after a refusal: what becomes of the answers."""

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from zerowiz.app.ask.person import Person
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.values import replace
from zerowiz.errors import NothingFitsError, ZerowizError


class LastAnswer(StrEnum):
    """What becomes of a plan, or of answers that lead to none."""

    LAUNCH = "launch"
    WRITE = "write"
    EXPLAIN = "explain"
    CHANGE = "change"
    SCRIPT = "script"
    """Take another script; the other answers stay."""
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
    value=LastAnswer.CHANGE, title="change something", detail="keeps the other answers"
)
_STOP = Choice(value=LastAnswer.STOP, title="stop here", detail="writes nothing")


def ask_last(
    person: Person,
    config_path: str,
    where: str,
    *,
    can_launch: bool,
    default: LastAnswer | None = None,
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
        can_change: Whether there are answers that could be others.
        can_go_back: Whether there is a question before.
    """
    chosen = default or (LastAnswer.LAUNCH if can_launch else LastAnswer.WRITE)
    choices = [
        Choice(
            value=LastAnswer.LAUNCH,
            title="yes, launch it",
            detail=f"writes {config_path} and starts deepspeed with it",
        ),
        Choice(
            value=LastAnswer.WRITE,
            title="no, only write the files" if can_launch else "yes, write the files",
            detail=f"writes {config_path} and prints the command",
        ),
        Choice(value=LastAnswer.EXPLAIN, title="show every strategy", detail="then asks again"),
        _CHANGE,
        _STOP,
    ]
    left_out = set() if can_launch else {LastAnswer.LAUNCH.value}
    left_out |= set() if can_change else {LastAnswer.CHANGE.value}
    question = Question(
        key="outcome",
        flag="$yes",
        text="Launch now?" if can_launch else "Write the files?",
        why=where,
        kind=AnswerKind.CHOICE,
        default=chosen,
        choices=tuple(choice for choice in choices if choice.value not in left_out),
    )
    answer = person.ask(question, can_go_back=can_go_back)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


# What a menu may offer after a refusal.
_OFFERS = (
    Choice(value=LastAnswer.RETRY, title="try again", detail="reads the script as it is now"),
    Choice(value=LastAnswer.AGAIN, title="try again", detail="writes the same files"),
    Choice(value=LastAnswer.FOLDER, title="use another folder", detail="keeps all your answers"),
    Choice(value=LastAnswer.WRITE, title="only write the files"),
    _CHANGE,
    Choice(value=LastAnswer.SCRIPT, title="take another script", detail="keeps the other answers"),
    _STOP,
)


def ask_refused(
    person: Person,
    error: ZerowizError,
    offers: Collection[LastAnswer],
    *,
    config_path: str | None = None,
    can_go_back: bool = True,
) -> LastAnswer | Back:
    """What the person wants after a refusal, which is shown with its hints.

    Args:
        person: Answers.
        error: The refusal.
        offers: What can be done about it.
        config_path: What `WRITE` writes.
        can_go_back: Whether there is a question before.
    """
    person.tell([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)])
    listed = [each for each in _OFFERS if each.value in offers]
    # To try again would help no job that is too big.
    changes = isinstance(error, NothingFitsError) and LastAnswer.CHANGE in offers
    question = Question(
        key="refused",
        flag="$yes",
        text="What do you want to do?",
        why="Your answers are kept; you can edit a file in another window, and try again.",
        kind=AnswerKind.CHOICE,
        default=LastAnswer.CHANGE if changes else listed[0].value,
        choices=tuple(
            replace(each, detail=f"writes {config_path}")
            if each.value == LastAnswer.WRITE
            else each
            for each in listed
        ),
    )
    answer = person.ask(question, can_go_back=can_go_back)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


_LINES_LOST = "The lines above with a minus are in the file now, those with a plus would be."


def ask_loss(person: Person, paths: tuple[str, ...], *, is_shown: bool) -> Kept | Back:
    """What becomes of files with contents that zerowiz did not write.

    Args:
        person: Answers.
        paths: Of the files.
        is_shown: Whether the lines that would be lost stand above.
    """
    one = len(paths) == 1
    exists, them = ("exists", "it") if one else ("exist", "them")
    question = Question(
        key="overwrite",
        flag="$force",
        text=f"{' and '.join(paths)} {exists}, and not as zerowiz wrote {them}. Overwrite {them}?",
        why=_LINES_LOST if is_shown else "",
        kind=AnswerKind.CHOICE,
        default=Kept.FOLDER,
        choices=(
            Choice(
                value=Kept.FOLDER,
                title="no, use another folder",
                detail=f"keeps {them}, and asks where the new files go",
            ),
            Choice(
                value=Kept.OVERWRITE, title="yes, overwrite", detail=f"what is in {them} is lost"
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
    free = (str((before or Path()) / name) for name in names)
    question = Question(
        key="folder",
        flag="$output_dir",
        text="Which folder?",
        why="The config and its plan are written there; your script stays where it is.",
        default=next((name for name in free if not Path(name).exists()), None),
        kind=AnswerKind.PATH,
    )
    return person.ask(question)
