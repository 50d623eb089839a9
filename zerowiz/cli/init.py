"""`zerowiz init`: the wizard; asks what it could not detect, writes the config."""

import os
import sys
from typing import Annotated

import typer

from zerowiz.app.init import InitPlan, plan_init, write_init
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, as_words
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import showing_refused_plan, write_plan
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.values import replace
from zerowiz.ui import show
from zerowiz.ui.ask.person import find_person
from zerowiz.ui.planned import files as show_files
from zerowiz.ui.reporter import TerminalReporter


@takes_options
def init(
    options: Options,
    script: Annotated[str | None, typer.Argument(help="Training script; default: train.py")] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, untouched")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Also write job.sbatch, for a SLURM cluster")
    ] = False,
) -> None:
    """Ask a few questions, choose a strategy and write its config"""
    reporter = TerminalReporter(quiet=options.quiet)
    person = find_person(os.environ, yes=options.yes or options.as_json)
    with showing_refused_plan(as_json=options.as_json):
        planned = plan_init(script, tuple(args or ()), options, reporter, person, slurm=slurm)
    if not options.dry_run:
        write_init(planned, reporter, person)
    if options.as_json:
        write_plan(planned.plan)
        return
    if options.dry_run:
        show_files(planned.files, sys.stdout)
    else:
        sys.stdout.writelines(f"wrote {file.path}\n" for file in planned.files)
    _show_next(planned)


def _show_next(planned: InitPlan) -> None:
    """The command that goes on from here, and the one that needs no wizard."""
    options = planned.plan.options
    if not is_here(planned.plan.request.job.machine):
        # A launch on that machine looks around by itself.
        options = replace(options, machine=None)
    folder = ["--output-dir", str(options.output_dir)] if options.output_dir else []
    show.next_steps(
        ["zerowiz", "launch", *folder],
        ["zerowiz", "launch", "--yes", *as_words(options), planned.script, *planned.script_args],
        sys.stdout,
    )


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="init", cls=PlainCommand, context_settings=settings)(init)
