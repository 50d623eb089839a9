"""Read how much memory this host, or the container around us, can still give."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from zerowiz.core.machine import Host

_MEMINFO_LINE = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)

# Linux, mm/page_counter.c: a v1 cgroup without a limit shows PAGE_COUNTER_MAX in bytes, the
# largest signed 64-bit number cut to a page.
_V1_UNLIMITED_BYTES = 0x7FFF_FFFF_FFFF_0000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Controller:
    """The files of one cgroup version's memory controller."""

    mount: str
    limit: str
    usage: str
    reclaimable: str
    """The key of memory.stat for file cache that the kernel drops before it refuses memory."""


# Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
_V1 = _Controller(
    mount="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    reclaimable="total_inactive_file",
)
_V2 = _Controller(
    mount="sys/fs/cgroup",
    limit="memory.max",
    usage="memory.current",
    reclaimable="inactive_file",
)


def read_host(root: Path = Path("/")) -> Host:
    """This host's memory, and what a new process could still have of it.

    Args:
        root: Where /proc and /sys are looked for.
    """
    sizes = parse_meminfo(_read(root / "proc/meminfo"))
    free_bytes = sizes.get("MemAvailable")
    rooms = _read_rooms(root)
    return Host(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=None if free_bytes is None else min((free_bytes, *rooms)),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """The sizes in /proc/meminfo, in bytes."""
    return {key: 1024 * int(size) for key, size in _MEMINFO_LINE.findall(text)}


def parse_cgroup_paths(text: str) -> dict[int, str]:
    """The paths in /proc/self/cgroup that bound memory, by cgroup version.

    A line is `ID:CONTROLLERS:PATH`; version 2 has ID 0 and no controllers.
    """
    paths: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number, controllers) == ("0", ""):
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def parse_limit(text: str) -> int | None:
    """The bytes in memory.max or memory.limit_in_bytes; `None` when there is no limit."""
    size_bytes = _parse_size(text)
    return None if size_bytes is None or size_bytes >= _V1_UNLIMITED_BYTES else size_bytes


def parse_stat(text: str, key: str) -> int:
    """One number of memory.stat; 0 when it is not there."""
    match = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _parse_size(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _read_rooms(root: Path) -> Iterator[int]:
    """What is left in each cgroup around this process."""
    paths = parse_cgroup_paths(_read(root / "proc/self/cgroup"))
    for version, controller in ((1, _V1), (2, _V2)):
        if version in paths:
            yield from _read_controller_rooms(root / controller.mount, paths[version], controller)


def _read_controller_rooms(mount: Path, path: str, controller: _Controller) -> Iterator[int]:
    # A container may see its own cgroup as the root of the mount, under a path of the host's, or
    # one that climbs out of its namespace (`/../..`); folders that are not there are passed over.
    inside = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
    for level in (inside, *inside.parents):
        folder = mount / level
        limit_bytes = parse_limit(_read(folder / controller.limit))
        used_bytes = _parse_size(_read(folder / controller.usage))
        if limit_bytes is not None and used_bytes is not None:
            cache_bytes = parse_stat(_read(folder / "memory.stat"), controller.reclaimable)
            yield max(0, limit_bytes - max(0, used_bytes - cache_bytes))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
