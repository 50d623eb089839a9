"""Ask what neither an option, nor the script, nor a config of the person's own says."""

from collections.abc import Callable, Sequence
from typing import Protocol

from zerowiz.app.options import Options, with_plain
from zerowiz.app.resolve.resolved_job import own_config
from zerowiz.app.resolve.workload import solves_micro_batch
from zerowiz.core.decision.questions import (
    QUESTIONS,
    AnswerKind,
    Answers,
    Back,
    Question,
    answer_or_default,
    next_question,
)
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.core.settings import HYPERPARAMETERS
from zerowiz.core.structs import replace
from zerowiz.core.units import read_count
from zerowiz.errors import AnswerNeededError, UsageError
from zerowiz.translation import _


class Person(Protocol):
    """Answers questions at a terminal (`ui/prompt.py`)."""

    def ask(
        self,
        question: Question,
        *,
        check: Callable[[str], object] | None = None,
        consequence: Callable[[str], str] | None = None,
        can_go_back: bool = True,
    ) -> str | Back:
        """An answer that the question and `check` take, or that the person goes back.

        Args:
            question: What to ask; an empty answer means its default.
            check: Raises a ZerowizError for an answer that the world does not bear out; the
                question is then asked again.
            consequence: One line of plain text, at most 80 columns, of what an answer leads to; it
                is shown while the answer is typed or the choice is highlighted. Empty where the
                answer cannot be taken yet. Never raises; called often.
            can_go_back: Whether Esc answers `Back.BACK`; the first question goes nowhere.

        Raises:
            InterruptedByUserError: Ctrl-C, or the end of the input.
        """

    def tell(self, lines: Sequence[str]) -> None:
        """Lines of plain text, on stderr."""


_BUILT = _(
    "a script that builds its model itself can write a folder for `$model` once: "
    '`model.config.save_pretrained("my-model")`'
)


class Ask(Protocol):
    """How an open question gets its answer: from a person, or from its default."""

    def __call__(self, question: Question, *, can_go_back: bool) -> str | Back:
        """The answer, or that the person goes back."""


def by_default(question: Question, *, can_go_back: bool) -> str:
    """The answer where nobody can be asked.

    Raises:
        AnswerNeededError: There is no default.
    """
    del can_go_back
    return answer_or_default(question)


def by_default_of(settings: ScriptSettings | None) -> Ask:
    """The answer where nobody can be asked about a script; None for no script.

    An error for want of a default says how a model gets out of the script.
    """

    def of_script(question: Question, *, can_go_back: bool) -> str | Back:
        try:
            return by_default(question, can_go_back=can_go_back)
        except AnswerNeededError as error:
            if question.key != "model" or settings is None:
                raise
            raise AnswerNeededError(error.message, *error.hints, _BUILT) from None

    return of_script


def said_by_config(options: Options) -> frozenset[str]:
    """The options, by name, that a config of the person's own decides.

    Of one that cannot be read: none; what is wrong with it is said where it is checked.
    """
    if options.config is None:
        return frozenset()
    try:
        config = own_config(options)
    except UsageError:
        return frozenset()
    whole, steps = config.train_batch_size, config.accumulation_steps
    builds = config.base is None or "optimizer" in config.base
    values = {
        "stage": config.stage,
        "offload": config.offload,
        "micro_batch": config.micro_batch or whole,
        "accumulation_steps": steps or whole,
        "global_batch": steps or whole,
        "precision": config.precision,
        "torch_autocast": config.torch_autocast,
        "optimizer_state_dtype": config.state_dtype,
        **dict.fromkeys(HYPERPARAMETERS if builds else (), 0),
    }
    return frozenset(name for name, value in values.items() if value is not None)


def open_questions(options: Options, settings: ScriptSettings) -> dict[str, str | None]:
    """The answers by key, None where neither an option, nor the script, nor a config says."""
    by_config = said_by_config(options)
    known: dict[str, object] = {
        "model": options.model or settings.model_name,
        "micro_batch": (
            options.micro_batch
            or settings.micro_batch
            or ("micro_batch" in by_config or None)
            or (solves_micro_batch(options, settings) or None)
        ),
        "sequence_tokens": options.sequence_tokens or settings.sequence_tokens,
        "gradient_checkpointing": (
            settings.gradient_checkpointing
            if options.gradient_checkpointing is None
            else ("yes" if options.gradient_checkpointing else "no")
        ),
    }
    if "lr" in settings.by_config and "lr" not in by_config:
        known["lr"] = options.lr or settings.lr
    return {key: None if value is None else str(value) for key, value in known.items()}


def lacks_precision(options: Options, script: ScriptRun) -> bool:
    """Whether its Accelerator gets a precision that nobody names and zerowiz cannot follow.

    accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision: it refuses a config
    with another 16-bit format, and takes the config's where it was told "no".
    """
    by_script = script.facts.mixed_precision.code is not None
    is_open = by_script and "precision" in script.settings.unseen and options.precision is None
    return is_open and "precision" not in said_by_config(options)


def answer(options: Options, answers: dict[str, str | None], ask: Ask) -> Options:
    """Ask what is open, in order, and return the options with the answers in them.

    Args:
        options: What was said.
        answers: By key, as of `next_question`.
        ask: Gives an answer, or goes back to the question before, if there is one.
    """
    stack = Answers()
    while (question := next_question({**answers, **stack.by_key})) is not None:
        asked = replace(question, default=stack.before.get(question.key, question.default))
        text = ask(asked, can_go_back=bool(stack.given))
        stack = stack.back() if isinstance(text, Back) else stack.with_answer(question.key, text)
    given = {q.key: as_value(q, stack.by_key[q.key]) for q in QUESTIONS if q.key in stack.by_key}
    return with_plain(options, given)


def as_value(question: Question, text: str) -> str | float | bool:
    """An answer as the setting's value."""
    if question.key == "gradient_checkpointing":
        return text == "yes"
    if question.kind is AnswerKind.RATE:
        return float(text)
    return (read_count(text) or 0) if question.kind is AnswerKind.COUNT else text


# Somebody who can be asked.


def confirms(person: Person, question: Question) -> bool:
    """Whether the person says yes to a question that cannot be left by going back."""
    return person.ask(question, can_go_back=False) == "yes"
