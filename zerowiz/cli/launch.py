"""`zerowiz launch`: plan, write the config, become the DeepSpeed job."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer

from zerowiz.cli.asking import asker
from zerowiz.cli.checking import check_accounting, check_own_config, check_words
from zerowiz.cli.deciding import Outcome, decide_with, require_a_rung
from zerowiz.cli.machines import CPU_MACHINE, find_machine, is_here
from zerowiz.cli.options import Options, takes_options
from zerowiz.cli.plan import write_json
from zerowiz.cli.planning import (
    Ask,
    answer,
    by_default,
    config_file,
    open_questions,
    read_reachable,
)
from zerowiz.cli.provenance import losses_shown, with_plan
from zerowiz.cli.record import recall
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decide import Decision
from zerowiz.core.dsconfig import render_config, write_config
from zerowiz.core.launch import (
    LaunchPlan,
    PlannedFile,
    launch_argv,
    launch_env,
    launcher_options,
)
from zerowiz.core.machine import Machine
from zerowiz.core.questions import Question
from zerowiz.core.remedies import Remedy
from zerowiz.core.script import ScriptFacts, check_accelerator, deliver, settle
from zerowiz.core.strategy import Strategy
from zerowiz.emit.files import refuse_loss
from zerowiz.emit.run import execute
from zerowiz.errors import AnswerNeededError, InterruptedByUserError, PreflightError, UsageError
from zerowiz.probe.programs import find_programs
from zerowiz.probe.record import read_record
from zerowiz.ui import show
from zerowiz.ui.ask import can_ask, confirm
from zerowiz.ui.planned import files as show_files

_DEFAULT_SCRIPT = "train.py"


def render(outcome: Outcome, rung: Strategy) -> str:
    """The config of this job under this strategy."""
    job, handover = outcome.brief.job, outcome.brief.handover
    return render_config(write_config(job, outcome.decision.of(rung), handover))


def plan_files(
    outcome: Outcome, rung: Strategy, script: str, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """What this job writes: nothing where it runs with a person's own config."""
    if outcome.options.config is not None:
        return ()
    path = config_file(outcome.options, rung)
    config = PlannedFile(path=path, text=render(outcome, rung))
    return with_plan(outcome, config, script, script_args)


def plan_launch(
    outcome: Outcome, facts: ScriptFacts, script_args: Sequence[str], rung: Strategy
) -> LaunchPlan:
    """The files, the command and the environment of this job.

    Raises:
        ZerowizError: The config cannot reach the script, or there is no `deepspeed`.
    """
    options, machine = outcome.options, outcome.brief.job.machine
    path = config_file(options, rung)
    check_accelerator(facts, settle(facts, tuple(script_args)), machine.accelerator)
    delivery = deliver(facts, tuple(script_args), path)
    programs = find_programs(os.environ)
    hostfile = None if options.hostfile is None else str(options.hostfile)
    launcher = launcher_options(machine, hostfile)
    return LaunchPlan(
        files=plan_files(outcome, rung, facts.path, script_args),
        argv=launch_argv(programs, launcher, facts.path, delivery.script_args),
        env=launch_env(machine, programs, os.environ, delivery.env),
    )


def _find_script(script: str | None, options: Options) -> tuple[str, Options]:
    """The script to run, and the options that `init` recorded for it."""
    if script is not None:
        return script, options
    record = read_record(options.output_dir or Path())
    if record is not None:
        recalled = recall(options, record)
        if recalled.machine != CPU_MACHINE:
            # A job starts where it is, and a dry run shows that job.
            recalled = replace(recalled, machine=options.machine)
        return record.script, recalled
    if Path(_DEFAULT_SCRIPT).is_file():
        return _DEFAULT_SCRIPT, options
    raise PreflightError(
        f"no script to launch: none was named, `init` recorded none, no `./{_DEFAULT_SCRIPT}`",
        "name it: `zerowiz launch train.py`",
    )


