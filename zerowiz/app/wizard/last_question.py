"""The last question of the wizard, and the one after a refusal: what becomes of the answers."""

from enum import StrEnum

from zerowiz.app.ask.person import Person
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question, confirmation
from zerowiz.core.values import replace
from zerowiz.errors import ZerowizError


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
    STOP = "stop"


_CHANGE = Choice(
    value=LastAnswer.CHANGE, title="change something", detail="keeps the other answers"
)
_STOP = Choice(value=LastAnswer.STOP, title="stop here", detail="writes nothing")
_WHY = {
    True: "This machine can train it; your script gets the config as the plan says.",
    False: "This machine does not train it: the files and the command are for the one that does.",
}


def ask_last(
    person: Person,
    config_path: str,
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
        why=_WHY[can_launch],
        kind=AnswerKind.CHOICE,
        default=chosen,
        choices=tuple(choice for choice in choices if choice.value not in left_out),
    )
    answer = person.ask(question, can_go_back=can_go_back)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


def ask_refused(
    person: Person,
    error: ZerowizError,
    *,
    config_path: str | None = None,
    can_change: bool,
    can_go_back: bool,
) -> LastAnswer | Back:
    """What the person wants after a refusal, which is shown with its hints.

    Args:
        person: Answers.
        error: The refusal.
        config_path: What can be written all the same; None where nothing can.
        can_change: Whether there are answers that could be others.
        can_go_back: Whether there is a question before.
    """
    person.tell([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)])
    retry = Choice(
        value=LastAnswer.RETRY, title="try again", detail="reads the script as it is now"
    )
    write = Choice(
        value=LastAnswer.WRITE, title="only write the files", detail=f"writes {config_path}"
    )
    script = Choice(
        value=LastAnswer.SCRIPT, title="take another script", detail="keeps the other answers"
    )
    question = Question(
        key="refused",
        flag="$yes",
        text="What do you want to do?",
        why="Your answers are kept; you can edit a file in another window, and try again.",
        kind=AnswerKind.CHOICE,
        default=LastAnswer.RETRY,
        choices=(
            retry,
            *((write,) if config_path else ()),
            *((_CHANGE,) if can_change else ()),
            script,
            _STOP,
        ),
    )
    answer = person.ask(question, can_go_back=can_go_back)
    return answer if isinstance(answer, Back) else LastAnswer(answer)


def confirms_loss(person: Person, paths: tuple[str, ...]) -> bool:
    """Whether what somebody changed by hand may be overwritten; going back is a no."""
    were = "was" if len(paths) == 1 else "were"
    them = "it" if len(paths) == 1 else "them"
    text = f"{' and '.join(paths)} {were} changed by hand; overwrite {them}?"
    question = replace(
        confirmation("overwrite", text, default=False),
        why="The lines above with a minus are in the file now, those with a plus would be.",
    )
    return person.ask(question) == "yes"
