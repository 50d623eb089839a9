"""Read the memory and cores of this host, within the limits of its cgroups and scheduler."""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from zerowiz.core.machine.types import (
    UNLIMITED_BYTES,
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    JobAllocation,
    LinkClass,
    Machine,
    MachineSource,
    computes_bf16,
    computes_fp16,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError
from zerowiz.probe.files import Files, first_set

# Describe this host for DeepSpeed's CPU accelerator: ranks that share its memory and cores.

# Linux, arch/x86/kernel/cpu/proc.c and arch/arm64/kernel/cpuinfo.c. All cores have the same: on
# arm64 the kernel shows what they have in common.
_FLAGS_LINE = re.compile(r"^(?:flags|Features)[ \t]*: (.*)$", re.MULTILINE)

# oneDNN, src/common/utils.cpp, getenv_string_user: the new name before the old one.
_MAX_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def cpu_machine(ranks: int, host: Host) -> Machine:
    """A machine without GPUs, where each rank has an equal share of the host's memory.

    Raises:
        UsageError: `ranks` is below 1.
    """
    if ranks < 1:
        raise UsageError(f"a CPU job has at least one rank, not {ranks}")
    gpus = tuple(
        Gpu(
            index=index,
            name="CPU rank",
            total_bytes=_share(host.total_bytes, ranks),
            free_bytes=_share(host.available_bytes, ranks),
        )
        for index in range(ranks)
    )
    return Machine(
        source=MachineSource.CPU,
        accelerator=Accelerator.CPU,
        gpus=gpus,
        interconnect=Interconnect(link_class=LinkClass.UNKNOWN),
        host=host,
    )


def with_number_formats(host: Host, files: Files, environ: Mapping[str, str]) -> Host:
    """The host, and which 16-bit formats its CPU computes; unknown where it shows no flags."""
    flags = parse_flags(files.text("proc/cpuinfo") or "")
    if not flags:
        return host
    max_isa = first_set(environ, _MAX_ISA_VARIABLES)
    return replace(
        host,
        computes_bf16=computes_bf16(flags, max_isa),
        computes_fp16=computes_fp16(flags, max_isa),
    )


def parse_flags(text: str) -> frozenset[str]:
    """The features of the first core in /proc/cpuinfo; none where this kernel lists none."""
    match = _FLAGS_LINE.search(text)
    return frozenset(match[1].split()) if match else frozenset()


def _share(size_bytes: int | None, ranks: int) -> int | None:
    return None if size_bytes is None else size_bytes // ranks


_MEMINFO_LINE = re.compile(r"^(?:Node \d+ )?([\w()]+):\s+(\d{1,15}) kB$", re.MULTILINE)
_MEMLOCK_LINE = re.compile(r"^Max locked memory\s+(\d{1,20}|unlimited)\s", re.MULTILINE)
_AFFINITY_LINE = re.compile(r"^Cpus_allowed_list:\s+(\S+)$", re.MULTILINE)
_LIST_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)

# Linux, mm/page_counter.c: a v1 cgroup without a limit shows PAGE_COUNTER_MAX in bytes, the
# largest signed 64-bit number cut to a page.
_V1_UNLIMITED_BYTES = 0x7FFF_FFFF_FFFF_0000

_NODES = "sys/devices/system/node"

# Linux, mm/show_mem.c, si_mem_available: free pages, file cache and reclaimable slab. MemAvailable
# counts those of a NUMA node without cores too, which is no memory of the host.
_FREEABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


class _Cgroup(Struct, frozen=True, kw_only=True):
    """The files in which one version of cgroups has its limits of memory and cores."""

    name: str
    controllers: tuple[str, str]
    """Of memory and of cores, as /proc/self/cgroup names them."""
    mounts: tuple[str, str]
    """Of memory and of cores."""
    limit: str
    usage: str
    reclaimable: str
    """The key of memory.stat for file cache that the kernel drops before it refuses memory."""
    quota: tuple[str, ...]
    """The files with the quota and the period of cores."""


# Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
_CGROUPS = (
    _Cgroup(
        name="cgroup v2",
        controllers=("", ""),
        mounts=("sys/fs/cgroup", "sys/fs/cgroup"),
        limit="memory.max",
        usage="memory.current",
        reclaimable="inactive_file",
        quota=("cpu.max",),
    ),
    _Cgroup(
        name="cgroup v1",
        controllers=("memory", "cpu"),
        mounts=("sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"),
        limit="memory.limit_in_bytes",
        usage="memory.usage_in_bytes",
        reclaimable="total_inactive_file",
        quota=("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ),
)


def read_host(files: Files, allocation: JobAllocation | None = None) -> Host:
    """The resources that a new process could still get on this host.

    Args:
        files: The files of the host.
        allocation: What a scheduler gave the job on this node.
    """
    cgroups = parse_cgroup_paths(_read(files, "proc/self/cgroup"))
    nodes = _read_list(files, f"{_NODES}/has_cpu")
    total_bytes, free_bytes = _read_memory(files)
    limits = _read_cgroup_limits(files, cgroups)
    if allocation is not None and allocation.memory_bytes is not None:
        limits.append((allocation.memory_bytes, allocation.scheduler))
    available = None
    if free_bytes is not None:
        available = min([(free_bytes, "MemAvailable"), *limits], key=lambda limit: limit[0])
    shm = files.space("dev/shm")
    return Host(
        total_bytes=total_bytes,
        available_bytes=available[0] if available else None,
        available_by=available[1] if available else None,
        cores=_read_cores(files, cgroups),
        numa_nodes=len(nodes) or None,
        shm_bytes=shm.total_bytes if shm else None,
        memlock_bytes=parse_memlock(_read(files, "proc/self/limits")),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """The sizes in /proc/meminfo, or in the `meminfo` of one NUMA node, in bytes."""
    return {key: 1024 * int(size) for key, size in _MEMINFO_LINE.findall(text)}


def parse_cgroup_paths(text: str) -> dict[str, str]:
    """The paths in /proc/self/cgroup, by controller; version 2 has the name `""`.

    A line is `ID:CONTROLLERS:PATH`; version 2 has ID 0 and no controllers.
    """
    paths: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers or number == "0":
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def parse_limit(text: str) -> int | None:
    """The bytes in memory.max or memory.limit_in_bytes; `None` where there is no limit."""
    size_bytes = _parse_size(text)
    return None if size_bytes is None or size_bytes >= _V1_UNLIMITED_BYTES else size_bytes


def parse_quota(text: str) -> int | None:
    """The whole cores in `QUOTA PERIOD`, at least one; `None` where there is no quota.

    Without a quota the kernel writes `max` in version 2, and -1 in version 1.
    """
    match = re.fullmatch(r"(\d+)\s+([1-9]\d*)", text.strip(), re.ASCII)
    return max(1, int(match[1]) // int(match[2])) if match else None


def parse_memlock(text: str) -> int | None:
    """The bytes of the soft limit of locked memory in /proc/self/limits; `None` without one."""
    match = _MEMLOCK_LINE.search(text)
    if match is None:
        return None
    return UNLIMITED_BYTES if match[1] == "unlimited" else int(match[1])


def parse_list(text: str) -> frozenset[int]:
    """The numbers of a list as the kernel writes it, `0-3,8`; empty for any other text."""
    parts = [_LIST_PART.fullmatch(part) for part in text.strip().split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    return frozenset().union(*ranges) if len(ranges) == len(parts) else frozenset()


def _read_memory(files: Files) -> tuple[int | None, int | None]:
    """Total and available memory, less that of NUMA nodes without cores.

    On a Grace machine the memory of each GPU is such a node, and /proc/meminfo counts it.
    """
    sizes = parse_meminfo(_read(files, "proc/meminfo"))
    total_bytes, free_bytes = sizes.get("MemTotal"), sizes.get("MemAvailable")
    with_cores = _read_list(files, f"{_NODES}/has_cpu")
    with_memory = _read_list(files, f"{_NODES}/has_memory")
    without_cores = sorted(with_memory - with_cores) if with_cores else []
    others = [parse_meminfo(_read(files, f"{_NODES}/node{node}/meminfo")) for node in without_cores]
    not_host_bytes = sum(node.get("MemTotal", 0) for node in others)
    not_host_free_bytes = sum(node.get(key, 0) for node in others for key in _FREEABLE)
    total_bytes = None if total_bytes is None else max(0, total_bytes - not_host_bytes)
    if free_bytes is None:
        return total_bytes, None
    free_bytes = max(0, free_bytes - not_host_free_bytes)
    # Where a container makes /proc/meminfo up, more may be available than there is.
    return total_bytes, free_bytes if total_bytes is None else min(free_bytes, total_bytes)


def _read_cgroup_limits(files: Files, paths: dict[str, str]) -> list[tuple[int, str]]:
    """The bytes that each cgroup of this process still allows, with the version's name."""
    limits = []
    for cgroup in _CGROUPS:
        for folder in _list_folders(cgroup.mounts[0], paths.get(cgroup.controllers[0])):
            limit_bytes = parse_limit(_read(files, f"{folder}/{cgroup.limit}"))
            if limit_bytes is not None:
                used_bytes = _parse_size(_read(files, f"{folder}/{cgroup.usage}")) or 0
                stat = _read(files, f"{folder}/memory.stat")
                match = re.search(rf"^{cgroup.reclaimable} (\d+)$", stat, re.MULTILINE)
                kept_bytes = max(0, used_bytes - (int(match[1]) if match else 0))
                limits.append((max(0, limit_bytes - kept_bytes), cgroup.name))
    return limits


def _read_cores(files: Files, paths: dict[str, str]) -> int | None:
    """The online cores in this process's affinity mask, and no more than its cgroups' quota."""
    match = _AFFINITY_LINE.search(_read(files, "proc/self/status"))
    allowed = parse_list(match[1]) if match else frozenset()
    # Linux, sched_getaffinity: the mask may name cores that could be plugged in, but are not.
    online = _read_list(files, "sys/devices/system/cpu/online")
    bounds = [len(allowed & online or allowed) or None]
    for cgroup in _CGROUPS:
        for folder in _list_folders(cgroup.mounts[1], paths.get(cgroup.controllers[1])):
            text = " ".join(_read(files, f"{folder}/{name}") for name in cgroup.quota)
            bounds.append(parse_quota(text))
    return min((bound for bound in bounds if bound is not None), default=None)


def _list_folders(mount: str, path: str | None) -> Iterator[str]:
    """The folder of a cgroup, and those of its parents.

    A container may see its own cgroup as the root of the mount, under a path of the host, or under
    a path that leaves its namespace (`/../..`). Some of the folders may be missing.
    """
    if path is not None:
        inside = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(inside), -1, -1):
            yield "/".join([mount, *inside[:depth]])


def _read(files: Files, path: str) -> str:
    return files.text(path) or ""


def _read_list(files: Files, path: str) -> frozenset[int]:
    return parse_list(_read(files, path))


def _parse_size(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,20}", text.strip(), re.ASCII) else None
