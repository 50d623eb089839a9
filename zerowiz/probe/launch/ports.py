"""Find a free port, and check that network interfaces have the names that variables give."""

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.probe.machine.network import parse_name_list
from zerowiz.probe.recording.files import Files

# Below the ports of torchrun (29400), DeepSpeed (29500) and Kubernetes' NodePorts (30000).
_LOWEST, _HIGHEST = 10_000, 29_399
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_port(ephemeral_ports: Path = _EPHEMERAL_PORTS) -> int:
    """A TCP port on which no process listens.

    It takes seconds until a job's first rank listens there. Meanwhile the kernel gives ephemeral
    ports to connections of other processes, so the port is outside of that range.

    Args:
        ephemeral_ports: The file with the range (ip(7), ip_local_port_range).
    """
    try:
        first, last = map(int, ephemeral_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = 0, 0
    for port in _from_random_start():
        if not first <= port <= last and is_taken(port) is False:
            return port
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _from_random_start() -> Iterator[int]:
    """Each port once, from a random one on, so that concurrent jobs try different ports."""
    count = _HIGHEST - _LOWEST + 1
    start = int.from_bytes(os.urandom(4), "big")
    return (_LOWEST + (start + offset) % count for offset in range(count))


def is_taken(port: int) -> bool | None:
    """Whether a job's first rank could not listen on a port; None where it cannot be tried.

    Source: torch's TCPStore listens with SO_REUSEADDR, so closed connections of an earlier job do
    not count.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return True if error.errno == errno.EADDRINUSE else None
        except OverflowError:
            return None
    return False


def read_interfaces(environ: Mapping[str, str], files: Files) -> dict[str, bool | None]:
    """For each variable that is set: whether an interface has a name that it allows.

    Args:
        environ: The job's environment.
        files: The files of the host.
    """
    sockets, adapters = files.names("sys/class/net"), files.names("sys/class/infiniband")
    nccl, gloo = environ.get("NCCL_SOCKET_IFNAME", ""), environ.get("GLOO_SOCKET_IFNAME", "")
    found: dict[str, bool | None] = {}
    # NCCL, ncclFindInterfaces: it ignores a value of one character.
    if len(nccl) > 1 and sockets:
        rules = parse_name_list("NCCL_SOCKET_IFNAME", nccl)
        found["NCCL_SOCKET_IFNAME"] = any(rules.allows(name) for name in sockets)
    if gloo and sockets:
        # torch, ProcessGroupGloo: names separated by commas, one for each thread.
        found["GLOO_SOCKET_IFNAME"] = all(name in sockets for name in gloo.split(","))
    hcas = environ.get("NCCL_IB_HCA", "")
    if hcas and adapters:
        listed = parse_name_list("NCCL_IB_HCA", hcas)
        entries = [name for name, _ in listed.entries]
        exact = (
            name in adapters if listed.exact else _is_prefix(name, adapters) for name in entries
        )
        found["NCCL_IB_HCA"] = listed.excludes or not entries or any(exact)
    return found


def _is_prefix(entry: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(entry) for name in names)
