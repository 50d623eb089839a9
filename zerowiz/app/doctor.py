"""Find what would end a job here, before it starts: every step of a launch, and every check."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from zerowiz.app.command import (
    Command,
    find_script,
    read_to_launch,
    understand_command,
)
from zerowiz.app.decide import Plan, note_basis, note_choices, plan_options, require_strategy
from zerowiz.app.launch.start import deliver_plan, plan_of, preflight_input
from zerowiz.app.machines.machine import find_machine, find_node, is_here, with_node
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.workload import (
    check_accounting,
    check_own_config,
)
from zerowiz.core.findings import Finding, Rule, found
from zerowiz.core.launch.plan import launch_env
from zerowiz.core.machine.types import Machine
from zerowiz.core.preflight.examine import examine
from zerowiz.core.preflight.script import (
    NO_DEEPSPEED,
    NO_MACHINE,
    NO_PLAN,
    PLAN_REFUSED,
    SCRIPT_REFUSED,
)
from zerowiz.core.script.settings import ScriptRun
from zerowiz.errors import LineEdit, LostEdit, UsageError, ZerowizError
from zerowiz.probe.files import LONGEST_SCRIPT_BYTES, read_named
from zerowiz.probe.preflight.read_facts import find_programs
from zerowiz.probe.script.line_edits import with_line_edits

T = TypeVar("T")

_CHECKING = "checking what a job needs here"
_NOTHING_PLANNED = (
    "without a script or `$model`, `doctor` checked the machine only, not what a job needs"
)


class _Refusals(Struct, frozen=True):
    """The findings of the steps of a launch that failed."""

    findings: list[Finding] = field(default_factory=list)

    def attempt(self, rule: Rule, step: Callable[[], T]) -> T | None:
        """The result of a step of a launch; None where it failed, and its error is a finding.

        Raises:
            UsageError: The command line itself makes no sense.
        """
        try:
            return step()
        except UsageError:
            raise
        except ZerowizError as error:
            hints = (hint.removeprefix("or ") for hint in error.hints)
            self.findings.append(found(rule, error.message, *hints, edits=error.edits))
        return None


def find_preflight_findings(
    script: str | None, script_args: tuple[str, ...], options: Options, reporter: Reporter
) -> tuple[Finding, ...]:
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
    command = understand_command(script, script_args, options)
    options, refusals, plan = command.options, _Refusals(), None
    file = _find_script(command, reporter)
    run = None
    if file is not None:
        run = refusals.attempt(SCRIPT_REFUSED, lambda: read_to_launch(file, command))
    # In a batch script or a shell of salloc, `srun` starts zerowiz on the nodes later.
    is_before_srun = "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ
    node = None if is_before_srun else find_node(options)
    options = with_node(options, node)
    programs = refusals.attempt(NO_DEEPSPEED, lambda: find_programs(os.environ))
    machine = refusals.attempt(NO_MACHINE, lambda: _find_machine(options, reporter))
    if machine is not None and (run is not None or options.model is not None):
        plan = refusals.attempt(PLAN_REFUSED, lambda: _decide(options, machine, run, reporter))
    elif machine is not None and file is None:
        refusals.findings.append(found(NO_PLAN, _NOTHING_PLANNED, "zerowiz doctor train.py"))
    program = None if programs is None else programs.deepspeed
    environ: Mapping[str, str] = os.environ
    if machine is not None and programs is not None:
        environ = {**environ, **launch_env(machine, programs, environ, {})}
    with reporter.wait(_CHECKING):
        planned = None if plan is None else plan_of(plan, run, require_strategy(plan))
        inputs = preflight_input(planned, machine, run, program, environ, options.output_dir)
        return (*refusals.findings, *examine(inputs))


def find_line_edits(wanted_edits: Iterable[LineEdit]) -> tuple[LostEdit, ...]:
    """What `--fix` writes: each file that it changes, as it is and as it will be."""
    edits = dict.fromkeys(wanted_edits)
    files = []
    for path in dict.fromkeys(edit.path for edit in edits):
        there = read_named(Path(path), LONGEST_SCRIPT_BYTES)
        with suppress(UnicodeDecodeError):
            there.decode()
            wanted = with_line_edits(there, (edit for edit in edits if edit.path == path))
            files.append(LostEdit(path=path, there=there, wanted=wanted.decode()))
    return tuple(file for file in files if file.wanted.encode() != file.there)


def write_line_edits(files: Sequence[LostEdit]) -> None:
    """Change scripts, each whole.

    Raises:
        ZerowizError: A file cannot be written.
    """
    from zerowiz.emit.files import rewrite_file  # noqa: PLC0415 - takes long to load

    for file in files:
        rewrite_file(Path(file.path), file.wanted)


def _find_script(command: Command, reporter: Reporter) -> str | None:
    """The script that was named, or that a launch would take."""
    if command.script is None and command.options.model is not None:
        return None
    script = find_script(command)
    if command.script is None and script is not None:
        reporter.note(f"checking `{script}`, the script that `zerowiz launch` would start")
    return script


def _find_machine(options: Options, reporter: Reporter) -> Machine:
    machine = find_machine(options, os.environ, reporter=reporter)
    if not is_here(machine):
        raise UsageError(
            f"`$machine {options.machine}` names another machine; `doctor` checks this one",
            "remove `$machine`, or run `zerowiz doctor` there",
        )
    if options.hostfile is not None:
        reporter.note(
            "`doctor` checked the GPUs of all nodes, and everything else on this node only"
        )
    return machine


def _decide(
    options: Options, machine: Machine, script: ScriptRun | None, reporter: Reporter
) -> Plan:
    """What a launch without questions decides, with its checks of script and config."""
    # What a person would be asked, and a plan can do without, stays at its default.
    plan = plan_options(options, machine, script, reporter)
    strategy = require_strategy(plan)
    if script is not None:
        check_own_config(options, machine, script, reporter)
        deliver_plan(plan, script, strategy)
    note_basis(plan, reporter)
    note_choices(plan, reporter)
    return plan
