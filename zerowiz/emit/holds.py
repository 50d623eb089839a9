"""Hold a file for as long as a job runs, so that no other job changes what it reads.

A hold is a lock of an open file description (fcntl(2)). The kernel releases it when the last
process that has its descriptor ends, however it ends. A file system without such locks holds
nothing.
"""

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

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
