"""Read a GPU's place on the PCI bus: its NUMA node, and the slowest link to its host bridge."""

import re
from collections.abc import Mapping

from zerowiz.core.machine.topology import PCIE_LANE_BYTES_PER_S
from zerowiz.probe.recording.files import Files

_DEVICES = "sys/bus/pci/devices"

_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)

# Linux, drivers/pci/probe.c, pci_speed_string: `16.0 GT/s PCIe`, before 5.7 `16 GT/s`.
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")

_NUMBER = re.compile(r"(\d{1,4})\s*", re.ASCII)

# PCI-SIG base specifications: the generation of each rate in GT/s.
_GENERATIONS: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def read_numa_node(files: Files, bus_id: str) -> int | None:
    """The NUMA node of a GPU.

    Args:
        files: The files of the host.
        bus_id: As NVML writes it: `00000000:1A:00.0`.
    """
    name = parse_bus_id(bus_id)
    return None if name is None else parse_numa_node(files.text(f"{_DEVICES}/{name}/numa_node"))


def read_class(files: Files, bus_id: str) -> str | None:
    """The PCI class of any device, such as `0x068000`; `None` where it is not known.

    Args:
        files: The files of the host.
        bus_id: As NVML writes it: `00000000:C7:00.0`.
    """
    name = parse_bus_id(bus_id)
    text = None if name is None else files.text(f"{_DEVICES}/{name}/class")
    return None if text is None else text.strip()


def read_upstream_bytes_per_s(files: Files, bus_id: str) -> int | None:
    """The rate of the slowest link between a GPU and its host bridge, in one direction.

    These are the links of root ports and of switches' ports; each is as fast as the slower of its
    two ends. `None` where no bridge shows its link (virtual machines).

    Args:
        files: The files of the host.
        bus_id: As NVML writes it: `00000000:1A:00.0`.
    """
    name = parse_bus_id(bus_id)
    path = None if name is None else files.real(f"{_DEVICES}/{name}")
    rates = [
        parse_link(
            files.text(f"{bridge}/max_link_speed"), files.text(f"{bridge}/current_link_width")
        )
        for bridge in list_bridges(path or "")
    ]
    return min((rate for rate in rates if rate is not None), default=None)


def parse_bus_id(bus_id: str) -> str | None:
    """NVML's PCI address as /sys writes it: `0000:1a:00.0`."""
    match = _BUS_ID.fullmatch(bus_id.strip())
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else None


def parse_numa_node(text: str | None) -> int | None:
    """The number in a device's `numa_node`; `None` for -1, which is no node."""
    match = _NUMBER.fullmatch(text or "")
    return int(match[1]) if match else None


def parse_link(speed: str | None, lanes: str | None) -> int | None:
    """Bytes/s in one direction of a link with this speed and this many lanes."""
    rate = _SPEED.match(speed or "")
    lane = PCIE_LANE_BYTES_PER_S.get(_GENERATIONS.get(float(rate[1]), 0)) if rate else None
    count = _NUMBER.fullmatch(lanes or "")
    return (lane * int(count[1]) or None) if lane and count else None


def list_bridges(path: str) -> list[str]:
    """The folders of the bridges above a device, nearest first.

    A switch is two bridges, its upstream port and its downstream port; each shows the link outside.

    Args:
        path: The device's own folder.
    """
    parts = path.split("/")[:-1]
    ends = [end for end, part in enumerate(parts, start=1) if parse_bus_id(part)]
    return ["/".join(parts[:end]) for end in reversed(ends)]
