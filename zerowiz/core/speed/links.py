"""How fast collectives over all ranks of a job run."""

from typing import NamedTuple

from zerowiz.core.machine.links import LinkClass
from zerowiz.core.machine.types import Machine
from zerowiz.core.speed.costs import Costs
from zerowiz.core.speed.rates import GpuRates

# What a network is taken to be of which nobody knows the rate: 25 Gb/s.
_UNKNOWN_NETWORK_BYTES_PER_S = 3_125_000_000
_NVLINKS = frozenset({LinkClass.NVLINK_ALL, LinkClass.NVLINK_RING})


class Ring(NamedTuple):
    """What a collective over all ranks reaches."""

    bytes_per_s: float
    """Of each rank, sent."""
    start_seconds: float
    queued_seconds: float

    def seconds(self, sent_bytes: float, collectives: float) -> float:
        """To send so much in so many collectives, each of which something waits for."""
        return sent_bytes / self.bytes_per_s + collectives * self.start_seconds

    def queued(self, sent_bytes: float, collectives: int) -> float:
        """To send so much in so many collectives, of which the host queues one after the other."""
        first = min(1, collectives)
        return self.seconds(sent_bytes, first) + (collectives - first) * self.queued_seconds


def link_bytes_per_s(machine: Machine, rates: GpuRates) -> int | None:
    """The nominal rate of the link inside a node, in one direction; None where nobody knows it.

    NVLink of which only the class is known has the rate of the GPUs.
    """
    link = machine.interconnect
    by_nvlink = rates.nvlink_bytes_per_s if link.link_class in _NVLINKS else 0
    return link.bytes_per_s or by_nvlink or None


def is_assumed(machine: Machine, rates: GpuRates) -> bool:
    """Whether nobody knows the rate of the link inside a node, so that the GPUs' PCIe counts."""
    return len(machine.gpus) > 1 and link_bytes_per_s(machine, rates) is None


def find_ring(machine: Machine, rates: GpuRates, costs: Costs, *, inside: bool = False) -> Ring:
    """The slowest part of the ring through all GPUs of all nodes, or inside one node.

    Theory: a ring enters and leaves a node as often as the node has adapters, so all that a node's
    GPUs send passes its network once for all of them (NCCL, graph/search.cc). A link inside the
    node whose rate nobody knows is taken to be the PCIe of the GPUs.
    """
    link, network = machine.interconnect, machine.network
    own = link_bytes_per_s(machine, rates) or rates.pcie_bytes_per_s
    by_nvlink = link.link_class in _NVLINKS
    fraction = costs.nvlink_fraction if by_nvlink else costs.pcie_link_fraction
    reached = []
    if len(machine.gpus) > 1:
        reached.append(own * fraction)
    if machine.nodes > 1 and not inside:
        between = network.bytes_per_s or _UNKNOWN_NETWORK_BYTES_PER_S
        reached.append(between * costs.network_fraction)
    slowest = min(reached, default=float("inf"))
    return Ring(slowest, costs.collective_seconds, costs.queued_seconds)
