"""Read files of a host, live or as they were recorded: the one door to /proc, /sys and disks."""

import os
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from zerowiz.core.values import Count

FOLDER = "{folder}"
"""The path that stands for the folder of the job, so that no recording tells where it lies."""


class Space(Struct, frozen=True, kw_only=True):
    """The room on the file system under a path."""

    total_bytes: Count
    free_bytes: Count
    """For a process that is not root."""
    device: str
    """`MAJOR:MINOR`, as /sys/dev/block names it; major 0 is no block device (overlay, NFS)."""


class Files(Protocol):
    """What the probes ask of a host. Paths start at its root, without a slash: `proc/meminfo`."""

    def text(self, path: str) -> str | None:
        """The content of a file; `None` when it is not there or cannot be read."""

    def names(self, folder: str) -> tuple[str, ...]:
        """What a folder holds, sorted; nothing when it is not there or cannot be read."""

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved; `None` when nothing is there."""

    def space(self, path: str) -> Space | None:
        """The room where a path lies; `None` when nothing is there."""

    def opens(self, path: str) -> bool:
        """Whether this process may read and write a file."""


class HostFiles(Struct, frozen=True, kw_only=True):
    """The files of this host."""

    root: Path = Path("/")
    """Another one stands for a whole host in a folder."""
    folder: Path = Path()
    """What `FOLDER` means."""

    def _path(self, path: str) -> Path:
        return self.folder if path == FOLDER else self.root / path

    def text(self, path: str) -> str | None:
        """As `Files.text`."""
        try:
            return self._path(path).read_bytes().decode("utf-8", "replace")
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
            resolved = self._path(path).resolve(strict=True)
            return resolved.relative_to(self.root.resolve()).as_posix()
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


class FileAnswers(Struct, frozen=True, kw_only=True):
    """Every answer that a probe got from Files, by path: what a recording holds of a host."""

    text: dict[str, str | None] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    real: dict[str, str | None] = field(default_factory=dict)
    space: dict[str, Space | None] = field(default_factory=dict)
    opens: dict[str, bool] = field(default_factory=dict)


class FilesLog(Struct, frozen=True, kw_only=True):
    """Files that remember each answer."""

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


class RecordedFiles(Struct, frozen=True, kw_only=True):
    """The files of a recorded host: what was not asked then is not there now."""

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
