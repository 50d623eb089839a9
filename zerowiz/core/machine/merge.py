"""Merge the machines of all nodes into the machine of a job that runs on all of them.

In each respect the weakest node limits a job, and that may be another node each time. So the merged
machine has the worst value of every fact, not the facts of one node. A value that one node does not
know could be the smallest, so it is unknown in the merged machine. A fact without a worst value is
kept where all nodes agree, and dropped where they do not. The nodes are first sorted by name, so
the order of their answers does not matter.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.machine.host import Disk, Host
from zerowiz.core.machine.links import Interconnect
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.outliers import (
    Outlier,
    OutlierKind,
    find_outliers,
    link_rank,
    network_rank,
    numbers_in,
    usual,
    version_rank,
)
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Machine,
    MachineSource,
    PcieSlot,
    least,
    with_gpus,
)
from zerowiz.core.values import replace
from zerowiz.errors import PreflightError, UsageError
from zerowiz.words import _

_Value = TypeVar("_Value")


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """A node, and the machine that it has."""

    host: str
    machine: Machine


class NodeFailure(Struct, frozen=True, kw_only=True):
    """A node that did not answer."""

    host: str
    why: str


class NodeNote(Struct, frozen=True, kw_only=True):
    """A note that one node has and not every other."""

    host: str
    note: str


# Where no node answers, most of them have the same reason.
_MOST_REASONS = 5


class Fleet(Struct, frozen=True, kw_only=True):
    """The nodes that a job could run on."""

    machine: Machine
    """All nodes merged; it has the GPUs of one node."""
    outliers: tuple[Outlier, ...] = ()
    short: tuple[Outlier, ...] = ()
    """The nodes with fewer GPUs than the job wants of them."""
    notes: tuple[NodeNote, ...] = ()
    """The notes that not all nodes have."""
    failures: tuple[NodeFailure, ...] = ()


def merge_nodes(
    answers: Iterable[NodeAnswer | NodeFailure], slots: Mapping[str, int] | None = None
) -> Fleet:
    """Merge the nodes that answered, and find the outliers among them.

    Args:
        answers: One for each host.
        slots: The GPUs that the job wants of each host; `None` takes all of them.

    Raises:
        PreflightError: No node answered.
        UsageError: Some nodes have GPUs and others run on the CPU; no job uses both.
    """
    ranked = sorted(answers, key=lambda answer: _by_name(answer.host))
    failures = tuple(answer for answer in ranked if isinstance(answer, NodeFailure))
    nodes = {answer.host: answer.machine for answer in ranked if isinstance(answer, NodeAnswer)}
    if not nodes:
        raise PreflightError(
            _("none of {failures} nodes answered", failures=len(failures)),
            *(f"`{failure.host}`: {failure.why}" for failure in failures[:_MOST_REASONS]),
        )
    _refuse_two_accelerators(nodes)
    return Fleet(
        machine=_merge_machines(list(nodes.values())),
        outliers=find_outliers(nodes),
        short=tuple(_find_short(nodes, slots or {})),
        notes=tuple(_own_notes(nodes)),
        failures=failures,
    )


def _find_short(nodes: Mapping[str, Machine], slots: Mapping[str, int]) -> Iterator[Outlier]:
    for host, machine in nodes.items():
        wanted, count = slots.get(host, 0), len(machine.gpus)
        if count < wanted:
            kind = OutlierKind.FEWER_THAN_SLOTS
            yield Outlier(host=host, kind=kind, value=count, usual=wanted)


def _own_notes(nodes: Mapping[str, Machine]) -> Iterator[NodeNote]:
    shared = _shared_notes(list(nodes.values()))
    for host, machine in nodes.items():
        for note in machine.notes:
            if note not in shared:
                yield NodeNote(host=host, note=note)


def _shared_notes(machines: Sequence[Machine]) -> tuple[str, ...]:
    """The notes that every node has, in the order of the first node."""
    others = [set(machine.notes) for machine in machines[1:]]
    return tuple(note for note in machines[0].notes if all(note in other for other in others))


def _by_name(host: str) -> tuple[list[str], list[int], str]:
    """A key that sorts `n2` before `n10`."""
    return (
        re.split(r"[0-9]+", host),
        numbers_in(host),
        host,
    )


def _refuse_two_accelerators(nodes: Mapping[str, Machine]) -> None:
    hosts = {machine.accelerator: host for host, machine in nodes.items()}
    if len(hosts) > 1:
        raise UsageError(
            _(
                "`{cpu_host}` runs on the CPU, `{gpu_host}` on GPUs",
                cpu_host=hosts[Accelerator.CPU],
                gpu_host=hosts[Accelerator.CUDA],
            ),
            _("choose one with `$accelerator`, or remove the other node from the hostfile"),
        )


def _shared(values: Iterable[_Value], otherwise: _Value) -> _Value:
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
        interconnect=_merge_interconnects([machine.interconnect for machine in equal]),
        links=_shared((machine.links for machine in equal), ()),
        left_out=_shared((machine.left_out for machine in machines), ()),
        host=_merge_hosts([machine.host for machine in machines]),
        network=_merge_networks(equal),
        driver_version=_oldest(machine.driver_version for machine in machines),
        cuda_version=least(machine.cuda_version for machine in machines),
        allocation=_shared((machine.allocation for machine in machines), None),
        sources=_merge_sources([machine.sources for machine in machines]),
        notes=_shared_notes(machines),
    )


def _merge_gpus(nodes: Sequence[Sequence[Gpu]]) -> tuple[Gpu, ...]:
    """The GPUs merged by position, as ranks are assigned to them.

    Their numbers are those of one node, so that no label stands twice.
    """
    numbered = min(nodes, key=lambda gpus: [_number(gpu) for gpu in gpus])
    merged = (_merge_position(gpus) for gpus in zip(*nodes, strict=True))
    return tuple(
        replace(gpu, index=own.index, mig_slice=own.mig_slice, ordinal=own.ordinal)
        for gpu, own in zip(merged, numbered, strict=True)
    )


def _number(gpu: Gpu) -> tuple[int, int, int]:
    return (gpu.index, -1 if gpu.mig_slice is None else gpu.mig_slice, gpu.cuda_ordinal)


def _merge_position(gpus: Sequence[Gpu]) -> Gpu:
    capabilities = [g.compute_capability for g in gpus if g.compute_capability is not None]
    reserved = [g.reserved_bytes for g in gpus if g.reserved_bytes is not None]
    return Gpu(
        index=gpus[0].index,
        name=usual([gpu.name for gpu in gpus], max),
        uuid=_shared((gpu.uuid for gpu in gpus), None),
        total_bytes=least(gpu.total_bytes for gpu in gpus),
        reserved_bytes=max(reserved) if len(reserved) == len(gpus) else None,
        free_bytes=least(gpu.free_bytes for gpu in gpus),
        # An unknown one counts as new, so that it does not hide a known old one.
        compute_capability=min(capabilities, default=None),
        shares_host_memory=any(gpu.shares_host_memory for gpu in gpus),
        bus_id=_shared((gpu.bus_id for gpu in gpus), None),
        numa_node=_shared((gpu.numa_node for gpu in gpus), None),
        pcie=_merge_slots([gpu.pcie for gpu in gpus]),
        nvlinks=least(gpu.nvlinks for gpu in gpus),
        expected_nvlinks=_shared((gpu.expected_nvlinks for gpu in gpus), None),
        fabric_ready=all(gpu.fabric_ready for gpu in gpus),
        clique=_shared((gpu.clique for gpu in gpus), None),
        ecc=_shared((gpu.ecc for gpu in gpus), None),
        mig_mode=any(gpu.mig_mode for gpu in gpus),
        memory_source=_shared((gpu.memory_source for gpu in gpus), None),
        processes=_shared((gpu.processes for gpu in gpus), ()),
    )


def _merge_slots(slots: Sequence[PcieSlot]) -> PcieSlot:
    return PcieSlot(
        max_generation=least(slot.max_generation for slot in slots),
        current_generation=least(slot.current_generation for slot in slots),
        max_lanes=least(slot.max_lanes for slot in slots),
        current_lanes=least(slot.current_lanes for slot in slots),
        upstream_bytes_per_s=least(slot.upstream_bytes_per_s for slot in slots),
    )


def _merge_interconnects(links: Sequence[Interconnect]) -> Interconnect:
    """The worst class and the lowest rate, which may be those of two nodes."""
    weakest = min(links, key=link_rank)
    return replace(weakest, bytes_per_s=least(link.bytes_per_s for link in links))


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
        python_call_seconds=_most(host.python_call_seconds for host in hosts),
        numa_nodes=least(host.numa_nodes for host in hosts),
        shm_bytes=least(host.shm_bytes for host in hosts),
        memlock_bytes=least(host.memlock_bytes for host in hosts),
        disk=_merge_disks([host.disk for host in hosts]),
        computes_bf16=_all_true(host.computes_bf16 for host in hosts),
        computes_fp16=_all_true(host.computes_fp16 for host in hosts),
    )


def _most(values: Iterable[float | None]) -> float | None:
    """The largest; unknown where any is."""
    known = [*values]
    return None if None in known else max(filter(None, known), default=None)


def _all_true(values: Iterable[bool | None]) -> bool | None:
    """False where any value is false, else unknown where any is, else true."""
    found = set(values)
    return next((value for value in (False, None) if value in found), True)


def _merge_disks(disks: Sequence[Disk | None]) -> Disk | None:
    known = [disk for disk in disks if disk is not None]
    if len(known) < len(disks):
        return None
    kinds = {disk.is_nvme for disk in known}
    return Disk(
        total_bytes=min(disk.total_bytes for disk in known),
        free_bytes=min(disk.free_bytes for disk in known),
        is_nvme=next(kind for kind in (False, None, True) if kind in kinds),
    )


def _merge_sources(sources: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    first, *rest = sources
    return {
        path: source
        for path, source in first.items()
        if all(other.get(path) == source for other in rest)
    }


def _oldest(versions: Iterable[str | None]) -> str | None:
    found = list(versions)
    known = [version for version in found if version is not None]
    return min(known, key=version_rank) if len(known) == len(found) else None
