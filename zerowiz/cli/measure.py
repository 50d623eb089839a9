"""`zerowiz measure`: some real steps of a script on this machine, beside their prediction."""

import sys
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.decide import encode_plan
from zerowiz.app.launch.start import Start
from zerowiz.app.measure import find_measured, measure_starts, plan_starts, require_all
from zerowiz.app.options import FileUse, Options, TakesScript
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import write_plan
from zerowiz.cli.usage import write_json
from zerowiz.core.job_end import ScriptMeasurement, encode_script_run
from zerowiz.core.plan_json import SCHEMA_VERSION
from zerowiz.ui import job_end, show


@takes_options(FileUse(takes_script=TakesScript.NEVER, starts_here=True))
def measure(
    options: Options,
    script: Annotated[
        str | None,
        typer.Argument(
            help="Training script; without one, a template of zerowiz trains the --model"
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, passed on unchanged")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run every strategy that fits, not only the chosen one")
    ] = False,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps, after which a run is ended")
    ] = 8,
    deadline: Annotated[
        int,
        typer.Option("--deadline", min=1, metavar="<seconds>", help="Time limit for all runs"),
    ] = 900,
) -> None:
    """Run real steps on this machine, and compare them with the prediction"""
    reporter = job_end.TerminalLaunchReporter(quiet=options.quiet, with_waits=not options.as_json)
    with find_measured(script, tuple(args or ()), options, steps) as measured:
        starts = plan_starts(measured, reporter, every=every)
        if options.dry_run:
            _show_starts([each.start for each in starts], as_json=options.as_json, every=every)
            return
        runs: list[ScriptMeasurement] = []

        def show_result(run: ScriptMeasurement) -> None:
            runs.append(run)
            if every:
                reporter.note(job_end.ended(run, len(runs), len(starts)))

        try:
            keeps = measured.is_template
            measure_starts(starts, steps, deadline, reporter, show_result, keeps=keeps)
        finally:
            # What has ended was paid for, whatever ends the rest.
            if runs:
                _show_runs(runs, as_json=options.as_json, every=every)
        require_all(runs, len(starts))


def _show_starts(starts: list[Start], *, as_json: bool, every: bool) -> None:
    """The commands; as JSON the plan, or the list of them."""
    launches = [(start.plan, start.launch_plan.argv, start.launch_plan.env) for start in starts]
    if as_json and every:
        write_json([encode_plan(*launch) for launch in launches])
    elif as_json:
        write_plan(*launches[0])
    else:
        for start in starts:
            show.launch(start.launch_plan, sys.stdout)


def _show_runs(runs: list[ScriptMeasurement], *, as_json: bool, every: bool) -> None:
    """As JSON, or one run at length, or a table of many."""
    if as_json:
        encoded = [encode_script_run(run) for run in runs]
        content = {"runs": encoded} if every else {"script": encoded[0]}
        versions = {"schema_version": SCHEMA_VERSION, "zerowiz_version": __version__}
        write_json({**versions, **content})
    elif every:
        job_end.candidates(runs, sys.stdout)
    else:
        job_end.script_run(runs[0], sys.stdout)
