"""Run a batch of trials under the real `deepspeed` launcher, and yield each as it ends.

`worker/batch_files.py` is the other side of every file here (`tests/worker/test_contract.py` holds
the two together).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

from msgspec import Struct

from zerowiz.core.job_end import JobEnd
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.measured_row import TrialEnd
from zerowiz.emit.files import release, write_held
from zerowiz.emit.job import Watch, supervise
from zerowiz.emit.processes import ENDING_SIGNALS, PATIENCE_S, adopt_orphans, end_job, read_children
from zerowiz.errors import PreflightError, ZerowizError

# The ranks are started by the name of their module: no room imports worker.
WORKER_MODULE = "zerowiz.worker"
# Why a rank's case was killed: another rank had failed.
KILLED_FOR_PEER = "peer"
# Where a rank left no end: it was lost with the launcher.
KILLED_WITH_LAUNCHER = "launcher"
_POLL_S = 0.05
# A rank ends its own case at the deadline; this is for ranks that no longer answer.
_GRACE_S = 15.0
# The build of an op, which removes torch's lock on it, needs longer than other processes to unwind.
_PATIENCE_S = {**PATIENCE_S, signal.SIGTERM: 5.0}
# Every process of the job has this variable, with the folder as its value.
_JOB_VARIABLE = "ZEROWIZ_MEASURE"
_TAIL_LINES = 12

OnBegin = Callable[[int], None]


class Batch(Struct, frozen=True, kw_only=True):
    """What one launch measures."""

    cases: Sequence[Mapping[str, object]]
    ops: Sequence[str]
    """The builders of the ops that DeepSpeed compiles before the first case."""
    launcher: Sequence[str]
    """`deepspeed` and its options."""
    env: Mapping[str, str]
    """Variables that the job needs beyond the caller's environment."""
    deadline_s: float
    """For the whole batch, with the loading of the libraries."""
    case_deadline_s: float
    cores: Sequence[int] = ()
    """Those that the ranks of a case that offloads divide; none where they cannot be bound."""


class EndedCase(Struct, frozen=True, kw_only=True):
    """A case that has ended on all its ranks."""

    index: int
    """In the batch, from 0."""
    ends: tuple[TrialEnd, ...]
    log_tail: str
    """The last lines of the rank that failed first; empty when none did."""


