"""A driver that hangs or crashes is one line within its time, and takes nothing else with it.

The driver is a real library of C functions, which pynvml loads as it loads NVIDIA's.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pexpect
import pytest

from zerowiz.probe.machine.nvml_child import whose

HERE = Path(__file__).parent
ZEROWIZ = (sys.executable, "-m", "zerowiz")
# More than a command takes on a busy machine, and far less than a hang.
SOON_S = 20.0


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    command = ("g++", "-shared", "-fPIC", "-o", library, HERE / "driver.cpp")
    subprocess.run(command, check=True, timeout=120)
    return folder


def environ(driver: Path, fault: str | None) -> dict[str, str]:
    faults = {} if fault is None else {"FAULT": fault}
    return {**os.environ, "LD_LIBRARY_PATH": str(driver), "COLUMNS": "200", **faults}


def ask(driver: Path, fault: str | None, *words: str) -> Any:
    """A command under this driver; also nothing that it left holds its output open."""
    words = words or ("machine", "--json", "--probe-timeout", "1")
    return subprocess.run(
        [*ZEROWIZ, *words],
        env=environ(driver, fault),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def left_over(driver: Path) -> list[int]:
    """The processes that have this library loaded."""
    found = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped = str(driver) in path.read_text()
        except OSError:
            continue
        if mapped:
            found.append(int(path.parent.name))
    return found


def test_the_driver_is_read(driver: Path) -> None:
    done = ask(driver, None)
    assert 0 == done.returncode, done.stderr
    machine = json.loads(done.stdout)["machine"]
    sizes = [(gpu["name"], gpu["free_bytes"]) for gpu in machine["gpus"]]
    assert [("NVIDIA H200", 150109880320)] * 2 == sizes


FUNCTIONS = {
    "load": "the NVIDIA driver",
    "nvmlInitWithFlags": "the NVIDIA driver",
    "nvmlSystemGetDriverVersion": "the NVIDIA driver",
    "nvmlDeviceGetCount_v2": "the NVIDIA driver",
    "nvmlDeviceGetHandleByIndex_v2:1": "GPU 1",
    "nvmlDeviceGetName:1": "GPU 1",
    "nvmlDeviceGetMemoryInfo_v2:0": "GPU 0",
    "nvmlDeviceGetTopologyCommonAncestor": "GPU 0 and 1",
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_call_that_hangs_is_named_after_its_time(driver: Path, function: str) -> None:
    began = time.monotonic()
    done = ask(driver, f"hang:{function}")
    assert 1 < time.monotonic() - began < SOON_S
    assert (5, 5) == (done.returncode, json.loads(done.stdout)["error"]["exit_code"])
    of_pynvml = re.sub(r"(_v\d)?(:\d)?$", "", function)
    name = "nvmlInit" if function in {"load", "nvmlInitWithFlags"} else of_pynvml
    line = f"error: {FUNCTIONS[function]} did not answer: `{name}` has taken 1 s"
    assert line in done.stderr.splitlines()
    assert "hint: wait longer: `--probe-timeout 120`" in done.stderr
    assert [] == left_over(driver)


CRASHES = {
    "crash": "crashed (SIGSEGV)",
    "abort": "crashed (SIGABRT)",
    "exit": "ended without an answer",
}


# Each function in one of the ways, and one function in all.
CRASHED = {*zip(FUNCTIONS, cycle(CRASHES), strict=False), *product(["load"], CRASHES)}


@pytest.mark.parametrize(("function", "kind"), sorted(CRASHED))
def test_a_crash_in_the_driver_is_named(driver: Path, kind: str, function: str) -> None:
    done = ask(driver, f"{kind}:{function}")
    assert (5, 5) == (done.returncode, json.loads(done.stdout)["error"]["exit_code"])
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: the NVIDIA driver {CRASHES[kind]} in `nvml")
    assert FUNCTIONS[function] in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_driver_that_cannot_shut_down_is_read(driver: Path, kind: str) -> None:
    assert 0 == ask(driver, f"{kind}:nvmlShutdown").returncode


def test_every_command_that_reads_gpus_keeps_to_the_time(driver: Path) -> None:
    for words in (("plan", "--model", "7b"), ("init", "--yes", "--no-script", "--model", "7b")):
        done = ask(driver, "hang:nvmlDeviceGetName:1", *words, "--probe-timeout", "1")
        assert 5 == done.returncode
        assert "error: GPU 1 did not answer: `nvmlDeviceGetName` has taken 1 s" in done.stderr
    assert 2 == ask(driver, None, "plan", "--model", "7b", "--probe-timeout", "0").returncode


def test_it_is_said_which_gpu_is_waited_for_and_ctrl_c_ends_the_wait(driver: Path) -> None:
    terminal = pexpect.spawn(
        ZEROWIZ[0], [*ZEROWIZ[1:], "machine"], env=environ(driver, "hang:nvmlDeviceGetName:1")
    )
    began = time.monotonic()
    terminal.expect(re.escape("waiting for GPU 1: `nvmlDeviceGetName` takes long"), timeout=SOON_S)
    assert time.monotonic() - began > 2
    [child] = [pid for pid in left_over(driver) if pid != terminal.pid]
    terminal.sendintr()
    terminal.expect(pexpect.EOF, timeout=SOON_S)
    terminal.close()
    assert 130 == terminal.exitstatus
    assert not Path(f"/proc/{child}").exists()


def test_a_driver_whose_calls_are_all_slow_shows_that_it_goes_on(driver: Path) -> None:
    done = ask(driver, "slow", "machine", "--json", "--probe-timeout", "1")
    assert 0 == done.returncode, done.stderr
    said = [line for line in done.stderr.splitlines() if "waiting for GPU" in line]
    assert 0 < len(said) <= 6
    assert len({*said}) == len(said)


def test_nothing_reads_a_driver_whose_reader_was_killed(driver: Path) -> None:
    process = subprocess.Popen(
        [*ZEROWIZ, "machine"],
        env=environ(driver, "hang:nvmlInitWithFlags"),
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + SOON_S
    while not left_over(driver):
        assert time.monotonic() < until, "nothing reads the driver"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + SOON_S
    while left_over(driver) and time.monotonic() < until:
        time.sleep(0.02)
    assert [] == left_over(driver)


def test_a_saved_machine_is_read_without_the_driver(driver: Path, tmp_path: Path) -> None:
    saved = tmp_path / "node.json"
    live = ask(driver, None, "machine", "--json", "--save", str(saved))
    assert 0 == live.returncode, live.stderr
    content = json.loads(saved.read_text())
    assert "NVIDIA H200" == content["machine"]["gpus"][1]["name"]
    again = ask(driver, "crash:load", "machine", "--json", "--machine", str(saved))
    assert 0 == again.returncode, again.stderr
    first, second = (json.loads(done.stdout)["machine"] for done in (live, again))
    assert first["gpus"] == second["gpus"]


def test_a_call_names_its_gpus() -> None:
    assert "GPU 3" == whose("nvmlDeviceGetName(gpu3)")
    assert "GPU 3" == whose("nvmlDeviceGetHandleByIndex_v2(3)")
    assert "GPU 2 and 13" == whose("nvmlDeviceGetP2PStatus(gpu2, gpu13, 0)")
    assert "GPU 1" == whose("nvmlDeviceGetName(gpu1.mig2)")
    assert "the NVIDIA driver" == whose("nvmlInit")
