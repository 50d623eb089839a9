"""Ask what neither an option, nor the script, nor a config of the person's own says."""

from collections.abc import Callable

from zerowiz.app.options import Options
from zerowiz.app.resolve.request import own_config
from zerowiz.app.resolve.workload import solves_micro_batch
from zerowiz.core.decision.questions import AnswerKind, Question, next_question
from zerowiz.core.script import ScriptSettings
from zerowiz.core.values import replace
from zerowiz.errors import UsageError

Ask = Callable[[Question], str]
"""How an open question gets its answer: from a person, or from its default."""


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
        "model": options.model or settings.model,
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
            else str(options.gradient_checkpointing)
        ),
    }
    return {key: None if value is None else str(value) for key, value in known.items()}


def answer(options: Options, answers: dict[str, str | None], ask: Ask) -> Options:
    """Ask what is open, in order, and return the options with the answers in them."""
    given: dict[str, object] = {}
    while (question := next_question(answers)) is not None:
        text = ask(question)
        answers[question.key] = text
        given[question.key] = int(text) if question.kind is AnswerKind.COUNT else text
    if "gradient_checkpointing" in given:
        given["gradient_checkpointing"] = given["gradient_checkpointing"] == "yes"
    return replace(options, **given) if given else options  # type: ignore[arg-type]
