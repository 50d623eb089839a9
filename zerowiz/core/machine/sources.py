"""Tell where each number of a machine came from."""

from collections.abc import Iterator, Mapping

from zerowiz.core.machine.links import LinkClass
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource

# Where nothing better is known.
_SOURCES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML",
    MachineSource.FILE: "machine file",
    MachineSource.SPEC: "GPU table",
    MachineSource.CPU: "host",
}

_CLASSES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML: state, far end and peer-to-peer status of every link",
}

_RATES: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: "NVLinks of the weakest pair x nominal rate of their generation",
    LinkClass.NVLINK_PARTIAL: "PCIe of the weakest pair: best generation x lanes in use, nominal",
    LinkClass.PCIE: "PCIe of the weakest pair: best generation x lanes in use, nominal",
}

STATED = "said with `$interconnect`"


def tell_sources(machine: Machine, said: Mapping[str, str]) -> dict[str, str]:
    """Words by place in the JSON; a place whose number is unknown is not there.

    Args:
        machine: Read, and as the options changed it.
        said: Places that an option or a scheduler settled, and how.
    """
    found = {
        place: words or _SOURCES[machine.source]
        for known, place, words in (*_device_places(machine), *_other_places(machine))
        if known
    }
    return {place: words for place, words in {**found, **said}.items() if words}


# Whether the number is known, its place, and the words where there are better than the source's.
_Place = tuple[bool, str, str | None]


def _device_places(machine: Machine) -> Iterator[_Place]:
    gpus, link = machine.gpus, machine.interconnect
    sources = dict.fromkeys(gpu.memory_source for gpu in gpus)
    memory = ", ".join(source for source in sources if source is not None)
    total = free = memory
    if machine.accelerator is Accelerator.CPU:
        total, free = "host memory / ranks", "available host memory / ranks"
    yield any(gpu.total_bytes is not None for gpu in gpus), "gpus.total_bytes", total
    yield any(gpu.free_bytes is not None for gpu in gpus), "gpus.free_bytes", free
    is_known = link.link_class is not LinkClass.UNKNOWN
    yield is_known, "interconnect.class", _CLASSES.get(machine.source)
    rate = _RATES.get(link.link_class) if machine.links else None
    yield link.bytes_per_s is not None, "interconnect.bytes_per_s", rate


def _other_places(machine: Machine) -> Iterator[_Place]:
    host, network = machine.host, machine.network
    # Both sizes are read together, and only a probe names the bound.
    total = None if host.available_by is None else "MemTotal"
    yield host.total_bytes is not None, "host.total_bytes", total
    yield host.available_bytes is not None, "host.available_bytes", host.available_by
    is_known = network.kind is not NetworkKind.UNKNOWN or bool(network.nics)
    yield is_known, "network", "sysfs" if network.nics else None
