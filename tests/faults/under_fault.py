"""Run zerowiz over a recorded driver in which one call fails: RECORDING FAULT SYMBOL GPU WORDS...

The driver is read as a real one is, in a child process, so that a call may hang or crash.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pynvml

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.table import Fault, error, fault_table, garbage
from recorded import library

from zerowiz.cli.commands import main

_SIGNALS = {"crash": signal.SIGSEGV, "abort": signal.SIGABRT}
_LONG_S = 60


def fault_of(name: str) -> Fault:
    """What a call does: `error:15`, `garbage:7`, `hang`, `crash`, `abort`, or `none`."""
    kind, _, value = name.partition(":")
    if kind in {"error", "garbage"}:
        return {"error": error, "garbage": garbage}[kind](int(value))

    def fail(_: object) -> int:
        if kind == "hang":
            time.sleep(_LONG_S)
        os.kill(os.getpid(), _SIGNALS[kind])
        return 0

    return fail


if __name__ == "__main__":
    recording, fault, symbol, gpu, *words = sys.argv[1:]
    table = library(recording)
    if fault != "none":
        table = fault_table(table, symbol, fault_of(fault), gpu or None)  # type: ignore[assignment]
    pynvml.nvmlLib = table
    sys.argv = ["zerowiz", *words]
    main()
