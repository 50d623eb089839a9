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
    """What is proposed; of kind CHOICE, one of them is the answer."""
    kind: AnswerKind = AnswerKind.TEXT
    only_if: tuple[str, str] | None = None
    """Asked only where the question of this key, if it matters, has this answer."""

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


OWN_MICRO_BATCH = "own"
"""The goal of who says the micro-batch."""
NO_SCRIPT = "no script"
"""The script of who wants a config alone."""
TEMPLATE = "template: "
"""What stands before the name of a script that is to be copied here, as an answer."""

# Rule: the order is the order of asking; a question is asked when its key has no answer.
QUESTIONS: tuple[Question, ...] = (
    Question(
        key="machine",
        flag="$machine",
        text="Plan for which machine?",
        why="No GPU is visible here: choose the machine that the job will run on, or name it.",
        more="Write COUNTxNAME (8xH100-80GB-SXM), the name of a cloud instance (2xp5.48xlarge), a"
        " file that `zerowiz machine --save` wrote on the other machine, or cpu for this one.",
    ),
    Question(
        key="script",
        flag="SCRIPT",
        text="Which training script?",
        why="It is read, never run: how it takes a config, its batch, its precision.",
        more="Your script stays as it is. The menu has the scripts here that train with the"
        " Trainer, with DeepSpeed or with Accelerate; you can type the path of any other. A"
        " template is copied into this folder, with a small model and a text, and trains as it is;"
        " no file of yours is overwritten.",
        default="train.py",
        kind=AnswerKind.PATH,
        choices=(
            Choice(
                value=f"{TEMPLATE}train_hf.py",
                title="a template for the Trainer",
                detail="copies train_hf.py into this folder, ready to run",
            ),
            Choice(
                value=f"{TEMPLATE}train_deepspeed.py",
                title="a template without the Trainer",
                detail="copies train_deepspeed.py into this folder, ready to run",
            ),
            Choice(value=NO_SCRIPT, title=NO_SCRIPT, detail="only writes a config, for later"),
        ),
    ),
    Question(
        key="model",
        flag="$model",
        text="Which model? (a folder, a hub id, or a size like 7b)",
        why="Its shape decides how much memory the job needs; weights are not downloaded.",
        more="A folder has a config.json. Of a hub id, config.json is fetched if it is not in the"
        " cache of Hugging Face, and zerowiz knows the models of the menu offline. A size is"
        " enough to plan.",
        kind=AnswerKind.PATH,
    ),
    Question(
        key="method",
        flag="$method",
        text="Which parameters does it train?",
        why="The script leaves it open; adapters take a fraction of the memory.",
        more="LoRA trains small matrices beside frozen weights. QLoRA keeps those weights in 4"
        " bits: least memory, slower steps.",
        default="full",
        kind=AnswerKind.CHOICE,
        choices=(
            Choice(value="full", title="all of them", detail="full fine-tuning"),
            Choice(value="lora", title="LoRA", detail="adapters beside frozen 16-bit weights"),
            Choice(value="qlora", title="QLoRA", detail="adapters beside frozen 4-bit weights"),
        ),
    ),
    Question(
        key="goal",
        flag="$objective",
        text="What is your goal?",
        why="Your script leaves open how many sequences a rank takes at a time.",
        more="The first two keep your global batch, so the job learns the same. The global batch is"
        " micro-batch times accumulation steps times ranks.",
        default="flowchart",
        kind=AnswerKind.CHOICE,
        choices=(
            Choice(
                value="flowchart",
                title="recommended",
                detail="the ZeRO stage of the flowchart with its fastest micro-batch",
            ),
            Choice(
                value="fastest",
                title="fastest",
                detail="the stage and the micro-batch with the shortest step",
            ),
            Choice(
                value=OWN_MICRO_BATCH,
                title="my own micro-batch",
                detail="you set it in the next question",
            ),
        ),
    ),
    Question(
        key="micro_batch",
        flag="$micro_batch",
        text="How many sequences per rank at a time?",
        why="Activations grow with it; gradient accumulation makes up for a small one.",
        default="1",
        kind=AnswerKind.COUNT,
        only_if=("goal", OWN_MICRO_BATCH),
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


def is_relevant(question: Question, answers: Mapping[str, str | None]) -> bool:
    """Whether a question matters to a job with these answers, open or not."""
    if question.key not in answers:
        return False
    if question.only_if is None:
        return True
    other, wanted = question.only_if
    return answers.get(other, wanted) == wanted


def next_question(answers: Mapping[str, str | None]) -> Question | None:
    """The first question that `answers` leaves open.

    Args:
        answers: By key: text when known, None when open; a key that is absent does not matter
            to this command and is not asked.
    """
    return next((q for q in QUESTIONS if is_relevant(q, answers) and answers[q.key] is None), None)


def answer_or_default(question: Question) -> str:
    """The answer when nobody can be asked.

    Raises:
        AnswerNeededError: There is no default; the error names the flag.
    """
    if question.default is None:
        flag = question.flag
        raise AnswerNeededError(
            f"an answer is missing, and zerowiz cannot ask here: {question.text}",
            f"set it with `{flag}`",
        )
    return question.default
