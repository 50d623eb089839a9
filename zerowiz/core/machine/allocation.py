"""What a scheduler or a launcher gave this job, by its environment variables."""

from msgspec import Struct

from zerowiz.core.values import Count


class JobAllocation(Struct, frozen=True, kw_only=True):
    """What a job was given; `None` where it is not known. It is a hint, not a proof."""

    scheduler: str
    """`SLURM`, `Kubernetes`, `torchrun`, `Open MPI`, `PBS`, `LSF`."""
    nodes: Count | None = None
    """The nodes of the job."""
    gpus_per_node: Count | None = None
    """Of the job on each node; a task of it may be bound to fewer."""
    memory_bytes: Count | None = None
    """Host memory of the job on each node."""
