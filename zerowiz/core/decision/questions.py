"""The wizard's questions, as data: each has a flag, and what is known is not asked."""

from collections.abc import Mapping
from enum import Enum, StrEnum

from msgspec import Struct

from zerowiz.errors import AnswerNeededError


class AnswerKind(StrEnum):
    """How a question is answered."""

    TEXT = "text"
    COUNT = "count"
    """A positive whole number."""
    PATH = "path"
    """Of a file or a folder; Tab completes it."""
    CHOICE = "choice"
    """One of the choices, from a menu."""
    CONFIRM = "confirm"
    """`yes` or `no`."""


class Back(Enum):
    """What a person answers who goes back to the question before."""

    BACK = "back"


class Choice(Struct, frozen=True, kw_only=True):
    """A line of a menu."""

    value: str
    """The answer, if it is taken."""
    title: str
    detail: str = ""
    """What it means, in a few words beside the title."""


class Question(Struct, frozen=True, kw_only=True):
    """One thing that could not be detected."""

    key: str
    """The option's name in Python: `micro_batch`."""
    flag: str
    """How to answer on the command line: a setting's name after a dollar sign, or an argument."""
    text: str
    why: str = ""
    """One line: why it is asked."""
    more: str = ""
    """What `?` shows."""
    default: str | None = None
    """None: somebody has to say."""
    choices: tuple[Choice, ...] = ()
    kind: AnswerKind = AnswerKind.TEXT

    def problem(self, answer: str) -> str | None:
        """Why this answer cannot be taken, or None."""
        values = [choice.value for choice in self.choices]
        match self.kind:
            case AnswerKind.COUNT if not answer.isdecimal() or int(answer) < 1:
                return "a whole number from 1 on"
            case AnswerKind.CHOICE if answer not in values:
                return f"one of {', '.join(values)}"
            case AnswerKind.CONFIRM if answer not in {"yes", "no"}:
                return "yes or no"
            case _:
                return None if answer.strip() else "an answer is needed"


def confirmation(key: str, text: str, *, default: bool = True) -> Question:
    """A yes or no that belongs to no setting."""
    return Question(
        key=key, flag="$yes", text=text, kind=AnswerKind.CONFIRM, default="yes" if default else "no"
    )


# Rule: the order is the order of asking; a question is asked when its key has no answer.
QUESTIONS: tuple[Question, ...] = (
    Question(
        key="machine",
        flag="$machine",
        text="No GPU is visible here. Plan for which machine? (such as 4xA100-40GB, or cpu)",
        why="A plan needs no GPU here, only to know which ones the job will run on.",
    ),
    Question(
        key="script",
        flag="SCRIPT",
        text="Which training script?",
        why="It is read, never run: how it takes a config, its batch, its precision.",
        default="train.py",
        kind=AnswerKind.PATH,
    ),
    Question(
        key="model",
        flag="$model",
        text="Which model? (a folder with config.json, a hub id, or a size like 7b)",
        why="Its shape decides what every GPU has to hold; weights are not downloaded.",
        kind=AnswerKind.PATH,
    ),
    Question(
        key="micro_batch",
        flag="$micro_batch",
        text="How many sequences per GPU at a time?",
        why="Activations grow with it; gradient accumulation makes up for a small one.",
        default="1",
        kind=AnswerKind.COUNT,
    ),
    Question(
        key="sequence_tokens",
        flag="$sequence_tokens",
        text="How many tokens per sequence?",
        why="The longest sequence that the script feeds; activations grow with it.",
        default="2048",
        kind=AnswerKind.COUNT,
    ),
    Question(
        key="gradient_checkpointing",
        flag="$gradient_checkpointing",
        text="Does the script use gradient checkpointing?",
        why="It recomputes activations instead of keeping them.",
        default="no",
        kind=AnswerKind.CHOICE,
        choices=(Choice(value="no", title="no"), Choice(value="yes", title="yes")),
    ),
)


def next_question(answers: Mapping[str, str | None]) -> Question | None:
    """The first question that `answers` leaves open.

    Args:
        answers: By key: text when known, None when open; a key that is absent does not matter
            to this command and is not asked.
    """
    return next((q for q in QUESTIONS if q.key in answers and answers[q.key] is None), None)


def answer_or_default(question: Question) -> str:
    """The answer when nobody can be asked.

    Raises:
        AnswerNeededError: There is no default; the error names the flag.
    """
    if question.default is None:
        flag = question.flag
        raise AnswerNeededError(
            f"an answer is missing, and nobody is asked here: {question.text}",
            f"say it with `{flag}`",
        )
    return question.default
