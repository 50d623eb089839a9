"""Find the script of a job, read it, and answer what it leaves open."""

from collections.abc import Sequence
from pathlib import Path

from zerowiz.app.ask.answers import Ask, answer, open_questions
from zerowiz.app.ask.init_record import recall
from zerowiz.app.machines.machine import CPU_MACHINE
from zerowiz.app.options import Options
from zerowiz.app.resolve.request import config_file
from zerowiz.core.decision.questions import Question, answer_or_default
from zerowiz.core.script import ScriptFacts, deliver, settle
from zerowiz.core.strategies import ZERO2
from zerowiz.core.values import replace
from zerowiz.errors import AnswerNeededError
from zerowiz.probe.launch.init_record import read_record
from zerowiz.probe.script import read_script

DEFAULT_SCRIPT = "train.py"


def find_script(script: str | None, options: Options) -> tuple[str, Options] | None:
    """The script that is meant, and the options that `init` recorded for it; None where none is."""
    if script is not None:
        return script, options
    record = read_record(options.output_dir or Path())
    if record is not None:
        recalled = recall(options, record)
        if recalled.machine != CPU_MACHINE:
            # A job starts where it is, and a dry run shows that job.
            recalled = replace(recalled, machine=options.machine)
        return record.script, recalled
    return (DEFAULT_SCRIPT, options) if Path(DEFAULT_SCRIPT).is_file() else None


def read_reachable(path: str, script_args: Sequence[str], options: Options) -> ScriptFacts:
    """The facts of a script, once it is sure that some config can reach it.

    Raises:
        ZerowizError: It cannot be read, or no config can reach it; nobody is asked anything then.
    """
    facts = read_script(Path(path))
    if facts.obstacle is not None:
        deliver(facts, tuple(script_args), config_file(options, ZERO2))
    return facts


def _must_say(question: Question) -> str:
    """Nobody is asked, and what the run is bound to is never guessed."""
    if question.key == "micro_batch":
        raise AnswerNeededError(
            "the script's micro-batch cannot be seen, and nobody can be asked",
            "say it with `$micro_batch`",
        )
    return answer_or_default(question)


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
