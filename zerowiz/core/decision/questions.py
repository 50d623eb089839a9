"""The wizard's questions, as data: each has a flag, and what is known is not asked."""

import re
from collections.abc import Collection, Mapping
from enum import Enum, StrEnum

from msgspec import Struct

from zerowiz.core.settings import Change
from zerowiz.core.structs import replace
from zerowiz.core.units import read_count
from zerowiz.core.workload import ATTENTION_ROWS, OPTIMIZERS, PRECISIONS, Loop
from zerowiz.errors import AnswerNeededError
from zerowiz.translation import N_


class Template(Struct, frozen=True, kw_only=True):
    """One of them; it lies in a folder with a small model, a text and `portable_checkpoint`."""

    loop: Loop
    """What takes its steps."""
    script: str
    """The name of its file."""
    title: str
    """What a menu calls it."""
    about: str
    """What it is for."""


TEMPLATES = (
    Template(
        loop=Loop.TRAINER,
        script="train_hf.py",
        title=N_("a template for the Trainer"),
        about=N_("the Trainer of transformers, with every option of TrainingArguments"),
    ),
    Template(
        loop=Loop.ENGINE,
        script="train_deepspeed.py",
        title=N_("a template without the Trainer"),
        about=N_("a plain loop over the engine of deepspeed.initialize, to change as you like"),
    ),
)
"""The first one is the default."""


def template_of(loop: Loop) -> Template:
    """The template whose steps are taken so.

    Example:
        >>> template_of(Loop.ENGINE).script
        'train_deepspeed.py'
    """
    return next(template for template in TEMPLATES if template.loop is loop)


# What a person answered, in order, so that they can go back and change one thing.

# What an answer decides besides the setting of its own name.
_BATCH = ("micro_batch", "accumulation_steps", "global_batch")
_DECIDES: Mapping[str, tuple[str, ...]] = {
    "goal": _BATCH,
    "micro_batch": _BATCH,
    "global_batch": ("accumulation_steps",),
}


class Answers(Struct, frozen=True, kw_only=True):
    """The answers of one conversation, by the keys of their questions.

    Example:
        >>> answers = Answers().with_answer("model", "7b").with_answer("goal", "own")
        >>> answers.back().given
        (('model', '7b'),)
        >>> answers.back().before["goal"]
        'own'
        >>> remedied = answers.taking({"precision": "bf16", "sequence_tokens": 1024})
        >>> remedied.with_answer("sequence_tokens", "512").settings
        {'precision': 'bf16'}
    """

    given: tuple[tuple[str, str], ...] = ()
    """The latest is the last: that is where going back leads."""
    before: Mapping[str, str] = {}
    """What was answered before it was taken back: the default when it is asked again."""
    taken: tuple[Change, ...] = ()
    """The remedies that were taken, in order; each holds until an answer says otherwise."""

    @property
    def by_key(self) -> dict[str, str]:
        """The answers."""
        return dict(self.given)

    @property
    def settings(self) -> dict[str, int | str | bool]:
        """What the remedies set."""
        return {name: value for change in self.taken for name, value in change.items()}

    def with_answer(self, key: str, answer: str) -> "Answers":
        """With an answer, in the place of an earlier one to the same question, and of a remedy."""
        given = {**self.by_key, key: answer}
        decided = {key, *_DECIDES.get(key, ())}
        kept = ({k: v for k, v in change.items() if k not in decided} for change in self.taken)
        return replace(
            self, given=tuple(given.items()), taken=tuple(change for change in kept if change)
        )

    def taking(self, *changes: Change) -> "Answers":
        """With remedies that were taken after these."""
        return replace(self, taken=(*self.taken, *changes))

    def without_taken(self, index: int) -> "Answers":
        """Without one of the remedies."""
        return replace(self, taken=(*self.taken[:index], *self.taken[index + 1 :]))

    def back(self) -> "Answers":
        """Without the latest answer, which is remembered."""
        *given, (key, answer) = self.given
        return replace(self, given=tuple(given), before={**self.before, key: answer})

    def only(self, keys: Collection[str]) -> "Answers":
        """Without what does not matter any more, which is remembered as well."""
        kept = tuple(answer for answer in self.given if answer[0] in keys)
        return replace(self, given=kept, before={**self.before, **self.by_key})


