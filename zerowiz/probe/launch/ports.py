"""Read whether somebody listens on a port, and whether interfaces have the names that are said."""

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.probe.machine.network import parse_name_list
from zerowiz.probe.recording.files import Files

# Below what torchrun (29400), DeepSpeed (29500) and the NodePorts of Kubernetes (30000) take.
_LOWEST, _HIGHEST = 10_000, 29_399
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_port(given_out: Path = _GIVEN_OUT) -> int:
    """A TCP port that nobody listens on, nor is likely to before a job's first rank does.

    That takes seconds, and meanwhile the kernel gives ports to connections that others open: it is
    none of these.

    Args:
        given_out: Where the kernel says which they are (ip(7), ip_local_port_range).
    """
    try:
        first, last = map(int, given_out.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = 0, 0
    for port in _from_anywhere():
        if not first <= port <= last and is_taken(port) is False:
            return port
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _from_anywhere() -> Iterator[int]:
    """Each port once: jobs that start at the same time begin at others."""
    count = _HIGHEST - _LOWEST + 1
    start = int.from_bytes(os.urandom(4), "big")
    return (_LOWEST + (start + place) % count for place in range(count))


def is_taken(port: int) -> bool | None:
    """Whether a job's first rank could not listen there; None where nobody can say.

    Source: torch's TCPStore listens with SO_REUSEADDR, so what a job left behind does not count.
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
    """Whether anything has a name that these variables allow; None where nothing is listed."""
    sockets, adapters = files.names("sys/class/net"), files.names("sys/class/infiniband")
    nccl, gloo = environ.get("NCCL_SOCKET_IFNAME", ""), environ.get("GLOO_SOCKET_IFNAME", "")
    found: dict[str, bool | None] = {}
    # NCCL, ncclFindInterfaces: a value of one character counts as none.
    if len(nccl) > 1 and sockets:
        rules = parse_name_list("NCCL_SOCKET_IFNAME", nccl)
        found["NCCL_SOCKET_IFNAME"] = any(rules.allows(name) for name in sockets)
    if gloo and sockets:
        # torch, ProcessGroupGloo: names with commas between them, one for each thread.
        found["GLOO_SOCKET_IFNAME"] = all(name in sockets for name in gloo.split(","))
    hcas = environ.get("NCCL_IB_HCA", "")
    if hcas and adapters:
        listed = parse_name_list("NCCL_IB_HCA", hcas)
        bare = [name for name, _ in listed.entries]
        exact = (name in adapters if listed.exact else _begins(name, adapters) for name in bare)
        found["NCCL_IB_HCA"] = listed.excludes or not bare or any(exact)
    return found


def _begins(entry: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(entry) for name in names)
