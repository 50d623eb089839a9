"""`zerowiz measure`: real steps on this machine, and the prediction of each."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.measure import plan_measurement, require_all, run_measurement
from zerowiz.app.options import FileUse, Options, TakesScript
from zerowiz.cli.completion import complete_script
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import write_plan
from zerowiz.cli.usage import PlainCommand, write_json
from zerowiz.core.measured_row import Comparison, encode_comparison
from zerowiz.core.plan_json import SCHEMA_VERSION
from zerowiz.core.workload import Loop
from zerowiz.errors import UsageError
from zerowiz.ui import measure as measure_text
from zerowiz.ui.reporter import TerminalReporter
from zerowiz.ui.text import plain_log

_STEPS, _SCRIPT_STEPS = 3, 8


@takes_options(FileUse(takes_script=TakesScript.NEVER, starts_here=True))
def measure(
    options: Options,
    script: Annotated[
        str | None,
        typer.Argument(
            help="Training script; without one, zerowiz trains the model itself",
            autocompletion=complete_script,
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, passed on unchanged")
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", help="JSON file with a list of runs, instead of the options"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run every strategy that fits, not only the chosen one")
    ] = False,
    loop: Annotated[
        Loop, typer.Option("--loop", help="Training loop: DeepSpeed's engine or the Trainer")
    ] = Loop.ENGINE,
    cap_bytes: Annotated[
        int | None,
        typer.Option(
            "--cap-bytes",
            min=1,
            metavar="<bytes>",
            help="Limit torch's allocator, as on a smaller GPU",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Measured optimizer steps; default: 3, of a script 8"),
    ] = None,
    timed_steps: Annotated[
        int | None,
        typer.Option("--timed-steps", min=0, help="Timed optimizer steps after those; 0: none"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Append each run to this file, as a line of JSON"),
    ] = None,
    deadline: Annotated[
        int,
        typer.Option("--deadline", min=1, metavar="<seconds>", help="Time limit for all runs"),
    ] = 900,
    case_deadline: Annotated[
        int,
        typer.Option("--case-deadline", min=1, metavar="<seconds>", help="Time limit for one run"),
    ] = 300,
) -> None:
    """Run real steps on this machine, and compare them with the prediction"""
    if script is not None:
        # Options of the model that stands alone.
        given = {
            "--cases": cases is not None,
            "--all": every,
            "--loop": loop is not Loop.ENGINE,
            "--cap-bytes": cap_bytes is not None,
            "--timed-steps": timed_steps is not None,
            "--output": output is not None,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise UsageError(
                f"`{name}` does not work with your own script",
                f"remove `{name}`",
            )
        _measure_script(script, tuple(args or ()), options, steps or _SCRIPT_STEPS, deadline)
        return
    reporter = TerminalReporter(quiet=options.quiet, with_waits=not options.as_json)
    planned = plan_measurement(
        options,
        cases,
        reporter,
        loop=loop,
        cap_bytes=cap_bytes,
        steps=steps or _STEPS,
        timed_steps=timed_steps,
        every=every,
    )
    if options.dry_run:
        write_json([trial.as_case() for trial in planned.trials])
        return

    ended: list[Comparison] = []

    def show_result(comparison: Comparison, log_tail: str) -> None:
        ended.append(comparison)
        if every:
            reporter.note(measure_text.ended(comparison, len(ended), len(planned.trials)))
        elif not options.as_json:
            measure_text.comparison(comparison, sys.stdout)
            sys.stdout.flush()
        if not comparison.measured and log_tail and not options.quiet:
            sys.stderr.write(f"{plain_log(log_tail)}\n")

    try:
        run_measurement(
            planned,
            output,
            reporter,
            show_result,
            deadline_s=deadline,
            case_deadline_s=case_deadline,
        )
    finally:
        # What has ended was paid for, whatever ends the rest.
        if ended:
            _show_ended(ended, options, every=every)
    require_all(ended, planned)


def _measure_script(
    script: str, args: tuple[str, ...], options: Options, steps: int, deadline_s: int
) -> None:
    """Run a person's own script, and show what its steps took."""
    # Loaded here: what launches a script takes long to load.
    from zerowiz.app.measure import measure_script, plan_script, require_steps  # noqa: PLC0415
    from zerowiz.core.measured_row import encode_script_run  # noqa: PLC0415
    from zerowiz.ui import show  # noqa: PLC0415
    from zerowiz.ui.reporter import TerminalLaunchReporter  # noqa: PLC0415

    reporter = TerminalLaunchReporter(
        quiet=options.quiet, with_table=False, with_waits=not options.as_json
    )
    start = plan_script(script, args, options, reporter)
    if options.dry_run:
        if options.as_json:
            write_plan(start.plan, start.launch_plan.argv, start.launch_plan.env)
        else:
            show.launch(start.launch_plan, sys.stdout)
        return
    run = measure_script(start, steps, deadline_s, reporter)
    if options.as_json:
        versions = {"schema_version": SCHEMA_VERSION, "zerowiz_version": __version__}
        write_json({**versions, "script": encode_script_run(run)})
    else:
        measure_text.script_run(run, sys.stdout)
    require_steps(run)


def _show_ended(ended: Sequence[Comparison], options: Options, *, every: bool) -> None:
    """Everything as JSON, or a table of many candidates."""
    if options.as_json:
        runs = [encode_comparison(comparison) for comparison in ended]
        versions = {"schema_version": SCHEMA_VERSION, "zerowiz_version": __version__}
        write_json({**versions, "runs": runs})
    elif every:
        measure_text.candidates(ended, sys.stdout)


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="measure", cls=PlainCommand, context_settings=settings)(measure)