def append_line(path: Path, line: str) -> None:
    """Append one line to a file of rows; a missing file is made.

    Raises:
        ZerowizError: The file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        raise ZerowizError(
            f"cannot write `{path}`: {error.strerror}",
            "choose another file with `--output FILE`",
        ) from error


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _read(path: Path) -> Mapping[str, object]:
    try:
        return cast("Mapping[str, object]", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def case_folder(folder: Path, index: int) -> Path:
    """The folder of a case, in that of its batch."""
    return folder / f"case-{index}"


def start_file(case: Path) -> Path:
    """What rank 0 writes when it begins a case."""
    return case / "start.json"


def report_file(case: Path, rank: int) -> Path:
    """What a rank has measured of a case so far."""
    return case / f"rank-{rank}.json"


def end_file(case: Path, rank: int) -> Path:
    """How a case ended on a rank."""
    return case / f"end-{rank}.json"


def log_file(case: Path, rank: int) -> Path:
    """What a rank prints while it runs a case."""
    return case / f"rank-{rank}.log"


def _has_begun(folder: Path, index: int) -> bool:
    return start_file(case_folder(folder, index)).exists()


def _read_end(case: Path, rank: int) -> TrialEnd:
    end = _read(end_file(case, rank))
    return TrialEnd(
        rank=rank,
        report=_read(report_file(case, rank)),
        status=cast("int", end.get("status", 1)),
        killed=cast("str | None", end.get("killed", KILLED_WITH_LAUNCHER)),
        seconds=cast("float | None", end.get("seconds")),
    )


def _read_case(folder: Path, index: int, ranks: int) -> EndedCase:
    """What the ranks of a case left behind; a rank without an end was lost with the launcher."""
    case = case_folder(folder, index)
    ends = tuple(_read_end(case, rank) for rank in range(ranks))
    failed = [end for end in ends if end.status != 0]
    # A rank that was killed because another one had failed is not the cause.
    first = min(failed, key=lambda end: end.killed == KILLED_FOR_PEER, default=None)
    log_tail = "" if first is None else tail(log_file(case, first.rank))
    return EndedCase(index=index, ends=ends, log_tail=log_tail)


def _has_ended(folder: Path, index: int, ranks: int) -> bool:
    case = case_folder(folder, index)
    return all(end_file(case, rank).exists() for rank in range(ranks))


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _ending_job(
    process: subprocess.Popen[bytes], folder: Path, unrelated: frozenset[int]
) -> Iterator[None]:
    """End every process of the job when this block ends, also by a signal that asks for an end.

    A signal that was ignored before, as `nohup` does it, stays ignored.
    """
    caught = [
        ending_signal
        for ending_signal in ENDING_SIGNALS
        if signal.getsignal(ending_signal) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, _interrupt) for number in caught}
    try:
        yield
    finally:
        # A second request must not interrupt this.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        end_job(f"{_JOB_VARIABLE}={folder}", process.pid, _PATIENCE_S, unrelated)
        process.poll()
        for number, handler in before.items():
            signal.signal(number, handler)


def start_batch(batch: Batch, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the launcher over a batch, which is written into the folder first.

    Raises:
        PreflightError: The launcher could not be started.
    """
    content = {
        "folder": str(folder),
        "cases": list(batch.cases),
        "ops": list(batch.ops),
        "stop_at": time.time() + batch.deadline_s,
        "case_deadline_s": batch.case_deadline_s,
        "cores": list(batch.cores),
    }
    path = folder / "batch.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    # The ranks find zerowiz where this process found it, installed or not.
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH")]))
    argv = [*batch.launcher, "--module", WORKER_MODULE, str(path)]
    try:
        with (folder / "launcher.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - no shell is wanted
                argv,
                env={**environ, **batch.env, "PYTHONPATH": paths, _JOB_VARIABLE: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise PreflightError(
            f"cannot start `{argv[0]}`: {error.strerror}",
            "see what the launch needs: `zerowiz doctor SCRIPT`",
        ) from error


def _follow(
    batch: Batch, folder: Path, process: subprocess.Popen[bytes], on_begin: OnBegin
) -> Iterator[EndedCase]:
    """Yield each case as it ends, until all cases have ended or the launcher has."""
    until = time.monotonic() + batch.deadline_s + _GRACE_S
    for index, case in enumerate(batch.cases):
        ranks, begun = cast("int", case["gpus"]), False
        while not _has_ended(folder, index, ranks):
            if not begun and _has_begun(folder, index):
                begun = True
                on_begin(index)
            # A case can end between the check above and the end of the launcher.
            gone = process.poll() is not None or time.monotonic() > until
            if gone and not _has_ended(folder, index, ranks):
                if _has_begun(folder, index):
                    yield _read_case(folder, index, ranks)
                return
            time.sleep(_POLL_S)
        yield _read_case(folder, index, ranks)


def run_batch(
    batch: Batch, environ: Mapping[str, str], on_begin: OnBegin = lambda _index: None
) -> Generator[EndedCase, None, None]:
    """Start the launcher and yield each case as it ends; a case that never began is not yielded.

    Args:
        batch: What is measured.
        environ: The caller's environment.
        on_begin: Takes the index of each case that begins, unless it has ended by then.

    Raises:
        PreflightError: The launcher could not be started.
        ZerowizError: The launcher or its ranks ended before the first case began.
    """
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        folder = Path(name)
        adopt_orphans()
        unrelated = read_children(os.getpid())
        process = start_batch(batch, folder, environ)
        with _ending_job(process, folder, unrelated):
            yield from _follow(batch, folder, process, on_begin)
            if not _has_begun(folder, 0):
                _raise_failed_start(process, folder)


def _raise_failed_start(process: subprocess.Popen[bytes], folder: Path) -> NoReturn:
    status = process.poll()
    how = "at the deadline" if not status else f"with status {status}"
    ended = f"the ranks ended {how}, before the first case began"
    if not status:
        # What the launcher wrote until then says nothing of it.
        raise ZerowizError(ended, "set a longer `--deadline`: DeepSpeed has to start first")
    log = tail(folder / "launcher.log").splitlines()
    raise ZerowizError(ended, *(line for line in log if line.strip()))


# Run a person's own script for some optimizer steps.

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
