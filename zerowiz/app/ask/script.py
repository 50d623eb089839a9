"""Find the script of a job, read it, and answer what it leaves open."""

import os
import posixpath
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import Ask, answer, by_default, open_questions, said_by_config
from zerowiz.app.ask.init_record import recall
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.options import Options, added, as_words, rows
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.request import config_file
from zerowiz.core.decision.questions import Question
from zerowiz.core.script import ScriptFacts, ScriptSettings, State, deliver, settle, with_config_via
from zerowiz.core.strategies import ZERO2
from zerowiz.core.values import replace
from zerowiz.core.workload import SETTINGS
from zerowiz.errors import AnswerNeededError, PreflightError, ZerowizError
from zerowiz.probe.launch.init_record import Record, read_record
from zerowiz.probe.launch.module_file import find_module_file
from zerowiz.probe.script import read_script

DEFAULT_SCRIPT = "train.py"


class FoundScript(Struct, frozen=True, kw_only=True):
    """The script that is meant, and what an earlier command recorded for it."""

    path: str
    """Of a module, its name."""
    is_module: bool = False
    script_args: tuple[str, ...] = ()
    record: Record | None = None


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

    Raises:
        ZerowizError: None was named, and what `init` recorded cannot be read.
    """
    folder = options.output_dir or Path()
    if script is not None:
        # A job script says all that it wants: an answer that is recorded later must not change
        # what it starts.
        record = None if options.yes else _record_of(script, folder, is_module=options.module)
        return FoundScript(
            path=script,
            is_module=options.module,
            script_args=tuple(script_args),
            record=record,
        )
    record = _read_record(folder)
    if record is not None:
        return FoundScript(
            path=record.script,
            is_module=_is_of_module(record),
            script_args=record.script_args,
            record=record,
        )
    return FoundScript(path=DEFAULT_SCRIPT) if Path(DEFAULT_SCRIPT).is_file() else None


def _read_record(folder: Path) -> Record | None:
    """What `init` recorded in the folder of the configs, else in the working folder.

    Raises:
        ZerowizError: It cannot be read.
    """
    return read_record(folder) or read_record(Path())


def _is_of_module(record: Record) -> bool:
    return record.options.get(rows()["module"].key) is True


def _record_of(script: str, folder: Path, *, is_module: bool) -> Record | None:
    """What was recorded for this script; None where that was nothing, or cannot be read."""
    try:
        record = _read_record(folder)
    except ZerowizError:
        return None
    if record is None or _is_of_module(record) is not is_module:
        return None
    return record if posixpath.normpath(record.script) == posixpath.normpath(script) else None


def read_found(found: FoundScript, options: Options, reporter: Reporter) -> ReadScript:
    """Read a script, once it is sure that some config can reach it.

    Args:
        found: The script.
        options: What the person says now; it takes precedence over the record.
        reporter: Hears what was recorded.

    Raises:
        ZerowizError: It cannot be read, or no config can reach it; nobody is asked anything then.
    """
    try:
        facts = read_named(found.path, found.script_args, is_module=found.is_module)
    except PreflightError as error:
        if found.record is None:
            raise
        again = (
            f"`zerowiz init` saved settings for `{found.path}` here: pass another script, or run"
            " `zerowiz init` again"
        )
        raise PreflightError(error.message, *error.hints, again) from None
    if found.record is not None:
        said = _said_after(settle(facts, found.script_args)) | said_by_config(options)
        recalled = recall(options, found.record, said)
        words = as_words(added(options, recalled))
        options = recalled
        if words:
            reporter.note(
                f"arguments that `zerowiz init` saved for {found.path}: `{shlex.join(words)}`"
            )
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


def _said_after(settings: ScriptSettings) -> frozenset[str]:
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


def _must_say(question: Question, *, can_go_back: bool) -> str:
    """Nobody is asked, and what the run is bound to is never guessed."""
    if question.key == "micro_batch":
        raise AnswerNeededError(
            "zerowiz cannot see the script's micro-batch, and cannot ask here",
            "set it with `$micro_batch`",
        )
    return by_default(question, can_go_back=can_go_back)


def answer_for(
    options: Options, facts: ScriptFacts, script_args: Sequence[str], ask_person: Ask | None
) -> Options:
    """Close the open questions of this script: by a person, else by defaults where safe."""
    answers = open_questions(options, settle(facts, tuple(script_args)))
    if ask_person is None:
        answers.pop("gradient_checkpointing")
        answers.pop("sequence_tokens")
    if facts.micro_batch.from_config:
        # The script asks the config, so zerowiz decides.
        answers["micro_batch"] = answers["micro_batch"] or "1"
    return answer(options, answers, ask_person or _must_say)
