"""Join what each pair of GPUs is linked by into the link that the whole job must cross."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from zerowiz.core.machine import Interconnect, LinkClass

# NVIDIA's NVLink pages and datasheets: nominal bytes/s of one link in one direction. NVML's own
# figure is the raw rate (25.781, 26.562, 53.125 GB/s), of which the payload is a part.
NVLINK_BYTES_PER_S: Mapping[tuple[int, int], int] = {
    (6, 0): 20_000_000_000,
    (7, 0): 25_000_000_000,
    (7, 5): 25_000_000_000,
    (8, 0): 25_000_000_000,
    (8, 6): 14_062_500_000,
    (9, 0): 25_000_000_000,
    (10, 0): 50_000_000_000,
    (10, 3): 50_000_000_000,
}

# PCI-SIG base specifications: bytes/s of one lane in one direction, after line coding.
PCIE_LANE_BYTES_PER_S: Mapping[int, int] = {
    1: 250_000_000,
    2: 500_000_000,
    3: 985_000_000,
    4: 1_969_000_000,
    5: 3_938_000_000,
    6: 7_563_000_000,
}


class RemoteType(IntEnum):
    """What NVML says hangs at the other end of an NVLink (`nvmlIntNvLinkDeviceType_t`)."""

    GPU = 0
    NPU = 1
    SWITCH = 2
    UNKNOWN = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class NvLink:
    """The other end of one active NVLink."""

    remote_type: int | None = None
    remote_bus_id: str | None = None

    @property
    def to_switch(self) -> bool:
        """Whether it ends in an NVSwitch.

        Switches of a virtual machine or of a rack have no readable PCI address: NCCL
        (`ncclTopoGetXmlFromGpu`) takes an unreadable other end for a switch, and so does this.
        """
        unreadable = not self.remote_bus_id or self.remote_bus_id.upper().startswith("FFFFFFFF")
        return self.remote_type == RemoteType.SWITCH or unreadable


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """What one GPU is plugged into, as NVML tells it."""

    index: int
    bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    """The active ones; `None` when NVML could not say."""
    fabric_ready: bool = True
    """Whether the Fabric Manager has trained the switches; without it their links carry nothing."""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None

    @property
    def switch_links(self) -> int:
        """Active links into switches that work."""
        return sum(link.to_switch for link in self.nvlinks or ()) if self.fabric_ready else 0

    def links_to(self, bus_id: str | None) -> int:
        """Active links straight to the GPU at this PCI address."""
        direct = [link.remote_bus_id for link in self.nvlinks or () if not link.to_switch]
        return 0 if bus_id is None else direct.count(bus_id)

    @property
    def nvlink_bytes_per_s(self) -> int | None:
        """Nominal rate of one of its NVLinks, one way."""
        capability = self.compute_capability
        return None if capability is None else NVLINK_BYTES_PER_S.get(capability)

    @property
    def pcie_bytes_per_s(self) -> int | None:
        """Nominal rate of its PCIe slot, one way."""
        if self.pcie_generation is None or not self.pcie_lanes:
            return None
        lane = PCIE_LANE_BYTES_PER_S.get(self.pcie_generation)
        return None if lane is None else lane * self.pcie_lanes


@dataclass(frozen=True, kw_only=True, slots=True)
class PairLink:
    """How two GPUs reach each other."""

    pair: tuple[int, int]
    """NVML indices, the lower one first."""
    nvlinks: int | None
    """Between the two, through switches or straight; `None` when NVML could not say."""
    bytes_per_s: int | None
    """Nominal, one way: NVLink when there is one, else PCIe."""

    @property
    def rank(self) -> tuple[bool, int, tuple[int, int]]:
        """Sorts the weakest pair first; an unknown rate could be the slowest."""
        return (bool(self.nvlinks), self.bytes_per_s or 0, self.pair)


def link_pair(one: Ports, other: Ports, *, nvlink_p2p: bool | None) -> PairLink:
    """What joins two GPUs.

    Args:
        one: Either GPU; the order does not matter.
        other: The other GPU.
        nvlink_p2p: NVML's P2P status of the pair for NVLink, which also sees through switches;
            `None` when it has no answer, which then does not count against the pair.
    """
    low, high = sorted((one, other), key=lambda ports: ports.index)
    nvlinks = _count_nvlinks(low, high, nvlink_p2p=nvlink_p2p)
    if nvlinks:
        rate = _slower(low.nvlink_bytes_per_s, high.nvlink_bytes_per_s)
        bytes_per_s = None if rate is None else nvlinks * rate
    else:
        bytes_per_s = _slower(low.pcie_bytes_per_s, high.pcie_bytes_per_s)
    return PairLink(pair=(low.index, high.index), nvlinks=nvlinks, bytes_per_s=bytes_per_s)


def _count_nvlinks(low: Ports, high: Ports, *, nvlink_p2p: bool | None) -> int | None:
    if low.nvlinks is None or high.nvlinks is None:
        return None
    straight = min(low.links_to(high.bus_id), high.links_to(low.bus_id))
    switched = min(low.switch_links, high.switch_links)
    return straight + (0 if nvlink_p2p is False else switched)


def _slower(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def join_pairs(pairs: Iterable[PairLink]) -> Interconnect:
    """The link between all GPUs, by the weakest of their pairs; no pairs, no link.

    One unknown pair makes the whole unknown: it could be the slowest.
    """
    ranked = sorted(pairs, key=lambda link: link.rank)
    if not ranked:
        return Interconnect(link_class=LinkClass.NONE)
    unknown = [link for link in ranked if link.nvlinks is None]
    if unknown:
        return Interconnect(link_class=LinkClass.UNKNOWN, weakest_pair=unknown[0].pair)
    weakest = ranked[0]
    return Interconnect(
        link_class=_classify(weakest, ranked[-1]),
        bytes_per_s=weakest.bytes_per_s,
        weakest_pair=weakest.pair,
    )


def _classify(weakest: PairLink, strongest: PairLink) -> LinkClass:
    if weakest.nvlinks:
        return LinkClass.NVLINK_ALL
    return LinkClass.NVLINK_PARTIAL if strongest.nvlinks else LinkClass.PCIE
