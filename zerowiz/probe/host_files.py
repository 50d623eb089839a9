"""Read the files of a host."""

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.core.speed.costs import time_python_call
from zerowiz.core.structs import Count
from zerowiz.probe.files import read_named

# Replace UUIDs by hashes; equal ones get equal hashes.

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def hash_uuids(text: str) -> str:
    """The text with every UUID replaced by a UUID made of its hash."""
    return _UUID.sub(
        lambda match: str(uuid.UUID(bytes=hashlib.sha256(match[0].lower().encode()).digest()[:16])),
        text,
    )


# Every access to /proc, /sys and disks is here.

# /proc/cpuinfo has 2 kB for each core, and a file of hosts a name for each rank.
_MOST_BYTES = 4 * 2**20


class Space(Struct, frozen=True, kw_only=True):
    """The size of the file system that holds a path."""

    total_bytes: Count
    free_bytes: Count
    """For a process that is not root."""


class Files(Struct, frozen=True, kw_only=True):
    """The files of this host. Paths start at its root, without a slash: `proc/meminfo`."""

    root: Path = Path("/")
    """The host's root; tests build a whole host in a folder."""

    def text(self, path: str) -> str | None:
        """The content of a file; `None` where it is missing or cannot be read."""
        try:
            return read_named(self.root / path, _MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty where it is missing or cannot be read."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / folder).iterdir()))
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved; `None` where it is missing."""
        try:
            # Path.resolve() raises no OSError on a loop before Python 3.13.
            resolved = Path(os.path.realpath(self.root / path, strict=True))
            return resolved.relative_to(os.path.realpath(self.root)).as_posix()
        except (OSError, ValueError):
            return None

    def space(self, path: str) -> Space | None:
        """The size of the file system under a path; `None` where the path is missing."""
        try:
            system = os.statvfs(self.root / path)
        except OSError:
            return None
        return Space(
            total_bytes=system.f_blocks * system.f_frsize,
            free_bytes=system.f_bavail * system.f_frsize,
        )

    def opens(self, path: str) -> bool:
        """Whether this process may read and write a file."""
        return os.access((self.root / path), os.R_OK | os.W_OK)

    def python_call_seconds(self) -> float | None:
        """What a call takes in Python on the host; `None` where nobody can tell."""
        return time_python_call(time.perf_counter)


CALL_TIMEOUT_S = 30.0
"""Without persistence mode a GPU takes seconds to wake, and all are woken by one call."""


class World(Struct, frozen=True, kw_only=True):
    """The sources of every fact about a machine, beside its driver."""

    files: Files
    environ: Mapping[str, str]
    call_timeout_s: float = CALL_TIMEOUT_S
    """How long the driver may take to answer one call."""
    on_wait: Callable[[str], object] = lambda _: None
    """Told what is waited for, where the driver takes long."""
