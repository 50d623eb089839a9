"""`zerowiz init`: the wizard; asks what it could not detect, launches it or writes the config."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.app.answers_file import ask_anew
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import FileUse, Layers, Options, TakesScript, as_words
from zerowiz.app.wizard import ask_init, plan_init
from zerowiz.app.wizard_plan import (
    JOB_FILE,
    InitOptions,
    InitPlan,
    lines_to_set,
    plain_command,
    without_said,
    write_init,
)
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import write_plan
from zerowiz.core.launch.secrets import hide_secrets
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.script.programs import ProgramFile
from zerowiz.core.structs import replace
from zerowiz.core.workload import SETTINGS, Precision
from zerowiz.errors import refuse_any
from zerowiz.translation import _
from zerowiz.ui import show
from zerowiz.ui.job_end import TerminalLaunchReporter
from zerowiz.ui.prompt import find_person
from zerowiz.ui.text import gpus
from zerowiz.ui.wizard import WizardReporter


@takes_options(FileUse(takes_script=TakesScript.ALWAYS, starts_here=False))
def init(
    options: Options,
    layers: Layers,
    script: Annotated[
        str | None,
        typer.Argument(help="Training script; default: train.py"),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, passed on unchanged")
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Also write job.sbatch, for a SLURM cluster")
    ] = False,
    launch: Annotated[
        bool, typer.Option("--launch", help="Answer yes to `Launch now?`, even with --yes")
    ] = False,
    no_script: Annotated[
        bool, typer.Option("--no-script", help="Only write a config, without a script")
    ] = False,
) -> None:
    """Ask a few questions, choose a strategy, and launch the job or write its config"""
    if launch:
        silent = {"--dry-run": options.dry_run, "--json": options.as_json}
        refuse_any(silent, "launches nothing, and conflicts with `--launch`", "remove one of them")
    person = find_person(os.environ, yes=options.yes or options.as_json)
    reporter = (
        TerminalLaunchReporter(quiet=options.quiet, with_waits=not options.as_json)
        if person is None
        else WizardReporter(quiet=options.quiet, stream=person.stream)
    )
    wanted = InitOptions(slurm=slurm, launch=launch, no_script=no_script)
    words = tuple(args or ())
    if person is not None:
        start, before = ask_anew(layers)
        planned = ask_init(start.script, words, start.options, wanted, reporter, person, before)
    else:
        planned = plan_init(script, words, options, wanted, reporter)
        if not options.dry_run:
            write_init(planned)
    if planned is None:
        return
    if planned.start is not None:
        from zerowiz.app.launch.launch import run_start  # noqa: PLC0415 - takes long to load

        reporter.start(planned.start.launch_plan)
        raise typer.Exit(run_start(planned.start, reporter))
    if options.as_json:
        write_plan(planned.plan)
        return
    answers = planned.answers()
    files = (*planned.files, *((answers,) if answers else ()))
    if options.dry_run:
        show.files(files, sys.stdout)
    else:
        sys.stdout.writelines(_("wrote {path}\n", path=file.path) for file in files)
    _show_next(planned)


def _show_next(planned: InitPlan) -> None:
    """The command that goes on, the one that needs no wizard, and the machine that they run on."""
    options, machine = planned.plan.options, planned.plan.resolved.job.machine
    elsewhere = None
    if not is_here(machine):
        # A launch on that machine looks around by itself.
        options, elsewhere = replace(options, machine=None), gpus(machine)
    folder = ["--output-dir", str(options.output_dir)] if options.output_dir else []
    if planned.program_file is not None:
        _show_program(planned, planned.program_file, elsewhere)
        return
    run = planned.plan.script
    if planned.script is None or run is None:
        words = ["zerowiz", "init", "--yes", *as_words(planned.plan.options), "--no-script"]
        step = planned.plan.resolved.job.workload
        named = ("micro_batch", "accumulation_steps", "gradient_checkpointing")
        fields = {
            "deepspeed": planned.config_path,
            **{SETTINGS[name].trainer_fields[0]: getattr(step, name) for name in named},
        }
        if step.precision is not Precision.FP32:
            fields[step.precision.value] = True
        if LOSS_ROWS[step.loss].has_liger:
            fields[SETTINGS["loss"].trainer_fields[0]] = True
        show.config_alone(fields, words, sys.stdout)
        return
    job_file = next((f.path for f in planned.files if Path(f.path).name == JOB_FILE), None)
    if job_file is not None:
        show.submit(job_file, elsewhere, planned.plan.decision, sys.stdout)
        return
    # `zerowiz.toml` keeps no secret: the line that goes on has to name them again.
    secret = hide_secrets(run.words) != tuple(run.words)
    again = [planned.script, *run.words] if secret else []
    show.next_steps(
        ["zerowiz", "launch", *folder, *again],
        ["zerowiz", "launch", "--yes", *as_words(options), planned.script, *run.words],
        plain_command(planned),
        elsewhere,
        sys.stdout,
    )


def _show_program(planned: InitPlan, file: ProgramFile, elsewhere: str | None) -> None:
    """What to set in the file, and the commands."""
    plan = planned.plan
    words = as_words(without_said(plan.options, file))
    again = ["zerowiz", "init", "--yes", *words, file.path]
    changes = lines_to_set(file, plan, planned.config_path)
    train = file.command(len(plan.resolved.job.machine.gpus))
    show.for_program(file.path, changes, train, again, elsewhere, sys.stdout)
