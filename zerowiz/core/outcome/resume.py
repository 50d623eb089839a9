"""Decide from where a restarted script resumes, and with which arguments."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.script.options import SWITCHES, Takes
from zerowiz.core.script.said import read_said
from zerowiz.core.strategy import Offload, Strategy


class ResumeFrom(StrEnum):
    """From where a restarted script resumes."""

    CHECKPOINT = "checkpoint"
    """Weights, optimizer, schedule and step."""
    WEIGHTS = "weights"
    """Its saved weights, with a new optimizer and schedule."""
    START = "start"
    """From nothing: it saved nothing that the new strategy can load."""


class Saved(Struct, frozen=True, kw_only=True):
    """The checkpoints in the script's output folder; None if there is none of a kind."""

    portable: str | None = None
    """The newest one of `portable_checkpoint`, which loads at every stage."""
    engine: str | None = None
    """The newest one of the Trainer with DeepSpeed's own state."""
    weights: str | None = None
    """The newest one of the Trainer with whole weights."""


class Resume(Struct, frozen=True, kw_only=True):
    """How a script is started again."""

    resume_from: ResumeFrom
    script_args: tuple[str, ...]
    path: str | None = None
    """Of the checkpoint."""


RESUME = "--resume"
"""The switch by which a script of the templates resumes from its newest checkpoint."""
_RESUME_FROM = "--resume_from_checkpoint"
# deepspeed 0.19.8, runtime/engine.py, load_checkpoint: a state of one of these stages loads at the
# other; from 2 to 3 and from 0 to 2 it raises.
_LOADS_EACH_OTHER = frozenset({1, 2})


def output_folder(facts: ScriptFacts, script_args: Sequence[str]) -> str | None:
    """The folder that the script saves to, by its options; None where they do not name one."""
    given = read_said(facts, tuple(script_args)).get("output_dir")
    if given is not None:
        return given.value if isinstance(given.value, str) else None
    defaults = [option.default for option in facts.parser.of("output_dir")]
    return next((each for each in defaults if isinstance(each, str)), None)


def resumed_checkpoint(facts: ScriptFacts, script_args: Sequence[str]) -> str | None:
    """The checkpoint that the script's options name to go on from; None where they name none."""
    given = read_said(facts, tuple(script_args)).get("resume_from_checkpoint")
    return given.value if given is not None and isinstance(given.value, str) else None


def plan_resume(
    facts: ScriptFacts,
    script_args: Sequence[str],
    saved: Saved,
    before: Strategy,
    after: Strategy,
) -> Resume:
    """How to start the script again with another strategy, keeping as much progress as possible.

    Args:
        facts: What the script shows.
        script_args: The words that it was started with.
        saved: The checkpoints in its output folder.
        before: The strategy that ran out of memory.
        after: The next strategy.
    """
    words = tuple(script_args)
    if facts.saves_portably and _is_switch(facts, RESUME):
        if saved.portable is None:
            return Resume(resume_from=ResumeFrom.START, script_args=words)
        again = words if _has_option(facts, words, RESUME) else (*words, RESUME)
        return Resume(resume_from=ResumeFrom.CHECKPOINT, script_args=again, path=saved.portable)
    trainer = facts.convention is Convention.HF_PARSER
    if trainer and saved.engine is not None and _loads(before, after):
        again = (*words, _RESUME_FROM, saved.engine)
        return Resume(resume_from=ResumeFrom.CHECKPOINT, script_args=again, path=saved.engine)
    flag = facts.model.flag
    if trainer and saved.weights is not None and flag is not None:
        again = (*words, flag, saved.weights)
        return Resume(resume_from=ResumeFrom.WEIGHTS, script_args=again, path=saved.weights)
    return Resume(resume_from=ResumeFrom.START, script_args=words)


def resumes(facts: ScriptFacts, script_args: Sequence[str]) -> bool:
    """Whether these words make the script resume from its newest portable checkpoint."""
    return facts.saves_portably and _has_option(facts, tuple(script_args), RESUME)


def _loads(before: Strategy, after: Strategy) -> bool:
    both = {before.stage, after.stage}
    return both <= _LOADS_EACH_OTHER and {before.offload, after.offload} == {Offload.NONE}


def _is_switch(facts: ScriptFacts, flag: str) -> bool:
    return any(
        option.takes in SWITCHES or option.takes is Takes.PERHAPS
        for option in facts.parser.find(flag)
    )


def _has_option(facts: ScriptFacts, words: tuple[str, ...], flag: str) -> bool:
    dests = {option.dest for option in facts.parser.find(flag)}
    return any(dest in read_said(facts, words) for dest in dests)
