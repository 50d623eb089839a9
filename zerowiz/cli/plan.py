"""`zerowiz plan`: decide, write nothing."""

import sys
from typing import Annotated

import typer

from zerowiz.app.decide.decision import (
    note_basis,
    note_emulation,
    note_settled,
    require_strategy,
)
from zerowiz.app.options import Options
from zerowiz.app.plan import plan_job
from zerowiz.cli.options import option_of, takes_options
from zerowiz.cli.output import write_plan
from zerowiz.cli.usage import PlainCommand
from zerowiz.core import settings
from zerowiz.ui import show
from zerowiz.ui.reporter import TerminalReporter


@takes_options
def plan(
    options: Options,
    script: Annotated[
        str | None, typer.Argument(help="Training script, whose settings are planned with")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments")] = None,
    *,
    explain: Annotated[bool, option_of(settings.EXPLAIN)] = False,
) -> None:
    """Show what each strategy needs here, and choose one"""
    reporter = TerminalReporter(quiet=options.quiet)
    result = plan_job(script, args or (), options, reporter)
    note_basis(result.decided, reporter)
    note_settled(result.decided, reporter)
    note_emulation(result.decided, reporter)
    if options.as_json:
        write_plan(result.decided)
    else:
        show.plan(result.decided.decision, result.remedies, sys.stdout)
        if explain:
            show.explain(result.decided.decision, sys.stdout)
    require_strategy(result.decided)


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    context = {"allow_interspersed_args": False}
    app.command(name="plan", cls=PlainCommand, context_settings=context)(plan)