_RATE = r"(?ai)(\d+\.?\d*|\.\d+)(e-?\d{1,2})?"


class AnswerKind(StrEnum):
    """How a question is answered."""

    TEXT = "text"
    COUNT = "count"
    """A positive whole number."""
    RATE = "rate"
    """A positive number: `6e-4`."""
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
    heading: str = ""
    """What the columns of the choices are."""
    kind: AnswerKind = AnswerKind.TEXT
    only_if: tuple[str, str] | None = None
    """Asked only where the question of this key, if it matters, has this answer."""

    def problem(self, answer: str) -> str | None:
        """Why this answer cannot be taken, or None."""
        values = [choice.value for choice in self.choices]
        match self.kind:
            case AnswerKind.COUNT if (read_count(answer) or 0) < 1:
                return N_("a whole number from 1 on")
            case AnswerKind.RATE if not re.fullmatch(_RATE, answer) or not float(answer):
                return N_("a number such as 5e-5")
            case AnswerKind.CHOICE if answer not in values:
                return f"one of {', '.join(values)}"
            case AnswerKind.CONFIRM if answer not in {"yes", "no"}:
                return N_("yes or no")
            case _:
                return None if answer.strip() else N_("an answer is needed")


OWN_MICRO_BATCH = "own"
"""The goal of who says the micro-batch."""
NO_SCRIPT = N_("no script")
"""The script of who wants a config alone."""
NO_BASE = "no"
"""The base of who wants all of the config from zerowiz."""
TEMPLATE = "template: "
"""What stands before the name of a script that is to be copied here, as an answer."""

