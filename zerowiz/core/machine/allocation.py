"""Describe what a scheduler or a launcher gave this job, as its environment tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAllocation:
    """Hints, never proof: what is not told is `None`."""

    scheduler: str
    """As people call it: `SLURM`, `Kubernetes`, `torchrun`, `Open MPI`, `PBS`, `LSF`."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    """Of the job on each node; a task may be bound to fewer."""
    memory_bytes: int | None = None
    """Host memory of the job on each node."""
