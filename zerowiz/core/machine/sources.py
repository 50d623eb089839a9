"""The source of each number of a machine."""

from collections.abc import Iterator, Mapping

from zerowiz.core.machine.links import LinkClass
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource
from zerowiz.words import _, listing

# By the machine's own source, for a number without a more specific one.
_SOURCES: Mapping[MachineSource, str] = {
    MachineSource.NVML: "NVML",
    MachineSource.FILE: _("machine file"),
    MachineSource.SPEC: _("GPU table"),
    MachineSource.CPU: "host",
}

_CLASSES: Mapping[MachineSource, str] = {
    MachineSource.NVML: _("NVML: state, far end and peer-to-peer status of every link"),
}

_RATES: Mapping[LinkClass, str] = {
    LinkClass.NVLINK_ALL: _("NVLinks of the best rings x nominal rate of their generation"),
    LinkClass.NVLINK_RING: _("NVLinks of the best rings x nominal rate of their generation"),
    LinkClass.NVLINK_PARTIAL: _(
        "PCIe of the weakest pair: best generation x lanes in use, nominal"
    ),
    LinkClass.PCIE: _("PCIe of the weakest pair: best generation x lanes in use, nominal"),
}


def said_with(setting: str) -> str:
    """The source of a number that a person states, such as `$interconnect`."""
    return _("set with `{setting}`", setting=setting)


def list_sources(machine: Machine, stated: Mapping[str, str]) -> dict[str, str]:
    """The source of each known number, by its path in the JSON.

    Args:
        machine: As it was read and as options changed it.
        stated: The sources of numbers that an option or a scheduler set.
    """
    found = {
        path: source or _SOURCES[machine.source]
        for known, path, source in (*_device_numbers(machine), *_other_numbers(machine))
        if known
    }
    return {path: source for path, source in {**found, **stated}.items() if source}


# Whether a number is known, its path, and its source where it is not just the machine's.
_Number = tuple[bool, str, str | None]


def _device_numbers(machine: Machine) -> Iterator[_Number]:
    gpus, link = machine.gpus, machine.interconnect
    sources = dict.fromkeys(gpu.memory_source for gpu in gpus)
    memory = listing(source for source in sources if source is not None)
    total = free = memory
    if machine.accelerator is Accelerator.CPU:
        total, free = _("host memory / ranks"), _("available host memory / ranks")
    yield any(gpu.total_bytes is not None for gpu in gpus), "gpus.total_bytes", total
    yield any(gpu.free_bytes is not None for gpu in gpus), "gpus.free_bytes", free
    is_known = link.link_class is not LinkClass.UNKNOWN
    yield is_known, "interconnect.class", _CLASSES.get(machine.source)
    rate = _RATES.get(link.link_class) if machine.links else None
    yield link.bytes_per_s is not None, "interconnect.bytes_per_s", rate


def _other_numbers(machine: Machine) -> Iterator[_Number]:
    host, network = machine.host, machine.network
    # Both sizes are read together, and only a probe names the limit.
    named = _("instance table") if machine.source is MachineSource.SPEC else None
    total = named if host.available_by is None else "MemTotal"
    yield host.total_bytes is not None, "host.total_bytes", total
    yield host.available_bytes is not None, "host.available_bytes", host.available_by or named
    is_known = network.kind is not NetworkKind.UNKNOWN or bool(network.nics)
    yield is_known, "network", "sysfs" if network.nics else named
