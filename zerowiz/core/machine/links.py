"""The links between GPUs, and the link that a collective over all of them must cross.

Theory: NCCL runs gathers and reductions over rings through all GPUs, and splits the data between as
many rings as the links allow (2.30.7, graph/search.cc: `ncclTopoCompute` takes the graph with the
largest count of channels x rate, `ncclTopoSearchRecGpu` finds the rings, `followPath` takes each
ring's rate off the links that it uses). So a pair without NVLink costs nothing while rings can go
around it, as in the cube mesh of eight V100. Rings are searched over NVLink first, and over PCIe
where there are none: one hop over PCIe then limits the whole ring.

Links are full duplex, so a ring and its reverse come together. NCCL lowers the rate of a ring to
half a link at least (`speedArray[speedIndex + 1] / graph->bwInter > .49`), so half a link is the
unit here: a ring of half a link in both directions sends what one link sends in one. With two GPUs
the ring goes over the same links there and back. A way through a third GPU (`PATH_NVB`) is not
counted, as what it is worth was never measured.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice

from msgspec import Struct, field

from zerowiz.core.values import Count

# In the place of a word of `nvidia-smi topo -m`, for a pair of which nothing is known.
UNKNOWN_WORD = "?"


class LinkClass(StrEnum):
    """What the best ring of NCCL through the chosen GPUs goes over."""

    NVLINK_ALL = "nvlink_all"
    """NVLink, which every pair has."""
    NVLINK_RING = "nvlink_ring"
    """NVLink, which some pairs lack: the rings go around them."""
    NVLINK_PARTIAL = "nvlink_partial"
    """PCIe, because the NVLinks that there are make no ring."""
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
    """The kind of link."""
    bytes_per_s: Count | None = None
    """Nominal, in one direction, per GPU, over all rings."""
    weakest_pair: tuple[Count, Count] | None = None
    """NVML indices, also where the rings go around it."""

    @property
    def is_fast(self) -> bool:
        """Whether ZeRO-3 may gather every weight at every layer; unknown counts as slow."""
        return self.link_class in FAST_CLASSES


FAST_CLASSES = frozenset({LinkClass.NVLINK_ALL, LinkClass.NVLINK_RING})


def join_pairs(
    pairs: Iterable[PairLink], nvlinks: Mapping[int, int | None] | None = None
) -> Interconnect:
    """The link between all GPUs, by the best rings; without pairs there is none.

    With an unknown pair it is unknown, unless rings over NVLink go around that pair.

    Args:
        pairs: Of all chosen GPUs.
        nvlinks: How many each GPU has, by its NVML index. One that is not known has as many as its
            strongest pair, as behind a switch, where the pairs of a GPU share its links.
    """
    ranked = sorted(pairs, key=lambda link: link.rank)
    if not ranked:
        return Interconnect(link_class=LinkClass.NONE)
    weakest, strongest = ranked[0], ranked[-1]
    links = _count_ring_links(ranked, nvlinks or {})
    if links:
        link_class = LinkClass.NVLINK_ALL if weakest.nvlinks else LinkClass.NVLINK_RING
        rate = _link_bytes_per_s(ranked)
        bytes_per_s = None if rate is None else links * rate
    elif unknown := [link for link in ranked if link.nvlinks is None]:
        return Interconnect(link_class=LinkClass.UNKNOWN, weakest_pair=unknown[0].pair)
    else:
        link_class = LinkClass.NVLINK_PARTIAL if strongest.nvlinks else LinkClass.PCIE
        bytes_per_s = weakest.bytes_per_s
    return Interconnect(link_class=link_class, bytes_per_s=bytes_per_s, weakest_pair=weakest.pair)


def _link_bytes_per_s(pairs: Iterable[PairLink]) -> int | None:
    """The rate of the slowest NVLink; unknown where that of any is."""
    wired = [(link.bytes_per_s, link.nvlinks) for link in pairs if link.nvlinks]
    rates = [None if rate is None else rate // count for rate, count in wired]
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None


_Hop = tuple[int, int]
"""Two neighbors of a ring, the lower index first."""
_Ring = tuple[_Hop, ...]

# All rings through 8 GPUs are 7! / 2, and to list them takes 13,700 steps. As NCCL does
# (`NCCL_SEARCH_TIMEOUT`), a search ends after so many steps with what it has: less than there is,
# for meshes denser than any that was built. Where one of 16 GPUs has lost its links, it would look
# through all ways between the others.
_MOST_RINGS = 2520
_MOST_STEPS = 1 << 14


def _count_ring_links(pairs: Sequence[PairLink], nvlinks: Mapping[int, int | None]) -> int:
    """How many links of each GPU the rings over NVLink can use in one direction; 0 without one."""
    gpus = sorted({gpu for link in pairs for gpu in link.pair})
    if any(low == high for low, high in (link.pair for link in pairs)):
        return 0  # Slices of one GPU have no links.
    halves = {link.pair: 2 * link.nvlinks for link in pairs if link.nvlinks}
    limit = min(_usable(gpu, halves, nvlinks.get(gpu)) for gpu in gpus)
    rings = _list_rings(gpus, halves)
    first = next(rings, None)
    if first is None:
        return 0
    # Behind a switch one ring, repeated, uses every link of a GPU.
    if _room(first, halves) >= limit:
        return limit
    return min(limit, _pack([first, *islice(rings, _MOST_RINGS - 1)], halves))


def _usable(gpu: int, halves: Mapping[_Hop, int], nvlinks: int | None) -> int:
    """The links of a GPU that end at the others."""
    wired = [count // 2 for hop, count in halves.items() if gpu in hop]
    own = max(wired, default=0) if nvlinks is None else nvlinks
    return min(own, sum(wired))


def _list_rings(gpus: Sequence[int], hops: Container[_Hop]) -> Iterator[_Ring]:
    """Every ring through all GPUs, once; that in the order of the GPUs comes first.

    It ends after _MOST_STEPS.
    """
    near = {
        gpu: [other for other in gpus if (min(gpu, other), max(gpu, other)) in hops] for gpu in gpus
    }
    steps = 0

    def walk(path: tuple[int, ...]) -> Iterator[_Ring]:
        nonlocal steps
        steps += 1
        if steps > _MOST_STEPS:
            return
        if len(path) < len(gpus):
            for gpu in near[path[-1]]:
                if gpu not in path:
                    yield from walk((*path, gpu))
        elif path[0] in near[path[-1]] and path[1] <= path[-1]:
            ends = zip(path, (*path[1:], path[0]), strict=True)
            yield tuple((min(hop), max(hop)) for hop in ends)

    return walk((gpus[0],))


def _room(ring: _Ring, halves: Mapping[_Hop, int]) -> int:
    """How often a ring of half a link fits. The ring of two GPUs has one hop twice."""
    return min(halves[hop] // ring.count(hop) for hop in ring)


def _pack(rings: Sequence[_Ring], halves: Mapping[_Hop, int]) -> int:
    """How many rings of half a link fit at once, by trying how often each is used."""
    free, gpus = dict(halves), {gpu for hop in rings[0] for gpu in hop}
    best = steps = 0

    def most() -> int:
        return min(sum(free[hop] for hop in free if gpu in hop) for gpu in gpus) // 2

    def search(left: Sequence[_Ring], count: int) -> None:
        nonlocal best, steps
        best = max(best, count)
        for place, ring in enumerate(left):
            for times in range(_room(ring, free), 0, -1):
                steps += len(left) - place
                if steps > _MOST_STEPS or count + most() <= best:
                    return
                for hop in ring:
                    free[hop] -= times
                search([other for other in left[place + 1 :] if _room(other, free)], count + times)
                for hop in ring:
                    free[hop] += times

    search(rings, 0)
    return best
