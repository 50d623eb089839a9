"""The process that reads the driver gets its time for each call, and nobody waits for its end."""

import os
import signal
import time

import pytest

from zerowiz.core.settings import PROBE_TIMEOUT
from zerowiz.probe.machine.nvml_child import Announce, DriverFailedError, read_in_child
from zerowiz.probe.recording import CALL_TIMEOUT_S, FileAnswers, RecordedFiles, World

FILES = RecordedFiles(answers=FileAnswers())
HERE = World(files=FILES, environ={}, call_timeout_s=1)


def test_the_time_is_that_of_one_call() -> None:
    def read(_world: World, announce: Announce) -> int:
        for gpu in range(3):
            announce(f"nvmlDeviceGetName(gpu{gpu})")
            time.sleep(0.6)
            announce("")
        return 7

    assert 7 == read_in_child(HERE, read)


def test_nobody_waits_for_a_process_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    def read(_world: World, announce: Announce) -> None:
        announce("nvmlDeviceGetName(gpu0)")
        time.sleep(60)

    # As a process that sleeps in the kernel takes it.
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, _signal: killed.append(pid))
        began = time.monotonic()
        with pytest.raises(DriverFailedError, match="GPU 0 did not answer: `nvmlDeviceGetName`"):
            read_in_child(HERE, read)
        assert time.monotonic() - began < 10
    [pid] = killed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_time_that_a_call_has_is_that_of_the_help() -> None:
    assert PROBE_TIMEOUT.default == f"{CALL_TIMEOUT_S:g}"
    assert 30 == World(files=FILES, environ={}).call_timeout_s