def _must_say(question: Question) -> str:
    """Nobody is asked, and what the run is bound to is never guessed."""
    if question.key == "micro_batch":
        raise AnswerNeededError(
            "the script's micro-batch cannot be seen, and nobody can be asked",
            "say it with `--micro-batch`",
        )
    return by_default(question)


def answer_for(
    options: Options, facts: ScriptFacts, script_args: Sequence[str], ask_person: Ask | None
) -> Options:
    """Close the open questions of this script: by a person, else by defaults where safe."""
    answers = open_questions(options, settle(facts, tuple(script_args)))
    if ask_person is None:
        answers.pop("gradient_checkpointing")
        answers.pop("seq_len")
    if facts.micro_batch.from_config:
        # The script asks the config, so zerowiz decides.
        answers["micro_batch"] = answers["micro_batch"] or "1"
    return answer(options, answers, ask_person or _must_say)


def _check_options(options: Options) -> None:
    if options.as_json and not options.dry_run:
        raise UsageError(
            "`launch --json` needs `--dry-run`: stdout belongs to the training",
            "`zerowiz plan --json` prints the plan alone",
        )


def _check_place(options: Options, machine: Machine) -> None:
    if not is_here(machine) and not options.dry_run:
        raise UsageError(
            f"`--machine {options.machine}` plans for another machine; `launch` starts on this one",
            "`--dry-run` shows the plan, and `zerowiz plan` the decision",
        )
    if machine.nodes > 1 and options.hostfile is None:
        told = f"`--nodes {machine.nodes}`"
        if options.nodes is None and machine.allocation is not None:
            told = f"{machine.allocation.scheduler} gives the job {machine.nodes} nodes"
        raise UsageError(
            f"{told}: which hosts?",
            "name them: `--hostfile hosts`, one `host slots=N` a line",
            "`--nodes 1` launches on this node alone",
        )


def _start(outcome: Outcome, plan: LaunchPlan, *, asking: bool) -> NoReturn:
    """Show what is about to run, and become it."""
    if not outcome.options.quiet:
        sys.stderr.write("\n")
        show.launch(plan, sys.stderr)
    if asking and not confirm("Launch?"):
        raise InterruptedByUserError("not launched; nothing was written")
    with losses_shown(shown=not outcome.options.quiet):
        execute(plan, os.environ, force=outcome.options.force)


def _walk(decision: Decision, _cures: Sequence[Remedy], stream: TextIO) -> None:
    show.walk(decision, stream)


@takes_options
def launch(
    options: Options,
    script: Annotated[
        str | None, typer.Argument(help="Training script; default: what init recorded, train.py")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, untouched")
    ] = None,
) -> None:
    """Plan, write the config, and run the script under deepspeed"""
    _check_options(options)
    check_accounting(options)
    script_args = args or []
    path, options = _find_script(script, options)
    facts = read_reachable(path, script_args, options)
    check_words(facts, script_args)
    machine = find_machine(options, os.environ)
    _check_place(options, machine)
    check_own_config(options, machine, facts, script_args)
    asking = can_ask(os.environ, yes=options.yes or options.as_json)
    options = answer_for(options, facts, script_args, asker(options) if asking else None)
    outcome = decide_with(asking, options, machine, facts, script_args, _walk)
    if outcome.rung is None and options.as_json:
        write_json(outcome)
    rung = require_a_rung(outcome)
    plan = plan_launch(outcome, facts, script_args, rung)
    with losses_shown(shown=not options.quiet):
        # A dry run says now what the launch would say.
        refuse_loss(*plan.files, force=options.force)
    if not options.dry_run:
        _start(outcome, plan, asking=asking)
    if options.as_json:
        write_json(outcome, plan.argv, plan.env)
    else:
        show_files(plan.files, sys.stdout)
        show.launch(replace(plan, files=()), sys.stdout)


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="launch", cls=PlainCommand, context_settings=settings)(launch)
