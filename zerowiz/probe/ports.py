"""Read whether somebody listens on a port, and whether interfaces have the names that are said."""

import errno
import socket
from collections.abc import Mapping

from zerowiz.probe.files import Files
from zerowiz.probe.network import parse_name_list

_PORTS, _DIGITS = 65536, 6


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


def said_port(environ: Mapping[str, str]) -> int | None:
    """The port of MASTER_PORT, where the ranks are to meet on this host."""
    address, text = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    here = {"", "localhost", "127.0.0.1", socket.gethostname()}
    port = int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS else 0
    return port if address in here and 0 < port < _PORTS else None
