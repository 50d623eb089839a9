"""The machines of the tables that a job could have, and what an hour of each costs."""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from zerowiz.core.machine.names import (
    GpuModel,
    Instance,
    close_names,
    find_instance,
    find_model,
    instance_node,
    match_models,
    own_name,
    parse_spec,
)
from zerowiz.core.machine.types import Machine, Network, NetworkKind
from zerowiz.core.structs import replace, shows
from zerowiz.errors import UsageError

_DOLLARS = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
# A machine as `--machine` takes it: `2x8xH100`.
_COUNTED = re.compile(r"(?:\d+x)+(.+)", re.IGNORECASE)
_HINT = (
    "write dollars per GPU hour: `$price 2.50`, or by name: "
    "`$price H100-80GB=2.50,p5.48xlarge=12.25`"
)


class Price(Struct, frozen=True, kw_only=True):
    """What an hour of one GPU costs."""

    dollars_per_hour: float
    name: str = ""
    """What it is for, as it was written; empty for any machine."""
    instance: str | None = None
    """The instance that the name means."""
    gpus: frozenset[str] = frozenset()
    """The GPUs that the name means, as NVML prints them."""

    def is_for(self, machine: Machine, instance: str | None) -> bool:
        """Whether it is the price of this machine, which may be nodes of an instance."""
        if self.instance is not None:
            return self.instance == instance
        return not self.name or {gpu.name for gpu in machine.gpus} <= self.gpus


class PriceList(Struct, frozen=True, kw_only=True):
    """The prices that a person gave, the most special first."""

    prices: tuple[Price, ...] = ()

    @property
    def currency(self) -> str | None:
        """Of all of them."""
        return "$" if self.prices else None

    def per_hour(self, machine: Machine, instance: str | None) -> float | None:
        """The dollars that an hour of a machine costs; None where no price is for it.

        Args:
            machine: The GPUs of a job.
            instance: The name in the table of instances that its nodes have, if they have one.
        """
        of_it = (price.dollars_per_hour for price in self.prices if price.is_for(machine, instance))
        return next((dollars * machine.world_size for dollars in of_it), None)

    def names(self, instance: str) -> bool:
        """Whether an instance has a price of its own."""
        return any(price.instance == instance for price in self.prices)


def read_prices(
    texts: Iterable[str], table: Sequence[GpuModel], instances: Sequence[Instance]
) -> PriceList:
    """The prices in texts such as `2.50` or `H100-80GB=2.50,p5.48xlarge=12.25`.

    Args:
        texts: Each a price, or several that have names, with commas between them.
        table: The GPUs that can be named.
        instances: The instances that can be named.

    Raises:
        UsageError: One is no price, its name means nothing, or it is given twice.
    """
    prices: dict[str, Price] = {}
    entries = [(text, entry.rpartition("=")) for text in texts for entry in text.split(",")]
    for text, (before, equals, after) in entries:
        name, dollars = before.strip(), after.strip()
        # Where a comma stands in a number, its second part has no name.
        lacks_name = not name and (equals or "," in text)
        if lacks_name or not _DOLLARS.fullmatch(dollars):
            raise UsageError(f"`$price {text}` is not a price", _HINT)
        if name in prices:
            raise UsageError(f"`$price {text}` gives a second price of the same", _HINT)
        prices[name] = _named(name, float(dollars), table, instances)

    special_first = sorted(prices.values(), key=lambda p: (p.instance is None, not p.gpus))
    return PriceList(prices=tuple(special_first))


def _named(
    name: str, dollars: float, table: Sequence[GpuModel], instances: Sequence[Instance]
) -> Price:
    """The price of what its name means."""
    instance = find_instance(name, instances)
    if instance is not None:
        return Price(dollars_per_hour=dollars, name=name, instance=instance.name)
    gpus = frozenset(row.name for row in match_models(name, table))
    counted = _COUNTED.fullmatch(name)
    if counted is not None:
        raise UsageError(
            f"`$price {name}=...`: `{name}` is a machine, and a price is of one GPU",
            f"write what an hour of one GPU costs: `$price {counted[1]}=2.50`",
        )
    if name and not gpus:
        close = ", ".join(f"`{other}`" for other in close_names(name, table, instances))
        raise UsageError(
            f"`$price {name}=...`: `{name}` is not a GPU or an instance that zerowiz knows",
            *((f"similar names: {close}",) if close else ()),
            _HINT,
        )
    return Price(dollars_per_hour=dollars, name=name, gpus=gpus)


# List the machines that the tables of GPUs and instances make, each kind from small to large.

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

    def build(self, size: Size, table: Sequence[GpuModel]) -> MachineCandidate:
        """The machine of this size."""
        many = "" if size.nodes == 1 else f"{size.nodes}x"
        if self.instance is not None:
            return MachineCandidate(
                name=f"{many}{self.instance.name}",
                machine=replace(instance_node(self.instance, table), nodes=size.nodes),
                size=size,
                instance=self.instance.name,
            )
        node = f"{size.gpus}x{own_name(self.gpu, table)}"
        machine = replace(parse_spec(node, table), nodes=size.nodes)
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
) -> tuple[MachineKind, ...]:
    """Every GPU of the table, then every instance, the largest GPUs first.

    GPUs that no NVLink joins over eight of a board are not tried over several nodes unless a number
    of nodes was said: they are seldom built with a network that is worth it.

    Args:
        table: The GPUs.
        instances: The instances.
        nodes: The only number of nodes to try.
        gpus: The only number of GPUs of a node to try.
    """
    kinds = [*_of_gpus(table, nodes, gpus), *_of_instances(table, instances, nodes, gpus)]
    kinds.sort(key=lambda kind: (kind.instance is not None, -kind.gpu.usable_bytes))
    return tuple(kind for kind in kinds if kind.sizes)


def _of_gpus(
    table: Sequence[GpuModel], nodes: int | None, gpus: int | None
) -> Iterator[MachineKind]:
    counts = GPUS_OF_A_NODE if gpus is None else (gpus,)
    for gpu in table:
        joined = gpu.nvlink_gpus >= GPUS_OF_A_NODE[-1]
        many = NODES if joined else NODES[:1]
        many = many if nodes is None else (nodes,)
        of_node = [count for count in counts if count == 1 or not gpu.shares_host_memory]
        alone = [Size(nodes=1, gpus=count) for count in of_node if 1 in many]
        several = [Size(nodes=n, gpus=count) for count in of_node[-1:] for n in many if n > 1]
        yield MachineKind(gpu=gpu, sizes=(*alone, *several))


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
