"""Describe what a job can use: GPUs, the links between them, the host."""

from dataclasses import dataclass, replace
from enum import StrEnum

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


class LinkClass(StrEnum):
    """How the chosen GPUs reach each other, by the worst pair among them."""

    NVLINK_ALL = "nvlink_all"
    NVLINK_PARTIAL = "nvlink_partial"
    PCIE = "pcie"
    NONE = "none"
    UNKNOWN = "unknown"


# CUDA programming guide, arithmetic throughput: bf16 matrix units came with Ampere.
_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, or one rank of the CPU accelerator.

    What NVML does not tell is `None`, never 0.
    """

    index: int
    """NVML's index (PCI bus order)."""
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    """What NVML calls total, the driver's reserve included."""
    free_bytes: int | None = None
    """What a new process could allocate now."""
    compute_capability: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse a GPU that cannot exist."""
        if self.index < 0:
            raise UsageError(f"a GPU's index cannot be negative: {self.index}")
        for label, size_bytes in (("total", self.total_bytes), ("free", self.free_bytes)):
            if size_bytes is not None and size_bytes < 0:
                raise UsageError(
                    f"GPU {self.index} cannot have {size_bytes} bytes of {label} memory"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Interconnect:
    """The link that a collective over all chosen GPUs must cross."""

    link_class: LinkClass
    bytes_per_s: int | None = None
    """Nominal, one way, per GPU, over the weakest pair."""
    weakest_pair: tuple[int, int] | None = None
    """NVML indices of the pair that decides the class."""

    @property
    def is_fast(self) -> bool:
        """Whether gathering every weight at every layer is affordable; unknown counts as slow."""
        return self.link_class is LinkClass.NVLINK_ALL


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One node's memory."""

    total_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Equal nodes with the chosen GPUs of one of them."""

    source: MachineSource
    gpus: tuple[Gpu, ...]
    interconnect: Interconnect
    host: Host
    nodes: int = 1
    accelerator: Accelerator = Accelerator.CUDA
    notes: tuple[str, ...] = ()
    """What the probe assumed or left out, one sentence each."""

    def __post_init__(self) -> None:
        """Refuse a machine nobody can train on."""
        if self.nodes < 1:
            raise UsageError(f"a machine has at least one node, not {self.nodes}")
        if not self.gpus:
            raise UsageError("a machine needs at least one GPU")
        if len({gpu.index for gpu in self.gpus}) != len(self.gpus):
            raise UsageError("a GPU is listed twice")

    @property
    def world_size(self) -> int:
        """Ranks of the job: one per GPU."""
        return self.nodes * len(self.gpus)

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
        """Whether every chosen GPU has bf16 matrix units; an unknown one is taken to be new."""
        capability = self.compute_capability
        return capability is None or capability >= _BF16_CAPABILITY


def with_nodes(machine: Machine, nodes: int) -> Machine:
    """The same node `nodes` times; the link between them is not known here."""
    if nodes == machine.nodes:
        return machine
    link = machine.interconnect
    if nodes > 1:
        link = Interconnect(link_class=LinkClass.UNKNOWN)
    return replace(machine, nodes=nodes, interconnect=link)


def pick_gpus(machine: Machine, indices: tuple[int, ...]) -> Machine:
    """The machine with these of its GPUs; the link between fewer is at least as good."""
    gpus = tuple(gpu for gpu in machine.gpus if gpu.index in indices)
    alone = Interconnect(link_class=LinkClass.NONE)
    return replace(
        machine, gpus=gpus, interconnect=alone if len(gpus) == 1 else machine.interconnect
    )


def with_gpus(machine: Machine, count: int) -> Machine:
    """The machine with the first `count` GPUs of each node.

    Raises:
        UsageError: It has fewer.
    """
    if not 1 <= count <= len(machine.gpus):
        raise UsageError(
            f"`--gpus-per-node {count}`: this machine has {len(machine.gpus)}",
            f"`--machine {count}xNAME` plans for another one",
        )
    return pick_gpus(machine, tuple(gpu.index for gpu in machine.gpus[:count]))


def widen(machine: Machine, count: int) -> Machine:
    """What the machine would be with more GPUs like its last one."""
    last, link = machine.gpus[-1], machine.interconnect
    if link.link_class is LinkClass.NONE:
        link = Interconnect(link_class=LinkClass.UNKNOWN)
    extra = (
        replace(last, index=last.index + 1 + i, uuid=None) for i in range(count - len(machine.gpus))
    )
    return replace(machine, gpus=(*machine.gpus, *extra), interconnect=link)
