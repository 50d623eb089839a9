"""Describe this host for DeepSpeed's CPU accelerator: ranks that share the host's memory."""

from zerowiz.core.machine.host import Host
from zerowiz.core.machine.links import Interconnect, LinkClass
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.errors import UsageError


def cpu_machine(ranks: int, host: Host) -> Machine:
    """A machine without GPUs, where each rank has an equal share of the host's memory.

    Raises:
        UsageError: `ranks` is below 1.
    """
    if ranks < 1:
        raise UsageError(f"a CPU job has at least one rank, not {ranks}")
    gpus = tuple(
        Gpu(
            index=index,
            name="CPU rank",
            total_bytes=_share(host.total_bytes, ranks),
            free_bytes=_share(host.available_bytes, ranks),
        )
        for index in range(ranks)
    )
    return Machine(
        source=MachineSource.CPU,
        accelerator=Accelerator.CPU,
        gpus=gpus,
        interconnect=Interconnect(link_class=LinkClass.UNKNOWN),
        host=host,
    )


def _share(size_bytes: int | None, ranks: int) -> int | None:
    return None if size_bytes is None else size_bytes // ranks
