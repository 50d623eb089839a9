"""Read the files and programs of a host, or those that a recording kept of one."""

import hashlib
import os
import re
import time
import uuid
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from zerowiz.core.speed.costs import time_python_call
from zerowiz.core.structs import Count
from zerowiz.probe.files import read_named

# Replace identifiers of a machine by hashes; equal identifiers get equal hashes.

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# systemd.net-naming-scheme(7) and rdma-core's rdma_rename(8): adapters that are named after their
# MAC address or GUID, `enx...`, `ibx...`, `rocex...`.
_ADDRESS_NAME = re.compile(r"\b([a-z]+)x([0-9a-f]{12,40})\b")


def hash_uuids(text: str) -> str:
    """The text with every UUID replaced by a UUID made of its hash."""
    return _UUID.sub(lambda match: _hash_uuid(match[0]), text)


def hash_addresses(text: str) -> str:
    """The text with the address in a network adapter's name replaced by its hash."""
    return _ADDRESS_NAME.sub(lambda m: f"{m[1]}x{hash_bytes(m[2].encode()).hex()[:12]}", text)


def _hash_uuid(text: str) -> str:
    return str(uuid.UUID(bytes=hash_bytes(text.lower().encode())))


def hash_bytes(content: bytes) -> bytes:
    """The first 16 bytes of the SHA-256, as many as a UUID has."""
    return hashlib.sha256(content).digest()[:16]


# Read files of a host, live or recorded; every access to /proc, /sys and disks is here.

# /proc/cpuinfo has 2 kB for each core, and a file of hosts a name for each rank.
_MOST_BYTES = 4 * 2**20

FOLDER = "{folder}"
"""Stands for the path of the job's folder, which a recording must not contain."""


class Space(Struct, frozen=True, kw_only=True):
    """The size of the file system that holds a path."""

    total_bytes: Count
    free_bytes: Count
    """For a process that is not root."""
    device: str
    """`MAJOR:MINOR`, as /sys/dev/block names it; major 0 is no block device (overlay, NFS)."""


class Files(Protocol):
    """What the probes ask of a host. Paths start at its root, without a slash: `proc/meminfo`."""

    def text(self, path: str) -> str | None:
        """The content of a file; `None` where it is missing or cannot be read."""

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty where it is missing or cannot be read."""

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved; `None` where it is missing."""

    def space(self, path: str) -> Space | None:
        """The size of the file system under a path; `None` where the path is missing."""

    def opens(self, path: str) -> bool:
        """Whether this process may read and write a file."""

    def python_call_seconds(self) -> float | None:
        """What a call takes in Python on the host; `None` of a recording, and while one is made."""


class HostFiles(Struct, frozen=True, kw_only=True):
    """The files of this host."""

    root: Path = Path("/")
    """The host's root; tests build a whole host in a folder."""
    folder: Path = Path()
    """The path that `FOLDER` stands for."""

    def _path(self, path: str) -> Path:
        return self.folder if path == FOLDER else self.root / path

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        try:
            return read_named(self._path(path), _MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """As `Files.names`."""
        try:
            return tuple(sorted(entry.name for entry in self._path(folder).iterdir()))
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        """As `Files.real`."""
        try:
            # Path.resolve() raises no OSError on a loop before Python 3.13.
            resolved = Path(os.path.realpath(self._path(path), strict=True))
            return resolved.relative_to(os.path.realpath(self.root)).as_posix()
        except (OSError, ValueError):
            return None

    def space(self, path: str) -> Space | None:
        """As `Files.space`."""
        try:
            system = os.statvfs(self._path(path))
            device = self._path(path).stat().st_dev
        except OSError:
            return None
        return Space(
            total_bytes=system.f_blocks * system.f_frsize,
            free_bytes=system.f_bavail * system.f_frsize,
            device=f"{os.major(device)}:{os.minor(device)}",
        )

    def opens(self, path: str) -> bool:
        """As `Files.opens`."""
        return os.access(self._path(path), os.R_OK | os.W_OK)

    def python_call_seconds(self) -> float | None:
        """As `Files.python_call_seconds`."""
        return time_python_call(time.perf_counter)


class FileAnswers(Struct, frozen=True, kw_only=True):
    """Every answer that a probe got from Files, by path: the host's part of a recording."""

    text: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    real: dict[str, str | None] = field(default_factory=dict)
    space: dict[str, Space | None] = field(default_factory=dict)
    opens: dict[str, bool] = field(default_factory=dict)


class FilesLog(Struct, frozen=True, kw_only=True):
    """Files that log each answer."""

    files: Files
    answers: FileAnswers = field(default_factory=FileAnswers)

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        return self.answers.text.setdefault(path, self.files.text(path))

    def names(self, folder: str) -> tuple[str, ...]:
        """As `Files.names`."""
        return self.answers.names.setdefault(folder, self.files.names(folder))

    def real(self, path: str) -> str | None:
        """As `Files.real`."""
        return self.answers.real.setdefault(path, self.files.real(path))

    def space(self, path: str) -> Space | None:
        """As `Files.space`."""
        return self.answers.space.setdefault(path, self.files.space(path))

    def opens(self, path: str) -> bool:
        """As `Files.opens`."""
        return self.answers.opens.setdefault(path, self.files.opens(path))

    def python_call_seconds(self) -> float | None:
        """As `Files.python_call_seconds`: what differs each time is no part of a recording."""
        return None


class RecordedFiles(Struct, frozen=True, kw_only=True):
    """The files of a recorded host; a path that was not asked for at that time is missing."""

    answers: FileAnswers

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        return self.answers.text.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """As `Files.names`."""
        return self.answers.names.get(folder, ())

    def real(self, path: str) -> str | None:
        """As `Files.real`."""
        return self.answers.real.get(path)

    def space(self, path: str) -> Space | None:
        """As `Files.space`."""
        return self.answers.space.get(path)

    def opens(self, path: str) -> bool:
        """As `Files.opens`."""
        return self.answers.opens.get(path, False)

    def python_call_seconds(self) -> float | None:
        """As `Files.python_call_seconds`."""
        return None
