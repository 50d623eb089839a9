"""Read this node's network adapters from /sys, and why NCCL cannot use some of them.

Between nodes NCCL uses RDMA devices where it can, else a socket.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import PCIE_LANE_BYTES_PER_S, Network, NetworkKind, Nic, join_nics
from zerowiz.probe.files import Files

# Read a GPU's place on the PCI bus: its NUMA node, and the slowest link to its host bridge.

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


_RDMA = "sys/class/infiniband"
_VERBS = "sys/class/infiniband_verbs"
_NET = "sys/class/net"

# Linux, drivers/infiniband/core/sysfs.c, rate_show: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
_RATE = re.compile(r"(\d{1,6}(?:\.\d)?) Gb/sec")
# Linux, same file, state_show: `4: ACTIVE`.
_STATE = re.compile(r"\d+: (\w+)")
_ACTIVE = "ACTIVE"

# Linux, same file, link_layer_show; EFA has its own protocol and says `Unknown`.
_KINDS: Mapping[str, NetworkKind] = {
    "InfiniBand": NetworkKind.INFINIBAND,
    "Ethernet": NetworkKind.ROCE,
}

# Linux, include/uapi/linux/if_arp.h: ARPHRD_ETHER, and ARPHRD_INFINIBAND for IP over InfiniBand.
_SOCKET_TYPES = ("1", "32")

# Linux, include/uapi/linux/ethtool.h: SPEED_UNKNOWN is -1, which old kernels print unsigned.
_UNKNOWN_SPEEDS = (0, 2**32 - 1)

# Linux, Documentation/ABI/testing/sysfs-class-net, operstate: drivers that do not track it say so.
_WORKING_STATES = ("up", "unknown")

# systemd and rdma-core can name an adapter after its hardware address: `enx0123456789ab`.
_ADDRESS_IN_NAME = re.compile(r"(?<=x)[0-9a-f]{12,}$")


class _Port(Struct, frozen=True, kw_only=True):
    """One port of an RDMA device."""

    kind: NetworkKind
    bytes_per_s: int | None = None
    """`None` also for an inactive port, which reports a wrong rate."""
    unusable: str | None = None
    """Why NCCL cannot use it."""


def read_network(files: Files, environ: Mapping[str, str]) -> Network:
    """The network between this node and others, with every adapter that was found."""
    return join_nics((*_read_rdma(files, environ), *_read_sockets(files, environ)))


def excludes(environ: Mapping[str, str], variable: str, name: str) -> bool:
    """Whether a variable of NCCL leaves an adapter out (parseStringList, matchIf).

    A port that it names (`mlx5_0:1`) counts as its adapter.

    Example:
        >>> excludes({"NCCL_IB_HCA": "^mlx5_1"}, "NCCL_IB_HCA", "mlx5_10")
        True
    """
    text = environ.get(variable, "")
    listed = text.removeprefix("^")
    entries = [entry.partition(":")[0] for entry in listed.removeprefix("=").split(",")]
    names = [entry for entry in entries if entry]
    if listed.startswith("="):
        return (name in names or not names) is text.startswith("^")
    return (not names or name.startswith(tuple(names))) is text.startswith("^")


def parse_rate(text: str) -> int | None:
    """Bytes/s of a port's rate; `None` where it has none.

    A bond (`mlx5_bond_0`) has the rate of one of its links, which is what one connection gets.
    """
    match = _RATE.match(text)
    return int(float(match[1]) * 125_000_000) or None if match else None


def parse_speed(text: str) -> int | None:
    """Bytes/s of an interface's speed, which is in Mb/s; `None` where it is not known."""
    if not re.fullmatch(r"\d{1,10}\s*", text, re.ASCII) or int(text) in _UNKNOWN_SPEEDS:
        return None
    return int(text) * 125_000


def _read_rdma(files: Files, environ: Mapping[str, str]) -> Iterator[Nic]:
    devices = {verbs: _read(files, f"{_VERBS}/{verbs}/ibdev") for verbs in files.names(_VERBS)}
    # By the device's name, what opens it.
    verbs_files = {device: f"dev/infiniband/{verbs}" for verbs, device in devices.items() if device}
    for name in files.names(_RDMA):
        yield _read_device(files, name, verbs_files.get(name), environ)


