"""Run a person's own script for some optimizer steps, and read what its ranks measured."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import cast

from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.outcome.verdict import JobEnd
from zerowiz.emit.files import write_files
from zerowiz.emit.supervise import Watch, supervise

# `worker/measured_script.py` reads both.
STEPS_VARIABLE, FOLDER_VARIABLE = "ZEROWIZ_MEASURED_STEPS", "ZEROWIZ_MEASURED_FOLDER"


def run_own_script(
    plan: LaunchPlan,
    watch: Watch,
    steps: int,
    folder: Path,
    deadline_s: int,
    environ: Mapping[str, str],
    *,
    force: bool = False,
) -> JobEnd:
    """Launch the script as `launch` does; its ranks end after so many optimizer steps.

    What it writes to stdout goes to stderr: stdout is for results.

    Args:
        plan: The launch.
        watch: What is supervised.
        steps: After which the ranks end.
        folder: Where they report.
        deadline_s: After it, the job is asked to end.
        environ: The caller's environment.
        force: Whether files that somebody changed are overwritten.

    Raises:
        ZerowizError: It could not be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_files(plan.files, force=force)
    measured = {STEPS_VARIABLE: str(steps), FOLDER_VARIABLE: str(folder)}
    try:
        with _stdout_to_stderr(), _deadline(deadline_s):
            return supervise(plan.argv, {**plan.environ(environ), **measured}, watch)
    finally:
        _drop_shared_memory(plan.master_port)


def _drop_shared_memory(port: int | None) -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    pattern = f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"
    for buffer in Path("/dev/shm").glob(pattern):  # noqa: S108 - DeepSpeed's own place
        buffer.unlink(missing_ok=True)


def read_rank_reports(folder: Path, ranks: int) -> tuple[Mapping[str, object], ...]:
    """What each rank measured; empty for one that said nothing."""
    return tuple(_read(folder / f"rank-{rank}.json") for rank in range(ranks))


def _read(path: Path) -> Mapping[str, object]:
    with suppress(OSError, ValueError):
        return cast("Mapping[str, object]", json.loads(path.read_text(encoding="utf-8")))
    return {}


def _ask_to_end(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _ask_to_end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
