"""The folder of one attempt: ranks write there how they started and ended, and read orders there.

`worker/rank.py` is the other side of every file here (`tests/worker/test_contract.py` holds the two
together). On several nodes the folder is shared, or each node has its own.

A disk may have no room for a file, and a folder may vanish while its job runs. So the ranks of the
supervisor's host report to its memory too: a file without a name, which they open in `/proc`.
"""

import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from zerowiz.core.outcome import RankEnd, parse_end
from zerowiz.emit.processes import Process, is_alive

ATTEMPT_VARIABLE = "ZEROWIZ_ATTEMPT"
"""Environment variable: the path of this folder."""
SUPERVISOR_VARIABLE = "ZEROWIZ_SUPERVISOR"
"""Environment variable: the PID namespace of the supervisor, of `read_pid_namespace`."""
GRACE_VARIABLE = "ZEROWIZ_GRACE_S"
"""Environment variable: seconds from a request to end until a rank is killed."""
MEMORY_VARIABLE = "ZEROWIZ_REPORTS"
"""Environment variable: the path of the memory to which ranks of the supervisor's host report."""

MEASURED_FOLDER = "measured"
"""What the ranks have measured of their steps, a file for each (`worker/measured_script.py`)."""

ORDERS_FILE = "orders"
"""One order to a line: the number of a signal, or END_ORDER."""
END_ORDER = "end"


class RankProcess(Struct, frozen=True, kw_only=True):
    """A rank that was started, on this host or another."""

    rank: int
    host: str
    pid_namespace: str
    """Processes of one namespace can signal each other; of `read_pid_namespace`."""
    process: Process
    """The training."""
    supervisor: Process
    """`worker/rank.py`, which keeps the rank's output and writes how it ended."""

    def runs_in(self, pid_namespace: str) -> bool:
        """Whether the rank, or its supervisor, is a living process of this namespace."""
        return self.pid_namespace == pid_namespace and (
            is_alive(self.process) or is_alive(self.supervisor)
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def read_measured(folder: Path) -> dict[int, Mapping[str, object]]:
    """What each rank of an attempt has measured of its steps; ranks without a step are left out.

    Args:
        folder: Of the attempt.
    """
    read = {path: _read(path) for path in (folder / MEASURED_FOLDER).glob("rank-*.json")}
    return {
        int(path.stem.removeprefix("rank-")): content for path, content in read.items() if content
    }


class AttemptFolder:
    """What is known of the ranks. Each file is written whole, so it is read once.

    Args:
        path: Of the folder, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._memory: int | None = None
        self._memory_read = 0
        self.ranks: dict[int, RankProcess] = {}
        self.ends: dict[int, RankEnd] = {}
        self.has_ordered_end = False

    def read_new(self) -> None:
        """Read the reports and the files that were not there at the last call."""
        for content in self._read_memory():
            seen = self.ends if "status" in content else self.ranks
            if content["rank"] not in seen:
                self._take(content)
        with suppress(OSError):
            for path in self.path.glob("rank-*.json"):
                number, _, kind = path.name.removeprefix("rank-").partition(".")
                seen = self.ends if kind == "end.json" else self.ranks
                if int(number) not in seen and (written := _read(path)) is not None:
                    self._take(written)

    def _read_memory(self) -> Iterator[dict[str, Any]]:
        """What was reported to the memory since the last call, a line for each report."""
        if self._memory is None:
            return
        length = os.fstat(self._memory).st_size - self._memory_read
        *lines, _ = os.pread(self._memory, length, self._memory_read).split(b"\n")
        for line in lines:
            self._memory_read += len(line) + 1
            with suppress(ValueError):
                yield json.loads(line)

    def _take(self, content: dict[str, Any]) -> None:
        rank = content["rank"]
        if "status" in content:
            self.ends[rank] = parse_end(content, str(self.path / f"rank-{rank}.log"))
        else:
            self.ranks[rank] = RankProcess(
                rank=rank,
                host=content["host"],
                pid_namespace=content["space"],
                process=Process(**content["process"]),
                supervisor=Process(**content["beside"]),
            )

    def create(self) -> None:
        """Make the folder, an empty file of orders, and the memory, before the job starts."""
        self._memory = os.memfd_create("zerowiz-reports")
        with suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ORDERS_FILE).touch()

    def close(self) -> None:
        """Let go of the memory; what was read of it stays."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def memory_env(self) -> dict[str, str]:
        """The variable that tells the ranks of this host where they report, once it is created."""
        return {MEMORY_VARIABLE: f"/proc/{os.getpid()}/fd/{self._memory}"}

    def append_order(self, order: str) -> bool:
        """Leave an order for the rank supervisors; whether it could be written.

        Args:
            order: The number of a signal, or END_ORDER.
        """
        with suppress(OSError), (self.path / ORDERS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(f"{order}\n")
            return True
        return False

    def order_end(self) -> None:
        """Have every rank supervisor end its rank, on whichever host it is; written once."""
        if not self.has_ordered_end:
            self.has_ordered_end = self.append_order(END_ORDER)

    def refresh(self) -> None:
        """Change the folder: a network file system then shows what others wrote to it (nfs(5))."""
        with suppress(OSError):
            path = self.path / f"look-{socket.gethostname()}-{os.getpid()}"
            path.touch()
            path.unlink()


# Hold a file for as long as a job runs, so that no other job changes what it reads.
#
# A hold is a lock of an open file description (fcntl(2)). The kernel releases it when the last
# process that has its descriptor ends, however it ends. A file system without such locks holds
# nothing.

# struct flock of fcntl(2) on 64 bits: type, whence, start, length (0: to the end) and pid.
_FLOCK = "hhqqi0q"


class Holder(Struct, frozen=True, kw_only=True):
    """The job that was the last to hold a file."""

    pid: str
    host: str
    since: str
    """In UTC, such as 2026-11-22T04:30:00Z."""


def hold(path: Path) -> int | None:
    """Hold a file together with all who hold it already; the descriptor, which an exec keeps.

    None where it cannot be held.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK))
    with suppress(OSError):
        since = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path.write_text(f"{os.getpid()} {os.uname().nodename} {since}\n", encoding="utf-8")
    fcntl.fcntl(descriptor, fcntl.F_SETFD, 0)  # without FD_CLOEXEC
    return descriptor


def release(held: Iterable[int]) -> None:
    """Let go of what `hold` holds."""
    for descriptor in held:
        os.close(descriptor)


def find_holder(path: Path) -> Holder | None:
    """Who holds a file; None where nobody else does, or it cannot be seen."""
    with suppress(OSError), path.open("rb") as file:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK))
        if struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK:
            words = file.read(1024).decode("utf-8", "replace").split()
            pid, host, since = (*words, "?", "?", "?")[:3]
            return Holder(pid=pid, host=host, since=since)
    return None


def _lock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other job checks and writes files in a folder; NFS locks no folder."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
