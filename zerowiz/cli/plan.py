"""`zerowiz plan`: decide, write nothing."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from zerowiz.app.api import PlanResult
from zerowiz.app.catalog.run_question import RunQuestion
from zerowiz.app.decide.decision import (
    note_basis,
    note_emulation,
    note_settled,
    require_strategy,
)
from zerowiz.app.options import Options
from zerowiz.app.plan import plan_job
from zerowiz.app.reporter import Reporter
from zerowiz.cli.options import option_of, takes_options
from zerowiz.cli.output import write_json, write_plan
from zerowiz.cli.usage import PlainCommand
from zerowiz.core import settings
from zerowiz.core.search.freedom import Objective
from zerowiz.core.search.limits import find_limits
from zerowiz.errors import UsageError
from zerowiz.ui import choice, show
from zerowiz.ui.reporter import TerminalReporter

if TYPE_CHECKING:
    from zerowiz.app.catalog.machines import MachineChoice


@takes_options
def plan(
    options: Options,
    script: Annotated[
        str | None, typer.Argument(help="Training script, whose settings the plan uses")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments")] = None,
    *,
    explain: Annotated[bool, option_of(settings.EXPLAIN)] = False,
    tokens: Annotated[str | None, option_of(settings.TOKENS)] = None,
    sequences: Annotated[str | None, option_of(settings.SEQUENCES)] = None,
    epochs: Annotated[float | None, option_of(settings.EPOCHS)] = None,
    price: Annotated[list[str] | None, option_of(settings.PRICE)] = None,
    limits: Annotated[bool, option_of(settings.LIMITS)] = False,
) -> None:
    """Show what each ZeRO strategy needs on this machine, and choose one"""
    reporter = TerminalReporter(quiet=options.quiet, with_waits=not options.as_json)
    question = RunQuestion(
        tokens=tokens, sequences=sequences, epochs=epochs, prices=tuple(price or ())
    )
    planned = plan_job(script, args or (), options, question, reporter)
    if isinstance(planned, PlanResult):
        _show_plan(planned, options, question, reporter, explain=explain, limits=limits)
    else:
        alone = "$explain" if explain else "$limits" if limits else None
        if alone is not None:
            raise UsageError(
                f"`{alone}` is for one machine, and this plan compares many",
                "name one: `$machine 8xH100-80GB`",
            )
        _show_machines(planned, options, reporter)


def _show_plan(
    result: PlanResult,
    options: Options,
    question: RunQuestion,
    reporter: Reporter,
    *,
    explain: bool,
    limits: bool,
) -> None:
    """The plan for one machine, and how long the run takes where that is asked."""
    run = question.plan_run(result.decided.decision, options.machine)
    note_basis(result.decided, reporter)
    note_settled(result.decided, reporter)
    note_emulation(result.decided, reporter)
    largest = find_limits(result.decided.decision.job) if limits else None
    if options.as_json:
        write_plan(result.decided, run=run, limits=largest)
    else:
        show.plan(result.decided.decision, result.remedies, sys.stdout)
        found = result.decided.search
        if found is not None and options.objective is not Objective.FLOWCHART:
            choice.search(found, options.objective, sys.stdout)
        if largest is not None:
            choice.limits(largest, result.decided.decision.job, sys.stdout)
        if explain:
            show.explain(result.decided.decision, sys.stdout)
        if run is not None:
            from zerowiz.ui.catalog.run import run as show_run  # noqa: PLC0415 - most plans ask for none

            show_run(run, sys.stdout)
    require_strategy(result.decided)


def _show_machines(found: "MachineChoice", options: Options, reporter: Reporter) -> None:
    """The machines of the tables that the job fits."""
    from zerowiz.ui.catalog.machines import machines  # noqa: PLC0415 - most plans are for one machine

    for note in found.notes:
        reporter.note(note)
    if options.as_json:
        write_json(found.to_dict())
    else:
        machines(found.offers, found.request.job, found.prices, sys.stdout)
    found.require_any()


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    context = {"allow_interspersed_args": False}
    app.command(name="plan", cls=PlainCommand, context_settings=context)(plan)
