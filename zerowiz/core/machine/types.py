"""Describe what a job can use: GPUs, the links between them, the host."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from zerowiz.core.machine.allocation import JobAllocation
from zerowiz.core.machine.host import Host
from zerowiz.core.machine.links import Interconnect, LinkClass, PairLink, join_pairs
from zerowiz.core.machine.network import Network
from zerowiz.core.values import Count, replace
from zerowiz.errors import UsageError


class Accelerator(StrEnum):
    """What DeepSpeed runs on; its own names (`DS_ACCELERATOR`)."""

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
    used_bytes: Count | None = None
    """`None` where the driver does not tell (WSL)."""
    name: str | None = None
    """From /proc; a container sees pids of the host that it cannot name."""


class PcieSlot(Struct, frozen=True, kw_only=True):
    """How a GPU is plugged in."""

    max_generation: Count | None = None
    """What GPU and slot could run at; the current one drops while the GPU idles."""
    current_generation: Count | None = None
    max_lanes: Count | None = None
    current_lanes: Count | None = None
    upstream_bytes_per_s: Count | None = None
    """Nominal, one way, of the narrowest bridge between the GPU and the host bridge."""


class LeftOutGpu(Struct, frozen=True, kw_only=True):
    """A GPU that NVML lists and no job can use."""

    index: Count
    why: str


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU, one slice of a GPU (MIG), or one rank of the CPU accelerator.

    What NVML does not tell is `None`, never 0.
    """

    index: Count
    """NVML's index (PCI bus order)."""
    name: str
    uuid: str | None = None
    total_bytes: Count | None = None
    """What NVML calls total, the driver's reserve included."""
    reserved_bytes: Count | None = None
    """What the driver keeps of it."""
    free_bytes: Count | None = None
    """What a new process could allocate now."""
    compute_capability: tuple[Count, Count] | None = None
    ordinal: Count | None = None
    """CUDA's number of it in PCI bus order: it counts only GPUs that can be opened."""
    mig_slice: Count | None = None
    """Which slice of GPU `index` this is; `None` for a whole GPU."""
    shares_host_memory: bool = False
    """Whether it has no memory of its own (GB10, Jetson); its sizes are then the host's."""
    bus_id: str | None = None
    """PCI address as NVML writes it: `00000000:1A:00.0`."""
    numa_node: Count | None = None
    pcie: PcieSlot = field(default_factory=PcieSlot)
    nvlinks: Count | None = None
    """Active NVLinks; `None` when NVML could not say."""
    expected_nvlinks: Count | None = None
    """What the GPU table knows of its kind."""
    fabric_ready: bool = True
    """Whether the Fabric Manager has trained the switches; without it their links carry nothing."""
    clique: str | None = None
    """The NVLink domain when it spans nodes (NVL72): equal on all GPUs that share it."""
    ecc: bool | None = None
    mig_mode: bool = False
    """Whether the GPU is split into slices."""
    memory_source: str | None = None
    """Where its sizes come from: an NVML call, a table, the host."""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def cuda_ordinal(self) -> int:
        """CUDA's number of it in PCI bus order; NVML's index where nobody counted."""
        return self.index if self.ordinal is None else self.ordinal

    @property
    def label(self) -> str:
        """Its name on a command line: `3`, or `3:1` for a slice."""
        return str(self.index) if self.mig_slice is None else f"{self.index}:{self.mig_slice}"

    def __post_init__(self) -> None:
        """Refuse a GPU that cannot exist."""
        if self.index < 0:
            raise UsageError(f"a GPU's index cannot be negative: {self.index}")
        for label, size_bytes in (("total", self.total_bytes), ("free", self.free_bytes)):
            if size_bytes is not None and size_bytes < 0:
                raise UsageError(
                    f"GPU {self.index} cannot have {size_bytes} bytes of {label} memory"
                )
        total, free = self.total_bytes, self.free_bytes
        if total is not None and free is not None and free > total:
            raise UsageError(f"GPU {self.index} cannot have {free} of {total} bytes free")


