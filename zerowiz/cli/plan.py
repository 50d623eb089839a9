"""`zerowiz plan`: decide, write nothing."""

import json
import os
import sys
from collections.abc import Mapping, Sequence

import typer

from zerowiz import __version__
from zerowiz.app.ask.answers import answer, open_questions
from zerowiz.app.decide.decision import Plan, plan_options, require_strategy, write_notes
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.resolve.request import config_file
from zerowiz.cli.options import Options, takes_options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import answer_or_default
from zerowiz.core.plan_json import encode_plan
from zerowiz.core.script import ScriptSettings
from zerowiz.ui import sentences, show


def encode_outcome(
    outcome: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """The contract's object of what was decided."""
    strategy, decision = outcome.strategy, outcome.decision
    return encode_plan(
        decision,
        version=__version__,
        reasons=[sentences.reason(reason) for reason in decision.reasons],
        remedies=outcome.remedies,
        config_path=None if strategy is None else config_file(outcome.options, strategy),
        command=command,
        env=env,
    )


def write_json(
    outcome: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """The contract's object, alone on stdout."""
    sys.stdout.write(json.dumps(encode_outcome(outcome, command, env), indent=2) + "\n")


@takes_options
def plan(options: Options) -> None:
    """Show what each strategy needs here, and choose one"""
    answers = {"model": open_questions(options, ScriptSettings())["model"]}
    options = answer(options, answers, answer_or_default)
    outcome = plan_options(options, find_machine(options, os.environ), None, ())
    write_notes(outcome)
    if options.as_json:
        write_json(outcome)
    else:
        show.plan(outcome.decision, outcome.remedies, sys.stdout)
    require_strategy(outcome)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan", cls=PlainCommand)(plan)
