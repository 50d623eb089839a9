"""The machine of a job: its GPUs, the links between them, its host and its network."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from enum import StrEnum
from itertools import combinations, islice
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, field

from zerowiz.core.structs import Count, replace, shows
from zerowiz.errors import UsageError, did_you_mean

# What a scheduler or a launcher gave this job, by its environment variables.


class JobAllocation(Struct, frozen=True, kw_only=True):
    """What a job was given; `None` where it is not known. It is a hint, not a proof."""

    scheduler: str
    """`SLURM`, `Kubernetes`, `torchrun`, `Open MPI`, `PBS`, `LSF`."""
    nodes: Count | None = None
    """The nodes of the job."""
    gpus_per_node: Count | None = None
    """Of the job on each node; a task of it may be bound to fewer."""
    memory_bytes: Count | None = None
    """Host memory of the job on each node."""


# The memory, cores, limits and disk of one node.

# Linux, include/uapi/asm-generic/resource.h: RLIM_INFINITY means no limit.
UNLIMITED_BYTES = 2**64 - 1

# Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64/kernel/cpuinfo.c: the flags of
# instructions that multiply in bf16. AVX-NE-CONVERT only converts.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# ideep/utils.hpp, has_fp16_type_support: avx512_core_fp16, or avx2_vnni_2, of which this is a part.
_FP16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "avx_ne_convert"})
# Every x86 that torch runs on has it.
_X86_FLAG = "sse2"

# oneDNN, "CPU Dispatcher Control": the values of ONEDNN_MAX_CPU_ISA that stop short of products in
# 16 bits; a value that it does not know limits nothing. torch sends those products to oneDNN, so
# ATEN_CPU_CAPABILITY changes none of them (measured, docs/guides/machines.md).
_ISAS_WITHOUT_FP16 = frozenset(
    {"sse41", "avx", "avx2", "avx2_vnni", "avx512_core", "avx512_core_vnni", "avx512_core_bf16"}
)
_ISAS_WITHOUT_BF16 = _ISAS_WITHOUT_FP16 - {"avx512_core_bf16"} | {"avx2_vnni_2"}


class Host(Struct, frozen=True, kw_only=True):
    """One node's memory, cores and limits; `None` where a value is not known."""

    total_bytes: Count | None = None
    """The memory of the node."""
    available_bytes: Count | None = None
    """What a job could still take: the smallest of all limits."""
    available_by: str | None = None
    """The limit that decides it: `MemAvailable`, `cgroup v2`, `cgroup v1`, `SLURM` ..."""
    cores: Count | None = None
    """Those that this process may run on: by its affinity, and whole cores of a cgroup's quota."""
    python_call_seconds: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """What a call takes in Python: it launches the GPU's work. Read beside GPUs alone."""
    numa_nodes: Count | None = None
    """Those with cores; on a Grace machine the memory of a GPU is a NUMA node without cores."""
    shm_bytes: Count | None = None
    """The size of /dev/shm."""
    memlock_bytes: Count | None = None
    """How much memory may be locked (pinned); `UNLIMITED_BYTES` where there is no limit."""
    computes_bf16: bool | None = None
    """Whether the CPU multiplies in bf16; else torch emulates it. Read for CPU ranks alone."""
    computes_fp16: bool | None = None
    """The same of fp16, which DeepSpeed refuses where the CPU does not."""


def computes_bf16(flags: AbstractSet[str], max_isa: str) -> bool:
    """Whether torch multiplies bf16 natively on a CPU with these flags.

    Args:
        flags: As /proc/cpuinfo has them.
        max_isa: The instruction set that oneDNN is held to; empty where it is held to none.
    """
    return not _BF16_FLAGS.isdisjoint(flags) and max_isa.lower() not in _ISAS_WITHOUT_BF16


def computes_fp16(flags: AbstractSet[str], max_isa: str) -> bool | None:
    """The same of fp16; not known beside x86."""
    if _X86_FLAG not in flags:
        return None
    return not _FP16_FLAGS.isdisjoint(flags) and max_isa.lower() not in _ISAS_WITHOUT_FP16


# The network between nodes, by the adapters that NCCL would use.


class NetworkKind(StrEnum):
    """What carries NCCL between nodes."""

    NVLINK = "nvlink"
    """One NVLink domain over several nodes (NVL72)."""
    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"
    """TCP sockets."""
    UNKNOWN = "unknown"


