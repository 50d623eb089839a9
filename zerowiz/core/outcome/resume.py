"""Say from where a restarted script goes on, and with which arguments."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.script import SWITCHES, Convention, ScriptFacts, Takes, read_words
from zerowiz.core.strategy import Offload, Strategy


class GoesOn(StrEnum):
    """From where a restarted script goes on."""

    CHECKPOINT = "checkpoint"
    """Weights, optimizer, schedule and step."""
    WEIGHTS = "weights"
    """Its saved weights, with a new optimizer and schedule."""
    START = "start"


class Saved(Struct, frozen=True, kw_only=True):
    """What the script's output folder holds; None where there is nothing of that kind."""

    portable: str | None = None
    """The newest checkpoint of `portable_checkpoint`, which loads at every stage."""
    engine: str | None = None
    """The newest of the Trainer's with DeepSpeed's own state in it."""
    weights: str | None = None
    """The newest of the Trainer's with whole weights in it."""


class Resume(Struct, frozen=True, kw_only=True):
    """How a script is started again."""

    goes_on: GoesOn
    script_args: tuple[str, ...]
    path: str | None = None


RESUME = "--resume"
"""The switch by which a script of the templates goes on from its newest checkpoint."""
_RESUME_FROM = "--resume_from_checkpoint"
# deepspeed 0.19.8, runtime/engine.py, load_checkpoint: a state that was saved at one of these
# loads at the other; from 2 to 3 and from 0 to 2 it raises.
_LOADS_EACH_OTHER = frozenset({1, 2})


def output_folder(facts: ScriptFacts, script_args: Sequence[str]) -> str | None:
    """The folder that the script saves to, where its options say so."""
    given = read_words(facts.parser, tuple(script_args)).get("output_dir")
    if given is not None:
        return given.value if isinstance(given.value, str) else None
    defaults = [option.default for option in facts.parser.of("output_dir")]
    return next((each for each in defaults if isinstance(each, str)), None)


def plan_resume(
    facts: ScriptFacts,
    script_args: Sequence[str],
    saved: Saved,
    before: Strategy,
    after: Strategy,
) -> Resume:
    """Start the script again under another strategy, with as much of its work as can be kept.

    Args:
        facts: What the script shows.
        script_args: The words that it was started with.
        saved: What its output folder holds.
        before: The strategy that failed.
        after: The one that comes next.
    """
    words = tuple(script_args)
    if facts.saves_portably and _is_switch(facts, RESUME):
        if saved.portable is None:
            return Resume(goes_on=GoesOn.START, script_args=words)
        again = words if _says(facts, words, RESUME) else (*words, RESUME)
        return Resume(goes_on=GoesOn.CHECKPOINT, script_args=again, path=saved.portable)
    trainer = facts.convention is Convention.HF_PARSER
    if trainer and saved.engine is not None and _loads(before, after):
        again = (*words, _RESUME_FROM, saved.engine)
        return Resume(goes_on=GoesOn.CHECKPOINT, script_args=again, path=saved.engine)
    flag = facts.model.flag
    if trainer and saved.weights is not None and flag is not None:
        again = (*words, flag, saved.weights)
        return Resume(goes_on=GoesOn.WEIGHTS, script_args=again, path=saved.weights)
    return Resume(goes_on=GoesOn.START, script_args=words)


def goes_on(facts: ScriptFacts, script_args: Sequence[str]) -> bool:
    """Whether the script itself was told to go on from its newest portable checkpoint."""
    return facts.saves_portably and _says(facts, tuple(script_args), RESUME)


def _loads(before: Strategy, after: Strategy) -> bool:
    both = {before.stage, after.stage}
    return both <= _LOADS_EACH_OTHER and {before.offload, after.offload} == {Offload.NONE}


def _is_switch(facts: ScriptFacts, flag: str) -> bool:
    return any(
        option.takes in SWITCHES or option.takes is Takes.PERHAPS
        for option in facts.parser.find(flag)
    )


def _says(facts: ScriptFacts, words: tuple[str, ...], flag: str) -> bool:
    dests = {option.dest for option in facts.parser.find(flag)}
    return any(dest in read_words(facts.parser, words) for dest in dests)