def _read_device(
    files: Files, name: str, verbs_file: str | None, environ: Mapping[str, str]
) -> Nic:
    folder = f"{_RDMA}/{name}"
    is_efa = (files.real(f"{folder}/device/driver") or "").rpartition("/")[2] == "efa"
    ports = [
        _read_port(files, name, port, is_efa=is_efa) for port in files.names(f"{folder}/ports")
    ] or [_Port(kind=NetworkKind.UNKNOWN, unusable="it has no port")]
    usable = [port for port in ports if port.unusable is None]
    # InfiniBand before RoCE on an adapter with a port of each.
    kind = min((port.kind for port in usable or ports), key=tuple(NetworkKind).index)
    same = [port for port in usable or ports if port.kind is kind]
    rates = [port.bytes_per_s for port in same if port.bytes_per_s is not None]
    return Nic(
        name=hide_address(name),
        kind=kind,
        bytes_per_s=sum(rates) or None,
        unusable=_check_device(files, name, verbs_file)
        or same[0].unusable
        or _switched_off(environ, name, kind),
        numa_node=parse_numa_node(files.text(f"{folder}/device/numa_node")),
    )


def _switched_off(environ: Mapping[str, str], name: str, kind: NetworkKind) -> str | None:
    """The variable by which NCCL does not use an RDMA device."""
    net, off = environ.get("NCCL_NET", ""), environ.get("NCCL_IB_DISABLE", "")
    if net.lower() == "socket":
        return f"`NCCL_NET={net}`"
    # EFA uses a plugin of NCCL instead of verbs.
    if kind is NetworkKind.EFA:
        return None
    if off not in {"", "0"}:
        return f"`NCCL_IB_DISABLE={off}`"
    return "`NCCL_IB_HCA` excludes it" if excludes(environ, "NCCL_IB_HCA", name) else None


def _check_device(files: Files, name: str, verbs_file: str | None) -> str | None:
    """Why no process here could use this RDMA device."""
    if "/pci" not in (files.real(f"{_RDMA}/{name}/device") or ""):
        return "RDMA in software, without a PCI device"
    if verbs_file is None or files.real(verbs_file) is None:
        return "no `/dev/infiniband/uverbs*` for it here"
    return None if files.opens(verbs_file) else f"no permission to open `/{verbs_file}`"


def _read_port(files: Files, name: str, port: str, *, is_efa: bool) -> _Port:
    folder = f"{_RDMA}/{name}/ports/{port}"
    layer = _read(files, f"{folder}/link_layer")
    kind = NetworkKind.EFA if is_efa else _KINDS.get(layer, NetworkKind.UNKNOWN)
    match = _STATE.match(_read(files, f"{folder}/state"))
    state = match[1] if match else "of unknown state"
    if state != _ACTIVE:
        return _Port(kind=kind, unusable=f"port {port} is {state}")
    unusable = None
    if kind is NetworkKind.UNKNOWN:
        unusable = f"port {port} has the link layer `{layer}`"
    types = f"{folder}/gid_attrs/types"
    if kind is NetworkKind.ROCE and not any(
        "RoCE" in _read(files, f"{types}/{gid}") for gid in files.names(types)
    ):
        unusable = f"port {port} has no RoCE address"
    return _Port(
        kind=kind, bytes_per_s=parse_rate(_read(files, f"{folder}/rate")), unusable=unusable
    )


def _read_sockets(files: Files, environ: Mapping[str, str]) -> Iterator[Nic]:
    """The adapters that carry TCP: those of hardware, and bonds of them."""
    names = [name for name in files.names(_NET) if _is_adapter(files, name)]
    for name in names:
        yield Nic(
            name=hide_address(name),
            kind=NetworkKind.ETHERNET,
            bytes_per_s=parse_speed(_read(files, f"{_NET}/{name}/speed")),
            unusable=_check_socket(files, name, names, environ),
            numa_node=parse_numa_node(files.text(f"{_NET}/{name}/device/numa_node")),
        )


def _is_adapter(files: Files, name: str) -> bool:
    """Whether an interface belongs to hardware; bridges, veth, docker0 and lo do not."""
    if _read(files, f"{_NET}/{name}/type") not in _SOCKET_TYPES:
        return False
    is_bond = bool(files.names(f"{_NET}/{name}/bonding"))
    return is_bond or files.real(f"{_NET}/{name}/device") is not None


def _check_socket(
    files: Files, name: str, names: list[str], environ: Mapping[str, str]
) -> str | None:
    master = (files.real(f"{_NET}/{name}/master") or "").rpartition("/")[2]
    if master in names:
        return f"part of `{hide_address(master)}`"
    state = _read(files, f"{_NET}/{name}/operstate") or "unknown"
    if state not in _WORKING_STATES:
        return f"it is {state}"
    variable = "NCCL_SOCKET_IFNAME"
    return f"`{variable}` excludes it" if excludes(environ, variable, name) else None


def hide_address(name: str) -> str:
    """An adapter's name without the hardware address that may be in it."""
    return _ADDRESS_IN_NAME.sub("...", name)


def _read(files: Files, path: str) -> str:
    return (files.text(path) or "").strip()