class Machine(Struct, frozen=True, kw_only=True):
    """Equal nodes with the chosen GPUs of one of them."""

    source: MachineSource
    gpus: tuple[Gpu, ...]
    interconnect: Interconnect = field(default_factory=Interconnect)
    host: Host = field(default_factory=Host)
    nodes: Count = 1
    accelerator: Accelerator = Accelerator.CUDA
    links: tuple[PairLink, ...] = ()
    """Of every pair of GPUs; empty where only the class is known (a spec)."""
    left_out: tuple[LeftOutGpu, ...] = ()
    network: Network = field(default_factory=Network)
    """To other nodes."""
    driver_version: str | None = None
    cuda_version: tuple[Count, Count] | None = None
    """The newest that the driver runs."""
    allocation: JobAllocation | None = None
    sources: Mapping[str, str] = field(default_factory=dict, name="origins")
    """Where each number came from, by its place in the JSON: `gpus.free_bytes`."""
    notes: tuple[str, ...] = ()
    """What the probe assumed or left out, one sentence each."""

    def __post_init__(self) -> None:
        """Refuse a machine nobody can train on."""
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
        """Whether the ranks' own memory is the host's: CPU ranks, GPUs without memory."""
        shared = any(gpu.shares_host_memory for gpu in self.gpus)
        return shared or self.accelerator is Accelerator.CPU

    @property
    def clique(self) -> str | None:
        """The NVLink domain of all its GPUs, when that spans nodes (NVL72)."""
        cliques = {gpu.clique for gpu in self.gpus}
        return cliques.pop() if len(cliques) == 1 else None

    @property
    def world_size(self) -> int:
        """Ranks of the job: one per GPU."""
        return self.nodes * len(self.gpus)

    @property
    def is_fast(self) -> bool:
        """Whether every link that the job crosses is fast, between nodes too."""
        inside = len(self.gpus) == 1 or self.interconnect.is_fast
        between = self.nodes == 1 or self.network.is_fast
        return self.world_size > 1 and inside and between

    def with_notes(self, *notes: str) -> "Machine":
        """The machine with more to say; what was said already is not said again."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the tightest chosen GPU; unknown when any is unknown."""
        sizes = [gpu.free_bytes for gpu in self.gpus]
        known = [size for size in sizes if size is not None]
        return min(known) if len(known) == len(sizes) else None

    @property
    def total_bytes(self) -> int | None:
        """Total memory of the smallest chosen GPU; unknown when any is unknown."""
        sizes = [gpu.total_bytes for gpu in self.gpus]
        known = [size for size in sizes if size is not None]
        return min(known) if len(known) == len(sizes) else None

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest among the chosen GPUs; unknown when any is unknown."""
        known = [gpu.compute_capability for gpu in self.gpus if gpu.compute_capability is not None]
        return min(known) if len(known) == len(self.gpus) else None

    @property
    def takes_bf16(self) -> bool:
        """Whether bf16 is computed natively; where that is not known it is taken to be.

        Every chosen GPU has matrix units for it, or the CPU instructions.
        """
        if self.accelerator is Accelerator.CPU:
            return self.host.computes_bf16 is not False
        capability = self.compute_capability
        return capability is None or capability >= _BF16_CAPABILITY


def with_nodes(machine: Machine, nodes: int) -> Machine:
    """The same node `nodes` times."""
    return replace(machine, nodes=nodes)


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
        # Where only the class is known, the link between fewer is at least as good.
        pair = machine.interconnect.weakest_pair
        kept = pair is not None and {gpu.index for gpu in chosen}.issuperset(pair)
        return replace(machine.interconnect, weakest_pair=pair if kept else None)
    pairs = len(chosen) * (len(chosen) - 1) // 2
    whole = len({link.pair for link in links}) == pairs
    # A pair that nobody told could be the slowest.
    return join_pairs(links) if whole else Interconnect(link_class=LinkClass.UNKNOWN)


def with_gpus(machine: Machine, count: int) -> Machine:
    """The machine with the first `count` GPUs of each node.

    Raises:
        UsageError: It has fewer.
    """
    if not 1 <= count <= len(machine.gpus):
        raise UsageError(
            f"`$gpus_per_node {count}`: this machine has {len(machine.gpus)}",
            f"`$machine {count}xNAME` plans for another one",
        )
    return pick_gpus(machine, machine.gpus[:count])


def widen(machine: Machine, count: int) -> Machine:
    """What the machine would be with more GPUs like its last one."""
    last, link = machine.gpus[-1], machine.interconnect
    if link.link_class is LinkClass.NONE:
        link = Interconnect(link_class=LinkClass.UNKNOWN)
    first = max(gpu.index for gpu in machine.gpus) + 1
    extra = (
        replace(last, index=first + i, ordinal=None, uuid=None, bus_id=None, processes=())
        for i in range(count - len(machine.gpus))
    )
    return replace(machine, gpus=(*machine.gpus, *extra), interconnect=link)
