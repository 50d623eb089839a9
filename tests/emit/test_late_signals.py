"""A signal that comes before a job, or after its end, is heard; a known status stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerowiz.emit.job import noted_signals

DEAF = """
import sys, time
from zerowiz.emit.job import ignore_signals
ignore_signals()
print("deaf", flush=True)
time.sleep(1)
sys.exit(7)
"""

JUDGED = """
import os, signal
from pathlib import Path
from zerowiz.emit import job
from zerowiz.emit.job import noted_signals
from zerowiz.emit.job import Watch, supervise
judge = job.SupervisedJob.judge
def judge_and_be_told(self):
    end = judge(self)
    os.kill(os.getpid(), signal.SIGTERM)
    return end
job.SupervisedJob.judge = judge_and_be_told
watch = Watch(folder=Path({folder!r}), ranks=0, local_ranks=(), grace_s=1.0)
with noted_signals() as told:
    end = supervise(["true"], os.environ, watch)
print(end.status, told)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_asks_for_an_end_is_noted_and_its_handler_comes_back(number: signal.Signals) -> None:
    # A shell without job control has what it starts in the background ignore SIGINT.
    outside = signal.signal(number, signal.SIG_DFL)
    try:
        with noted_signals() as told:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        assert [number] == told
        assert signal.SIG_DFL is signal.getsignal(number)
    finally:
        signal.signal(number, outside)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_signals() as told:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
        assert [] == told
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_when_the_job_is_judged_is_heard_after_it(tmp_path: Path) -> None:
    script = JUDGED.format(folder=str(tmp_path / "attempt"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, "0 [15]\n") == (done.returncode, done.stdout), done.stderr


def test_a_signal_that_came_before_the_job_ends_it(tmp_path: Path) -> None:
    script = (
        "import os; from pathlib import *; from zerowiz.emit.job import Watch, supervise\n"
        f"watch = Watch(folder=Path({str(tmp_path / 'attempt')!r}), ranks=1, local_ranks=(0,), grace_s=9)\n"
        "end = supervise(['sleep', '60'], os.environ, watch, [15])\n"
        "print(end.status, end.cause)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=40, check=False
    )
    assert "143 stopped\n" == done.stdout, done.stderr


def test_a_known_status_stays_whatever_is_sent() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"deaf\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert 7 == process.wait(timeout=30)
