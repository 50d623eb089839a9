"""The machines of the tables that a job could have, and what an hour of each costs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.machine.names import (
    GpuModel,
    Instance,
    Phrase,
    close_names,
    find_instance,
    find_model,
    likely_phrase,
    match_models,
    mean_models,
    own_name,
)
from zerowiz.core.machine.spec import MOST_GPUS_PER_NODE, instance_node, parse_spec, read_spec
from zerowiz.core.machine.types import Machine, Network, NetworkKind, with_nodes
from zerowiz.core.structs import replace, shows
from zerowiz.errors import UsageError

_AMOUNT = re.compile(
    r"([$€£¥]?)\s*(\d{1,12}(?:\.\d{1,9})?)\s*([A-Za-z]{3})?\s*/\s*(gpu|node)-(?:hour|hr|h)",
    re.IGNORECASE,
)
# As half of the world writes 2.50.
_DECIMAL_COMMA = re.compile(r"(\D*\d+),(\d{1,2}\D*)")
_HINTS = (
    "write `$price 2.50/gpu-hour` or `$price 32/node-hour`",
    "of several machines: `$price H100-80GB=2.50/gpu-hour,p5.48xlarge=98/node-hour`",
    'or a file, in TOML with `"H100-80GB" = "2.50/gpu-hour"`',
)


class PriceUnit(StrEnum):
    """What is paid for by the hour."""

    GPU = "gpu"
    NODE = "node"


class Price(Struct, frozen=True, kw_only=True):
    """What an hour of something costs."""

    amount: float
    unit: PriceUnit
    currency: str
    """As it was written, `$` or `EUR`; empty where none was."""
    instance: str | None = None
    """The instance that it is for."""
    gpu: str | None = None
    """The GPU that it is for, as NVML prints it."""
    gpus: int | None = None
    """How many of it a node has; None for any."""
    name: str = ""
    """What it is for, as it was written; empty for any machine."""

    def per_hour(self, machine: Machine) -> float:
        """Of all nodes of a machine."""
        return self.amount * (machine.world_size if self.unit is PriceUnit.GPU else machine.nodes)

    def is_for(self, machine: Machine, instance: str | None) -> bool:
        """Whether it is the price of this machine, which may be nodes of an instance."""
        if self.instance is not None:
            return self.instance == instance
        if self.gpu is None:
            return True
        of_kind = machine.is_uniform and machine.gpus[0].name == self.gpu
        return of_kind and self.gpus in {None, len(machine.gpus)}


class PriceList(Struct, frozen=True, kw_only=True):
    """The prices that a person gave, the most special first."""

    prices: tuple[Price, ...] = ()

    @property
    def currency(self) -> str:
        """Of all of them."""
        return next((price.currency for price in self.prices), "")

    def per_hour(self, machine: Machine, instance: str | None) -> float | None:
        """What an hour of a machine costs; None where no price is for it.

        Args:
            machine: The GPUs of a job.
            instance: The name in the table of instances that its nodes have, if they have one.
        """
        of_it = (price for price in self.prices if price.is_for(machine, instance))
        return next((price.per_hour(machine) for price in of_it), None)

    def names(self, instance: str) -> bool:
        """Whether an instance has a price of its own."""
        return any(price.instance == instance for price in self.prices)

    def counts_of(self, gpu: str) -> tuple[int, ...]:
        """The numbers of a GPU in a node that have a price of their own."""
        of_it = (price.gpus for price in self.prices if price.gpu == gpu)
        return tuple(sorted({count for count in of_it if count is not None}))

    @property
    def of_any_node(self) -> bool:
        """Whether a node has one price, whatever it is."""
        return any(p.unit is PriceUnit.NODE and not (p.instance or p.gpu) for p in self.prices)


NO_PRICES = PriceList()
"""Where nobody asks for a cost."""


def split_prices(text: str) -> dict[str, str]:
    """The amount of each name in `H100-80GB=2.50/gpu-hour,p5.48xlarge=98/node-hour`.

    A price of any machine has the empty name.

    Raises:
        UsageError: A name has two prices, or none stands before its `=`.
    """
    prices: dict[str, str] = {}
    comma = _DECIMAL_COMMA.fullmatch(text)
    if comma is not None:
        raise UsageError(
            f"`$price {text}` has a comma in its number",
            f"did you mean `$price {comma[1]}.{comma[2]}`?",
        )
    for entry in text.split(","):
        name, equals, amount = entry.rpartition("=")
        if equals and not name.strip():
            raise UsageError(f"`$price {text}` has no name before `=`", *_HINTS)
        if name.strip() in prices:
            whose = f" of `{name.strip()}`" if equals else ""
            raise UsageError(f"`$price {text}` gives two prices{whose}", *_HINTS)
        prices[name.strip()] = amount.strip()
    return prices


def read_prices(
    amounts: Mapping[str, str],
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str] = (),
) -> PriceList:
    """The prices by the names of what they are for.

    Args:
        amounts: Such as `2.50/gpu-hour`, by the name of an instance, of a GPU, of GPUs of a node
            (`8xH200`), or by an empty name for any machine.
        table: The GPUs that can be named.
        instances: The instances that can be named.
        own_gpus: Those of the job's machine, as NVML prints them: they count where a name means no
            row of the table, or several.

    Raises:
        UsageError: An amount is no price, a name means nothing, or currencies differ.
    """
    prices = [_read(name, amount, table, instances, own_gpus) for name, amount in amounts.items()]
    currencies = sorted({price.currency for price in prices})
    if len(currencies) > 1:
        shown = " and ".join(f"`{currency}`" if currency else "none" for currency in currencies)
        raise UsageError(
            f"`$price` has more than one currency: {shown}",
            "use one currency for all",
        )
    return PriceList(prices=tuple(sorted(prices, key=_generality)))


def _generality(price: Price) -> int:
    """How many machines it can be for, as a rank."""
    limits = (price.instance is not None, price.gpus is not None, price.gpu is not None, True)
    return limits.index(True)


def _read(
    name: str,
    amount: str,
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str],
) -> Price:
    match = _AMOUNT.fullmatch(amount.strip())
    if match is None or (match[1] and match[3]):
        words = f"{name}={amount}" if name else amount
        raise UsageError(f"`$price {words}` is not an hourly price", *_HINTS)
    price = Price(
        amount=float(match[2]),
        unit=PriceUnit(match[4].lower()),
        currency=match[1] or (match[3] or "").upper(),
        name=name,
    )
    return price if not name else _named(price, table, instances, own_gpus)


def _named(
    price: Price,
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str],
) -> Price:
    """The price of what its name means."""
    name = price.name
    instance = find_instance(name, instances)
    if instance is not None:
        return replace(price, instance=instance.name)
    phrase = read_spec(name, table) or likely_phrase(name)
    count, gpu = phrase.count, phrase.name
    names = [name for name in own_gpus if _is_own(gpu, name)]
    if not names and not mean_models(gpu, table):
        raise _refuse(phrase, table, instances)
    gpu_name = (
        names[0] if names and len(match_models(gpu, table)) != 1 else find_model(gpu, table).name
    )
    if price.unit is PriceUnit.NODE and count is None:
        raise UsageError(
            (
                f"`$price {name}=...` is the price of a node, and does not say how many GPUs "
                "a node has"
            ),
            f"write `8x{name}=.../node-hour`, or the price of a GPU: `{name}=.../gpu-hour`",
        )
    return replace(price, gpu=gpu_name, gpus=count)


def _refuse(phrase: Phrase, table: Sequence[GpuModel], instances: Sequence[Instance]) -> UsageError:
    """The error for a price whose name is in no table."""
    close = ", ".join(f"`{phrase.of(name)}`" for name in close_names(phrase.name, table, instances))
    return UsageError(
        (
            f"`$price {phrase.name}=...`: `{phrase.name}` is not a GPU or an instance that "
            "zerowiz knows"
        ),
        *((f"similar names: {close}",) if close else ()),
        "`$price 2.50/gpu-hour`, without a name, applies to any machine",
    )


def _is_own(name: str, own_gpu: str) -> bool:
    """Whether a name is that of a GPU of the job, or the words that it begins with."""
    words, own_words = _words(name), _words(own_gpu)
    return bool(words) and own_words[: len(words)] == words


def _words(name: str) -> list[str]:
    """Those of a GPU's name, without its maker."""
    words = re.findall(r"\w+", name.lower())
    return words[1:] if words[:1] == ["nvidia"] else words


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
