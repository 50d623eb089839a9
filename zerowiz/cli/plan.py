"""`zerowiz plan`: decide, write nothing."""

import json
import os
import sys
from collections.abc import Mapping, Sequence

import typer

from zerowiz import __version__
from zerowiz.cli.options import Options, takes_options
from zerowiz.cli.planning import Brief, answer, by_default, find_machine, make_brief, open_questions
from zerowiz.core.contract import encode_plan
from zerowiz.core.decide import Decision, decide
from zerowiz.core.machine import Machine
from zerowiz.core.remedies import Remedy, remedies
from zerowiz.core.script import ScriptSettings
from zerowiz.errors import NothingFitsError
from zerowiz.ui import sentences, show


def write_notes(machine: Machine, brief: Brief, options: Options) -> None:
    """Say on stderr what a result rests on."""
    assumed = (f"assumed {', '.join(brief.assumed)}",) if brief.assumed else ()
    if not options.quiet:
        sys.stderr.writelines(f"note: {note}\n" for note in (*machine.notes, *assumed))


def write_json(
    decision: Decision,
    cures: Sequence[Remedy],
    config_path: str | None,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """The contract's object, alone on stdout."""
    content = encode_plan(
        decision,
        version=__version__,
        reasons=[sentences.reason(reason) for reason in decision.reasons],
        remedies=cures,
        config_path=config_path,
        command=command,
        env=env,
    )
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def require_a_rung(decision: Decision, cures: Sequence[Remedy]) -> None:
    """Stop with exit code 4 when the walk chose none.

    Raises:
        NothingFitsError: With the closest rung, and the remedies as hints.
    """
    if decision.chosen is None:
        hints = (sentences.remedy(cure) for cure in cures)
        raise NothingFitsError(sentences.nothing_fits(decision), *hints)


@takes_options
def plan(options: Options) -> None:
    """Show what each strategy needs here, and choose one"""
    machine = find_machine(options, os.environ)
    nothing_seen = ScriptSettings()
    answers = {"model": open_questions(options, nothing_seen)["model"]}
    options = answer(options, answers, by_default)
    brief = make_brief(options, machine, None, ())
    decision = decide(brief.job, brief.wish)
    cures = remedies(decision)
    chosen = decision.chosen
    write_notes(machine, brief, options)
    if options.as_json:
        write_json(decision, cures, None if chosen is None else chosen.strategy.template)
    else:
        show.plan(decision, cures, sys.stdout)
    require_a_rung(decision, cures)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan")(plan)
