"""Read a whole machine: its GPUs, links, host, network and scheduler."""

from collections.abc import Mapping

from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.names import match_models
from zerowiz.core.machine.types import (
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    join_pairs,
    without_peer_to_peer,
)
from zerowiz.core.structs import replace
from zerowiz.errors import NoGpuHereError, PreflightError
from zerowiz.probe.files import World, read_gpu_table
from zerowiz.probe.machine.host import read_host
from zerowiz.probe.machine.network import read_network
from zerowiz.probe.machine.nvml import GpuReading, read_gpus
from zerowiz.probe.machine.nvml_calls import Code, NoDriverError
from zerowiz.probe.machine.nvml_child import DriverFailedError, read_in_child
from zerowiz.probe.machine.scheduler import read_allocation, scheduler_here

_PLAN_WITHOUT = (
    (
        "plan without a GPU: `zerowiz plan --machine 8xH100-80GB`, or for a saved node: "
        "`zerowiz plan --machine node.json`"
    ),
    "use the CPU instead: `$accelerator cpu`",
)

# What runs a command inside a job, by scheduler; that of PBS opens a shell there.
_INSIDE = {
    "SLURM": "srun --gpus={gpus} {command}",
    "PBS": "qsub -I -l select=1:ngpus={gpus}",
    "LSF": "bsub -Is -gpu num={gpus} {command}",
}


def read_machine(world: World, *, gpus: str | None = None) -> Machine:
    """The machine, with the GPUs that a CUDA job would use.

    Args:
        world: This host; `CUDA_VISIBLE_DEVICES` is read from its environment.
        gpus: The value of `--gpus`; `None` for all that CUDA sees.

    Raises:
        NoGpuHereError: There is no driver.
        PreflightError: The driver does not work, or there is no GPU that can be used.
        UsageError: `gpus` names a GPU that is not there or not visible.
    """
    try:
        reading = read_in_child(world, read_gpus)
    except NoDriverError as error:
        absent = error.code in {Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED}
        scheduler = scheduler_here(world.files, world.environ) if absent else None
        inside = () if scheduler is None else (run_inside(scheduler, "zerowiz machine"),)
        hints = (*inside, *error.hints, *_PLAN_WITHOUT)
        kind = NoGpuHereError if error.code == Code.LIBRARY_NOT_FOUND else PreflightError
        refused = kind(error.message, *hints)
        refused.login_node_of = scheduler
        raise refused from None
    except DriverFailedError as error:
        raise PreflightError(error.message, *error.hints, *_PLAN_WITHOUT) from None
    if not reading.gpus:
        why = [f"zerowiz does not use GPU {gpu.index}: {gpu.why}" for gpu in reading.left_out]
        raise PreflightError("this machine has no usable GPU", *why, *_PLAN_WITHOUT)
    return select_gpus(_join(reading, world), world.environ, gpus)


def run_inside(scheduler: str, command: str, gpus: int = 1) -> str:
    """The hint for a login node, which has a scheduler and no GPU.

    Args:
        scheduler: Its name.
        command: What is run inside a job, as one types it.
        gpus: How many the job asks for.
    """
    form = _INSIDE.get(scheduler)
    run = f": `{form.format(gpus=gpus, command=command)}`" if form else ""
    return f"this looks like a login node of {scheduler}: run zerowiz inside a job{run}"


def read_here(world: World) -> Host:
    """The host, within the limits of the job's scheduler."""
    return read_host(world.files, read_allocation(world.environ, world.files))


def _join(reading: GpuReading, world: World) -> Machine:
    allocation = read_allocation(world.environ, world.files)
    host = read_host(world.files, allocation)
    whole = all(gpu.mig_slice is None for gpu in reading.gpus)
    nvlinks = {gpu.index: gpu.nvlinks for gpu in reading.gpus}
    host = replace(host, python_call_seconds=world.files.python_call_seconds())
    unknown = Interconnect(link_class=LinkClass.UNKNOWN)
    machine = Machine(
        source=MachineSource.NVML,
        gpus=tuple(_complete(gpu, host) for gpu in reading.gpus),
        interconnect=join_pairs(reading.links, nvlinks) if whole else unknown,
        links=reading.links,
        left_out=reading.left_out,
        host=host,
        network=read_network(world.files, world.environ),
        allocation=allocation,
        driver_version=reading.driver_version,
        cuda_version=reading.cuda_version,
    )
    off = _p2p_off(world.environ)
    if off is None or not any(link.nvlinks for link in reading.links):
        return machine
    return without_peer_to_peer(machine).with_notes(
        f"`{off}` is set: NCCL does not use NVLink, and copies through the host"
    )


def _p2p_off(environ: Mapping[str, str]) -> str | None:
    """The variable by which a person switches peer-to-peer off, and NVLink with it.

    As NCCL 2.30.7 reads it (graph/paths.cc, `ncclGetLevel`).
    """
    disable, level = environ.get("NCCL_P2P_DISABLE", ""), environ.get("NCCL_P2P_LEVEL", "")
    if disable.strip() == "1":
        return f"NCCL_P2P_DISABLE={disable}"
    return f"NCCL_P2P_LEVEL={level}" if level in {"LOC", "0"} else None


def _complete(gpu: Gpu, host: Host) -> Gpu:
    """A GPU with what NVML does not report: the table's NVLinks, the host's memory."""
    models = [model for model in match_models(gpu.name, read_gpu_table()) if model.nvlink_gpus]
    if models:
        gpu = replace(gpu, expected_nvlinks=models[0].nvlink_links)
    if gpu.numa_node is None and host.numa_nodes == 1:
        # Virtual machines do not report it; on a host with one node it can be no other.
        gpu = replace(gpu, numa_node=0)
    if not gpu.shares_host_memory:
        return gpu
    # MemAvailable, not MemFree: the kernel frees the page cache for the GPU.
    return replace(
        gpu,
        total_bytes=host.total_bytes,
        free_bytes=host.available_bytes,
        memory_source=f"host, {host.available_by or 'unknown'}",
    )
