import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pynvml
import pytest
from fake_host import build_host
from recorded import (
    Calls,
    FileAnswers,
    Install,
    RecordedFiles,
    Replay,
    library,
    reading_here,
    recording,
)

from zerowiz.core.machine.types import LinkClass, Machine, MachineSource
from zerowiz.errors import ExitCode, PreflightError, UsageError
from zerowiz.probe.files import Files, World
from zerowiz.probe.machine.read_machine import read_machine

GIB = 2**30
NO_FILES = RecordedFiles(answers=FileAnswers())
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {48 * GIB // 1024} kB\n"


def fail(
    environ: dict[str, str] | None = None, *, files: Files = NO_FILES, code: int = 12
) -> PreflightError:
    """Why a host whose driver does not start so is no machine."""
    table = {"nvmlInitWithFlags(0)": {"err": code}}
    with pytest.raises(PreflightError) as caught:
        replay(table, files, environ)
    return caught.value


def replay(
    table: Calls,
    files: Files = NO_FILES,
    environ: dict[str, str] | None = None,
    gpus: str | None = None,
) -> Machine:
    """The machine of that driver."""
    with reading_here(Replay(table)):
        return read_machine(World(files=files, environ=environ or {}), gpus=gpus)


@pytest.mark.parametrize(
    ("code", "said", "hint"),
    [
        (4, "no permission", "/dev/nvidia*"),
        (9, "not loaded", "modprobe nvidia"),
        (12, "no NVIDIA driver", "docker run --gpus all"),
        (18, "different versions", "reboot"),
        (999, "unknown error", "restart the container"),
        (13, "NVML error 13", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start_is_one_line_and_says_how_to_plan_anyway(
    code: int, said: str, hint: str
) -> None:
    error = fail(code=code)
    assert said in error.message
    assert "\n" not in error.message
    assert ExitCode(5) is error.exit_code
    assert hint in error.hints[0]
    assert any("zerowiz plan --machine 8xH100-80GB" in line for line in error.hints)
    assert any("$accelerator cpu" in line for line in error.hints)


def test_a_host_without_the_drivers_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", no_such_library)
    with pytest.raises(PreflightError, match="no NVIDIA driver found"):
        read_machine(World(files=NO_FILES, environ={}))


@pytest.mark.parametrize(
    ("environ", "programs", "command"),
    [
        (
            {"SLURM_CONF": "/etc/slurm/slurm.conf"},
            {},
            "SLURM: run zerowiz inside a job: `srun --gpus=1",
        ),
        ({"PBS_SERVER": "head"}, {}, "PBS: run zerowiz inside a job: `qsub -I "),
        ({"LSF_ENVDIR": "/opt/lsf/conf"}, {}, "LSF: run zerowiz inside a job: `bsub -Is "),
        ({"PATH": "/usr/bin"}, {"usr/bin/srun": ""}, "SLURM"),
        ({}, {}, None),
        # Inside a job.
        (
            {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "node1", "SLURM_CONF": "/etc/slurm.conf"},
            {},
            None,
        ),
    ],
)
def test_on_a_login_node_the_first_hint_is_the_command_of_its_scheduler(
    tmp_path: Path, environ: dict[str, str], programs: dict[str, str], command: str | None
) -> None:
    hints = fail(environ, files=build_host(tmp_path, programs)).hints
    login = [hint for hint in hints if "login node" in hint]
    if command is None:
        assert [] == login
        return
    assert [hints[0]] == login
    assert f"this looks like a login node of {command}" in hints[0]
    assert "docker" in hints[1]


def test_a_driver_is_read_live(tmp_path: Path, driver: Install) -> None:
    driver(library("h200-x2"))
    host = build_host(tmp_path, {"proc/meminfo": MEMINFO})
    machine = read_machine(World(files=host, environ={}))
    assert MachineSource.NVML is machine.source
    assert LinkClass.NVLINK_ALL is machine.interconnect.link_class
    assert (64 * GIB, 48 * GIB) == (machine.host.total_bytes, machine.host.available_bytes)


class Counted:
    """A driver that counts what this process asks it."""

    def __init__(self, table: Replay) -> None:
        self.table, self.asked = table, 0

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        """The C function of this name, as ctypes finds it."""

        def counted(*args: object) -> int:
            self.asked += 1
            return int(getattr(self.table, symbol)(*args))

        return counted


def own_children() -> str:
    """The ids of the processes that this thread has started, and that are not gone."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("environ", "ends"),
    [
        ({}, nullcontext()),
        ({"CUDA_VISIBLE_DEVICES": "1"}, nullcontext()),
        ({"CUDA_VISIBLE_DEVICES": "7"}, pytest.raises(PreflightError, match="hides all 2")),
    ],
    ids=["all", "one", "none"],
)
def test_the_driver_is_read_by_a_process_that_is_gone_however_the_reading_ends(
    environ: dict[str, str], ends: AbstractContextManager[object], driver: Install
) -> None:
    table, children = Counted(library("h200-x2")), own_children()
    driver(table)
    with ends:
        read_machine(World(files=NO_FILES, environ=environ))
    with pytest.raises(UsageError):
        read_machine(World(files=NO_FILES, environ={}), gpus="7")
    assert 0 == table.asked
    assert children == own_children()


def test_no_gpu_at_all_is_an_error_that_says_how_to_plan_anyway() -> None:
    table = {**recording("h200-x1")["nvml"], "nvmlDeviceGetCount_v2()": {"ok": 0}}
    with pytest.raises(PreflightError) as caught:
        replay(table)
    assert "this machine has no usable GPU" == caught.value.message
    assert "`zerowiz plan --machine 8xH100-80GB`" in caught.value.hints[0]


OF_SLURM = {"SLURM_JOB_ID": "1"}


@pytest.mark.parametrize(
    ("environ", "available"),
    [
        (OF_SLURM | {"SLURM_MEM_PER_NODE": "16G"}, (16 * GIB, "SLURM")),
        (OF_SLURM | {"SLURM_MEM_PER_NODE": "60G"}, (48 * GIB, "MemAvailable")),
        ({}, (48 * GIB, "MemAvailable")),
        (
            OF_SLURM | {"SLURM_MEM_PER_GPU": "8G", "SLURM_GPUS_ON_NODE": "2"},
            (16 * GIB, "SLURM"),
        ),
    ],
)
def test_the_memory_that_a_scheduler_gave_bounds_the_hosts(
    tmp_path: Path, environ: dict[str, str], available: tuple[int, str]
) -> None:
    files = build_host(tmp_path, {"proc/meminfo": MEMINFO})
    host = replay(recording("h200-x2")["nvml"], files, environ).host
    assert available == (host.available_bytes, host.available_by)


def test_a_job_of_a_scheduler_is_told_of() -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_GPUS_ON_NODE": "8"}
    allocation = replay(recording("h200-x2")["nvml"], environ=job).allocation
    assert allocation
    assert ("SLURM", 3, 8) == (allocation.scheduler, allocation.nodes, allocation.gpus_per_node)


def test_the_machine_of_slices_alone_has_an_unknown_link() -> None:
    content = recording("synthetic/a100-mig")
    content["nvml"]["nvmlDeviceGetHandleByIndex_v2(0)"] = {"err": 15}
    assert ["1:0"] == [gpu.label for gpu in replay(content["nvml"]).gpus]
    both = replay(content["nvml"], gpus="1:2,1:0")
    assert ["1:2", "1:0"] == [gpu.label for gpu in both.gpus]
    assert LinkClass.UNKNOWN is both.interconnect.link_class
