"""Ask what neither an option, nor the script, nor a config of the person's own says."""

from typing import Protocol

from zerowiz.app.options import Options
from zerowiz.app.resolve.built_model import made_for
from zerowiz.app.resolve.request import own_config
from zerowiz.app.resolve.workload import solves_micro_batch
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import (
    QUESTIONS,
    AnswerKind,
    Back,
    Question,
    answer_or_default,
    next_question,
)
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.values import replace
from zerowiz.errors import AnswerNeededError, UsageError
from zerowiz.words import _

_BUILT = _(
    "a script that builds its model itself can write a folder for `$model` once: "
    '`model.config.save_pretrained("my-model")`'
)

_HIDDEN = _("zerowiz cannot read {code}, which decides the size of the model")


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
            hidden = settings.hidden_size
            seen = (_HIDDEN.format(code=hidden),) if hidden else _own_size(settings)
            raise AnswerNeededError(error.message, *seen, *error.hints, _BUILT) from None

    return of_script


def _own_size(settings: ScriptSettings) -> tuple[str, ...]:
    """How large a GPT of the sizes is that the script has for its own model."""
    own = settings.own_model
    if own is None:
        return ()
    return (
        _(
            "{source}: a GPT of {layers} layers x {width} with a vocabulary of {vocabulary} is "
            "`$model {size}m`",
            source=own.source,
            layers=own.layers,
            width=own.hidden_size,
            vocabulary=own.vocab_size,
            size=max(1, round(own.parameters / 10**6)),
        ),
    )


def said_by_config(options: Options) -> frozenset[str]:
    """The options, by name, that a config of the person's own decides.

    Of one that cannot be read: none; what is wrong with it is said where it is checked.
    """
    if options.config is None:
        return frozenset()
    try:
        own = own_config(options)
    except UsageError:
        return frozenset()
    whole, steps = own.train_batch_size, own.accumulation_steps
    values = {
        "stage": own.stage,
        "offload": own.offload,
        "micro_batch": own.micro_batch or whole,
        "accumulation_steps": steps or whole,
        "global_batch": steps or whole,
        "precision": own.precision,
        "torch_autocast": own.torch_autocast,
        "optimizer_state_dtype": own.state_dtype,
    }
    return frozenset(name for name, value in values.items() if value is not None)


def open_questions(options: Options, settings: ScriptSettings) -> dict[str, str | None]:
    """The answers by key, None where neither an option, nor the script, nor a config says."""
    known: dict[str, object] = {
        "model": options.model or settings.model or made_for(None, settings),
        "micro_batch": (
            options.micro_batch
            or settings.micro_batch
            or ("micro_batch" in said_by_config(options) or None)
            or (solves_micro_batch(options, settings) or None)
        ),
        "sequence_tokens": options.sequence_tokens or settings.sequence_tokens,
        "gradient_checkpointing": (
            settings.gradient_checkpointing
            if options.gradient_checkpointing is None
            else ("yes" if options.gradient_checkpointing else "no")
        ),
    }
    return {key: None if value is None else str(value) for key, value in known.items()}


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
    return replace(options, **given) if given else options  # type: ignore[arg-type]


def as_value(question: Question, text: str) -> str | int | bool:
    """An answer as the setting's value."""
    if question.key == "gradient_checkpointing":
        return text == "yes"
    return int(text) if question.kind is AnswerKind.COUNT else text
