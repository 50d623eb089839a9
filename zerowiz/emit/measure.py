"""Run a script for some optimizer steps, under the launcher that a launch starts."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zerowiz.core.job_end import JobEnd
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.emit.files import release, write_held
from zerowiz.emit.job import Watch, supervise
from zerowiz.emit.processes import handling

# `worker/measured_script.py` reads it.
STEPS_VARIABLE = "ZEROWIZ_MEASURED_STEPS"


def run_own_script(
    plan: LaunchPlan,
    watch: Watch,
    steps: int,
    deadline_s: int,
    environ: Mapping[str, str],
    *,
    force: bool = False,
) -> JobEnd:
    """Launch the script as `launch` does; its ranks end after so many optimizer steps.

    What it writes to stdout goes to stderr: stdout is for results.

    Args:
        plan: The launch.
        watch: What is supervised; in its folder the ranks report.
        steps: After which the ranks end.
        deadline_s: After it, the job is asked to end.
        environ: The caller's environment.
        force: Whether files that somebody changed are overwritten.

    Raises:
        ZerowizError: It could not be started.
    """
    held = write_held(plan.files, force=force)
    measured = {STEPS_VARIABLE: str(steps)}
    try:
        with _stdout_to_stderr(), _deadline(deadline_s):
            return supervise(plan.argv, {**plan.environ(environ), **measured}, watch)
    finally:
        release(held)
        _drop_shared_memory(plan.master_port)


def _drop_shared_memory(port: int | None) -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    pattern = f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"
    for buffer in Path("/dev/shm").glob(pattern):  # noqa: S108 - DeepSpeed's own place
        buffer.unlink(missing_ok=True)


@contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    pid = os.getpid()
    with handling([signal.SIGALRM], lambda _number, _frame: os.kill(pid, signal.SIGTERM)):
        signal.alarm(seconds)
        try:
            yield
        finally:
            signal.alarm(0)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
