"""The wizard's questions, as data: each has a flag, and what is known is not asked."""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.errors import AnswerNeededError


class Question(Struct, frozen=True, kw_only=True):
    """One thing that could not be detected."""

    key: str
    """The option's name in Python: `micro_batch`."""
    flag: str
    """How to answer on the command line: a setting's name after a dollar sign, or an argument."""
    text: str
    default: str | None = None
    """None: somebody has to say."""
    choices: tuple[str, ...] = ()
    counts: bool = False
    """Whether the answer is a positive whole number."""

    def problem(self, answer: str) -> str | None:
        """Why this answer cannot be taken, or None."""
        if self.counts and (not answer.isdecimal() or int(answer) < 1):
            return "a whole number from 1 on"
        if self.choices and answer not in self.choices:
            return f"one of {', '.join(self.choices)}"
        return None if answer.strip() else "an answer is needed"


# Rule: the order is the order of asking; a question is asked when its key has no answer.
QUESTIONS: tuple[Question, ...] = (
    Question(
        key="machine",
        flag="$machine",
        text="No GPU is visible here. Plan for which machine? (such as 4xA100-40GB, or cpu)",
    ),
    Question(
        key="script",
        flag="SCRIPT",
        text="Which training script?",
        default="train.py",
    ),
    Question(
        key="model",
        flag="$model",
        text="Which model? (a folder with config.json, a hub id, or a size like 7b)",
    ),
    Question(
        key="micro_batch",
        flag="$micro_batch",
        text="How many sequences per GPU at a time?",
        default="1",
        counts=True,
    ),
    Question(
        key="sequence_tokens",
        flag="$sequence_tokens",
        text="How many tokens per sequence?",
        default="2048",
        counts=True,
    ),
    Question(
        key="gradient_checkpointing",
        flag="$gradient_checkpointing",
        text="Does the script use gradient checkpointing?",
        default="no",
        choices=("no", "yes"),
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
