"""The network between nodes, by the adapters that NCCL would use."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.values import Count


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
