"""Plan a job, for a script or for none, and write nothing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerowiz import __version__
from zerowiz.app.api import PlanResult, plan_with
from zerowiz.app.decide import Plan, note_change
from zerowiz.app.machines.machine import find_machine, means_all
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.resolved_job import find_basis
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.settings import ScriptRun
from zerowiz.errors import NoGpuHereError
from zerowiz.translation import _

if TYPE_CHECKING:
    from zerowiz.app.catalog import MachineChoice


def plan_job(
    script: str | None,
    script_args: Sequence[str],
    options: Options,
    prices: Sequence[str],
    reporter: Reporter,
) -> "PlanResult | MachineChoice":
    """Decide, as `launch` would without questions; a script that it would refuse is noted.

    Where every machine is asked for, or none is said and none is here, the machines of the tables
    that the job fits.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: What was said.
        prices: What was said of the prices of many machines.
        reporter: Hears what is waited for: the nodes of a hostfile, the hub, a trace.

    Raises:
        ZerowizError: The script cannot be read, nobody says which model, or the options contradict
            the script or the machine.
    """
    run = None
    if script is not None:
        from zerowiz.app.launch.start import note_refusal  # noqa: PLC0415 - most plans are for no script

        run = _read(script, script_args, options)
        note_refusal(run, options, reporter)
    machine = _find_or_list(options, reporter)
    if machine is None:
        from zerowiz.app.catalog import find_machines  # noqa: PLC0415 - most plans are for one machine

        with reporter.wait(_("planning for every machine of the tables")):
            return find_machines(options, run, prices)
    result = plan_with(options, machine, run, reporter)
    if run is not None:
        from zerowiz.app.launch.start import note_script  # noqa: PLC0415 - as above

        note_script(result.decided, run, reporter)
    note_change(result.decided, reporter)
    return result


_OF_ONE_MACHINE = ("machine", "gpus", "hostfile", "accelerator")


def _find_or_list(options: Options, reporter: Reporter) -> Machine | None:
    """The machine of the job; None where all are asked for, or none is said and no GPU is here."""
    if means_all(options.machine):
        return None
    try:
        return find_machine(options, os.environ, reporter=reporter)
    except NoGpuHereError as error:
        if any(getattr(options, name) is not None for name in _OF_ONE_MACHINE):
            raise
        reporter.note(f"{error.message}: comparing the machines of zerowiz's tables only")
        for hint in error.hints[:1]:
            reporter.note(hint)
        return None


def _read(script: str, script_args: Sequence[str], options: Options) -> ScriptRun:
    """The script with the words after it."""
    # Most plans are for no script.
    from zerowiz.app.command import read_as_said, understand_command  # noqa: PLC0415 - takes long to load
    from zerowiz.app.resolve.workload import check_words  # noqa: PLC0415 - as above

    command = understand_command(script, tuple(script_args), options)
    run = read_as_said(command.script or script, command.script_args, options)
    check_words(run)
    return run


def write_page(plan: Plan, path: Path, reporter: Reporter) -> None:
    """Write a plan as a page of HTML.

    Args:
        plan: What was decided.
        path: Where the page goes.
        reporter: Hears what was written.

    Raises:
        HandEditedError: A file there is a person's, and `--force` is not given.
        ZerowizError: It cannot be written.
    """
    from zerowiz.emit.files import write_files  # noqa: PLC0415 - most plans write nothing
    from zerowiz.ui.page import page  # noqa: PLC0415 - as above

    text = page(plan.decision, plan.remedies, find_basis(plan.resolved), __version__)
    elsewhere = "choose another file with `--html FILE`"
    write_files(
        [PlannedFile(path=str(path), text=text, elsewhere=elsewhere)], force=plan.options.force
    )
    reporter.note(f"wrote `{path}`")
