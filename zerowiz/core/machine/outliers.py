"""Find the nodes that have less than most nodes, or something else than most."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from statistics import median_high, multimode
from typing import TypeVar

from msgspec import Struct, field

from zerowiz.core.machine.links import Interconnect, LinkClass
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.types import Accelerator, Gpu, Machine
from zerowiz.core.values import replace

_Value = TypeVar("_Value")

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

# Below this part of the median, another job holds the memory, and not a display or a daemon.
_BUSY_FRACTION = 0.9
_LITTLE_MEMORY_FRACTION = 0.5


class OutlierKind(StrEnum):
    """In which respect a node differs, and what `value` and `usual` are then."""

    FEWER_GPUS = "fewer_gpus"
    """The count of GPUs."""
    FEWER_THAN_SLOTS = "fewer_than_slots"
    """The count of GPUs; usual is the count of slots in the hostfile."""
    GPU_MODEL = "gpu_model"
    """The GPU's name."""
    BUSY_GPU = "busy_gpu"
    """Free bytes; usual is the median of the GPUs of this model at this position."""
    DRIVER = "driver"
    """Its version."""
    SLOWER_LINK = "slower_link"
    """An Interconnect without its weakest pair."""
    SLOWER_NETWORK = "slower_network"
    """A Network without its adapters."""
    LESS_HOST_MEMORY = "less_host_memory"
    """Available bytes; usual is the median."""


OutlierValue = int | str | Interconnect | Network


class Outlier(Struct, frozen=True, kw_only=True):
    """One respect in which one node differs from most."""

    host: str
    kind: OutlierKind = field(name="what")
    value: OutlierValue = field(name="said")
    usual: OutlierValue
    """The value of most nodes; of equally frequent ones the better."""
    gpu: str | None = None
    """The label of the GPU that differs; `None` where it is the node."""


def find_outliers(nodes: Mapping[str, Machine]) -> tuple[Outlier, ...]:
    """Each respect in which a node differs from most, in the order of the nodes."""
    found = [outlier for find in _FINDERS for outlier in find(nodes)]
    position = {host: index for index, host in enumerate(nodes)}
    return tuple(sorted(found, key=lambda outlier: position[outlier.host]))


def link_rank(link: Interconnect) -> tuple[int, int]:
    """A key that sorts the slower link first; an unknown rate sorts as the slowest."""
    rate = -1 if link.bytes_per_s is None else link.bytes_per_s
    return (_LINK_CLASSES.index(link.link_class), rate)


def network_rank(network: Network) -> tuple[bool, int, int]:
    """A key that sorts the slower network first; an unknown rate sorts as the slowest."""
    rate = -1 if network.bytes_per_s is None else network.bytes_per_s
    return (network.is_fast, _NETWORK_KINDS.index(network.kind), rate)


def version_rank(version: str) -> tuple[list[int], str]:
    """A key that sorts the older version first."""
    return (numbers_in(version), version)


def numbers_in(text: str) -> list[int]:
    """The numbers in a text, to sort by; one of many digits is several.

    Python reads no number of more than `sys.get_int_max_str_digits()`.
    """
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", text)]


def usual(values: Sequence[_Value], better: Callable[[Sequence[_Value]], _Value]) -> _Value:
    """The most frequent value; of equally frequent ones the better."""
    return better(multimode(values))


def _fewer_gpus(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    counts = {host: len(machine.gpus) for host, machine in nodes.items()}
    most = usual(list(counts.values()), max)
    for host, count in counts.items():
        if count < most:
            yield Outlier(host=host, kind=OutlierKind.FEWER_GPUS, value=count, usual=most)


def _gpu_models(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    """One outlier for each other GPU model of a node, whatever the count of its GPUs."""
    names = [usual([gpu.name for gpu in gpus], max) for gpus in _by_position(nodes)]
    for host, machine in nodes.items():
        outliers: dict[str, Outlier] = {}
        for gpu, name in zip(machine.gpus, names, strict=False):
            if gpu.name != name and gpu.name not in outliers:
                outliers[gpu.name] = Outlier(
                    host=host,
                    kind=OutlierKind.GPU_MODEL,
                    value=gpu.name,
                    usual=name,
                    gpu=gpu.label,
                )
        yield from outliers.values()


def _by_position(nodes: Mapping[str, Machine]) -> list[list[Gpu]]:
    """The first GPU of every node, then the second of every node that has one, and so on."""
    most = max(len(machine.gpus) for machine in nodes.values())
    return [[m.gpus[i] for m in nodes.values() if i < len(m.gpus)] for i in range(most)]


def _busy_gpus(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    free: dict[tuple[int, str], list[tuple[str, str, int]]] = {}
    for host, machine in nodes.items():
        for position, gpu in enumerate(machine.gpus):
            if gpu.free_bytes is not None and _has_own_memory(machine, gpu):
                known = (host, gpu.label, gpu.free_bytes)
                free.setdefault((position, gpu.name), []).append(known)
    for same_kind in free.values():
        middle = median_high(free_bytes for _, _, free_bytes in same_kind)
        for host, label, free_bytes in same_kind:
            if free_bytes < _BUSY_FRACTION * middle:
                yield Outlier(
                    host=host,
                    kind=OutlierKind.BUSY_GPU,
                    value=free_bytes,
                    usual=middle,
                    gpu=label,
                )


def _has_own_memory(machine: Machine, gpu: Gpu) -> bool:
    return machine.accelerator is Accelerator.CUDA and not gpu.shares_host_memory


def _drivers(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    versions = {h: m.driver_version for h, m in nodes.items() if m.driver_version is not None}
    if not versions:
        return
    most = usual(list(versions.values()), partial(max, key=version_rank))
    for host, version in versions.items():
        if version != most:
            yield Outlier(host=host, kind=OutlierKind.DRIVER, value=version, usual=most)


def _slower_links(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    """Nodes with a slower link between their GPUs; a node with one GPU has no link."""
    links = {
        host: replace(machine.interconnect, weakest_pair=None)
        for host, machine in nodes.items()
        if len(machine.gpus) > 1
    }
    if not links:
        return
    most = usual(list(links.values()), partial(max, key=link_rank))
    for host, link in links.items():
        if link_rank(link) < link_rank(most):
            yield Outlier(host=host, kind=OutlierKind.SLOWER_LINK, value=link, usual=most)


def _slower_networks(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    networks = {host: replace(machine.network, nics=()) for host, machine in nodes.items()}
    most = usual(list(networks.values()), partial(max, key=network_rank))
    for host, network in networks.items():
        if network_rank(network) < network_rank(most):
            yield Outlier(host=host, kind=OutlierKind.SLOWER_NETWORK, value=network, usual=most)


def _less_host_memory(nodes: Mapping[str, Machine]) -> Iterator[Outlier]:
    available = {
        host: machine.host.available_bytes
        for host, machine in nodes.items()
        if machine.host.available_bytes is not None
    }
    if not available:
        return
    middle = median_high(available.values())
    for host, size_bytes in available.items():
        if size_bytes < _LITTLE_MEMORY_FRACTION * middle:
            kind = OutlierKind.LESS_HOST_MEMORY
            yield Outlier(host=host, kind=kind, value=size_bytes, usual=middle)


_FINDERS: Sequence[Callable[[Mapping[str, Machine]], Iterator[Outlier]]] = (
    _fewer_gpus,
    _gpu_models,
    _busy_gpus,
    _drivers,
    _slower_links,
    _slower_networks,
    _less_host_memory,
)
