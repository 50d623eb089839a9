"""Find the nodes that a multi-node launcher has lost, by the `ssh` processes that it keeps.

pdsh and MPICH keep one `ssh` for each node. It ends when the node's command ends, or when the node
no longer answers (`core/launch/remote.py`, KEEPALIVE). After a loss these launchers wait for the
other nodes without end, and the ranks there wait for the lost ones. Open MPI keeps one `ssh` for
each node too, but ends the job by itself.
"""

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from zerowiz.emit.processes import read_children

_LAUNCHERS = ("pdsh", "mpirun", "mpiexec")
_POLL_S = 1.0
# From the end of an `ssh` until a shared file system shows how the ranks of its node ended.
_SETTLE_S = 5.0


class Connections:
    """The connections of one job.

    Args:
        launcher: The pid of DeepSpeed's runner, which starts pdsh or `mpirun`.
        hosts: The nodes as the hostfile names them, in its order; empty where the launcher keeps no
            connections.
        ranks: The count of the whole job; each node has as many.
    """

    def __init__(self, launcher: int, hosts: Sequence[str], ranks: int) -> None:
        self._launcher = launcher
        each = ranks // max(1, len(hosts))
        # deepspeed/launcher/launch.py (0.19.8) and Hydra: ranks go by the order of the hosts.
        self._ranks_of = {
            host: frozenset(range(number * each, (number + 1) * each))
            for number, host in enumerate(hosts)
        }
        self._seen: set[str] = set()
        self._gone_since: dict[str, float] = {}
        self._poll_at = 0.0

    def lost(self, ended: Collection[int]) -> dict[str, frozenset[int]]:
        """The nodes whose connection is gone, each with those of its ranks that left no end.

        Args:
            ended: The ranks that are known to have ended; a node all of whose ranks have is not
                lost.
        """
        now = time.monotonic()
        if self._ranks_of and now >= self._poll_at:
            self._poll_at = now + _POLL_S
            self._poll(now)
        left = {host: self._ranks_of[host] - set(ended) for host in self._gone_since}
        return {
            host: ranks
            for host, ranks in left.items()
            if ranks and now - self._gone_since[host] >= _SETTLE_S
        }

    def _poll(self, now: float) -> None:
        for pid in read_children(self._launcher):
            # A wrapper may have become the program under a name like `mpirun.mpich`.
            name = Path(next(iter(_words(pid)), "")).name
            if name.startswith(_LAUNCHERS):
                connected = _connected(pid, self._ranks_of)
                self._seen |= connected
                # pdsh has an `ssh` to every host; Hydra needs none to its own host.
                expected = self._ranks_of.keys() if name.startswith("pdsh") else self._seen
                gone = expected - connected
                self._gone_since = {host: self._gone_since.get(host, now) for host in gone}


def _connected(pid: int, hosts: Collection[str]) -> set[str]:
    """The hosts that a launcher has an `ssh` to."""
    clients = [_words(child) for child in read_children(pid)]
    # The first word that names a host: the command follows it, and may name other hosts.
    named = (next((word for word in words if word in hosts), None) for words in clients)
    return {host for host in named if host is not None}


def _words(pid: int) -> list[str]:
    """The command line of a process; empty where it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.split("\0")
