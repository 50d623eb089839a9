"""`zerowiz plan`: decide, write nothing."""

import json
import os
import sys
from collections.abc import Mapping, Sequence

import typer

from zerowiz.app.ask.answers import answer, open_questions
from zerowiz.app.decide.decision import (
    Plan,
    note_emulation,
    plan_options,
    require_strategy,
    write_notes,
)
from zerowiz.app.decide.plan_json import encode_plan
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.cli.options import takes_options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import answer_or_default
from zerowiz.core.script import ScriptSettings
from zerowiz.ui import show


def write_json(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """The contract's object, alone on stdout."""
    sys.stdout.write(json.dumps(encode_plan(plan, command, env), indent=2) + "\n")


@takes_options
def plan(options: Options) -> None:
    """Show what each strategy needs here, and choose one"""
    answers = {"model": open_questions(options, ScriptSettings())["model"]}
    options = answer(options, answers, answer_or_default)
    decided = plan_options(options, find_machine(options, os.environ), None, ())
    write_notes(decided)
    note_emulation(decided)
    if options.as_json:
        write_json(decided)
    else:
        show.plan(decided.decision, decided.remedies, sys.stdout)
    require_strategy(decided)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan", cls=PlainCommand)(plan)
