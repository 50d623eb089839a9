"""Find the machine that the options name, else the one this runs on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerowiz.cli.options import Options
from zerowiz.core.machine import (
    Accelerator,
    Machine,
    MachineSource,
    pick_gpus,
    with_gpus,
    with_nodes,
)
from zerowiz.core.spec import parse_spec, with_count
from zerowiz.core.visible import GpuId, choose_gpus
from zerowiz.errors import UsageError
from zerowiz.probe.cpu import cpu_machine
from zerowiz.probe.gpu_table import read_gpu_table
from zerowiz.probe.host import read_host
from zerowiz.probe.hostfile import read_hostfile
from zerowiz.probe.machine_file import read_machine_file
from zerowiz.probe.nvml import read_machine

CPU_MACHINE = "cpu"
"""The value of `--machine` that means this host without a GPU."""


def find_machine(options: Options, environ: Mapping[str, str]) -> Machine:
    """The machine of the job, with the nodes and the GPUs that were asked for.

    Raises:
        UsageError: The options contradict each other, or the machine.
        PreflightError: There is no GPU here.
    """
    options = _with_hostfile(options)
    machine = _read(options, environ)
    return machine if options.nodes is None else with_nodes(machine, options.nodes)


def is_here(machine: Machine) -> bool:
    """Whether a job planned for this machine can start on it."""
    return machine.source in {MachineSource.NVML, MachineSource.CPU}


def _with_hostfile(options: Options) -> Options:
    """Nodes and GPUs of each as the hostfile says; DeepSpeed starts one rank for every slot."""
    if options.hostfile is None:
        return options
    slots = read_hostfile(options.hostfile)
    fewest, most = min(slots.values()), max(slots.values())
    if fewest != most:
        host = min(slots, key=lambda name: slots[name])
        raise UsageError(
            f"hostfile `{options.hostfile}`: `{host}` has {fewest} slots, others have {most}",
            "give every host the same slots: the plan is for equal nodes",
        )
    for flag, said, told in (
        ("--nodes", options.nodes, len(slots)),
        ("--gpus-per-node", options.gpus_per_node, fewest),
    ):
        if said is not None and said != told:
            raise UsageError(
                f"`{flag} {said}` disagrees with `{options.hostfile}`, which says {told}",
                f"drop `{flag} {said}`",
            )
    return replace(options, nodes=len(slots), gpus_per_node=fewest)


def _read(options: Options, environ: Mapping[str, str]) -> Machine:
    asked = options.accelerator or environ.get("DS_ACCELERATOR")
    named = options.machine not in {None, CPU_MACHINE}
    if named:
        machine = _read_named(options)
        if options.accelerator not in {None, machine.accelerator}:
            raise UsageError(
                f"`--accelerator {options.accelerator}` disagrees with `--machine"
                f" {options.machine}`, which is for {machine.accelerator}"
            )
        return machine
    if options.machine == CPU_MACHINE or asked == Accelerator.CPU:
        _refuse_gpus(options)
        return cpu_machine(options.gpus_per_node or 1, read_host())
    machine = read_machine(environ, gpus=options.gpus)
    return _with_count(machine, options)


def _read_named(options: Options) -> Machine:
    """The machine of a file or a spec."""
    text, count = options.machine or "", options.gpus_per_node
    path = Path(text)
    if not path.is_file() and path.suffix != ".json":
        spec = text if count is None else with_count(text, count)
        return _picked(parse_spec(spec, read_gpu_table()), options)
    machine = read_machine_file(path)
    if machine.accelerator is Accelerator.CPU:
        _refuse_gpus(options)
        ranks = count or len(machine.gpus)
        return replace(cpu_machine(ranks, machine.host), source=machine.source)
    return _with_count(_picked(machine, options), options)


def _picked(machine: Machine, options: Options) -> Machine:
    """The GPUs that `--gpus` names; NVML's own are chosen as they are read."""
    if options.gpus is None:
        return machine
    known = [GpuId(index=gpu.index, uuid=gpu.uuid) for gpu in machine.gpus]
    chosen = choose_gpus(known, asked=options.gpus)
    return pick_gpus(machine, tuple(gpu.index for gpu in chosen))


def _with_count(machine: Machine, options: Options) -> Machine:
    count = options.gpus_per_node
    return machine if count is None else with_gpus(machine, count)


def _refuse_gpus(options: Options) -> None:
    if options.gpus is not None:
        raise UsageError(
            f"`--gpus {options.gpus}`: the CPU accelerator has ranks, not GPUs",
            "`--gpus-per-node N` says how many",
        )
