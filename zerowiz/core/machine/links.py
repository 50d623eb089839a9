"""The links between GPUs, and the link that a collective over all of them must cross."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.values import Count

# In the place of a word of `nvidia-smi topo -m`, for a pair of which nothing is known.
UNKNOWN_WORD = "?"


class LinkClass(StrEnum):
    """How the chosen GPUs reach each other, by the weakest of their pairs."""

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
    """Between the two, through switches or direct; `None` where NVML does not know."""
    bytes_per_s: Count | None = None
    """Nominal, in one direction: of NVLink where there is one, else of PCIe."""
    path: PciePath | None = None
    """The path over PCIe, also where there is NVLink."""
    p2p: str | None = None
    """Peer-to-peer reads and writes in the words of `nvidia-smi topo -p2p`: `OK`, `CNS` ..."""

    @property
    def word(self) -> str:
        """The pair's entry in the matrix of `nvidia-smi topo -m`."""
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return UNKNOWN_WORD if self.path is None else self.path.value

    @property
    def rank(self) -> tuple[bool, int, int, tuple[int, int]]:
        """A key that sorts the weakest pair first.

        An unknown rate sorts as the slowest. Of equal rates the longer path is the weaker one.
        """
        nearness = 0 if self.nvlinks or self.path is None else -_PATHS.index(self.path)
        return (bool(self.nvlinks), self.bytes_per_s or 0, nearness, self.pair)


class Interconnect(Struct, frozen=True, kw_only=True):
    """The link that a collective over all chosen GPUs of a node must cross."""

    link_class: LinkClass = field(default=LinkClass.UNKNOWN, name="class")
    bytes_per_s: Count | None = None
    """Nominal, in one direction, per GPU, of the weakest pair."""
    weakest_pair: tuple[Count, Count] | None = None
    """NVML indices of the pair that decides the class."""

    @property
    def is_fast(self) -> bool:
        """Whether ZeRO-3 may gather every weight at every layer; unknown counts as slow."""
        return self.link_class is LinkClass.NVLINK_ALL


def join_pairs(pairs: Iterable[PairLink]) -> Interconnect:
    """The link between all GPUs, by the weakest of their pairs; without pairs there is none.

    With an unknown pair it is unknown, because that pair could be the slowest.
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
