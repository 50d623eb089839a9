"""The links between the GPUs of a machine: as read, and as an option says."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import IntEnum
from itertools import combinations

from msgspec import Struct

from zerowiz.core.machine.types import (
    FAST_CLASSES,
    Gpu,
    Interconnect,
    LinkClass,
    Machine,
    Network,
    NetworkKind,
    PairLink,
    PciePath,
    PcieSlot,
    join_pairs,
    least,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError, did_you_mean

# Apply the value of `--interconnect`, by which a person states links that cannot be measured.

FLAG = "$interconnect"

_ENTRY = r"(?a)([a-z]+)(?::(\d{1,6}(?:\.\d{1,3})?)(Gb|GB)(?:/s|ps)?)?"

_INSIDE: Mapping[str, LinkClass] = {"nvlink": LinkClass.NVLINK_ALL, "pcie": LinkClass.PCIE}
# What is known agrees with these words, and says more.
_AGREES: Mapping[str, frozenset[LinkClass]] = {
    "nvlink": FAST_CLASSES,
    "pcie": frozenset({LinkClass.PCIE}),
}
_BETWEEN: Mapping[str, NetworkKind] = {
    "mnnvl": NetworkKind.NVLINK,
    "infiniband": NetworkKind.INFINIBAND,
    "roce": NetworkKind.ROCE,
    "efa": NetworkKind.EFA,
    "ethernet": NetworkKind.ETHERNET,
}
_BYTES = {"Gb": 125_000_000, "GB": 1_000_000_000}

_HINTS = (
    f"inside a node: {' or '.join(_INSIDE)}; between nodes: {', '.join(_BETWEEN)}",
    f"add the rate one way if you know it: `{FLAG} nvlink,infiniband:400Gb/s`",
)


class _StatedLink(Struct, frozen=True, kw_only=True):
    """One link that a person states."""

    word: str
    bytes_per_s: int | None


def with_interconnect(machine: Machine, text: str) -> Machine:
    """The machine with the links that a person states, inside a node and between nodes.

    A rate or pairs that are already known stay, unless the option contradicts them.

    Args:
        machine: The machine without the option.
        text: Such as `pcie`, `infiniband:400Gb/s` or `nvlink,roce:25GB/s`.

    Raises:
        UsageError: A word is no link, or two links are stated inside a node, or between nodes.
    """
    for link in _parse(text):
        join = _join_inside if link.word in _INSIDE else _join_between
        machine = join(machine, link)
    return machine


def spell_network(network: Network) -> str:
    """A known network as the option takes it: `infiniband:3200Gb/s`."""
    word = next(word for word, kind in _BETWEEN.items() if kind is network.kind)
    if network.bytes_per_s is None:
        return word
    return f"{word}:{network.bytes_per_s / _BYTES['Gb']:g}Gb/s"


def _parse(text: str) -> tuple[_StatedLink, ...]:
    links = tuple(_parse_entry(entry.strip(), text) for entry in text.split(","))
    if len({link.word in _INSIDE for link in links}) != len(links):
        raise UsageError(f"`{FLAG} {text}` gives two links for the same place", *_HINTS)
    return links


def _parse_entry(entry: str, text: str) -> _StatedLink:
    """One link; the case of its word does not matter, that of a unit tells bits from bytes."""
    word, colon, rate = entry.partition(":")
    match = re.fullmatch(_ENTRY, f"{word.lower()}{colon}{rate}")
    bytes_per_s = round(float(match[2]) * _BYTES[match[3]]) if match and match[2] else None
    words = (*_INSIDE, *_BETWEEN)
    if match is None or match[1] not in words or bytes_per_s == 0:
        near = [] if word.lower() in words else get_close_matches(word.lower(), words, n=1)
        raise UsageError(f"`{FLAG} {text}`: `{entry}` is not a link", *did_you_mean(near), *_HINTS)
    return _StatedLink(word=match[1], bytes_per_s=bytes_per_s)


def _join_between(machine: Machine, link: _StatedLink) -> Machine:
    known, kind = machine.network, _BETWEEN[link.word]
    if kind is known.kind and link.bytes_per_s in (None, known.bytes_per_s):
        return machine
    network = Network(kind=kind, bytes_per_s=link.bytes_per_s, nics=known.nics)
    return replace(machine, network=network)


def _join_inside(machine: Machine, link: _StatedLink) -> Machine:
    if machine.accelerator.row.on_host:
        raise UsageError(
            f"`{FLAG} {link.word}`: CPU ranks on one node have no link",
            "remove it",
        )
    if len(machine.gpus) == 1:
        raise UsageError(
            f"`{FLAG} {link.word}`: a single GPU has no link inside its node",
            *_HINTS,
        )
    known, link_class = machine.interconnect, _INSIDE[link.word]
    if known.link_class in _AGREES[link.word] and link.bytes_per_s in (None, known.bytes_per_s):
        return machine
    interconnect = Interconnect(
        link_class=link_class, bytes_per_s=link.bytes_per_s, weakest_pair=known.weakest_pair
    )
    return replace(machine, interconnect=interconnect, links=())


# Find the link between two GPUs, by the NVLinks and the PCIe slot of each.

# NVIDIA's NVLink pages and datasheets: nominal bytes/s of one link in one direction. NVML has the
# raw rate instead (25.781, 26.562, 53.125 GB/s), of which the payload is a part.
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

# `nvidia-smi topo -m` of boards without a switch whose pairs differ, by the board's name.
# DGX-1 with V100: printed at https://kyumdoctor.tistory.com/74, drawn in NVIDIA's white paper
# WP-08437-001, and for p3.16xlarge in MXNet's "Single machine All Reduce" at cwiki.apache.org;
# NCCL's view of such links: https://github.com/NVIDIA/nccl/issues/671.
MESHES: Mapping[str, tuple[str, ...]] = {
    "DGX-1": (
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ),
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
    """The device at the other end of an NVLink (NVML's `nvmlIntNvLinkDeviceType_t`)."""

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

        In a virtual machine or a rack, switches have no readable PCI address. So an other end
        without one counts as a switch, as in NCCL (`ncclTopoGetXmlFromGpu`).
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
    """The links of one GPU, as NVML reports them."""

    gpu: Gpu
    nvlinks: tuple[NvLink, ...] | None = None
    """The active ones; `None` where NVML does not know."""
    raw_bytes_per_s: int | None = None
    """Of one NVLink, as NVML reports it, with the encoding."""

    @property
    def switch_links(self) -> int:
        """The count of active links to switches that are ready."""
        return sum(link.to_switch for link in self.nvlinks or ()) if self.gpu.fabric_ready else 0

    def links_to(self, bus_id: str | None) -> int:
        """The count of active links directly to the GPU at this PCI address."""
        direct = [link.remote_bus_id for link in self.nvlinks or () if not link.to_switch]
        return 0 if bus_id is None else direct.count(bus_id)

    @property
    def nvlink_bytes_per_s(self) -> int | None:
        """The rate of one NVLink in one direction; nominal where the generation is known."""
        capability = self.gpu.compute_capability
        nominal = None if capability is None else NVLINK_BYTES_PER_S.get(capability)
        return self.raw_bytes_per_s if nominal is None else nominal


class PairAnswers(Struct, frozen=True, kw_only=True):
    """What NVML reports of two GPUs; `None` where it has no answer, which counts as a good one."""

    nvlink_p2p: bool | None = None
    """Peer-to-peer access over NVLink, also through switches."""
    path: PciePath | None = None
    p2p: str | None = None


def lanes_bytes_per_s(slot: PcieSlot) -> int | None:
    """The nominal rate of a GPU's own PCIe lanes, in one direction.

    The best generation counts, because the current one is lower while a GPU idles. Of the lanes the
    smaller count holds, because lanes that were not negotiated are not used later.
    """
    lanes = min((n for n in (slot.max_lanes, slot.current_lanes) if n), default=None)
    lane = PCIE_LANE_BYTES_PER_S.get(slot.max_generation or 0)
    return None if lanes is None or lane is None else lane * lanes


def slot_bytes_per_s(slot: PcieSlot) -> int | None:
    """The nominal rate of a PCIe slot and the bridges above it, in one direction."""
    lanes = lanes_bytes_per_s(slot)
    upstream = slot.upstream_bytes_per_s
    return lanes if upstream is None else least((lanes, upstream))


def mesh_links(
    board: str, count: int, *, link_bytes_per_s: int, pcie_bytes_per_s: int
) -> tuple[PairLink, ...]:
    """The links between the first GPUs of a board; none where it has fewer GPUs.

    Args:
        board: A name in MESHES.
        count: How many GPUs.
        link_bytes_per_s: Nominal, of one NVLink in one direction.
        pcie_bytes_per_s: Nominal, of a slot in one direction.
    """
    rows = [row.split() for row in MESHES[board]]
    if count > len(rows):
        return ()
    return tuple(
        _mesh_link(pair, rows[pair[0]][pair[1]], link_bytes_per_s, pcie_bytes_per_s)
        for pair in combinations(range(count), 2)
    )


def _mesh_link(pair: tuple[int, int], word: str, link: int, pcie: int) -> PairLink:
    if word.startswith("NV"):
        nvlinks = int(word.removeprefix("NV"))
        return PairLink(pair=pair, nvlinks=nvlinks, bytes_per_s=nvlinks * link)
    return PairLink(pair=pair, nvlinks=0, bytes_per_s=pcie, path=PciePath(word))


def link_pair(first: Ports, second: Ports, answers: PairAnswers) -> PairLink:
    """The link between two GPUs; their order does not matter."""
    low, high = sorted((first, second), key=lambda ports: ports.gpu.index)
    nvlinks = _count_nvlinks(low, high, nvlink_p2p=answers.nvlink_p2p)
    if nvlinks:
        rate = least((low.nvlink_bytes_per_s, high.nvlink_bytes_per_s))
        bytes_per_s = None if rate is None else nvlinks * rate
    else:
        bytes_per_s = least(slot_bytes_per_s(ports.gpu.pcie) for ports in (low, high))
    return PairLink(
        pair=(low.gpu.index, high.gpu.index),
        nvlinks=nvlinks,
        bytes_per_s=bytes_per_s,
        path=answers.path,
        p2p=answers.p2p,
    )


def without_peer_to_peer(machine: Machine) -> Machine:
    """The machine where NCCL is told to use no peer-to-peer: what is left goes over PCIe."""
    if len(machine.gpus) == 1:
        return machine
    # The slices of a GPU have its number and its slot.
    rates = {gpu.index: slot_bytes_per_s(gpu.pcie) for gpu in machine.gpus}
    links = tuple(
        replace(link, nvlinks=0, bytes_per_s=least(map(rates.get, link.pair)))
        for link in machine.links
    )
    over_pcie = Interconnect(link_class=LinkClass.PCIE, bytes_per_s=least(rates.values()))
    joined = join_pairs(links, dict.fromkeys(rates, 0)) if links else over_pcie
    return replace(machine, links=links, interconnect=joined)


def _count_nvlinks(low: Ports, high: Ports, *, nvlink_p2p: bool | None) -> int | None:
    if low.nvlinks is None or high.nvlinks is None:
        return None
    direct = min(low.links_to(high.gpu.bus_id), high.links_to(low.gpu.bus_id))
    switched = min(low.switch_links, high.switch_links)
    return direct + (0 if nvlink_p2p is False else switched)
