"""Say what joins the GPUs of a machine, and where the machine was read from."""

from collections.abc import Mapping

from zerowiz.core.machine.links import Interconnect, LinkClass
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource
from zerowiz.words import _

_LINKS: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: _("NVLink between every pair"),
    LinkClass.NVLINK_RING: _("NVLink in NCCL's rings, but not between every pair"),
    LinkClass.NVLINK_PARTIAL: _("NVLink between some pairs only, so NCCL's ring crosses PCIe"),
    LinkClass.PCIE: _("PCIe between the GPUs"),
    LinkClass.NONE: _("one GPU, no link"),
    LinkClass.UNKNOWN: _("unknown link, treated as slow"),
}
_NETWORKS: Mapping[NetworkKind, str] = {
    NetworkKind.NVLINK: _("one NVLink domain"),
    NetworkKind.INFINIBAND: "InfiniBand",
    NetworkKind.ROCE: "RoCE",
    NetworkKind.EFA: "EFA",
    NetworkKind.ETHERNET: "Ethernet",
    NetworkKind.UNKNOWN: _("unknown"),
}
_SOURCES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML",
    MachineSource.FILE: _("machine file"),
    MachineSource.SPEC: _("GPU table"),
    MachineSource.CPU: _("this host"),
}


def source(machine: Machine) -> str:
    """Where the machine was read from."""
    return _SOURCES[machine.source]


def link_class(interconnect: Interconnect) -> str:
    """The link in words, without its rate."""
    return _LINKS[interconnect.link_class]


def link(interconnect: Interconnect) -> str:
    """The link in words, with its nominal rate one way where it is known."""
    words = link_class(interconnect)
    if interconnect.bytes_per_s:
        words += _(
            ", {gigabytes_per_s:.0f} GB/s one way", gigabytes_per_s=interconnect.bytes_per_s / 1e9
        )
    return words


def network(value: Network) -> str:
    """The way to other nodes in words, with its nominal rate one way where it is known."""
    words = _NETWORKS[value.kind]
    if value.bytes_per_s:
        words += _(", {gigabytes_per_s:g} GB/s one way", gigabytes_per_s=value.bytes_per_s / 1e9)
    return words


def links(machine: Machine) -> str:
    """Every link that a job crosses: inside a node, and between nodes when there are several."""
    if machine.accelerator is Accelerator.CPU and machine.world_size == 1:
        return _("one rank, no link")
    inside = link(machine.interconnect)
    if machine.nodes == 1:
        return inside
    if machine.network.kind is NetworkKind.UNKNOWN:
        return _(
            "{inside}; between nodes unknown, treated as slow: set it with `--interconnect`",
            inside=inside,
        )
    return _("{inside}; between nodes {network}", inside=inside, network=network(machine.network))
