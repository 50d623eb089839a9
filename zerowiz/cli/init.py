"""`zerowiz init`: the wizard; asks what it could not detect, launches it or writes the config."""

import os
import sys
from typing import Annotated

import typer

from zerowiz.app.init import ask_init, plan_init
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, as_words
from zerowiz.app.wizard.outcome import InitOptions, InitPlan, launch_init, write_init
from zerowiz.cli.completion import complete_script
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import showing_refused_plan, write_plan
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.ui import show
from zerowiz.ui.ask.person import find_person
from zerowiz.ui.launch_reporter import TerminalLaunchReporter
from zerowiz.ui.planned import files as show_files
from zerowiz.ui.wizard import lines
from zerowiz.ui.wizard.reporter import WizardReporter


@takes_options
def init(
    options: Options,
    script: Annotated[
        str | None,
        typer.Argument(help="Training script; default: train.py", autocompletion=complete_script),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, untouched")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Also write job.sbatch, for a SLURM cluster")
    ] = False,
    launch: Annotated[
        bool, typer.Option("--launch", help="Answer `Launch now?` with yes, with --yes too")
    ] = False,
    no_script: Annotated[
        bool, typer.Option("--no-script", help="Write a config alone, for a script to come")
    ] = False,
) -> None:
    """Ask a few questions, choose a strategy, and launch the job or write its config"""
    _check_options(options, launch=launch)
    person = find_person(os.environ, yes=options.yes or options.as_json)
    reporter = (
        TerminalLaunchReporter(quiet=options.quiet, with_waits=not options.as_json)
        if person is None
        else WizardReporter(quiet=options.quiet, stream=person.stream)
    )
    wanted = InitOptions(slurm=slurm, launch=launch, no_script=no_script)
    words = tuple(args or ())
    with showing_refused_plan(as_json=options.as_json):
        if person is not None:
            planned = ask_init(script, words, options, wanted, reporter, person)
        else:
            planned = plan_init(script, words, options, wanted, reporter)
            if not options.dry_run:
                write_init(planned)
    if planned is None:
        return
    if planned.start is not None:
        raise typer.Exit(launch_init(planned.start, reporter))
    if options.as_json:
        write_plan(planned.plan)
        return
    if options.dry_run:
        show_files(planned.files, sys.stdout)
    else:
        sys.stdout.writelines(f"wrote {file.path}\n" for file in planned.files)
    _show_next(planned)


def _check_options(options: Options, *, launch: bool) -> None:
    for said, flag in ((options.dry_run, "--dry-run"), (options.as_json, "--json")):
        if launch and said:
            raise UsageError(
                f"`--launch` conflicts with `{flag}`, which launches nothing", "remove one of them"
            )


def _show_next(planned: InitPlan) -> None:
    """The command that goes on, the one that needs no wizard, and the machine that they run on."""
    options, machine = planned.plan.options, planned.plan.request.job.machine
    elsewhere = None
    if not is_here(machine):
        # A launch on that machine looks around by itself.
        options, elsewhere = replace(options, machine=None), lines.trains_on(machine)
    folder = ["--output-dir", str(options.output_dir)] if options.output_dir else []
    if planned.script is None:
        words = ["zerowiz", "init", "--yes", *as_words(planned.plan.options), "--no-script"]
        show.config_alone(planned.config_path, words, sys.stdout)
        return
    show.next_steps(
        ["zerowiz", "launch", *folder],
        ["zerowiz", "launch", "--yes", *as_words(options), planned.script, *planned.script_args],
        elsewhere,
        sys.stdout,
    )


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="init", cls=PlainCommand, context_settings=settings)(init)
