"""The machine of a job: its GPUs, the links between them, its host and its network."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct, field

from zerowiz.core.machine.allocation import JobAllocation
from zerowiz.core.machine.host import Host
from zerowiz.core.machine.links import Interconnect, LinkClass, PairLink, join_pairs
from zerowiz.core.machine.network import Network
from zerowiz.core.values import Count, replace, shows
from zerowiz.errors import UsageError
from zerowiz.words import _

_Ordered = TypeVar("_Ordered", int, tuple[int, int])


class Accelerator(StrEnum):
    """What DeepSpeed runs on, by its own names (`DS_ACCELERATOR`)."""

    CUDA = "cuda"
    CPU = "cpu"


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
        if self.index < 0:
            raise UsageError(_("the index of a GPU cannot be negative: {index}", index=self.index))
        for label, size_bytes in (("total", self.total_bytes), ("free", self.free_bytes)):
            if size_bytes is not None and size_bytes < 0:
                raise UsageError(
                    _(
                        "GPU {index} cannot have {size_bytes} bytes of {label} memory",
                        index=self.label,
                        size_bytes=size_bytes,
                        label=label,
                    )
                )
        total, free = self.total_bytes, self.free_bytes
        if total is not None and free is not None and free > total:
            raise UsageError(
                _(
                    "GPU {index} cannot have {free} of {total} bytes free",
                    index=self.label,
                    free=free,
                    total=total,
                )
            )


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
    sources: Mapping[str, str] = field(default_factory=dict, name="origins")
    """The source of each number, by its path in the JSON, such as `gpus.free_bytes`."""
    notes: tuple[str, ...] = ()
    """What the probe assumed or left out, one sentence each."""

    def __post_init__(self) -> None:
        """Refuse a machine that cannot exist."""
        if self.nodes < 1:
            raise UsageError(_("a machine has at least one node, not {nodes}", nodes=self.nodes))
        if not self.gpus:
            raise UsageError(_("a machine needs at least one GPU"))
        if len({gpu.label for gpu in self.gpus}) != len(self.gpus):
            raise UsageError(_("a GPU is listed twice"))

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs are of one kind."""
        return len({gpu.name for gpu in self.gpus}) == 1

    @property
    def lives_on_host(self) -> bool:
        """Whether the memory of the ranks is the host's: CPU ranks, GPUs without own memory."""
        shared = any(gpu.shares_host_memory for gpu in self.gpus)
        return shared or self.accelerator is Accelerator.CPU

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
        return least(gpu.free_bytes for gpu in self.gpus)

    @property
    def total_bytes(self) -> int | None:
        """The least total memory of a chosen GPU; unknown where any is unknown."""
        return least(gpu.total_bytes for gpu in self.gpus)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest one of the chosen GPUs; unknown where any is unknown."""
        return least(gpu.compute_capability for gpu in self.gpus)

    @property
    def takes_bf16(self) -> bool:
        """Whether every chosen GPU, or the CPU, computes bf16 natively; unknown counts as yes."""
        if self.accelerator is Accelerator.CPU:
            return self.host.computes_bf16 is not False
        capability = self.compute_capability
        return capability is None or capability >= _BF16_CAPABILITY


def least(values: Iterable[_Ordered | None]) -> _Ordered | None:
    """The smallest of at least one value; unknown where any of them is."""
    found = list(values)
    known = [value for value in found if value is not None]
    return min(known) if len(known) == len(found) else None


def with_nodes(machine: Machine, nodes: int) -> Machine:
    """The machine with this many equal nodes."""
    return replace(machine, nodes=nodes)


def with_host_memory(machine: Machine, size_bytes: int) -> Machine:
    """The machine whose nodes have this much memory for the job.

    CPU ranks share it evenly, and a GPU without memory of its own has all of it.
    """
    total_bytes = max(size_bytes, machine.host.total_bytes or 0)
    host = replace(machine.host, total_bytes=total_bytes, available_bytes=size_bytes)
    ranks = len(machine.gpus) if machine.accelerator is Accelerator.CPU else 1
    gpus = machine.gpus
    if machine.lives_on_host:
        share, whole = size_bytes // ranks, total_bytes // ranks
        # A GPU that shares the host's memory has at least that much.
        on_cpu = machine.accelerator is Accelerator.CPU
        gpus = tuple(
            replace(
                gpu,
                free_bytes=share,
                total_bytes=whole if on_cpu else gpu.total_bytes and max(share, gpu.total_bytes),
            )
            for gpu in gpus
        )
    return replace(machine, host=host, gpus=gpus)


def pick_gpus(machine: Machine, chosen: Sequence[Gpu]) -> Machine:
    """The machine with these of its GPUs, in this order, and the link between them."""
    indices = {gpu.index for gpu in chosen}
    links = tuple(link for link in machine.links if indices.issuperset(link.pair))
    if len(chosen) == 1:
        return replace(
            machine,
            gpus=tuple(chosen),
            links=(),
            interconnect=Interconnect(link_class=LinkClass.NONE),
        )
    joined = _join_chosen(machine, chosen, links)
    return replace(machine, gpus=tuple(chosen), links=links, interconnect=joined)


def _join_chosen(
    machine: Machine, chosen: Sequence[Gpu], links: Sequence[PairLink]
) -> Interconnect:
    """The link between some GPUs of a machine."""
    if any(gpu.mig_slice is not None for gpu in chosen):
        return Interconnect(link_class=LinkClass.UNKNOWN)
    if not machine.links:
        # Where only the class is known, the link between fewer GPUs is at least as good, unless
        # rings went through those that are left out.
        if machine.interconnect.link_class is LinkClass.NVLINK_RING and len(chosen) != len(
            machine.gpus
        ):
            return Interconnect(link_class=LinkClass.UNKNOWN)
        pair = machine.interconnect.weakest_pair
        kept = pair is not None and {gpu.index for gpu in chosen}.issuperset(pair)
        return replace(machine.interconnect, weakest_pair=pair if kept else None)
    pairs = len(chosen) * (len(chosen) - 1) // 2
    whole = len({link.pair for link in links}) == pairs
    # A pair that is not known could be the slowest.
    if not whole:
        return Interconnect(link_class=LinkClass.UNKNOWN)
    return join_pairs(links, {gpu.index: gpu.nvlinks for gpu in chosen})


def with_gpus(machine: Machine, count: int) -> Machine:
    """The machine with the first `count` GPUs of each node.

    Raises:
        UsageError: A node has fewer.
    """
    if not 1 <= count <= len(machine.gpus):
        raise UsageError(
            _(
                "`$gpus_per_node {count}`: this machine has {gpus}",
                count=count,
                gpus=len(machine.gpus),
            ),
            _("to plan for another one: `$machine {count}xH100-80GB`", count=count),
        )
    return pick_gpus(machine, machine.gpus[:count])
