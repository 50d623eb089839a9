"""How fast collectives over all ranks of a job run."""

from typing import NamedTuple

from zerowiz.core.machine.links import LinkClass
from zerowiz.core.machine.types import Machine
from zerowiz.core.speed.costs import Costs

# What a link is taken to be of which nobody knows the rate: PCIe 4.0 x16 inside a node, and
# 25 Gb/s between nodes.
_UNKNOWN_LINK_BYTES_PER_S = 32_000_000_000
_UNKNOWN_NETWORK_BYTES_PER_S = 3_125_000_000
_NVLINKS = frozenset({LinkClass.NVLINK_ALL, LinkClass.NVLINK_RING})


class Ring(NamedTuple):
    """What a collective over all ranks reaches."""

    bytes_per_s: float
    """Of each rank, sent."""
    start_seconds: float
    known: bool

    def seconds(self, sent_bytes: float, collectives: float) -> float:
        """To send so much in so many collectives."""
        return sent_bytes / self.bytes_per_s + collectives * self.start_seconds


def find_ring(machine: Machine, costs: Costs, *, inside: bool = False) -> Ring:
    """The slowest part of the ring through all GPUs of all nodes, or inside one node.

    Theory: a ring enters and leaves a node as often as the node has adapters, so all that a node's
    GPUs send passes its network once for all of them (NCCL, graph/search.cc).
    """
    link, network = machine.interconnect, machine.network
    own = link.bytes_per_s or _UNKNOWN_LINK_BYTES_PER_S
    by_nvlink = link.link_class in _NVLINKS
    fraction = costs.nvlink_fraction if by_nvlink else costs.pcie_link_fraction
    rates, known = [], True
    if len(machine.gpus) > 1:
        rates.append(own * fraction)
        known = link.bytes_per_s is not None
    if machine.nodes > 1 and not inside:
        between = network.bytes_per_s or _UNKNOWN_NETWORK_BYTES_PER_S
        rates.append(between * costs.network_fraction)
        known = known and network.bytes_per_s is not None
    start = costs.collective_seconds
    return Ring(min(rates, default=float("inf")), start, known)
