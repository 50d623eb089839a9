"""Describe what a job can use of one node beside its GPUs."""

from msgspec import Struct

from zerowiz.core.values import Count

# Linux, include/uapi/asm-generic/resource.h: RLIM_INFINITY, a limit that is none.
UNLIMITED_BYTES = 2**64 - 1


class Disk(Struct, frozen=True, kw_only=True):
    """The file system that holds a folder."""

    total_bytes: Count
    free_bytes: Count
    """For a process that is not root."""
    is_nvme: bool | None = None
    """Whether it lies on NVMe drives alone; `None` when the device is not known (overlay, NFS)."""


class Host(Struct, frozen=True, kw_only=True):
    """One node's memory, cores and limits; what is not known is `None`."""

    total_bytes: Count | None = None
    available_bytes: Count | None = None
    """What a job could still take: the smallest of all bounds on it."""
    available_by: str | None = None
    """Which bound that is: `MemAvailable`, `cgroup v2`, `cgroup v1`, `SLURM` ..."""
    cores: Count | None = None
    """That this process may run on: affinity, and whole cores of the cgroup's quota."""
    numa_nodes: Count | None = None
    """With cores of their own; a GPU's memory that is a NUMA node (Grace) is none of them."""
    shm_bytes: Count | None = None
    """Size of /dev/shm."""
    memlock_bytes: Count | None = None
    """How much memory may be locked (pinned); `UNLIMITED_BYTES` when there is no limit."""
    disk: Disk | None = None
    """Under the folder that was asked about."""
