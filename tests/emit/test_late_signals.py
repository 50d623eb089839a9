import os
import signal
import subprocess
import sys
import time

import pytest

from zerowiz.emit.late_signals import noted_signals

DEAF = """
import sys, time
from zerowiz.emit.late_signals import ignore_signals
ignore_signals()
print("deaf", flush=True)
time.sleep(1)
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_asks_for_an_end_is_noted_and_its_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with noted_signals() as told:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    assert [number] == told
    assert before is signal.getsignal(number)


def test_a_known_status_stays_whatever_is_sent() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"deaf\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert 7 == process.wait(timeout=30)
