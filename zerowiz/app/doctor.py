"""Find what would end a job here, before it starts: every step of a launch, and every check."""

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct, field

from zerowiz.app.ask import answer, by_default_of, open_questions
from zerowiz.app.command import FoundScript, find_script, read_found, understand_command
from zerowiz.app.decide import Plan, note_basis, note_settled, plan_options, require_strategy
from zerowiz.app.launch.start import check_any_job, deliver_plan, preflight_input
from zerowiz.app.machines.machine import find_machine, find_node, is_here, with_node
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.workload import (
    check_accounting,
    check_local_rank,
    check_own_config,
    check_words,
)
from zerowiz.core.findings import PreflightFinding, Rule, found
from zerowiz.core.launch.job_nodes import NodeRank
from zerowiz.core.launch.plan import Programs, launch_env
from zerowiz.core.machine.types import Machine
from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.script import (
    NO_DEEPSPEED,
    NO_MACHINE,
    NO_PLAN,
    PLAN_REFUSED,
    SCRIPT_REFUSED,
    refused,
)
from zerowiz.core.script.settings import ScriptRun, settings_of
from zerowiz.core.structs import replace
from zerowiz.errors import AnswerNeededError, UsageError, ZerowizError
from zerowiz.probe.machine.scheduler import parse_count
from zerowiz.probe.preflight.interpreter import find_programs

T = TypeVar("T")

_CHECKING = "checking what a job needs here"


class _Examination(Struct, frozen=True, kw_only=True):
    """What is examined, and the findings of the steps of a launch that failed."""

    options: Options
    reporter: Reporter
    script: ScriptRun | None = None
    """None without a script, or if it was refused."""
    named: bool = False
    """Whether there is a script, read or refused."""
    refused: list[PreflightFinding] = field(default_factory=list)

    def attempt(self, rule: Rule, step: Callable[[], T]) -> T | None:
        """The result of a step of a launch; None where it failed, and its error is a finding.

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


def find_preflight_findings(
    script: str | None, script_args: tuple[str, ...], options: Options, reporter: Reporter
) -> tuple[PreflightFinding, ...]:
    """Run every preflight check for the job, or those of any job where none is described.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What the person said.
        reporter: Hears which script is meant, and what the plan rests on.

    Raises:
        UsageError: The command line itself makes no sense.
    """
    check_accounting(options)
    command = understand_command(script, script_args, options, reporter)
    examination = _with_script(
        _Examination(options=command.options, reporter=reporter),
        command.script,
        command.script_args,
    )
    node = None if _is_before_srun() else find_node(examination.options)
    examination = replace(examination, options=with_node(examination.options, node))
    programs = examination.attempt(NO_DEEPSPEED, lambda: find_programs(os.environ))
    machine = examination.attempt(NO_MACHINE, lambda: _find_machine(examination))
    run = examination.script
    plan = None if machine is None else _plan(examination, machine)
    program = None if programs is None else programs.deepspeed
    environ = _job_environ(machine, programs)
    if plan is None or machine is None:
        with reporter.wait(_CHECKING):
            return (*examination.refused, *check_any_job(program, machine, environ, run))
    port = None if examination.options.hostfile else _said_port(node, machine)
    strategy = require_strategy(plan)
    with reporter.wait(_CHECKING):
        inputs = preflight_input(plan, run, strategy, program, environ, master_port=port)
        return (*examination.refused, *examine(inputs))


def _with_script(
    examination: _Examination, script: str | None, script_args: tuple[str, ...]
) -> _Examination:
    """With the script that was named, or that a launch would take, and what is recorded for it."""
    options, reporter = examination.options, examination.reporter
    if script is None and options.model is not None:
        return examination
    script_file = examination.attempt(
        SCRIPT_REFUSED, lambda: find_script(script, script_args, options)
    )
    if script_file is None:
        return replace(examination, named=script is not None)
    if script is None:
        reporter.note(
            f"checking `{script_file.path}`, the script that `zerowiz launch` would start"
        )
    run = examination.attempt(SCRIPT_REFUSED, lambda: _read_script(script_file, examination))
    return replace(examination, script=run, named=True)


def _read_script(script: FoundScript, examination: _Examination) -> ScriptRun:
    run = read_found(script, examination.options)
    check_words(run, examination.reporter)
    check_local_rank(run)
    return run


def _is_before_srun() -> bool:
    """In a batch script or a shell of salloc: `srun` starts zerowiz on the nodes later."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ


def _said_port(node: NodeRank | None, machine: Machine) -> int | None:
    """The port that has to be free on this node, where somebody chose it."""
    if node is not None:
        return node.port_here
    # A batch script runs on the first node of the job, where its ranks will meet; salloc may not.
    is_first = _is_before_srun() and os.environ.get("SLURM_NODEID") == "0"
    return parse_count(os.environ.get("MASTER_PORT")) if is_first and machine.nodes > 1 else None


def _find_machine(examination: _Examination) -> Machine:
    options = examination.options
    machine = find_machine(options, os.environ, reporter=examination.reporter)
    if not is_here(machine):
        raise UsageError(
            f"`$machine {options.machine}` names another machine; `doctor` checks this one",
            "remove `$machine`, or run `zerowiz doctor` there",
        )
    if options.hostfile is not None:
        examination.reporter.note(
            "`doctor` checked the GPUs of all nodes, and everything else on this node only"
        )
    return machine


def _plan(examination: _Examination, machine: Machine) -> Plan | None:
    """The job as a launch without questions would have it; None if there is none."""
    if examination.script is None and examination.options.model is None:
        if not examination.named:
            what = (
                "without a script or `$model`, `doctor` checked the machine only, not what "
                "a job needs"
            )
            examination.refused.append(found(NO_PLAN, what, "zerowiz doctor train.py"))
        return None
    plan = examination.attempt(PLAN_REFUSED, lambda: _decide(examination, machine))
    if plan is not None:
        note_basis(plan, examination.reporter)
        note_settled(plan, examination.reporter)
    return plan


def _decide(examination: _Examination, machine: Machine) -> Plan:
    """What a launch decides, with its checks of script and config."""
    options, script = examination.options, examination.script
    settings = settings_of(script)
    answers = open_questions(options, settings)
    # What a person would be asked, and a plan can do without, stays at its default.
    asked = {"model": answers["model"]}
    options_answered = answer(options, asked, by_default_of(settings if script else None))
    plan = plan_options(options_answered, machine, script, examination.reporter)
    strategy = require_strategy(plan)
    if script is not None:
        check_own_config(options, machine, script, examination.reporter)
        deliver_plan(plan, script, strategy)
    return plan


def _job_environ(machine: Machine | None, programs: Programs | None) -> Mapping[str, str]:
    """The environment that a launch from here gives its job."""
    if machine is None or programs is None:
        return os.environ
    return {**os.environ, **launch_env(machine, programs, os.environ, {})}
