"""Find how two GPUs reach each other from what each is plugged into."""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

from zerowiz.core.machine.links import PairLink, PciePath
from zerowiz.core.machine.types import Gpu, PcieSlot

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


class NvLink(Struct, frozen=True, kw_only=True):
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


# nvml.h, nvmlGpuTopologyLevel_t, and the words of `nvidia-smi topo -m`.
PCIE_PATHS: Mapping[int, PciePath] = {
    0: PciePath.SAME_BOARD,
    10: PciePath.PIX,
    20: PciePath.PXB,
    30: PciePath.PHB,
    40: PciePath.NODE,
    50: PciePath.SYS,
}

# nvml.h, nvmlGpuP2PStatus_t, and the words of `nvidia-smi topo -p2p`.
P2P_OK = "OK"
P2P_WORDS: Mapping[int, str] = {0: P2P_OK, 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}


class Ports(Struct, frozen=True, kw_only=True):
    """What one GPU is plugged into, as NVML tells it."""

    gpu: Gpu
    nvlinks: tuple[NvLink, ...] | None = None
    """The active ones; `None` when NVML could not say."""
    raw_bytes_per_s: int | None = None
    """Of one NVLink, as NVML gives it, encoding included."""

    @property
    def switch_links(self) -> int:
        """Active links into switches that work."""
        return sum(link.to_switch for link in self.nvlinks or ()) if self.gpu.fabric_ready else 0

    def links_to(self, bus_id: str | None) -> int:
        """Active links straight to the GPU at this PCI address."""
        direct = [link.remote_bus_id for link in self.nvlinks or () if not link.to_switch]
        return 0 if bus_id is None else direct.count(bus_id)

    @property
    def nvlink_bytes_per_s(self) -> int | None:
        """Rate of one of its NVLinks, one way: nominal where the generation is known."""
        capability = self.gpu.compute_capability
        nominal = None if capability is None else NVLINK_BYTES_PER_S.get(capability)
        return self.raw_bytes_per_s if nominal is None else nominal


class PairAnswers(Struct, frozen=True, kw_only=True):
    """What NVML says of two GPUs together; an answer it does not have counts against nobody."""

    nvlink_p2p: bool | None = None
    """Which also sees through switches."""
    path: PciePath | None = None
    p2p: str | None = None


def lanes_bytes_per_s(slot: PcieSlot) -> int | None:
    """Nominal rate of a GPU's own PCIe lanes, one way.

    The best generation counts, since the current one drops while a GPU idles; of the lanes the
    fewer, since lanes that were not negotiated stay away.
    """
    lanes = min((n for n in (slot.max_lanes, slot.current_lanes) if n), default=None)
    lane = PCIE_LANE_BYTES_PER_S.get(slot.max_generation or 0)
    return None if lanes is None or lane is None else lane * lanes


def slot_bytes_per_s(slot: PcieSlot) -> int | None:
    """Nominal rate of a PCIe slot with the bridges above it, one way."""
    own = lanes_bytes_per_s(slot)
    return own if slot.upstream_bytes_per_s is None else _slower(own, slot.upstream_bytes_per_s)


def link_pair(one: Ports, other: Ports, answers: PairAnswers) -> PairLink:
    """What joins two GPUs; their order does not matter."""
    low, high = sorted((one, other), key=lambda ports: ports.gpu.index)
    nvlinks = _count_nvlinks(low, high, nvlink_p2p=answers.nvlink_p2p)
    if nvlinks:
        rate = _slower(low.nvlink_bytes_per_s, high.nvlink_bytes_per_s)
        bytes_per_s = None if rate is None else nvlinks * rate
    else:
        bytes_per_s = _slower(slot_bytes_per_s(low.gpu.pcie), slot_bytes_per_s(high.gpu.pcie))
    return PairLink(
        pair=(low.gpu.index, high.gpu.index),
        nvlinks=nvlinks,
        bytes_per_s=bytes_per_s,
        path=answers.path,
        p2p=answers.p2p,
    )


def _count_nvlinks(low: Ports, high: Ports, *, nvlink_p2p: bool | None) -> int | None:
    if low.nvlinks is None or high.nvlinks is None:
        return None
    straight = min(low.links_to(high.gpu.bus_id), high.links_to(low.gpu.bus_id))
    switched = min(low.switch_links, high.switch_links)
    return straight + (0 if nvlink_p2p is False else switched)


def _slower(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)
