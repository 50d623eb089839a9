"""Find the machine that the options name, else the one this runs on."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zerowiz.app.options import (
    Options,
    choose_config_ranks,
    note_config_ranks,
    read_config_ranks,
)
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.core.command_words import spell
from zerowiz.core.machine.types import (
    Accelerator,
    Machine,
    MachineSource,
    NetworkKind,
    with_host_memory,
    with_interconnect,
)
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.core.structs import replace
from zerowiz.core.units import parse_host_memory
from zerowiz.errors import UsageError

if TYPE_CHECKING:
    from zerowiz.core.launch.plan import NodeRank


CPU_MACHINE = "cpu"
"""The value of `--machine` that means this host without a GPU."""
ALL_MACHINES = "all"
"""The value of `--machine` that means every machine of the tables: a question of `plan` alone."""


def means_cpu(machine: str | None) -> bool:
    """Whether a value of `--machine` means this host without a GPU; case does not matter."""
    return machine is not None and machine.strip().lower() == CPU_MACHINE


def means_all(machine: str | None) -> bool:
    """Whether a value of `--machine` means every machine; case does not matter, as in names."""
    return machine is not None and machine.strip().lower() == ALL_MACHINES


def find_machine(
    options: Options,
    environ: Mapping[str, str],
    *,
    reporter: Reporter = SILENT,
) -> Machine:
    """The machine of the job, with the nodes and the GPUs that were asked for.

    Args:
        options: What the person said.
        environ: The environment.
        reporter: Hears how many nodes of a hostfile have answered, and which GPU is waited for.

    Raises:
        UsageError: The options contradict each other, or the machine.
        PreflightError: There is no GPU here.
    """
    options = with_hostfile(options)
    # A config that is not there is said before any machine is looked for.
    asked = read_config_ranks(options)
    machine = _read(options, environ, reporter)
    return note_config_ranks(complete(machine, options), asked)


def is_here(machine: Machine) -> bool:
    """Whether a job planned for this machine can start on it."""
    return machine.source in {MachineSource.NVML, MachineSource.CPU}


def complete(machine: Machine, options: Options) -> Machine:
    """The machine with what options and scheduler add, and warnings."""
    machine = state_links(machine, options.interconnect)
    if options.host_memory is not None:
        machine = _with_host_memory(machine, options.host_memory)
    nodes = options.nodes
    allocated = machine.allocation
    if nodes is None and allocated is not None and allocated.nodes is not None:
        nodes = allocated.nodes
        if nodes > 1:
            machine = machine.with_notes(
                f"{allocated.scheduler} gave the job {nodes} nodes: the plan assumes "
                "that all of them are like this one (`$nodes 1` plans for this node "
                "only)"
            )
    elif (
        nodes is None
        and is_here(machine)
        and (asked := choose_config_ranks(options))
        and asked.nodes > 1
    ):
        nodes = asked.nodes
    if nodes is not None:
        machine = replace(machine, nodes=nodes)
    is_unknown = machine.network.kind is NetworkKind.UNKNOWN
    if is_unknown and machine.nodes > 1 and machine.source is MachineSource.SPEC:
        from zerowiz.app.machines.other_machine import note_network  # noqa: PLC0415 - takes long to load

        machine = note_network(machine, options)
    machine = machine.with_notes(*find_warnings(machine))
    # A file of an earlier look has them, with its options spelled.
    return replace(machine, notes=tuple(dict.fromkeys(map(spell, machine.notes))))


def state_links(machine: Machine, text: str | None) -> Machine:
    """The machine with the links that a person states."""
    return machine if text is None else with_interconnect(machine, text)


def _with_host_memory(machine: Machine, text: str) -> Machine:
    """The machine with the memory that a person states; of a host that is here, no more than is."""
    size_bytes, available_bytes = parse_host_memory(text), machine.host.available_bytes
    if is_here(machine) and available_bytes is not None and size_bytes > available_bytes:
        return machine.with_notes(f"`$host_memory {text}` is more than this host has available")
    return with_host_memory(machine, size_bytes)


def with_hostfile(options: Options) -> Options:
    """Nodes and GPUs of each as the hostfile says; DeepSpeed starts one rank for every slot."""
    if options.hostfile is None:
        return options
    from zerowiz.probe.nodes import read_hostfile  # noqa: PLC0415 - most jobs have no hostfile

    if options.gpus is not None:
        raise UsageError(
            (
                f"`$gpus {options.gpus}` has no effect with `$hostfile`: DeepSpeed takes the "
                "first GPUs of each node, one per slot"
            ),
            "remove `$gpus`",
        )
    slots = read_hostfile(options.hostfile)
    fewest, most = min(slots.values()), max(slots.values())
    if fewest != most:
        host = min(slots, key=lambda name: slots[name])
        raise UsageError(
            f"hostfile `{options.hostfile}`: `{host}` has {fewest} slots, others have {most}",
            "give every host the same number of slots",
        )
    for flag, value, in_file in (
        ("$nodes", options.nodes, len(slots)),
        ("$gpus_per_node", options.gpus_per_node, fewest),
    ):
        if value is not None and value != in_file:
            raise UsageError(
                f"`{flag} {value}` conflicts with `{options.hostfile}`, which says {in_file}",
                f"remove `{flag} {value}`",
            )
    return replace(options, nodes=len(slots), gpus_per_node=fewest)


def _read(options: Options, environ: Mapping[str, str], reporter: Reporter) -> Machine:
    if options.hostfile is not None and options.machine is None:
        from zerowiz.app.machines.hostfile_nodes import read_nodes  # noqa: PLC0415 - as below

        return read_nodes(options.hostfile, options, environ, reporter)
    asked = options.accelerator or environ.get("DS_ACCELERATOR")
    if means_all(options.machine):
        raise UsageError(
            "`$machine all` works with `zerowiz plan` only, which compares machines",
            "name one machine: `$machine 8xH100-80GB`",
        )
    named = options.machine is not None and not means_cpu(options.machine)
    if named:
        from zerowiz.app.machines.other_machine import read_named  # noqa: PLC0415 - takes long to load

        machine = read_named(options)
        if options.accelerator not in {None, machine.accelerator}:
            raise UsageError(
                (
                    f"`$accelerator {options.accelerator}` conflicts with `$machine "
                    f"{options.machine}`, which is for {machine.accelerator}"
                ),
                "remove one of them",
            )
        return machine
    from zerowiz.app.machines.this_machine import READERS, read_this  # noqa: PLC0415 - as above

    wanted = Accelerator.CPU if means_cpu(options.machine) else asked
    accelerator = next((each for each in READERS if each == wanted), Accelerator.CUDA)
    return read_this(options, environ, reporter, accelerator=accelerator)


# Find which node of its job this is, where a launcher started one zerowiz on each.


def find_node(options: Options) -> "NodeRank | None":
    """This node; None where there is not one zerowiz on each node.

    Raises:
        UsageError: The launcher started it in another way, or its variables contradict each other.
    """
    named = options.machine is not None and not means_cpu(options.machine)
    if options.hostfile is not None or options.nodes == 1 or named:
        return None
    from zerowiz.probe.nodes import read_node_rank  # noqa: PLC0415 - a plan for a named machine asks for none

    return read_node_rank(os.environ)


def with_node(options: Options, node: "NodeRank | None") -> Options:
    """With the nodes of the launcher, and without questions: nobody could answer on every node."""
    if node is None:
        return options
    if options.nodes not in {None, node.nodes}:
        raise UsageError(
            f"`$nodes {options.nodes}`: this job has {node.nodes} nodes",
            "remove `$nodes`",
        )
    return replace(options, nodes=node.nodes, yes=True)