# Rule: the order is the order of asking; a question is asked when its key has no answer.
QUESTIONS: tuple[Question, ...] = (
    Question(
        key="machine",
        flag="$machine",
        text=N_("Plan for which machine?"),
        why=N_("No GPU is visible here: choose the machine that the job will run on, or name it."),
        more=N_(
            "Write COUNTxNAME (8xH100-80GB-SXM), the name of a cloud instance (2xp5.48xlarge), a"
            " file that `zerowiz machine --save` wrote on the other machine, or cpu for this one."
        ),
    ),
    Question(
        key="script",
        flag="SCRIPT",
        text=N_("Which training script?"),
        why=N_(
            "zerowiz reads its batch, its precision and how it gets a config. It never "
            "runs the script."
        ),
        more=N_(
            "Your script stays as it is. The menu has the scripts here that train with the"
            " Trainer, with DeepSpeed or with Accelerate; you can type the path of any other. A"
            " template is copied into this folder, with a small model and a text, and trains"
            " as it is;"
            " no file of yours is overwritten."
        ),
        default="train.py",
        kind=AnswerKind.PATH,
        choices=(
            *(
                Choice(
                    value=f"{TEMPLATE}{template.script}",
                    title=template.title,
                    detail=f"copies {template.script}, which trains new weights on a small text",
                )
                for template in TEMPLATES
            ),
            Choice(
                value=NO_SCRIPT, title=N_(NO_SCRIPT), detail=N_("only writes a config, for later")
            ),
        ),
    ),
    Question(
        key="config",
        flag="$config",
        text=N_("Build on your own config?"),
        why=N_("zerowiz replaces ZeRO and the batch, in a new file, and keeps all else."),
        more=N_("Your file stays as it is. `$config FILE` alone runs it unchanged."),
        default=NO_BASE,
        kind=AnswerKind.CHOICE,
        choices=(Choice(value=NO_BASE, title="no", detail=N_("zerowiz writes all of it")),),
    ),
    Question(
        key="model",
        flag="$model",
        text=N_("Which model? (a folder, a hub id, or a size like 7b)"),
        why=N_("zerowiz reads the shape of the model. It does not download the weights."),
        more=N_(
            "A folder has a config.json. Of a hub id, config.json is fetched if it is not in the"
            " cache of Hugging Face, and zerowiz knows the models of the menu offline. A size is"
            " enough to plan."
        ),
        kind=AnswerKind.PATH,
    ),
    Question(
        key="method",
        flag="$method",
        text=N_("Which parameters does it train?"),
        why=N_("Your script does not decide this. Adapters need much less memory."),
        more=N_(
            "LoRA trains small matrices beside frozen weights. QLoRA keeps those weights in 4"
            " bits: least memory, slower steps."
        ),
        default="full",
        kind=AnswerKind.CHOICE,
        choices=(
            Choice(value="full", title=N_("all of them"), detail=N_("full fine-tuning")),
            Choice(value="lora", title="LoRA", detail=N_("adapters beside frozen 16-bit weights")),
            Choice(value="qlora", title="QLoRA", detail=N_("adapters beside frozen 4-bit weights")),
        ),
    ),
    Question(
        key="goal",
        flag="$objective",
        text=N_("What is your goal?"),
        why=N_("Your script does not set how many sequences a rank trains at a time."),
        more=N_(
            "The first two keep your global batch, so the job learns the same; so does your own"
            " micro-batch, if your script sets a batch. The global batch is micro-batch times"
            " accumulation steps times ranks."
        ),
        default="flowchart",
        kind=AnswerKind.CHOICE,
        choices=(
            Choice(
                value="flowchart",
                title="recommended",
                detail=N_("the ZeRO stage of the flowchart with its fastest micro-batch"),
            ),
            Choice(
                value="fastest",
                title="fastest",
                detail=N_("the stage and the micro-batch with the shortest step"),
            ),
            Choice(
                value=OWN_MICRO_BATCH,
                title=N_("my own micro-batch"),
                detail=N_("you set it in the next question"),
            ),
        ),
    ),
    Question(
        key="micro_batch",
        flag="$micro_batch",
        text=N_("How many sequences per rank at a time?"),
        why=N_("A larger micro-batch needs more memory, and makes the global batch larger."),
        default="1",
        kind=AnswerKind.COUNT,
        only_if=("goal", OWN_MICRO_BATCH),
    ),
    Question(
        key="sequence_tokens",
        flag="$sequence_tokens",
        text=N_("How many tokens per sequence?"),
        why=N_("The longest sequence in your data. Longer sequences need more memory."),
        default="2048",
        kind=AnswerKind.COUNT,
    ),
    Question(
        key="precision",
        flag="$precision",
        text=N_("Which precision?"),
        why=N_("The precision decides how many bytes a weight has, and how fast a GPU computes."),
        kind=AnswerKind.CHOICE,
        choices=tuple(
            Choice(value=name.value, title=name.value, detail=row.detail)
            for name, row in PRECISIONS.items()
        ),
    ),
    Question(
        key="lr",
        flag="$lr",
        text=N_("Which learning rate?"),
        why=N_("Your script passes no optimizer to DeepSpeed: its config makes one."),
        more=N_(
            "zerowiz found none in your script. Fine-tuning often takes 1e-5 to 5e-5, training from"
            " scratch 1e-4 to 1e-3. There are options for weight decay, warm-up and clipping, too."
        ),
        kind=AnswerKind.RATE,
    ),
    Question(
        key="gradient_checkpointing",
        flag="$gradient_checkpointing",
        text=N_("Does the job use gradient checkpointing?"),
        why=N_("Gradient checkpointing recomputes activations instead of keeping them."),
        default="no",
        kind=AnswerKind.CHOICE,
        choices=(Choice(value="no", title="no"), Choice(value="yes", title="yes")),
    ),
)

