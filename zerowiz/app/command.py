"""Understand what is typed after `launch`, and read the script."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask import Ask, Person, answer, by_default_of, lacks_precision, open_questions
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.resolve.model import check_model
from zerowiz.app.resolve.resolved_job import config_file, lr_needed
from zerowiz.app.resolve.workload import check_local_rank, check_words
from zerowiz.core import shell
from zerowiz.core.decision.questions import Back, Question
from zerowiz.core.launch.other_launchers import (
    PREFIXES,
    TRAINERS,
    is_launcher,
    launch_instead,
    name_way,
)
from zerowiz.core.script.bindings import State
from zerowiz.core.script.config_delivery import deliver, with_config_via
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import SETTINGS
from zerowiz.errors import AnswerNeededError, UsageError
from zerowiz.probe.preflight.read_facts import find_module_file
from zerowiz.probe.script.read_script import read_script

# Understand what stands where the script is named: a script, or a module.

_SHELLS = frozenset({"bash", "sh"})
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


class Command(Struct, frozen=True, kw_only=True):
    """What is to be launched."""

    script: str | None
    """The script, or with `options.module` the module; None where none was named."""
    script_args: tuple[str, ...]
    options: Options


def understand_command(
    script: str | None, script_args: tuple[str, ...], options: Options
) -> Command:
    """The script, its words and the options; `bash` may stand before a script.

    Args:
        script: The first word, if there is one.
        script_args: The words after it.
        options: What the person said before it.

    Raises:
        UsageError: A module is meant, and none is named; or it starts with another launcher, or
            with words that belong before `zerowiz`.
    """
    if script is None and options.module:
        raise UsageError("`$module` needs a module", "pass its name: `zerowiz launch -m pkg.train`")
    if script is not None and not Path(script).is_file():
        _refuse_program(script, script_args)
        if script in _SHELLS and script_args:
            # What reads the script says what to do about it.
            script, *rest = script_args
            script_args = tuple(rest)
    return Command(script=script, script_args=script_args, options=options)


def _refuse_program(script: str, script_args: Sequence[str]) -> None:
    """Say what to do with a program: `CUDA=0` and `srun` start any other, `trl` its own ranks."""
    words = (script, *script_args)
    if script in TRAINERS:
        raise UsageError(f"`{script}` starts ranks of its own", name_way(script, script_args))
    if is_launcher(script):
        raise UsageError(
            f"`{script}` starts ranks of its own, and so does zerowiz",
            f"start the script itself: `{launch_instead(words)}`",
            "say in front of it what else is meant: `$gpus_per_node 8`, `$nodes 2`, `$config FILE`",
        )
    if script not in PREFIXES and _VARIABLE.match(script) is None:
        return
    ends = (at for at, word in enumerate(words) if word.endswith(".py") or is_launcher(word))
    before = shell.join(words[: next(ends, 1)])
    raise UsageError(
        f"`{script}` is not a script",
        f"put `{before}` before `zerowiz`",
    )


# Find the script of a job, read it, and answer what it leaves open.

DEFAULT_SCRIPT = "train.py"


def find_script(command: Command) -> str | None:
    """The script that is meant, or the module; None where none is."""
    default = DEFAULT_SCRIPT if Path(DEFAULT_SCRIPT).is_file() else None
    return command.script or default


def read_to_launch(script: str, command: Command) -> ScriptRun:
    """Read a script, once it is sure that some config can reach it, and that `launch` takes it.

    Raises:
        ZerowizError: It cannot be read, or is refused; nobody is asked anything then.
    """
    run = read_as_said(script, command.script_args, command.options)
    require_reachable(run, command.options)
    check_words(run)
    check_local_rank(run)
    return run


def read_as_said(script: str, script_args: Sequence[str], options: Options) -> ScriptRun:
    """A script, or the file of a module, as the person says that a config reaches it.

    Raises:
        ZerowizError: It cannot be read, or shows that this is not so.
    """
    if options.module:
        # `python -m` imports from the working folder first.
        read = read_script(find_module_file(script, os.environ), script_args, Path())
        facts = replace(read, module=script)
    else:
        facts = read_script(Path(script), script_args)
    facts = with_config_via(facts, options.config_via, options.integration)
    return ScriptRun(facts, script_args)


def said_after(settings: ScriptSettings) -> frozenset[str]:
    """The options of which the words after the script say something now."""
    named = {name: getattr(settings, name, None) for name in (*SETTINGS, "model")}
    names = {name for name, setting in named.items() if setting and setting.state is State.SAID}
    batch = {"global_batch"} if names & {"micro_batch", "accumulation_steps"} else set()
    return frozenset(names | batch)


def require_reachable(script: ScriptRun, options: Options) -> None:
    """See that some config can reach a script.

    Raises:
        ZerowizError: None can; nobody is asked anything then.
    """
    if script.facts.obstacle is not None:
        deliver(script.facts, script.words, config_file(options, ZERO2))


def _must_say(settings: ScriptSettings, facts: ScriptFacts) -> Ask:
    """Nobody is asked, and what the run is bound to is never guessed."""
    unseen = {
        "micro_batch": ("micro-batch", facts.micro_batch),
        "precision": ("precision", facts.mixed_precision),
    }

    def ask(question: Question, *, can_go_back: bool) -> str | Back:
        if question.key in unseen:
            what, value = unseen[question.key]
            where = facts.where(value.line)
            followed = (f"zerowiz did not follow `{value.code}` in {where}",) if value.code else ()
            raise AnswerNeededError(
                f"zerowiz cannot see the script's {what}, and cannot ask here",
                *followed,
                f"set it with `${question.key}`",
            )
        if question.key == "lr":
            raise lr_needed()
        return by_default_of(settings)(question, can_go_back=can_go_back)

    return ask


def answer_for(options: Options, script: ScriptRun, ask_person: Ask | None) -> Options:
    """Close the open questions of this script: by a person, else by defaults where safe."""
    settings = script.settings
    answers = open_questions(options, settings)
    if ask_person is None:
        answers.pop("gradient_checkpointing")
        answers.pop("sequence_tokens")
    if script.facts.micro_batch.from_config:
        # The script asks the config, so zerowiz decides.
        answers["micro_batch"] = answers["micro_batch"] or "1"
    if lacks_precision(options, script):
        answers["precision"] = None
    return answer(options, answers, ask_person or _must_say(settings, script.facts))


# Check each answer of a person against the world before it is taken.


def asker(person: Person, options: Options) -> Ask:
    """How questions are asked; an answer that would fail later is asked again now."""
    checks: Mapping[str, Callable[[str], object]] = {
        "machine": lambda answer: find_machine(replace(options, machine=answer), os.environ),
        "script": lambda answer: require_reachable(read_as_said(answer, (), options), options),
        "model": lambda answer: check_model(answer, os.environ, trace=options.trace),
    }

    def ask_person(question: Question, *, can_go_back: bool) -> str | Back:
        return person.ask(question, check=checks.get(question.key), can_go_back=can_go_back)

    return ask_person
