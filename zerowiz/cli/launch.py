"""`zerowiz launch`: plan, write the config, become the DeepSpeed job."""

import os
import sys
from typing import Annotated

import typer

from zerowiz.app.launch.launch import plan_dry_run, prepare_launch, run_launch
from zerowiz.app.launch.start import RunOptions
from zerowiz.app.options import FileUse, Options, TakesScript
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import write_plan
from zerowiz.core.strategies import FLOWCHART_STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError
from zerowiz.ui import show
from zerowiz.ui.job_end import TerminalLaunchReporter
from zerowiz.ui.prompt import find_person


def _run_option(
    *names: str, text: str, least: int | None = None, value: str | None = None
) -> typer.models.OptionInfo:
    return typer.Option(*names, help=text, rich_help_panel="Run", min=least, metavar=value)  # type: ignore[no-any-return]


def _check_options(options: Options, how: RunOptions) -> None:
    supervise, escalate = how.supervise, how.max_attempts > 1
    if escalate and supervise is False:
        raise UsageError(
            (
                "`--escalate` and `--no-supervise` conflict: to restart the job, zerowiz "
                "must supervise it"
            ),
            "remove one of them",
        )
    if escalate and options.own_config is not None:
        raise UsageError(
            (
                f"`--escalate` and `--config {options.own_config}` conflict: `--escalate` writes "
                "a config for each attempt"
            ),
            f"to build each config on yours: `--config {options.own_config} --stage auto`",
            "or remove one of them",
        )
    if options.as_json and not options.dry_run:
        raise UsageError(
            "`launch --json` needs `--dry-run`: a launch leaves stdout to the training",
            "to print the plan only: `zerowiz plan --json`",
        )


@takes_options(FileUse(takes_script=TakesScript.ALWAYS, starts_here=True))
def launch(
    options: Options,
    script: Annotated[
        str | None,
        typer.Argument(help="Training script; default: the one in zerowiz.toml, or train.py"),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, passed on unchanged")
    ] = None,
    supervise: Annotated[
        bool | None,
        _run_option(
            "--supervise/--no-supervise",
            text="Supervise the job, or exec deepspeed; default: supervise, except at a terminal",
        ),
    ] = None,
    escalate: Annotated[
        bool,
        _run_option(
            "--escalate",
            text="After an out-of-memory error, restart with the next strategy that needs less",
        ),
    ] = False,
    max_attempts: Annotated[
        int,
        _run_option("--max-attempts", text="Maximum number of attempts with --escalate", least=1),
    ] = len(FLOWCHART_STRATEGIES),
    grace_seconds: Annotated[
        int,
        _run_option(
            "--grace-seconds",
            text="Seconds for ranks to save and exit after SIGTERM",
            least=0,
            value="<seconds>",
        ),
    ] = 30,
    verbose: Annotated[
        bool, _run_option("--verbose", "-v", text="Show also what DeepSpeed's launcher says")
    ] = False,
) -> None:
    """Plan, write the config, and run the script with deepspeed"""
    reporter = TerminalLaunchReporter(quiet=options.quiet, with_waits=not options.as_json)
    how = RunOptions(
        supervise=supervise,
        max_attempts=max_attempts if escalate else 1,
        grace_seconds=grace_seconds,
        verbose=verbose,
    )
    _check_options(options, how)
    prepared = prepare_launch(script, tuple(args or ()), options, how, reporter)
    person = find_person(os.environ, yes=options.yes or options.as_json)
    if not options.dry_run:
        raise typer.Exit(run_launch(prepared, reporter, person))
    start = plan_dry_run(prepared, reporter, person)
    launch_plan = start.launch_plan
    for note in launch_plan.notes:
        reporter.note(note)
    if start.plan.options.as_json:
        write_plan(start.plan, launch_plan.argv, launch_plan.env)
    else:
        show.files(launch_plan.files, sys.stdout)
        show.launch(replace(launch_plan, files=()), sys.stdout)
