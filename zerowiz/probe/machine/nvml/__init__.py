"""Read the GPUs of a machine from NVML. No other package imports pynvml."""

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from zerowiz.core.machine.links import PairLink
from zerowiz.core.machine.topology import Ports
from zerowiz.core.machine.types import Gpu, LeftOutGpu
from zerowiz.core.values import replace
from zerowiz.probe.machine.nvml import calls
from zerowiz.probe.machine.nvml.child import HINTS, Announce, DriverFailedError, read_in_child
from zerowiz.probe.machine.nvml.gpus import Device, find_gone, list_devices
from zerowiz.probe.machine.nvml.links import read_links, read_ports
from zerowiz.probe.machine.nvml.session import NoDriverError, Unavailable, open_session
from zerowiz.probe.recording.world import World
from zerowiz.words import _

__all__ = ["DriverFailedError", "GpuReading", "NoDriverError", "read_gpus"]


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
        DriverFailedError: NVML cannot count the GPUs, does not answer, or crashes.
    """
    if world.replay is not None:
        return _read(world, None)
    return read_in_child(world, _read)


def _read(world: World, announce: Announce | None) -> GpuReading:
    with open_session(world.replay, world.log, announce) as session:
        count = session.ask(calls.count)
        if isinstance(count, Unavailable):
            raise DriverFailedError(
                _("the GPUs cannot be counted: `{count}`", count=count.name), *HINTS
            )
        devices, left_out = list_devices(session, world.files, count)
        ports = read_ports(session, world.files, devices)
        links = read_links(session, devices, ports)
        gone = find_gone(session, devices)
        indices = {gpu.index for gpu in gone}
        gpus = [gpu for pair in zip(devices, ports, strict=True) for gpu in _usable(*pair)]
        return GpuReading(
            gpus=tuple(_without(indices, gpus)),
            left_out=tuple(sorted((*left_out, *gone), key=lambda gpu: gpu.index)),
            links=tuple(link for link in links if indices.isdisjoint(link.pair)),
            driver_version=session.maybe(calls.driver_version),
            cuda_version=session.maybe(calls.cuda_version),
        )


def _without(gone: Collection[int], gpus: Sequence[Gpu]) -> Iterator[Gpu]:
    """The GPUs that are still there, with the numbers that CUDA gives them now."""
    lost = {gpu.cuda_ordinal for gpu in gpus if gpu.index in gone}
    for gpu in gpus:
        if gpu.index not in gone:
            before = sum(ordinal < gpu.cuda_ordinal for ordinal in lost)
            yield replace(gpu, ordinal=gpu.cuda_ordinal - before)


def _usable(device: Device, ports: Ports) -> tuple[Gpu, ...]:
    """What a job can use of a GPU: the GPU itself, or its slices."""
    nvlinks = None if ports.nvlinks is None else len(ports.nvlinks)
    return device.slices or (replace(device.gpu, nvlinks=nvlinks),)
