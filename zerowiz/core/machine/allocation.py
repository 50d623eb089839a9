"""Describe what a scheduler or a launcher gave this job, as its environment tells it."""

from msgspec import Struct

from zerowiz.core.values import Count


class JobAllocation(Struct, frozen=True, kw_only=True):
    """Hints, never proof: what is not told is `None`."""

    scheduler: str
    """As people call it: `SLURM`, `Kubernetes`, `torchrun`, `Open MPI`, `PBS`, `LSF`."""
    nodes: Count | None = None
    gpus_per_node: Count | None = None
    """Of the job on each node; a task may be bound to fewer."""
    memory_bytes: Count | None = None
    """Host memory of the job on each node."""
