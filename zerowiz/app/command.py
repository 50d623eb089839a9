"""Understand what is typed after `launch`, and read the script."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options, with_plain
from zerowiz.app.resolve.resolved_job import (
    check_model,
    config_file,
    lr_needed,
    offer_configs,
    own_config,
)
from zerowiz.app.resolve.workload import check_local_rank, check_words, solves_micro_batch
from zerowiz.core import shell
from zerowiz.core.decision.questions import (
    QUESTIONS,
    AnswerKind,
    Answers,
    Back,
    Question,
    answer_or_default,
    next_question,
)
from zerowiz.core.launch.other_launchers import (
    PREFIXES,
    TRAINERS,
    is_launcher,
    launch_instead,
    name_way,
)
from zerowiz.core.script.config_delivery import deliver, with_config_via
from zerowiz.core.script.facts import State
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.core.settings import HYPERPARAMETERS
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.units import read_count
from zerowiz.core.workload import SETTINGS
from zerowiz.errors import AnswerNeededError, UsageError
from zerowiz.probe.preflight.read_facts import find_module_file
from zerowiz.probe.script.read_script import read_script

# Ask what neither an option, nor the script, nor a config of the person's own says.


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


class Ask(Protocol):
    """How an open question gets its answer: from a person, or from its default."""

    def __call__(self, question: Question, *, can_go_back: bool) -> str | Back:
        """The answer, or that the person goes back."""


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
            else options.gradient_checkpointing
        ),
    }
    if "lr" in settings.by_config and "lr" not in by_config:
        known["lr"] = options.lr or settings.lr
    said = as_answers({key: value for key, value in known.items() if value is not None})
    return {key: said.get(key) for key in known}


def lacks_precision(options: Options, script: ScriptRun) -> bool:
    """Whether its Accelerator gets a precision that nobody names and zerowiz cannot follow.

    accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision: it refuses a config
    with another 16-bit format, and takes the config's where the script says "no".
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


def as_answers(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as the answers to the questions of their names."""
    words = {True: "yes", False: "no"}
    return {k: words[v] if isinstance(v, bool) else str(v) for k, v in settings.items()}


def as_value(question: Question, text: str) -> str | float | bool:
    """An answer as the setting's value."""
    if question.key == "gradient_checkpointing":
        return text == "yes"
    if question.kind is AnswerKind.RATE:
        return float(text)
    return (read_count(text) or 0) if question.kind is AnswerKind.COUNT else text


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
            "say in front of it what else is meant: `$gpus_per_node 8`, `$nodes 2`, `$config FILE`,"
            " `$precision fp16`",
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


def _may_set(word: str) -> bool:
    """Whether a word after a script names a file of its settings."""
    return word.endswith((".py", ".yaml", ".yml", ".json", ".toml")) and Path(word).is_file()


def _must_say(script: ScriptRun, options: Options) -> Ask:
    """Nobody is asked, and what the run is bound to is never guessed."""
    facts = script.facts
    # Of a setting: what people call it, what the script has for it, and its key in a config.
    unseen = {
        "micro_batch": ("micro-batch", facts.micro_batch, "train_micro_batch_size_per_gpu"),
        "precision": ("precision", facts.mixed_precision, None),
    }

    def ask(question: Question, *, can_go_back: bool) -> str | Back:
        del can_go_back
        if question.key in unseen:
            what, value, config_key = unseen[question.key]
            where = facts.where(value.line)
            followed = (f"zerowiz did not follow `{value.code}` in {where}",) if value.code else ()
            files = () if facts.settings_file else filter(_may_set, script.words)
            raise AnswerNeededError(
                f"zerowiz cannot see the script's {what}, and cannot ask here",
                *followed,
                *(f"look for it in `{file}`, which zerowiz does not read" for file in files),
                *(offer_configs(facts, config_key) if config_key and not options.config else ()),
                f"set it with `${question.key}`",
            )
        if question.key == "lr":
            raise lr_needed(facts if options.config is None else None)
        return answer_or_default(question)

    return ask


_NEVER_MISSED = ("model", "gradient_checkpointing", "sequence_tokens")


def answer_for(options: Options, script: ScriptRun, ask_person: Ask | None) -> Options:
    """Close the open questions of this script: by a person, else by defaults where safe."""
    settings = script.settings
    answers = open_questions(options, settings)
    if ask_person is None:
        # What is read of the model says that none is named; the others have defaults.
        answers = {n: v for n, v in answers.items() if n not in _NEVER_MISSED}
    if script.facts.micro_batch.from_config:
        # The script asks the config, so zerowiz decides.
        answers["micro_batch"] = answers["micro_batch"] or "1"
    if lacks_precision(options, script):
        answers["precision"] = None
    return answer(options, answers, ask_person or _must_say(script, options))


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
