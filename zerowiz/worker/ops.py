"""Compile DeepSpeed's ops once, before the first case would spend a minute on it."""

import signal
import subprocess
import sys
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn


def start_builds(ops: Iterable[str]) -> list[subprocess.Popen[bytes]]:
    """A process for each builder, such as `FusedAdamBuilder`."""
    argv = [sys.executable, "-m", "zerowiz.worker.ops"]
    return [subprocess.Popen([*argv, op], stdin=subprocess.DEVNULL) for op in ops]  # noqa: S603


def finish_builds(builds: Iterable[subprocess.Popen[bytes]]) -> None:
    """Wait for all of them; a case says itself when its op is not there."""
    for build in builds:
        build.wait()


def unwind(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End this process as an error would, by its `finally` clauses."""
    raise SystemExit(1)


def build(op: str) -> None:
    """Compile one op, or find it compiled.

    torch's lock file outlives a process that is simply killed, and then every later build waits
    for it without end (torch/utils/file_baton.py): so a request to end unwinds.
    """
    signal.signal(signal.SIGTERM, unwind)
    # After the handler: loading takes seconds.
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415

    builder = get_accelerator().create_op_builder(op)
    if builder is not None:
        builder.load()


if __name__ == "__main__":
    build(sys.argv[1])