STRATEGY = Question(
    key="strategy",
    flag="$stage",
    text=N_("Which strategy?"),
    more=N_(
        "needs is what a rank holds at its peak, free what is left of the budget. A strategy that"
        " does not fit can be chosen, too: the next menu then has what would help."
    ),
    kind=AnswerKind.CHOICE,
)
"""Asked at the end, with each strategy of the plan as a choice."""
CHANGEABLE: tuple[Question, ...] = (
    STRATEGY,
    *(question for question in QUESTIONS if question.key not in {"script", "config", "goal", "lr"}),
    Question(
        key="global_batch",
        flag="$global_batch",
        text=N_("How many sequences per optimizer step, on all ranks together?"),
        why=N_(
            "The global batch is micro-batch times accumulation steps times ranks. It changes what"
            " is learned."
        ),
        kind=AnswerKind.COUNT,
    ),
    Question(
        key="optimizer",
        flag="$optimizer",
        text=N_("Which optimizer?"),
        why=N_("The optimizer decides how many states each trained parameter has."),
        kind=AnswerKind.CHOICE,
        choices=tuple(
            Choice(value=name.value, title=row.title, detail=row.detail)
            for name, row in OPTIMIZERS.items()
        ),
    ),
    Question(
        key="attention",
        flag="$attention",
        text=N_("Which attention kernel?"),
        why=N_("Long sequences need a kernel that keeps no scores of all pairs of tokens."),
        kind=AnswerKind.CHOICE,
        choices=tuple(
            Choice(value=attention.value, title=attention.value, detail=row.detail)
            for attention, row in ATTENTION_ROWS.items()
        ),
    ),
    Question(
        key="sequence_parallel",
        flag="$sequence_parallel",
        text=N_("How many GPUs share each sequence?"),
        why=N_(
            "Each of them holds a part of its tokens: the way to train sequences that do not fit."
        ),
        more=N_(
            "It is 1, or divides the GPUs of a node, the attention heads and the length. The global"
            " batch stays. Your batches need `position_ids`."
        ),
        kind=AnswerKind.COUNT,
    ),
)
"""What a person may change of a plan at its end, which has a value of each.

Nobody is asked those that are none of QUESTIONS.
"""
DELIVERY = Question(
    key="config_via",
    flag="$config_via",
    text=N_("How does the script get its config?"),
    why=N_("zerowiz cannot see it in the script."),
    kind=AnswerKind.PATH,
    default="env",
    choices=(
        Choice(value="env", title="env", detail=N_("a bare Accelerator(), or Lightning")),
        Choice(
            value="flag:deepspeed_config",
            title="flag:NAME",
            detail=N_("an option of the script"),
        ),
        Choice(value="file:ds_config.json", title="file:PATH", detail=N_("a file that it reads")),
        Choice(value="none", title="none", detail=N_("it keeps its own")),
    ),
)
"""What is asked where a script takes no config that zerowiz can see."""
ALL_QUESTIONS = (
    STRATEGY,
    *QUESTIONS,
    *(question for question in CHANGEABLE if question not in (STRATEGY, *QUESTIONS)),
)
"""All that a person can answer, by the order of the menu in which they are changed."""


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


# `Launch now?` and what follows it is one of them.
_MOST_QUESTIONS = 5
# What has a default that is right for most, the one that is missed least first.
_SPARED = ("goal", "precision", "method")


def spare(
    known: Mapping[str, str | None], given: Collection[str], defaults: Mapping[str, str]
) -> dict[str, str | None]:
    """The answers, with defaults for what would make a conversation too long.

    They can be changed at its end.

    Args:
        known: By key, as of `next_question`.
        given: The keys that the person has answered.
        defaults: By key, where it is not that of the question.

    Example:
        >>> known = dict.fromkeys(("machine", "script", "model", "goal", "sequence_tokens"))
        >>> spare(known, (), {})["goal"]
        'flowchart'
        >>> spare(known | {"machine": "8xH100"}, (), {})["goal"] is None
        True
    """
    spared = dict(known)
    for question in (q for key in _SPARED for q in QUESTIONS if q.key == key):
        asked = {
            q.key for q in QUESTIONS if is_relevant(q, spared) and spared[q.key] is None
        } | set(given)
        is_asked = question.key in asked and question.key not in given
        if is_asked and len(asked) + 1 > _MOST_QUESTIONS:
            spared[question.key] = defaults.get(question.key, question.default)
    return spared


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
