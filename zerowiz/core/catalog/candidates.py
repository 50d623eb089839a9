"""List the machines that the tables of GPUs and instances make, each kind from small to large."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.core.catalog.prices import NO_PRICES, PriceList
from zerowiz.core.machine.names.find import find_model
from zerowiz.core.machine.names.gpus import GpuModel, own_name
from zerowiz.core.machine.names.instances import Instance
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.spec import MOST_GPUS_PER_NODE, instance_node, parse_spec
from zerowiz.core.machine.types import Machine, with_nodes
from zerowiz.core.values import replace, shows

# What nodes and clusters are built with.
GPUS_OF_A_NODE = (1, 2, 4, 8)
NODES = (1, 2, 4, 8, 16)

# By the generation of PCIe: DGX systems have an adapter of InfiniBand for each GPU, EDR (100 Gb/s),
# HDR (200 Gb/s) or NDR (400 Gb/s): data/instances.json, DGX-A100-640GB and DGX-H100.
ADAPTER_BYTES_PER_S = {3: 12_500_000_000, 4: 25_000_000_000, 5: 50_000_000_000}


class Size(Struct, frozen=True, kw_only=True):
    """How many nodes, and how many GPUs in each."""

    nodes: int
    gpus: int

    @property
    def world_size(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus


class MachineCandidate(Struct, frozen=True, kw_only=True):
    """One machine that a job may be planned for."""

    name: str
    """As `$machine` takes it: `8xH200`, `2x8xH200`, `2xp5.48xlarge`."""
    machine: Machine
    size: Size
    instance: str | None = None
    assumes_network: bool = False
    """Whether nobody knows its network: it is taken to be that of a DGX system of its time."""


@shows("gpu.name", "instance.name", "sizes")
class MachineKind(Struct, frozen=True, kw_only=True):
    """A GPU of the table, or an instance, in the sizes in which it is tried."""

    gpu: GpuModel
    instance: Instance | None = None
    sizes: tuple[Size, ...]
    """The smallest first."""
    priced_sizes: tuple[Size, ...] = ()
    """Those whose nodes have a price of their own; the smallest first."""

    def build(self, size: Size, table: Sequence[GpuModel]) -> MachineCandidate:
        """The machine of this size."""
        many = "" if size.nodes == 1 else f"{size.nodes}x"
        if self.instance is not None:
            return MachineCandidate(
                name=f"{many}{self.instance.name}",
                machine=with_nodes(instance_node(self.instance, table), size.nodes),
                size=size,
                instance=self.instance.name,
            )
        node = f"{size.gpus}x{own_name(self.gpu, table)}"
        machine = with_nodes(parse_spec(node, table), size.nodes)
        if size.nodes == 1:
            return MachineCandidate(name=node, machine=machine, size=size)
        return MachineCandidate(
            name=f"{many}{node}",
            machine=replace(machine, network=assume_network(self.gpu, size.gpus)),
            size=size,
            assumes_network=True,
        )


def assume_network(gpu: GpuModel, gpus_per_node: int) -> Network:
    """The network of a DGX system of the GPU's time: one adapter for each GPU of a node."""
    adapter_bytes_per_s = ADAPTER_BYTES_PER_S[min(5, gpu.pcie_generation)]
    return Network(kind=NetworkKind.INFINIBAND, bytes_per_s=gpus_per_node * adapter_bytes_per_s)


def list_kinds(
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    prices: PriceList = NO_PRICES,
) -> tuple[MachineKind, ...]:
    """Every GPU of the table, then every instance, the largest GPUs first.

    GPUs that no NVLink joins over eight of a board are not tried over several nodes unless a number
    of nodes was said: they are seldom built with a network that is worth it.

    Args:
        table: The GPUs.
        instances: The instances.
        nodes: The only number of nodes to try.
        gpus: The only number of GPUs of a node to try.
        prices: Those of a number of GPUs in a node name a size that is tried too.
    """
    kinds = [*_of_gpus(table, nodes, gpus, prices), *_of_instances(table, instances, nodes, gpus)]
    kinds.sort(key=lambda kind: (kind.instance is not None, -kind.gpu.usable_bytes))
    return tuple(kind for kind in kinds if kind.sizes)


def _of_gpus(
    table: Sequence[GpuModel], nodes: int | None, gpus: int | None, prices: PriceList
) -> Iterator[MachineKind]:
    counts = GPUS_OF_A_NODE if gpus is None else (gpus,)
    for gpu in table:
        joined = gpu.nvlink_gpus >= GPUS_OF_A_NODE[-1]
        many = NODES if joined else NODES[:1]
        many = many if nodes is None else (nodes,)
        alone = [Size(nodes=1, gpus=count) for count in counts if 1 in many]
        several = [Size(nodes=n, gpus=counts[-1]) for n in many if n > 1]
        priced = [
            Size(nodes=n, gpus=count)
            for count in prices.counts_of(gpu.name)
            if count <= MOST_GPUS_PER_NODE and gpus in {None, count}
            for n in many
        ]
        yield MachineKind(gpu=gpu, sizes=(*alone, *several), priced_sizes=tuple(priced))


def _of_instances(
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    nodes: int | None,
    gpus: int | None,
) -> Iterator[MachineKind]:
    for row in instances:
        if gpus not in {None, row.gpus}:
            continue
        whole = row.gpus >= GPUS_OF_A_NODE[-1] and row.network is not None
        many = NODES if whole else NODES[:1]
        many = many if nodes is None else (nodes,)
        sizes = tuple(Size(nodes=n, gpus=row.gpus) for n in many)
        yield MachineKind(gpu=find_model(row.gpu, table), instance=row, sizes=sizes)
