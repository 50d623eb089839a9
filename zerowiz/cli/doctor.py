"""`zerowiz doctor`: what would end a job here, before it starts."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

import typer
from msgspec import Struct, field

from zerowiz import __version__
from zerowiz.app.ask.answers import answer, open_questions
from zerowiz.app.decide.decision import Plan, plan_options, require_strategy, write_notes
from zerowiz.app.launch.doctor import look, look_around
from zerowiz.app.machines.machine import find_machine, is_here
from zerowiz.app.machines.node import find_place, with_place
from zerowiz.app.options import Options
from zerowiz.app.resolve.guards import check_accounting, check_own_config, check_words
from zerowiz.app.resolve.request import config_file
from zerowiz.app.resolve.script import find_script, read_reachable
from zerowiz.cli.options import takes_options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import answer_or_default
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.refused import (
    NO_DEEPSPEED,
    NO_MACHINE,
    NO_PLAN,
    PLAN_REFUSED,
    SCRIPT_REFUSED,
    refused,
)
from zerowiz.core.launch.doctor.report import encode_findings
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.launch.plan import Programs, launch_env
from zerowiz.core.machine.types import Machine
from zerowiz.core.rule import Rule, errors_of
from zerowiz.core.script import ScriptFacts, ScriptSettings, check_accelerator, deliver, settle
from zerowiz.core.values import replace
from zerowiz.errors import AnswerNeededError, ExitCode, UsageError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.machine.scheduler import parse_count
from zerowiz.ui import doctor as show_found
from zerowiz.ui import show

T = TypeVar("T")


class _Sight(Struct, frozen=True, kw_only=True):
    """What is to be looked at, and what the steps of a launch refused on the way."""

    options: Options
    script: str | None
    script_args: tuple[str, ...]
    refused: list[PreflightFinding] = field(default_factory=list)

    def attempt(self, rule: Rule, step: Callable[[], T]) -> T | None:
        """What a step of a launch gives; what it refuses is a finding, and the rest goes on.

        Raises:
            UsageError: The command line itself makes no sense.
        """
        try:
            return step()
        except UsageError:
            raise
        except AnswerNeededError as error:
            self.refused.append(refused(NO_PLAN, error))
        except ZerowizError as error:
            self.refused.append(refused(rule, error))
        return None


@takes_options
def doctor(
    options: Options,
    script: Annotated[
        str | None, typer.Argument(help="Training script; default without --model: as launch")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, untouched")
    ] = None,
) -> None:
    """Find what would end a job here, before it starts"""
    check_accounting(options)
    sight = _Sight(options=options, script=script, script_args=tuple(args or ()))
    if script is None and options.model is None:
        sight = _with_found_script(sight)
    place = None if _is_before_srun() else find_place(sight.options)
    sight = replace(sight, options=with_place(sight.options, place))
    findings = _examine(sight, place)
    if options.as_json:
        sys.stdout.write(json.dumps(encode_findings(findings, __version__), indent=2) + "\n")
    elif options.quiet:
        show_found.findings(errors_of(findings), sys.stdout)
    else:
        show_found.findings(findings, sys.stdout)
        show_found.summary(findings, sys.stdout)
    if errors_of(findings):
        raise typer.Exit(ExitCode.PREFLIGHT)


def _with_found_script(sight: _Sight) -> _Sight:
    """With the script that a launch would take, if there is one."""
    found = sight.attempt(SCRIPT_REFUSED, lambda: find_script(None, sight.options))
    if found is None:
        return sight
    script, options = found
    if not options.quiet:
        show.note(f"no script was named: `{script}`, as a launch would take", sys.stderr)
    return replace(sight, script=script, options=options)


def _is_before_srun() -> bool:
    """In a batch script or a shell of salloc: `srun` starts the copies later."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ


def _said_port(place: NodeRank | None, machine: Machine) -> int | None:
    """The port that has to be free on this node, where somebody chose it."""
    if place is not None:
        return place.port_here
    # A batch script runs on the first node of the job, where its ranks will meet; salloc may not.
    is_first = _is_before_srun() and os.environ.get("SLURM_NODEID") == "0"
    return parse_count(os.environ.get("MASTER_PORT")) if is_first and machine.nodes > 1 else None


def _examine(sight: _Sight, place: NodeRank | None) -> Sequence[PreflightFinding]:
    programs = sight.attempt(NO_DEEPSPEED, lambda: find_programs(os.environ))
    machine = sight.attempt(NO_MACHINE, lambda: _find_machine(sight.options))
    facts = sight.attempt(SCRIPT_REFUSED, lambda: _read_script(sight))
    plan = None if machine is None else _plan(sight, machine, facts)
    program = None if programs is None else programs.deepspeed
    environ = _job_environ(machine, programs)
    if plan is None or machine is None:
        return (*sight.refused, *look_around(program, machine, environ))
    port = None if sight.options.hostfile else _said_port(place, machine)
    strategy = require_strategy(plan)
    seen = look(plan, facts, strategy, sight.script_args, program, environ, master_port=port)
    return (*sight.refused, *seen)


def _find_machine(options: Options) -> Machine:
    machine = find_machine(options, os.environ)
    if not is_here(machine):
        raise UsageError(
            f"`--machine {options.machine}` is another machine; `doctor` looks at this one",
            "drop `--machine`, or run `zerowiz doctor` there",
        )
    if options.hostfile is not None and not options.quiet:
        show.note("beside the GPUs, this node alone is looked at", sys.stderr)
    return machine


def _read_script(sight: _Sight) -> ScriptFacts | None:
    if sight.script is None:
        return None
    facts = read_reachable(sight.script, sight.script_args, sight.options)
    check_words(facts, sight.script_args)
    return facts


def _plan(sight: _Sight, machine: Machine, facts: ScriptFacts | None) -> Plan | None:
    """The job as a launch without questions would have it; None where there is none."""
    if facts is None and sight.options.model is None:
        if sight.script is None:
            what = "no script and no `--model`: what a job needs was not looked at"
            sight.refused.append(found(NO_PLAN, what, "zerowiz doctor train.py"))
        return None
    plan = sight.attempt(PLAN_REFUSED, lambda: _decide(sight, machine, facts))
    if plan is not None and not sight.options.quiet:
        write_notes(plan)
    return plan


def _decide(sight: _Sight, machine: Machine, facts: ScriptFacts | None) -> Plan:
    """What a launch decides, with its checks of script and config."""
    options, words = sight.options, sight.script_args
    settings = ScriptSettings() if facts is None else settle(facts, words)
    answers = open_questions(options, settings)
    # What a person would be asked, and a plan can do without, stays at its default.
    asked = {"model": answers["model"]}
    plan = plan_options(answer(options, asked, answer_or_default), machine, facts, words)
    strategy = require_strategy(plan)
    if facts is not None:
        check_own_config(options, machine, facts, words)
        check_accelerator(facts, settings, machine.accelerator)
        deliver(facts, words, config_file(options, strategy))
    return plan


def _job_environ(machine: Machine | None, programs: Programs | None) -> Mapping[str, str]:
    """The environment that a launch from here gives its job."""
    if machine is None or programs is None:
        return os.environ
    return {**os.environ, **launch_env(machine, programs, os.environ, {})}


def register(app: typer.Typer) -> None:
    """Add the command; from SCRIPT on, every word belongs to the script."""
    settings = {"allow_interspersed_args": False}
    app.command(name="doctor", cls=PlainCommand, context_settings=settings)(doctor)
