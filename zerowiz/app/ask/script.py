"""Find the script of a job, read it, and answer what it leaves open."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import Ask, answer, by_default_of, open_questions
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.request import config_file
from zerowiz.core.decision.questions import Back, Question
from zerowiz.core.script.bindings import State
from zerowiz.core.script.config_via import with_config_via
from zerowiz.core.script.delivery import deliver
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings, settle
from zerowiz.core.strategies import ZERO2
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import SETTINGS
from zerowiz.errors import AnswerNeededError
from zerowiz.probe.launch.module_file import find_module_file
from zerowiz.probe.script.read import read_script
from zerowiz.words import _

DEFAULT_SCRIPT = "train.py"


class FoundScript(Struct, frozen=True, kw_only=True):
    """The script that is meant."""

    path: str
    """Of a module, its name."""
    is_module: bool = False
    script_args: tuple[str, ...] = ()


class ReadScript(Struct, frozen=True, kw_only=True):
    """A script that was read, the words after it, and all that is said of its job."""

    facts: ScriptFacts
    script_args: tuple[str, ...]
    options: Options


def find_script(
    script: str | None, script_args: Sequence[str], options: Options
) -> FoundScript | None:
    """The script that is meant; None where none is.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
    """
    if script is not None:
        is_module = options.module
        return FoundScript(path=script, is_module=is_module, script_args=tuple(script_args))
    return FoundScript(path=DEFAULT_SCRIPT) if Path(DEFAULT_SCRIPT).is_file() else None


def read_found(found: FoundScript, options: Options, reporter: Reporter) -> ReadScript:
    """Read a script, once it is sure that some config can reach it.

    Args:
        found: The script.
        options: What the person says.
        reporter: Hears what was kept of the script.

    Raises:
        ZerowizError: It cannot be read, or no config can reach it; nobody is asked anything then.
    """
    facts = read_named(found.path, found.script_args, is_module=found.is_module)
    options = recall_kept(found.path, options, reporter)
    facts = with_config_via(facts, options.config_via, options.integration)
    require_reachable(facts, found.script_args, options)
    return ReadScript(facts=facts, script_args=found.script_args, options=options)


def read_named(script: str, script_args: Sequence[str] = (), *, is_module: bool) -> ScriptFacts:
    """The facts of a script, or of the file of a module.

    Raises:
        ZerowizError: It cannot be read.
    """
    if not is_module:
        return read_script(Path(script), script_args)
    file = find_module_file(script, os.environ)
    # `python -m` imports from the working folder first.
    return replace(read_script(file, script_args, Path()), module=script)


def read_as_said(script: str, script_args: Sequence[str], options: Options) -> ScriptFacts:
    """As `read_named`, with what the person says of how a config reaches the script.

    Raises:
        ZerowizError: It cannot be read, or shows that this is not so.
    """
    facts = read_named(script, script_args, is_module=options.module)
    return with_config_via(facts, options.config_via, options.integration)


def said_after(settings: ScriptSettings) -> frozenset[str]:
    """The options of which the words after the script say something now."""
    named = {name: getattr(settings, name, None) for name in (*SETTINGS, "model")}
    said = {name for name, each in named.items() if each and each.state is State.SAID}
    batch = {"global_batch"} if said & {"micro_batch", "accumulation_steps"} else set()
    return frozenset(said | batch)


def require_reachable(facts: ScriptFacts, script_args: Sequence[str], options: Options) -> None:
    """See that some config can reach a script.

    Raises:
        ZerowizError: None can; nobody is asked anything then.
    """
    if facts.obstacle is not None:
        deliver(facts, tuple(script_args), config_file(options, ZERO2))


def _must_say(settings: ScriptSettings, facts: ScriptFacts) -> Ask:
    """Nobody is asked, and what the run is bound to is never guessed."""
    unseen = facts.micro_batch
    where = (
        ()
        if unseen.code is None
        else (
            _(
                "zerowiz did not follow `{code}` in {path} line {line}",
                code=unseen.code,
                path=facts.text_path,
                line=unseen.line,
            ),
        )
    )

    def ask(question: Question, *, can_go_back: bool) -> str | Back:
        if question.key == "micro_batch":
            raise AnswerNeededError(
                _("zerowiz cannot see the script's micro-batch, and cannot ask here"),
                *where,
                _("set it with `$micro_batch`"),
            )
        return by_default_of(settings)(question, can_go_back=can_go_back)

    return ask


def answer_for(
    options: Options, facts: ScriptFacts, script_args: Sequence[str], ask_person: Ask | None
) -> Options:
    """Close the open questions of this script: by a person, else by defaults where safe."""
    settings = settle(facts, tuple(script_args))
    answers = open_questions(options, settings)
    if ask_person is None:
        answers.pop("gradient_checkpointing")
        answers.pop("sequence_tokens")
    if facts.micro_batch.from_config:
        # The script asks the config, so zerowiz decides.
        answers["micro_batch"] = answers["micro_batch"] or "1"
    return answer(options, answers, ask_person or _must_say(settings, facts))
