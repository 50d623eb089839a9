"""Find the address by which the other nodes reach the first one."""

import ipaddress
import socket
import subprocess
from collections.abc import Sequence

_LIMIT_S = 10


def find_master_address(hosts: Sequence[str]) -> str | None:
    """The first host's address on the network to the other hosts.

    DeepSpeed takes the first word of `hostname -I` on that host, which may be a container's bridge
    or another network (runner.py, 0.19.8). Where the first host is this one, its own name often
    resolves to a loopback address; then it is the address of the route to the second host.

    Args:
        hosts: As the hostfile names them.

    Returns:
        None where the names do not resolve, as behind a jump host; DeepSpeed then asks the node.
    """
    found = _resolve(_hostname(hosts[0]))
    if found is None or not ipaddress.ip_address(found).is_loopback:
        return found
    return _own_address_towards(_hostname(hosts[1])) if len(hosts) > 1 else None


def _hostname(host: str) -> str:
    """The host name that `ssh` connects to: a hostfile may hold an alias of ssh_config."""
    try:
        done = subprocess.run(  # noqa: S603 - it only prints settings
            ["ssh", "-G", "--", host],  # noqa: S607 - as DeepSpeed runs it
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return host
    return parse_ssh_hostname(done.stdout) or host


def parse_ssh_hostname(text: str) -> str | None:
    """The host name in the output of `ssh -G`; None if there is none."""
    settings = dict(line.partition(" ")[::2] for line in text.splitlines())
    return settings.get("hostname")


def _resolve(name: str) -> str | None:
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    # IPv4 first: DeepSpeed writes `address:port` without brackets in places.
    addresses = [
        str(row[4][0]) for row in sorted(rows, key=lambda row: row[0] is not socket.AF_INET)
    ]
    usable = [each for each in addresses if not ipaddress.ip_address(each).is_link_local]
    return next(iter(usable), None)


def _own_address_towards(name: str) -> str | None:
    target = _resolve(name)
    if target is None or ipaddress.ip_address(target).is_loopback:
        return None
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        try:
            # Nothing is sent: the kernel only chooses the route.
            udp.connect((target, 9))
        except OSError:
            return None
        address: str = udp.getsockname()[0]
    return address