# The better kind first; NCCL prefers RDMA to sockets.
_PREFERENCE = tuple(NetworkKind)

# Design, question 3: InfiniBand or better between nodes. RDMA over Ethernet counts from 100 Gb/s,
# the rate of InfiniBand EDR, which is the slowest that AI clusters were built with.
_FAST_KINDS = frozenset({NetworkKind.NVLINK, NetworkKind.INFINIBAND, NetworkKind.EFA})
_FAST_ROCE_BYTES_PER_S = 12_500_000_000


class Nic(Struct, frozen=True, kw_only=True):
    """One network adapter."""

    name: str
    """The kernel's, without an address in it: `mlx5_0`, `rdmap16s27`, `eth0`, `enx...`."""
    kind: NetworkKind
    """What it carries."""
    bytes_per_s: Count | None = None
    """Nominal, in one direction, of its active ports; `None` where the kernel does not know."""
    unusable: str | None = None
    """Why a job here cannot use it; `None` where it can."""
    numa_node: Count | None = None
    """The NUMA node that it is attached to."""


class Network(Struct, frozen=True, kw_only=True):
    """The network between this node and others."""

    kind: NetworkKind = NetworkKind.UNKNOWN
    """What carries NCCL between nodes."""
    bytes_per_s: Count | None = None
    """Nominal, in one direction, per node."""
    nics: tuple[Nic, ...] = ()
    """Every adapter of the node, usable or not."""

    @property
    def is_fast(self) -> bool:
        """Whether ZeRO-3 between nodes is affordable; unknown counts as slow."""
        if self.kind is NetworkKind.ROCE:
            return (self.bytes_per_s or 0) >= _FAST_ROCE_BYTES_PER_S
        return self.kind in _FAST_KINDS


def join_nics(nics: Sequence[Nic]) -> Network:
    """The network that a job would use: all usable adapters of the best kind.

    Their rates are added up, except for Ethernet: a job over TCP uses one interface, so the fastest
    counts.
    """
    usable = [nic for nic in nics if nic.unusable is None]
    if not usable:
        return Network(nics=tuple(nics))
    kind = min((nic.kind for nic in usable), key=_PREFERENCE.index)
    rates = [nic.bytes_per_s for nic in usable if nic.kind is kind]
    known = [rate for rate in rates if rate is not None]
    total = (max if kind is NetworkKind.ETHERNET else sum)(known) if known else None
    return Network(kind=kind, bytes_per_s=total, nics=tuple(nics))


