"""Read the GPUs of a machine from NVML. No other package imports pynvml."""

from msgspec import Struct

from zerowiz.core.machine.links import PairLink
from zerowiz.core.machine.topology import Ports
from zerowiz.core.machine.types import Gpu, LeftOutGpu
from zerowiz.core.values import replace
from zerowiz.errors import PreflightError
from zerowiz.probe.machine.nvml import calls
from zerowiz.probe.machine.nvml.gpus import Device, list_devices
from zerowiz.probe.machine.nvml.links import read_links, read_ports
from zerowiz.probe.machine.nvml.session import NoDriverError, Unavailable, open_session
from zerowiz.probe.recording.world import World

__all__ = ["GpuReading", "NoDriverError", "read_gpus"]


class GpuReading(Struct, frozen=True, kw_only=True):
    """All that NVML reports of a machine."""

    gpus: tuple[Gpu, ...]
    """Every GPU that can be used; for one in MIG mode, its slices."""
    left_out: tuple[LeftOutGpu, ...]
    links: tuple[PairLink, ...]
    """Of every pair of whole GPUs."""
    driver_version: str | None
    cuda_version: tuple[int, int] | None


def read_gpus(world: World) -> GpuReading:
    """Every GPU of the machine, also those that the job does not see.

    Raises:
        NoDriverError: NVML does not start.
        PreflightError: NVML cannot count the GPUs.
    """
    with open_session(world.replay, world.log) as session:
        count = session.ask(calls.count)
        if isinstance(count, Unavailable):
            raise PreflightError(f"the GPUs cannot be counted: `{count.name}`")
        devices, left_out = list_devices(session, world.files, count)
        ports = read_ports(session, world.files, devices)
        return GpuReading(
            gpus=tuple(gpu for pair in zip(devices, ports, strict=True) for gpu in _usable(*pair)),
            left_out=left_out,
            links=read_links(session, devices, ports),
            driver_version=session.maybe(calls.driver_version),
            cuda_version=session.maybe(calls.cuda_version),
        )


def _usable(device: Device, ports: Ports) -> tuple[Gpu, ...]:
    """What a job can use of a GPU: the GPU itself, or its slices."""
    nvlinks = None if ports.nvlinks is None else len(ports.nvlinks)
    return device.slices or (replace(device.gpu, nvlinks=nvlinks),)
