"""`zerowiz plan`: decide, write nothing."""

import os
import sys

import typer

from zerowiz.app.api import plan_with
from zerowiz.app.ask.answers import answer, open_questions
from zerowiz.app.decide.decision import note_basis, note_emulation, require_strategy
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.cli.options import takes_options
from zerowiz.cli.output import write_plan
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import answer_or_default
from zerowiz.core.script import ScriptSettings
from zerowiz.ui import show
from zerowiz.ui.reporter import TerminalReporter


@takes_options
def plan(options: Options) -> None:
    """Show what each strategy needs here, and choose one"""
    reporter = TerminalReporter(quiet=options.quiet)
    answers = {"model": open_questions(options, ScriptSettings())["model"]}
    options = answer(options, answers, answer_or_default)
    machine = find_machine(options, os.environ, reporter=reporter)
    result = plan_with(options, machine)
    note_basis(result.decided, reporter)
    note_emulation(result.decided, reporter)
    if options.as_json:
        write_plan(result.decided)
    else:
        show.plan(result.decided.decision, result.remedies, sys.stdout)
    require_strategy(result.decided)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan", cls=PlainCommand)(plan)