# The links between GPUs, and the link that a collective over all of them must cross.
#
# Theory: NCCL runs gathers and reductions over rings through all GPUs, and splits the data
# between as many rings as the links allow (2.30.7, graph/search.cc: `ncclTopoCompute` takes the
# graph with the largest count of channels x rate, `ncclTopoSearchRecGpu` finds the rings,
# `followPath` takes each ring's rate off the links that it uses). So a pair without NVLink costs
# nothing while rings can go around it, as in the cube mesh of eight V100. Rings are searched over
# NVLink first, and over PCIe where there are none: one hop over PCIe then limits the whole ring.
#
# Links are full duplex, so a ring and its reverse come together. NCCL lowers the rate of a ring
# to half a link at least (`speedArray[speedIndex + 1] / graph->bwInter > .49`), so half a link is
# the unit here: a ring of half a link in both directions sends what one link sends in one. With
# two GPUs the ring goes over the same links there and back. A way through a third GPU
# (`PATH_NVB`) is not counted, as what it is worth was never measured.

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
        # The rate of the slowest NVLink; unknown where that of any is.
        wired = [(link.bytes_per_s, link.nvlinks) for link in ranked if link.nvlinks]
        rate = least([None if rate is None else rate // count for rate, count in wired])
        bytes_per_s = None if rate is None else links * rate
    elif unknown := [link for link in ranked if link.nvlinks is None]:
        return Interconnect(link_class=LinkClass.UNKNOWN, weakest_pair=unknown[0].pair)
    else:
        link_class = LinkClass.NVLINK_PARTIAL if strongest.nvlinks else LinkClass.PCIE
        bytes_per_s = weakest.bytes_per_s
    return Interconnect(link_class=link_class, bytes_per_s=bytes_per_s, weakest_pair=weakest.pair)


_Hop = tuple[int, int]
"""Two neighbors of a ring, the lower index first."""

# As NCCL does (`NCCL_SEARCH_TIMEOUT`), a search for a ring ends after so many steps: a GPU that has
# lost most of its links would have it look through all ways between the others.
_MOST_STEPS = 1 << 14


def _count_ring_links(pairs: Sequence[PairLink], nvlinks: Mapping[int, int | None]) -> int:
    """How many links of each GPU the rings over NVLink can use in one direction; 0 without one.

    The widest ring takes half a link of each hop, then the widest of what is left, and so on.
    """
    gpus = sorted({gpu for link in pairs for gpu in link.pair})
    if any(low == high for low, high in (link.pair for link in pairs)):
        return 0  # Slices of one GPU have no links.
    halves = Counter({link.pair: 2 * link.nvlinks for link in pairs if link.nvlinks})
    limit = min(_usable(gpu, halves, nvlinks.get(gpu)) for gpu in gpus)
    for count in range(limit):
        ring = _find_ring(gpus, halves)
        if not ring:
            return count
        halves.subtract(ring)
    return limit


def _usable(gpu: int, halves: Mapping[_Hop, int], nvlinks: int | None) -> int:
    """The links of a GPU that end at the others."""
    wired = [count // 2 for hop, count in halves.items() if gpu in hop]
    links = max(wired, default=0) if nvlinks is None else nvlinks
    return min(links, sum(wired))


def _find_ring(gpus: Sequence[int], halves: Mapping[_Hop, int]) -> list[_Hop]:
    """The hops of a ring through all GPUs, the widest hops tried first; none without one."""

    def width(gpu: int, other: int) -> int:
        return halves.get((min(gpu, other), max(gpu, other)), 0)

    def walk(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield path
        near = [gpu for gpu in gpus if gpu not in path and width(path[-1], gpu)]
        for gpu in sorted(near, key=lambda gpu: -width(path[-1], gpu)):
            yield from walk((*path, gpu))

    for path in islice(walk((gpus[0],)), _MOST_STEPS):
        if len(path) == len(gpus) and width(path[-1], path[0]):
            ends = zip(path, (*path[1:], path[0]), strict=True)
            return [(min(hop), max(hop)) for hop in ends]
    return []


_Ordered = TypeVar("_Ordered", int, tuple[int, int])
_Known = TypeVar("_Known")


class Accelerator(StrEnum):
    """What DeepSpeed runs on, by its own names (`DS_ACCELERATOR`)."""

    CUDA = "cuda"
    CPU = "cpu"

    @property
    def row(self) -> "AcceleratorRow":
        """What is known of it."""
        return ACCELERATOR_ROWS[self]


class AcceleratorRow(Struct, frozen=True, kw_only=True):
    """What is known of an accelerator."""

    on_host: bool
    """Whether its ranks run on the cores of the host, and share its memory."""
    libraries: str
    """What takes memory of a device besides torch's allocator, in words."""


ACCELERATOR_ROWS: Mapping[Accelerator, AcceleratorRow] = {
    Accelerator.CUDA: AcceleratorRow(on_host=False, libraries="CUDA and NCCL"),
    Accelerator.CPU: AcceleratorRow(on_host=True, libraries="libraries"),
}


class MachineSource(StrEnum):
    """Where a Machine was read from."""

    NVML = "nvml"
    FILE = "file"
    SPEC = "spec"
    CPU = "cpu"


# CUDA programming guide, arithmetic throughput: bf16 matrix units came with Ampere.
_BF16_CAPABILITY = (8, 0)


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process that holds memory of a GPU."""

    pid: Count
    """Its process id."""
    used_bytes: Count | None = None
    """`None` where the driver does not report it (WSL)."""
    name: str | None = None
    """From /proc; in a container the pids may be the host's, which have no name there."""


class PcieSlot(Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU."""

    max_generation: Count | None = None
    """What both GPU and slot support; the current one is lower while the GPU idles."""
    current_generation: Count | None = None
    """The generation that the link runs at now."""
    max_lanes: Count | None = None
    """What both GPU and slot support."""
    current_lanes: Count | None = None
    """The lanes that the link uses now."""
    upstream_bytes_per_s: Count | None = None
    """Nominal, in one direction, of the slowest bridge between the GPU and the host bridge."""


class LeftOutGpu(Struct, frozen=True, kw_only=True):
    """A GPU that NVML lists and that no job can use."""

    index: Count
    """NVML's index."""
    why: str
    """Why no job can use it, in one sentence."""


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU, one slice of a GPU (MIG), or one rank of the CPU accelerator.

    A value that NVML does not report is `None`, never 0.
    """

    index: Count
    """NVML's index (PCI bus order)."""
    name: str
    """NVML's name of the model, such as `NVIDIA H100 80GB HBM3`."""
    uuid: str | None = None
    """NVML's id of the GPU, or of the slice."""
    total_bytes: Count | None = None
    """NVML's total, with the driver's reserve."""
    reserved_bytes: Count | None = None
    """The part that the driver reserves."""
    free_bytes: Count | None = None
    """What a new process could allocate now."""
    compute_capability: tuple[Count, Count] | None = None
    """CUDA's, major and minor."""
    ordinal: Count | None = None
    """CUDA's number for it in PCI bus order, which counts only GPUs that can be opened."""
    mig_slice: Count | None = None
    """Which slice of GPU `index` this is; `None` for a whole GPU."""
    shares_host_memory: bool = False
    """Whether it has no memory of its own (GB10, Jetson); its sizes are then the host's."""
    bus_id: str | None = None
    """The PCI address as NVML writes it: `00000000:1A:00.0`."""
    numa_node: Count | None = None
    """The NUMA node that it is attached to."""
    pcie: PcieSlot = field(default_factory=PcieSlot)
    """Its PCIe link."""
    nvlinks: Count | None = None
    """The count of active NVLinks; `None` where NVML does not know."""
    expected_nvlinks: Count | None = None
    """The count that the GPU table has for this model."""
    fabric_ready: bool = True
    """Whether the Fabric Manager has trained the switches; else their links cannot be used."""
    clique: str | None = None
    """The NVLink domain where it spans nodes (NVL72); equal on all GPUs that share it."""
    ecc: bool | None = None
    """Whether its memory corrects errors."""
    mig_mode: bool = False
    """Whether the GPU is split into slices."""
    memory_source: str | None = None
    """The source of its sizes: an NVML function, the GPU table, the host."""
    processes: tuple[GpuProcess, ...] = ()
    """What holds its memory now."""

    @property
    def cuda_ordinal(self) -> int:
        """CUDA's number for it in PCI bus order; NVML's index where the number is not known."""
        return self.index if self.ordinal is None else self.ordinal

    @property
    def label(self) -> str:
        """Its name on a command line: `3`, or `3:1` for a slice."""
        return str(self.index) if self.mig_slice is None else f"{self.index}:{self.mig_slice}"

    def __post_init__(self) -> None:
        """Refuse a GPU that cannot exist."""
        total, free = self.total_bytes, self.free_bytes
        if total is not None and free is not None and free > total:
            raise UsageError(f"GPU {self.label} cannot have {free} of {total} bytes free")


@shows("source", "nodes", "world_size", "gpus[0].name", "free_bytes", "interconnect.link_class")
class Machine(Struct, frozen=True, kw_only=True):
    """Equal nodes with the chosen GPUs of one of them."""

    source: MachineSource
    """Where it was read from."""
    gpus: tuple[Gpu, ...]
    """The chosen GPUs of one node; for the CPU accelerator, one entry for each rank."""
    interconnect: Interconnect = field(default_factory=Interconnect)
    """The slowest link between the GPUs of a node."""
    host: Host = field(default_factory=Host)
    """Memory, cores and limits of one node."""
    nodes: Count = 1
    """How many nodes, all equal."""
    accelerator: Accelerator = Accelerator.CUDA
    """What DeepSpeed runs on."""
    links: tuple[PairLink, ...] = ()
    """Of every pair of GPUs; empty where only the class is known (a spec)."""
    left_out: tuple[LeftOutGpu, ...] = ()
    """The GPUs that no job can use, and why."""
    network: Network = field(default_factory=Network)
    """Between nodes."""
    driver_version: str | None = None
    """Of the NVIDIA driver."""
    cuda_version: tuple[Count, Count] | None = None
    """The newest one that the driver supports."""
    allocation: JobAllocation | None = None
    """What a scheduler gave the job; `None` outside of one."""
    notes: tuple[str, ...] = ()
    """What the probe assumed or left out, one sentence each."""

    def __post_init__(self) -> None:
        """Refuse a machine that cannot exist."""
        if self.nodes < 1:
            raise UsageError(f"a machine has at least one node, not {self.nodes}")
        if not self.gpus:
            raise UsageError("a machine needs at least one GPU")
        if len({gpu.label for gpu in self.gpus}) != len(self.gpus):
            raise UsageError("a GPU is listed twice")

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs are of one kind."""
        return len({gpu.name for gpu in self.gpus}) == 1

    @property
    def lives_on_host(self) -> bool:
        """Whether the memory of the ranks is the host's: CPU ranks, GPUs without own memory."""
        shared = any(gpu.shares_host_memory for gpu in self.gpus)
        return shared or self.accelerator.row.on_host

    @property
    def clique(self) -> str | None:
        """The NVLink domain of all its GPUs, where that spans nodes (NVL72)."""
        cliques = {gpu.clique for gpu in self.gpus}
        return cliques.pop() if len(cliques) == 1 else None

    @property
    def world_size(self) -> int:
        """The count of ranks: one for each GPU of each node."""
        return self.nodes * len(self.gpus)

    @property
    def is_fast(self) -> bool:
        """Whether every link of the job is fast, inside a node and between nodes."""
        inside = len(self.gpus) == 1 or self.interconnect.is_fast
        between = self.nodes == 1 or self.network.is_fast
        return self.world_size > 1 and inside and between

    def with_notes(self, *notes: str) -> "Machine":
        """The machine with further notes, each once."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))

    @property
    def free_bytes(self) -> int | None:
        """The least free memory of a chosen GPU; unknown where any is unknown."""
        return least([gpu.free_bytes for gpu in self.gpus])

    @property
    def total_bytes(self) -> int | None:
        """The least total memory of a chosen GPU; unknown where any is unknown."""
        return least([gpu.total_bytes for gpu in self.gpus])

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest one of the chosen GPUs; unknown where any is unknown."""
        return least(gpu.compute_capability for gpu in self.gpus)

    @property
    def takes_bf16(self) -> bool:
        """Whether every chosen GPU, or the CPU, computes bf16 natively; unknown counts as yes."""
        if self.accelerator.row.on_host:
            return self.host.computes_bf16 is not False
        capability = self.compute_capability
        return capability is None or capability >= _BF16_CAPABILITY


def if_known(
    values: Iterable[_Known | None], join: Callable[[list[_Known]], _Known]
) -> _Known | None:
    """What joins at least one value; unknown where any of them is."""
    items = [*values]
    known = [item for item in items if item is not None]
    return join(known) if len(known) == len(items) else None


def least(values: Iterable[_Ordered | None]) -> _Ordered | None:
    """The smallest of at least one value; unknown where any of them is."""
    return if_known(values, min)


def with_host_memory(machine: Machine, size_bytes: int) -> Machine:
    """The machine whose nodes have this much memory for the job.

    CPU ranks share it evenly, and a GPU without memory of its own has all of it.
    """
    total_bytes = max(size_bytes, machine.host.total_bytes or 0)
    host = replace(machine.host, total_bytes=total_bytes, available_bytes=size_bytes)
    machine = replace(machine, host=host)
    if not machine.lives_on_host:
        return machine
    on_cpu = machine.accelerator.row.on_host
    ranks = len(machine.gpus) if on_cpu else 1
    share, whole = size_bytes // ranks, total_bytes // ranks
    gpus = tuple(
        replace(
            gpu,
            free_bytes=share,
            # A GPU that shares the host's memory has at least that much.
            total_bytes=whole if on_cpu else gpu.total_bytes and max(share, gpu.total_bytes),
        )
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus)


def pick_gpus(machine: Machine, chosen: Sequence[Gpu]) -> Machine:
    """The machine with these of its GPUs, in this order, and the link between them."""
    indices = {gpu.index for gpu in chosen}
    links = tuple(
        link for link in machine.links if len(chosen) > 1 and indices.issuperset(link.pair)
    )
    joined = _join_chosen(machine, chosen, links)
    return replace(machine, gpus=tuple(chosen), links=links, interconnect=joined)


def _join_chosen(
    machine: Machine, chosen: Sequence[Gpu], links: Sequence[PairLink]
) -> Interconnect:
    """The link between some GPUs of a machine."""
    if len(chosen) == 1:
        return Interconnect(link_class=LinkClass.NONE)
    unknown = Interconnect(link_class=LinkClass.UNKNOWN)
    if any(gpu.mig_slice is not None for gpu in chosen):
        return unknown
    if machine.links:
        # A pair that is not known could be the slowest.
        pairs = len(chosen) * (len(chosen) - 1) // 2
        whole = len({link.pair for link in links}) == pairs
        return join_pairs(links, {gpu.index: gpu.nvlinks for gpu in chosen}) if whole else unknown
    # Where only the class is known, the link between fewer GPUs is at least as good, unless rings
    # went through those that are left out.
    known, is_part = machine.interconnect, len(chosen) != len(machine.gpus)
    if known.link_class is LinkClass.NVLINK_RING and is_part:
        return unknown
    pair = known.weakest_pair
    kept = pair is not None and {gpu.index for gpu in chosen}.issuperset(pair)
    return replace(known, weakest_pair=pair if kept else None)


def with_gpus(machine: Machine, count: int) -> Machine:
    """The machine with the first `count` GPUs of each node.

    Raises:
        UsageError: A node has fewer.
    """
    if not 1 <= count <= len(machine.gpus):
        raise UsageError(
            f"`$gpus_per_node {count}`: this machine has {len(machine.gpus)}",
            f"to plan for another one: `$machine {count}xH100-80GB`",
        )
    return pick_gpus(machine, machine.gpus[:count])


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
    links = [_parse_entry(entry.strip(), text) for entry in text.split(",")]
    if len({link.word in _INSIDE for link in links}) != len(links):
        raise UsageError(f"`{FLAG} {text}` gives two links for the same place", *_HINTS)
    for link in links:
        join = _join_inside if link.word in _INSIDE else _join_between
        machine = join(machine, link)
    return machine


def spell_network(network: Network) -> str:
    """A known network as the option takes it: `infiniband:3200Gb/s`."""
    word = next(word for word, kind in _BETWEEN.items() if kind is network.kind)
    if network.bytes_per_s is None:
        return word
    return f"{word}:{network.bytes_per_s / _BYTES['Gb']:g}Gb/s"


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


# nvml.h, nvmlIntNvLinkDeviceType_t.
SWITCH = 2


def other_end(kind: int | None, bus_id: str | None, gpus: AbstractSet[str | None]) -> str | None:
    """The PCI address of the GPU, or of another device, that an NVLink leads to; None: a switch.

    In a virtual machine or a rack, switches have no readable address. So an other end without one
    counts as a switch, as in NCCL (`ncclTopoGetXmlFromGpu`).

    Args:
        kind: NVML's number for the device; drivers before R470 have only the address.
        bus_id: The address.
        gpus: The addresses of the machine's GPUs.
    """
    is_switch = kind == SWITCH or (kind is None and bus_id not in gpus)
    unreadable = not bus_id or bus_id.upper().startswith("FFFFFFFF")
    return None if is_switch or unreadable else bus_id


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
    nvlinks: tuple[str | None, ...] | None = None
    """Where each active one leads to, by `other_end`; `None` where NVML does not know."""
    raw_bytes_per_s: int | None = None
    """Of one NVLink, as NVML reports it, with the encoding."""

    @property
    def switch_links(self) -> int:
        """The count of active links to switches that are ready."""
        return (self.nvlinks or ()).count(None) if self.gpu.fabric_ready else 0

    def links_to(self, bus_id: str | None) -> int:
        """The count of active links directly to the GPU at this PCI address."""
        return 0 if bus_id is None else (self.nvlinks or ()).count(bus_id)

    @property
    def nvlink_bytes_per_s(self) -> int | None:
        """The rate of one NVLink in one direction; nominal where the generation is known."""
        capability = self.gpu.compute_capability
        nominal = None if capability is None else NVLINK_BYTES_PER_S.get(capability)
        return self.raw_bytes_per_s if nominal is None else nominal


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


def link_pair(first: Ports, second: Ports, *, nvlink_p2p: bool | None = None) -> PairLink:
    """The link between two GPUs; their order does not matter.

    Args:
        first: One of them.
        second: The other one.
        nvlink_p2p: Whether NVML reports peer-to-peer access over NVLink, also through switches;
            None where it has no answer, which counts as a good one.
    """
    low, high = sorted((first, second), key=lambda ports: ports.gpu.index)
    nvlinks = _count_nvlinks(low, high, nvlink_p2p=nvlink_p2p)
    if nvlinks:
        rate = least((low.nvlink_bytes_per_s, high.nvlink_bytes_per_s))
        bytes_per_s = None if rate is None else nvlinks * rate
    else:
        bytes_per_s = least(slot_bytes_per_s(ports.gpu.pcie) for ports in (low, high))
    pair = (low.gpu.index, high.gpu.index)
    return PairLink(pair=pair, nvlinks=nvlinks, bytes_per_s=bytes_per_s)


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
