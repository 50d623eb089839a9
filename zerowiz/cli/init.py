"""`zerowiz init`: the wizard; asks what it could not detect, writes the config."""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.cli.launch import answer_for, config_file, render
from zerowiz.cli.options import Options, as_words, takes_options
from zerowiz.cli.plan import require_a_rung, write_json, write_notes
from zerowiz.cli.planning import Ask, by_default, find_machine, make_brief
from zerowiz.cli.record import encode_record
from zerowiz.core.decide import decide
from zerowiz.core.launch import PlannedFile
from zerowiz.core.machine import Machine
from zerowiz.core.questions import QUESTIONS, Question
from zerowiz.core.remedies import remedies
from zerowiz.core.script import deliver
from zerowiz.emit.files import is_somebodys_work, write_file
from zerowiz.errors import InterruptedByUserError, PreflightError
from zerowiz.probe.record import record_path
from zerowiz.probe.script import read_script
from zerowiz.ui import show
from zerowiz.ui.ask import ask, can_ask, confirm


def _question(key: str) -> Question:
    return next(question for question in QUESTIONS if question.key == key)


def _find_machine(options: Options, ask_person: Ask | None) -> tuple[Machine, Options]:
    """The machine here; where there is none, the one that the person names."""
    try:
        return find_machine(options, os.environ), options
    except PreflightError as error:
        if ask_person is None:
            raise
        sys.stderr.write(f"note: {error.message}\n")
        options = replace(options, machine=ask_person(_question("machine")))
        return find_machine(options, os.environ), options


def _find_script(script: str | None, ask_person: Ask | None) -> str:
    """The script that was named, or lies here, or that the person names."""
    question = _question("script")
    if script is not None:
        return script
    if Path(question.default or "").is_file() or ask_person is None:
        return by_default(question)
    return ask_person(question)


def _write(path: str, text: str, record: str, options: Options, *, asking: bool) -> None:
    """The config, then the record; a file that somebody changed is asked about first."""
    lost = is_somebodys_work(Path(path), text) and not options.force
    if asking:
        doing = "was changed by hand; overwrite it" if lost else "will be written; go on"
        if not confirm(f"{path} {doing}?", default=not lost):
            raise InterruptedByUserError("stopped; nothing was written")
    write_file(PlannedFile(path=path, text=text), force=asking or options.force)
    folder = options.output_dir or Path()
    write_file(PlannedFile(path=str(record_path(folder)), text=record), force=True)


@takes_options
def init(
    options: Options,
    script: Annotated[str | None, typer.Argument(help="Training script; default: train.py")] = None,
) -> None:
    """Ask what cannot be detected, decide, write the config"""
    asking = can_ask(os.environ, yes=options.yes or options.as_json or options.dry_run)
    ask_person = ask if asking else None
    machine, options = _find_machine(options, ask_person)
    path = _find_script(script, ask_person)
    facts = read_script(Path(path))
    options = answer_for(options, facts, (), ask_person)
    brief = make_brief(options, machine, facts, ())
    decision = decide(brief.job, brief.wish)
    cures = remedies(decision)
    write_notes(machine, brief, options)
    if not options.quiet:
        show.plan(decision, cures, sys.stderr)
    require_a_rung(decision, cures)
    rung = decision.chosen.strategy if decision.chosen else decision.closest.strategy
    config_path = config_file(options, rung)
    # Refuse now what the launch would refuse later.
    deliver(facts, (), config_path)
    text = render(brief, rung)
    if options.dry_run:
        sys.stdout.write(f"# writes {config_path}\n{text}")
    else:
        _write(config_path, text, encode_record(path, options), options, asking=asking)
    if options.as_json:
        write_json(decision, cures, config_path)
        return
    if not options.dry_run:
        sys.stdout.write(f"wrote {config_path}\n")
    folder = ["--output-dir", str(options.output_dir)] if options.output_dir else []
    same = shlex.join(["zerowiz", "launch", "--yes", *as_words(options), path])
    sys.stdout.write(f"next: {shlex.join(['zerowiz', 'launch', *folder])}\n")
    sys.stdout.write(f"the same in a job script: {same}\n")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="init")(init)
