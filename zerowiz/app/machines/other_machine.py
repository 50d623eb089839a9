"""Find a machine that is not the one this runs on: nodes of a hostfile, a file, a spec."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.app.machines.gpu_count import refuse_gpus, with_count
from zerowiz.app.machines.nodes import read_fleet
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.spec import with_count as spec_of
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.values import replace
from zerowiz.errors import PreflightError
from zerowiz.probe.machine.cpu import cpu_machine
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.machine.machine_file import read_machine_file
from zerowiz.ui import outliers


def read_nodes(options: Options, environ: Mapping[str, str], reporter: Reporter) -> Machine:
    """The weakest of the hostfile's nodes, every one of which has to answer."""
    fleet = read_fleet(options, environ, reporter)
    for short in fleet.short:
        raise PreflightError(
            outliers.outlier(short), f"give it that many slots in `{options.hostfile}`"
        )
    for failure in fleet.failures:
        raise PreflightError(
            f"{len(fleet.failures)} of {options.nodes} nodes did not answer;"
            f" `{failure.host}`: {failure.why}",
            f"`zerowiz machine $hostfile {options.hostfile}` shows them all",
            "`$machine FILE|SPEC` plans without asking the nodes",
        )
    return with_count(fleet.machine.with_notes(*outliers.notes(fleet)), options)


def read_named(options: Options) -> Machine:
    """The machine of a file or a spec."""
    text, count = options.machine or "", options.gpus_per_node
    path = Path(text)
    if not path.is_file() and path.suffix != ".json":
        spec = text if count is None else spec_of(text, count)
        return select_gpus(parse_spec(spec, read_gpu_table()), {}, options.gpus)
    machine = read_machine_file(path, gpus=options.gpus)
    if machine.accelerator is Accelerator.CPU:
        refuse_gpus(options)
        ranks = count or len(machine.gpus)
        return replace(cpu_machine(ranks, machine.host), source=machine.source)
    return with_count(machine, options)
