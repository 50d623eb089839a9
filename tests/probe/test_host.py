from pathlib import Path

import pytest

from zerowiz.core.machine import Accelerator, Host, LinkClass
from zerowiz.errors import UsageError
from zerowiz.probe.cpu import cpu_machine
from zerowiz.probe.host import parse_cgroup_paths, parse_limit, parse_meminfo, read_host

MEMINFO = """\
MemTotal:       16384256 kB
MemFree:         1203004 kB
MemAvailable:   12000000 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""
TOTAL_BYTES, AVAILABLE_BYTES = 16384256 * 1024, 12000000 * 1024

GIB = 2**30
UNLIMITED_V1 = "9223372036854771712\n"


def build(root: Path, cgroup: str, files: dict[str, str | int]) -> Host:
    """A host of this memory, with these files under /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return read_host(root)


def test_meminfo_is_read_in_bytes() -> None:
    sizes = parse_meminfo(MEMINFO)
    assert (TOTAL_BYTES, AVAILABLE_BYTES) == (sizes["MemTotal"], sizes["MemAvailable"])
    assert "HugePages_Total" not in sizes


def test_a_host_without_proc_is_unknown(tmp_path: Path) -> None:
    assert Host() == read_host(tmp_path)


def test_this_host_can_be_read() -> None:
    host = read_host()
    assert host.total_bytes
    assert host.available_bytes is not None
    assert host.available_bytes <= host.total_bytes


def test_without_a_limit_all_available_memory_is_there(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "user.slice/memory.max": "max",
        "user.slice/memory.current": GIB,
    }
    expected = Host(total_bytes=TOTAL_BYTES, available_bytes=AVAILABLE_BYTES)
    assert expected == build(tmp_path, "0::/user.slice\n", files)


def test_a_cgroup_leaves_its_limit_less_what_it_uses(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"job/memory.max": 8 * GIB, "job/memory.current": 3 * GIB}
    assert 5 * GIB == build(tmp_path, "0::/job\n", files).available_bytes


def test_the_tightest_of_a_cgroup_and_its_parents_counts(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "memory.max": 9 * GIB,
        "memory.current": GIB,
        "slurm/memory.max": 6 * GIB,
        "slurm/memory.current": 4 * GIB,
        "slurm/job_7/memory.max": 5 * GIB,
        "slurm/job_7/memory.current": GIB,
    }
    assert 2 * GIB == build(tmp_path, "0::/slurm/job_7/step_0\n", files).available_bytes


def test_a_limit_above_the_hosts_memory_changes_nothing(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"job/memory.max": 900 * GIB, "job/memory.current": 0}
    assert AVAILABLE_BYTES == build(tmp_path, "0::/job\n", files).available_bytes


def test_a_cgroup_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files: dict[str, str | int] = {"job/memory.max": GIB, "job/memory.current": 2 * GIB}
    assert 0 == build(tmp_path, "0::/job\n", files).available_bytes


def test_file_cache_that_the_kernel_would_drop_is_room(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "job/memory.max": 8 * GIB,
        "job/memory.current": 7 * GIB,
        "job/memory.stat": f"anon {GIB}\nactive_file 5\ninactive_file {4 * GIB}",
    }
    assert 5 * GIB == build(tmp_path, "0::/job\n", files).available_bytes


@pytest.mark.parametrize("path", ["/", "/docker/0123", "/../../other"])
def test_a_container_that_sees_its_own_cgroup_as_the_root_is_bounded_by_it(
    tmp_path: Path, path: str
) -> None:
    files: dict[str, str | int] = {"memory.max": 4 * GIB, "memory.current": GIB}
    assert 3 * GIB == build(tmp_path, f"0::{path}\n", files).available_bytes


def test_a_path_that_climbs_out_of_the_namespace_is_not_followed(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "memory.max": 4 * GIB,
        "memory.current": GIB,
        "../stranger/memory.max": GIB,
        "../stranger/memory.current": GIB,
    }
    assert 3 * GIB == build(tmp_path, "0::/../stranger\n", files).available_bytes


def test_a_v1_cgroup_bounds_by_its_memory_controller(tmp_path: Path) -> None:
    cgroup = "12:cpu,cpuacct:/a\n5:memory:/docker/0123\n0::/unified\n"
    files: dict[str, str | int] = {
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/memory.usage_in_bytes": GIB,
        "memory/docker/0123/memory.limit_in_bytes": 8 * GIB,
        "memory/docker/0123/memory.usage_in_bytes": 6 * GIB,
        "memory/docker/0123/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
    }
    assert 3 * GIB == build(tmp_path, cgroup, files).available_bytes


def test_a_cgroup_line_is_read_by_its_version() -> None:
    text = "12:cpu,memory:/slurm:1\n1:name=systemd:/init\n0::/user.slice\n"
    assert {1: "/slurm:1", 2: "/user.slice"} == parse_cgroup_paths(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max\n", None), (UNLIMITED_V1, None), ("", None), ("0\n", 0), ("1024\n", 1024)],
)
def test_a_limit_is_bytes_or_none(text: str, expected: int | None) -> None:
    assert expected == parse_limit(text)


def test_cpu_ranks_share_the_host() -> None:
    machine = cpu_machine(3, Host(total_bytes=300, available_bytes=200))
    assert [(0, 100, 66), (1, 100, 66), (2, 100, 66)] == [
        (gpu.index, gpu.total_bytes, gpu.free_bytes) for gpu in machine.gpus
    ]
    assert Accelerator.CPU is machine.accelerator
    assert LinkClass.UNKNOWN is machine.interconnect.link_class


def test_an_unknown_host_gives_cpu_ranks_an_unknown_share() -> None:
    machine = cpu_machine(2, Host())
    assert (None, None) == (machine.total_bytes, machine.free_bytes)


def test_a_cpu_job_without_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one rank, not 0"):
        cpu_machine(0, Host())
