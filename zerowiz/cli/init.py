"""`zerowiz init`: the wizard; asks what it could not detect, writes the config."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.app.ask.answers import Ask
from zerowiz.app.ask.init_record import encode_record
from zerowiz.app.ask.prompts import asker
from zerowiz.app.decide.decision import decide_with, note_emulation, require_strategy
from zerowiz.app.decide.plan_files import losses_shown
from zerowiz.app.decide.sbatch import plan_job_file
from zerowiz.app.launch.start import plan_files
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.options import Options, as_words
from zerowiz.app.resolve.guards import check_accounting
from zerowiz.app.resolve.request import config_file
from zerowiz.app.resolve.script import answer_for, read_reachable
from zerowiz.cli.options import takes_options
from zerowiz.cli.plan import write_json
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import QUESTIONS, Question, answer_or_default
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import deliver
from zerowiz.core.values import replace
from zerowiz.emit.files import find_losses, refuse_loss, replace_file, write_files
from zerowiz.errors import InterruptedByUserError, LostEdit, PreflightError
from zerowiz.probe.launch.init_record import record_path
from zerowiz.ui import diff, show
from zerowiz.ui.ask import can_ask, confirm
from zerowiz.ui.planned import files as show_files


def _question(key: str) -> Question:
    return next(question for question in QUESTIONS if question.key == key)


def _with_machine(options: Options, ask_person: Ask | None) -> tuple[Options, Machine]:
    """The machine, and the options; where there is none to see, one that the person names."""
    try:
        return options, find_machine(options, os.environ)
    except PreflightError as error:
        if ask_person is None:
            raise
        show.note(error.message, sys.stderr)
        options = replace(options, machine=ask_person(_question("machine")))
        return options, find_machine(options, os.environ)


def _find_script(script: str | None, ask_person: Ask | None) -> str:
    """The script that was named, or lies here, or that the person names."""
    question = _question("script")
    if script is not None:
        return script
    if Path(question.default or "").is_file() or ask_person is None:
        return answer_or_default(question)
    # Only what lies here is offered.
    here = sorted(path.name for path in Path().glob("*.py"))
    return ask_person(replace(question, default=here[0] if len(here) == 1 else None))


def _confirm(files: Sequence[PlannedFile], options: Options) -> None:
    """Ask before writing; what somebody changed is shown first."""
    losses = () if options.force else find_losses(files)
    if losses and not options.quiet:
        diff.losses(losses, sys.stderr)
        sys.stderr.write("\n")
    if not confirm(_go_on(files, losses), default=not losses):
        raise InterruptedByUserError("stopped; nothing was written")


def _go_on(files: Sequence[PlannedFile], losses: Sequence[LostEdit]) -> str:
    """The question; the config alone is named where nothing is lost."""
    match [loss.path for loss in losses]:
        case []:
            return f"{files[-1].path} will be written; go on?"
        case [path]:
            return f"{path} was changed by hand; overwrite it?"
        case paths:
            return f"{' and '.join(paths)} were changed by hand; overwrite them?"


def _write(files: Sequence[PlannedFile], record: str, options: Options, *, asking: bool) -> None:
    """The config and its plan, then the record; what somebody changed is asked about first."""
    if asking:
        _confirm(files, options)
    with losses_shown(shown=not options.quiet):
        write_files(files, force=asking or options.force)
    _write_record(record, options)
    if not options.as_json:
        sys.stdout.writelines(f"wrote {file.path}\n" for file in files)


def _write_record(record: str, options: Options) -> None:
    replace_file(record_path(options.output_dir or Path()), record)


def _tell_next(script: str, options: Options, *, here: bool) -> None:
    """The command that goes on from here, and the one that needs no wizard.

    Args:
        script: The training script.
        options: With every answer in them.
        here: Whether the job can start on this machine; elsewhere it looks around by itself.
    """
    options = options if here else replace(options, machine=None)
    folder = ["--output-dir", str(options.output_dir)] if options.output_dir else []
    show.next_steps(
        ["zerowiz", "launch", *folder],
        ["zerowiz", "launch", "--yes", *as_words(options), script],
        sys.stdout,
    )


@takes_options
def init(
    options: Options,
    script: Annotated[str | None, typer.Argument(help="Training script; default: train.py")] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Write job.sbatch too, for a SLURM cluster")
    ] = False,
) -> None:
    """Ask what cannot be detected, decide, write the config"""
    check_accounting(options)
    asking = can_ask(os.environ, yes=options.yes or options.as_json)
    ask_person = asker(options) if asking else None
    options, machine = _with_machine(options, ask_person)
    path = _find_script(script, ask_person)
    facts = read_reachable(path, (), options)
    options = answer_for(options, facts, (), ask_person)
    plan = decide_with(asking, options, machine, facts, (), show.plan)
    note_emulation(plan)
    if plan.strategy is None and options.as_json:
        write_json(plan)
    strategy = require_strategy(plan)
    options = plan.options
    # Refuse now what the launch would refuse later.
    deliver(facts, (), config_file(options, strategy))
    files = plan_files(plan, strategy, facts.path, ())
    if slurm:
        # The config stays the last: it is what all others are written for.
        files = (plan_job_file(plan, facts), *files)
    record = encode_record(path, options)
    if options.dry_run and not asking:
        # Said now what a writing run would say.
        with losses_shown(shown=not options.quiet):
            refuse_loss(*files, force=options.force)
    if not options.dry_run and files:
        _write(files, record, options, asking=asking)
    elif not options.dry_run:
        _write_record(record, options)
    elif not options.as_json:
        show_files(files, sys.stdout)
    if options.as_json:
        write_json(plan)
    else:
        _tell_next(path, options, here=is_here(plan.request.job.machine))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="init", cls=PlainCommand)(init)
