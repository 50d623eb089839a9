"""Compile DeepSpeed's ops before the first case, which would otherwise spend a minute on it."""

import signal
import subprocess
import sys
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn


def start_builds(ops: Iterable[str]) -> list[subprocess.Popen[bytes]]:
    """Start a process for each builder, such as `FusedAdamBuilder`."""
    argv = [sys.executable, "-m", "zerowiz.worker.ops"]
    return [subprocess.Popen([*argv, op], stdin=subprocess.DEVNULL) for op in ops]  # noqa: S603


def finish_builds(builds: Iterable[subprocess.Popen[bytes]]) -> None:
    """Wait for all of them; a case whose op could not be built fails with an error of its own."""
    for build in builds:
        build.wait()


def raise_exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Handle a signal by SystemExit, so that `finally` clauses run."""
    raise SystemExit(1)


def build(op: str) -> None:
    """Compile one op, unless it is compiled already.

    torch's lock file outlives a process that is killed, and every later build then waits for it
    without end (torch/utils/file_baton.py). So SIGTERM unwinds, which removes the file.
    """
    signal.signal(signal.SIGTERM, raise_exit)
    # After the handler is set: loading takes seconds.
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415

    builder = get_accelerator().create_op_builder(op)
    if builder is not None:
        builder.load()


if __name__ == "__main__":
    build(sys.argv[1])
