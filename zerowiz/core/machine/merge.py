"""Merge the machines of all nodes into that of a job, and find the nodes that are unlike.

In each respect the weakest node limits a job, and that may be another node each time. So the merged
machine has the worst value of every fact, not the facts of one node. A value that one node does not
know could be the smallest, so it is unknown in the merged machine. A fact without a worst value is
kept where all nodes agree, and dropped where they do not. The nodes are first sorted by name, so
the order of their answers does not matter.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import multimode
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    PcieSlot,
    if_known,
    least,
    with_gpus,
)
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError, UsageError

# Order what a machine can have, the worse first.

# The worse first. `none` for several GPUs, which only a file can have, is an unknown link.
_LINK_CLASSES = (
    LinkClass.NONE,
    LinkClass.UNKNOWN,
    LinkClass.PCIE,
    LinkClass.NVLINK_PARTIAL,
    LinkClass.NVLINK_RING,
    LinkClass.NVLINK_ALL,
)
_NETWORK_KINDS = tuple(reversed(NetworkKind))


def link_rank(link: Interconnect) -> tuple[int, int]:
    """A key that sorts the slower link first; an unknown rate sorts as the slowest."""
    rate = -1 if link.bytes_per_s is None else link.bytes_per_s
    return (_LINK_CLASSES.index(link.link_class), rate)


def network_rank(network: Network) -> tuple[bool, int, int]:
    """A key that sorts the slower network first; an unknown rate sorts as the slowest."""
    rate = -1 if network.bytes_per_s is None else network.bytes_per_s
    return (network.is_fast, _NETWORK_KINDS.index(network.kind), rate)


def numbers_in(text: str) -> list[int]:
    """The numbers in a text, to sort by; one of many digits is several.

    Python reads no number of more than `sys.get_int_max_str_digits()`.
    """
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", text)]


_MergeValue = TypeVar("_MergeValue")


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """A node, and the machine that it has."""

    host: str
    machine: Machine


class NodeFailure(Struct, frozen=True, kw_only=True):
    """A node that did not answer."""

    host: str
    why: str


class NodeNote(Struct, frozen=True, kw_only=True):
    """What is said of one node and not of every other."""

    host: str
    note: str

    @property
    def words(self) -> str:
        """The note, and of which node it is."""
        return f"node `{self.host}`: {self.note}"


class ShortNode(Struct, frozen=True, kw_only=True):
    """A node with fewer GPUs than the job wants of it."""

    host: str
    gpus: int
    slots: int

    @property
    def words(self) -> str:
        """That it has fewer."""
        return f"node `{self.host}` has fewer GPUs than its slots: {self.gpus} of {self.slots}"


# What all nodes should have, in words.
_COMPARED: Mapping[str, Callable[[Machine], str | None]] = {
    "GPUs": lambda m: str(len(m.gpus)),
    "GPU model": lambda m: " + ".join(sorted({gpu.name for gpu in m.gpus})),
    "driver": lambda m: m.driver_version,
    # A node with one GPU has no link between them.
    "link": lambda m: (
        _in_words(m.interconnect.link_class, m.interconnect.bytes_per_s)
        if len(m.gpus) > 1
        else None
    ),
    "network": lambda m: _in_words(m.network.kind, m.network.bytes_per_s),
}


def _in_words(kind: str, bytes_per_s: int | None) -> str:
    return kind if bytes_per_s is None else f"{kind}, {bytes_per_s / 1e9:g} GB/s"


def _find_odd(nodes: Mapping[str, Machine]) -> Iterator[NodeNote]:
    """Each respect in which a node differs from most; what it does not know is left out."""
    for what, read in _COMPARED.items():
        values = {host: read(machine) for host, machine in nodes.items()}
        known = {host: value for host, value in values.items() if value is not None}
        usual = next(iter(multimode(known.values())), None)
        for host, value in known.items():
            if value != usual:
                yield NodeNote(host=host, note=f"{what}: {value}; most nodes have {usual}")


# Where no node answers, most of them have the same reason.
_MOST_REASONS = 5


class Fleet(Struct, frozen=True, kw_only=True):
    """The nodes that a job could run on."""

    machine: Machine
    """All nodes merged; it has the GPUs of one node."""
    short: tuple[ShortNode, ...] = ()
    notes: tuple[NodeNote, ...] = ()
    """In what a node differs from most, and the notes that not all nodes have."""
    failures: tuple[NodeFailure, ...] = ()


def merge_nodes(
    answers: Iterable[NodeAnswer | NodeFailure], slots: Mapping[str, int] | None = None
) -> Fleet:
    """Merge the nodes that answered, and note in what one differs from most.

    Args:
        answers: One for each host.
        slots: The GPUs that the job wants of each host; `None` takes all of them.

    Raises:
        PreflightError: No node answered.
        UsageError: Some nodes have GPUs and others run on the CPU; no job uses both.
    """
    # `n2` before `n10`.
    ranked = sorted(
        answers, key=lambda a: (re.split(r"[0-9]+", a.host), numbers_in(a.host), a.host)
    )
    failures = tuple(answer for answer in ranked if isinstance(answer, NodeFailure))
    nodes = {answer.host: answer.machine for answer in ranked if isinstance(answer, NodeAnswer)}
    if not nodes:
        raise PreflightError(
            f"none of {len(failures)} nodes answered",
            *(f"`{failure.host}`: {failure.why}" for failure in failures[:_MOST_REASONS]),
        )
    hosts = {machine.accelerator: host for host, machine in nodes.items()}
    if len(hosts) > 1:
        raise UsageError(
            f"`{hosts[Accelerator.CPU]}` runs on the CPU, `{hosts[Accelerator.CUDA]}` on GPUs",
            "choose one with `$accelerator`, or remove the other node from the hostfile",
        )
    shared = _shared_notes(list(nodes.values()))
    own = (
        NodeNote(host=host, note=note)
        for host, machine in nodes.items()
        for note in machine.notes
        if note not in shared
    )
    return Fleet(
        machine=_merge_machines(list(nodes.values())),
        short=tuple(
            ShortNode(host=host, gpus=len(machine.gpus), slots=slots[host])
            for host, machine in nodes.items()
            if slots and len(machine.gpus) < slots.get(host, 0)
        ),
        notes=(*_find_odd(nodes), *own),
        failures=failures,
    )


def _shared_notes(machines: Sequence[Machine]) -> tuple[str, ...]:
    """The notes that every node has, in the order of the first node."""
    others = [set(machine.notes) for machine in machines[1:]]
    return tuple(note for note in machines[0].notes if all(note in other for other in others))


def _shared(values: Iterable[_MergeValue], otherwise: _MergeValue) -> _MergeValue:
    """The value that all have; `otherwise` where two differ."""
    first, *rest = values
    return first if all(value == first for value in rest) else otherwise


def _merge_machines(machines: Sequence[Machine]) -> Machine:
    fewest = min(len(machine.gpus) for machine in machines)
    equal = [m if len(m.gpus) == fewest else with_gpus(m, fewest) for m in machines]
    return Machine(
        source=_shared((m.source for m in machines), MachineSource.FILE),
        accelerator=machines[0].accelerator,
        nodes=len(machines),
        gpus=_merge_gpus([machine.gpus for machine in equal]),
        # The worst class and the lowest rate, which may be those of two nodes.
        interconnect=replace(
            min((machine.interconnect for machine in equal), key=link_rank),
            bytes_per_s=least(machine.interconnect.bytes_per_s for machine in equal),
        ),
        links=_shared((machine.links for machine in equal), ()),
        left_out=_shared((machine.left_out for machine in machines), ()),
        host=_merge_hosts([machine.host for machine in machines]),
        network=_merge_networks(equal),
        driver_version=if_known(
            (machine.driver_version for machine in machines), partial(min, key=numbers_in)
        ),
        cuda_version=least(machine.cuda_version for machine in machines),
        allocation=_shared((machine.allocation for machine in machines), None),
        notes=_shared_notes(machines),
    )


def _merge_gpus(nodes: Sequence[Sequence[Gpu]]) -> tuple[Gpu, ...]:
    """The GPUs merged by position, as ranks are assigned to them.

    Their numbers are those of one node, so that no label stands twice.
    """
    numbered = min(nodes, key=lambda gpus: [_number(gpu) for gpu in gpus])
    merged = (_merge_position(gpus) for gpus in zip(*nodes, strict=True))
    return tuple(
        replace(gpu, index=numbers.index, mig_slice=numbers.mig_slice, ordinal=numbers.ordinal)
        for gpu, numbers in zip(merged, numbered, strict=True)
    )


def _number(gpu: Gpu) -> tuple[int, int, int]:
    return (gpu.index, -1 if gpu.mig_slice is None else gpu.mig_slice, gpu.cuda_ordinal)


def _merge_position(gpus: Sequence[Gpu]) -> Gpu:
    capabilities = [g.compute_capability for g in gpus if g.compute_capability is not None]
    return Gpu(
        index=gpus[0].index,
        name=max(multimode(gpu.name for gpu in gpus)),
        uuid=_shared((gpu.uuid for gpu in gpus), None),
        total_bytes=least(gpu.total_bytes for gpu in gpus),
        reserved_bytes=if_known((gpu.reserved_bytes for gpu in gpus), max),
        free_bytes=least(gpu.free_bytes for gpu in gpus),
        # An unknown one counts as new, so that it does not hide a known old one.
        compute_capability=min(capabilities, default=None),
        shares_host_memory=any(gpu.shares_host_memory for gpu in gpus),
        bus_id=_shared((gpu.bus_id for gpu in gpus), None),
        numa_node=_shared((gpu.numa_node for gpu in gpus), None),
        pcie=PcieSlot(
            max_generation=least(gpu.pcie.max_generation for gpu in gpus),
            current_generation=least(gpu.pcie.current_generation for gpu in gpus),
            max_lanes=least(gpu.pcie.max_lanes for gpu in gpus),
            current_lanes=least(gpu.pcie.current_lanes for gpu in gpus),
            upstream_bytes_per_s=least(gpu.pcie.upstream_bytes_per_s for gpu in gpus),
        ),
        nvlinks=least(gpu.nvlinks for gpu in gpus),
        expected_nvlinks=_shared((gpu.expected_nvlinks for gpu in gpus), None),
        fabric_ready=all(gpu.fabric_ready for gpu in gpus),
        clique=_shared((gpu.clique for gpu in gpus), None),
        ecc=_shared((gpu.ecc for gpu in gpus), None),
        mig_mode=any(gpu.mig_mode for gpu in gpus),
        memory_source=_shared((gpu.memory_source for gpu in gpus), None),
        processes=_shared((gpu.processes for gpu in gpus), ()),
    )


def _merge_networks(machines: Sequence[Machine]) -> Network:
    networks = [machine.network for machine in machines]
    nics = _shared((network.nics for network in networks), ())
    if len(machines) > 1 and _share_nvlink(machines):
        return Network(kind=NetworkKind.NVLINK, nics=nics)
    weakest = min(networks, key=network_rank)
    if weakest.is_fast and len({network.kind for network in networks}) > 1:
        # Two kinds of RDMA cannot connect to each other; what the nodes would use is not known.
        return Network(nics=nics)
    return Network(
        kind=weakest.kind,
        bytes_per_s=least(network.bytes_per_s for network in networks),
        nics=nics,
    )


def _share_nvlink(machines: Sequence[Machine]) -> bool:
    """Whether one NVLink domain with ready switches connects all GPUs of all nodes."""
    ready = all(gpu.fabric_ready for machine in machines for gpu in machine.gpus)
    return ready and _shared((machine.clique for machine in machines), None) is not None


def _merge_hosts(hosts: Sequence[Host]) -> Host:
    tightest = min(hosts, key=lambda host: -1 if (b := host.available_bytes) is None else b)
    return Host(
        total_bytes=least(host.total_bytes for host in hosts),
        available_bytes=tightest.available_bytes,
        available_by=tightest.available_by,
        cores=least(host.cores for host in hosts),
        python_call_seconds=if_known((host.python_call_seconds for host in hosts), max),
        numa_nodes=least(host.numa_nodes for host in hosts),
        shm_bytes=least(host.shm_bytes for host in hosts),
        memlock_bytes=least(host.memlock_bytes for host in hosts),
        computes_bf16=_all_true(host.computes_bf16 for host in hosts),
        computes_fp16=_all_true(host.computes_fp16 for host in hosts),
    )


def _all_true(values: Iterable[bool | None]) -> bool | None:
    """False where any value is false, else unknown where any is, else true."""
    answers = set(values)
    return next((value for value in (False, None) if value in answers), True)
