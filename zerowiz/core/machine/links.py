"""Describe what joins GPUs, and join pairs into the link that the whole job must cross."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.values import Count

# The word of `nvidia-smi topo -m` for a pair of which nothing is known.
UNKNOWN_WORD = "?"


class LinkClass(StrEnum):
    """How the chosen GPUs reach each other, by the worst pair among them."""

    NVLINK_ALL = "nvlink_all"
    NVLINK_PARTIAL = "nvlink_partial"
    PCIE = "pcie"
    NONE = "none"
    UNKNOWN = "unknown"


class PciePath(StrEnum):
    """What a PCIe transfer between two GPUs crosses, in the words of `nvidia-smi topo -m`."""

    SAME_BOARD = "PSB"
    """One board, behind its own switch."""
    PIX = "PIX"
    """At most one PCIe bridge."""
    PXB = "PXB"
    """Several PCIe bridges, no host bridge."""
    PHB = "PHB"
    """A host bridge, typically the CPU."""
    NODE = "NODE"
    """Host bridges of one NUMA node."""
    SYS = "SYS"
    """The link between NUMA nodes."""


# The nearest first.
_PATHS = tuple(PciePath)


class PairLink(Struct, frozen=True, kw_only=True):
    """How two GPUs reach each other."""

    pair: tuple[Count, Count]
    """NVML indices, the lower one first; equal for two slices of one GPU."""
    nvlinks: Count | None = None
    """Between the two, through switches or straight; `None` when NVML could not say."""
    bytes_per_s: Count | None = None
    """Nominal, one way: NVLink when there is one, else PCIe."""
    path: PciePath | None = None
    """The way over PCIe, whether or not there is NVLink."""
    p2p: str | None = None
    """Peer-to-peer reads and writes, as `nvidia-smi topo -p2p` words it: `OK`, `CNS`, `GNS` ..."""

    @property
    def word(self) -> str:
        """The pair's entry in the matrix of `nvidia-smi topo -m`."""
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return UNKNOWN_WORD if self.path is None else self.path.value

    @property
    def rank(self) -> tuple[bool, int, int, tuple[int, int]]:
        """Sorts the weakest pair first; an unknown rate could be the slowest.

        Of equal slots the longer way is the weaker.
        """
        nearness = 0 if self.nvlinks or self.path is None else -_PATHS.index(self.path)
        return (bool(self.nvlinks), self.bytes_per_s or 0, nearness, self.pair)


class Interconnect(Struct, frozen=True, kw_only=True):
    """The link that a collective over all chosen GPUs of a node must cross."""

    link_class: LinkClass = field(default=LinkClass.UNKNOWN, name="class")
    bytes_per_s: Count | None = None
    """Nominal, one way, per GPU, over the weakest pair."""
    weakest_pair: tuple[Count, Count] | None = None
    """NVML indices of the pair that decides the class."""

    @property
    def is_fast(self) -> bool:
        """Whether gathering every weight at every layer is affordable; unknown counts as slow."""
        return self.link_class is LinkClass.NVLINK_ALL


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
