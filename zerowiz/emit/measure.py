"""Run a batch of trials under the real `deepspeed` launcher, and hand over each as it ends."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

from zerowiz.core.measure.row import TrialEnd
from zerowiz.emit.processes import ENDING, PATIENCE_S, adopt_orphans, end_job, read_children
from zerowiz.errors import PreflightError, ZerowizError

# The ranks are started as a module by its name: no room imports that one.
_WORKER = "zerowiz.worker"
_POLL_S = 0.05
# A rank ends its own case at the deadline; this is for ranks that no longer answer.
_GRACE_S = 15.0
# What a build of an op, and torch's lock on it, need to unwind.
_PATIENCE_S = {**PATIENCE_S, signal.SIGTERM: 5.0}
# By its value a process of the job is known.
_MARK = "ZEROWIZ_MEASURE"
_TAIL_LINES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one launch measures."""

    cases: Sequence[Mapping[str, object]]
    ops: Sequence[str]
    """What DeepSpeed compiles, before the first case."""
    launcher: Sequence[str]
    """`deepspeed` and its options."""
    env: Mapping[str, str]
    deadline_s: float
    """For everything, the loading of the libraries included."""
    case_deadline_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A case that has ended on all its ranks."""

    place: int
    ends: tuple[TrialEnd, ...]
    log_tail: str
    """The last lines of the rank that failed first; empty when none did."""


def append_line(path: Path, line: str) -> None:
    """Add one line to a file of rows, which may not be there yet.

    Raises:
        ZerowizError: It cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        raise ZerowizError(f"cannot write `{path}`: {error.strerror}") from error


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, if there is one."""
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


def _case_folder(folder: Path, place: int) -> Path:
    return folder / f"case-{place}"


def _read_end(case: Path, rank: int) -> TrialEnd:
    end = _read(case / f"end-{rank}.json")
    return TrialEnd(
        rank=rank,
        report=_read(case / f"rank-{rank}.json"),
        status=cast("int", end.get("status", 1)),
        killed=cast("str | None", end.get("killed", "launcher")),
    )


def _read_case(folder: Path, place: int, ranks: int) -> Ended:
    """What the ranks of a case left behind; one that left no end was lost with the launcher."""
    case = _case_folder(folder, place)
    ends = tuple(_read_end(case, rank) for rank in range(ranks))
    failed = [end for end in ends if end.status != 0]
    # Who was ended for a peer's sake is no cause.
    first = min(failed, key=lambda end: end.killed == "peer", default=None)
    log_tail = "" if first is None else tail(case / f"rank-{first.rank}.log")
    return Ended(place=place, ends=ends, log_tail=log_tail)


def _has_ended(folder: Path, place: int, ranks: int) -> bool:
    case = _case_folder(folder, place)
    return all((case / f"end-{rank}.json").exists() for rank in range(ranks))


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _ending_with_us(
    process: subprocess.Popen[bytes], folder: Path, others: frozenset[int]
) -> Iterator[None]:
    """However this block is left, a request to end included, all of the job ends with it."""
    before = {each: signal.signal(each, _interrupt) for each in ENDING}
    try:
        yield
    finally:
        # Nobody's second request leaves the half of it.
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        end_job(f"{_MARK}={folder}", process.pid, _PATIENCE_S, others)
        process.poll()
        for each, handler in before.items():
            signal.signal(each, handler)


def _start(batch: Batch, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    content = {
        "folder": str(folder),
        "cases": list(batch.cases),
        "ops": list(batch.ops),
        "stop_at": time.time() + batch.deadline_s,
        "case_deadline_s": batch.case_deadline_s,
    }
    path = folder / "batch.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    # The ranks find zerowiz where this process found it, installed or not.
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH")]))
    argv = [*batch.launcher, "--module", _WORKER, str(path)]
    try:
        with (folder / "launcher.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - no shell is wanted
                argv,
                env={**environ, **batch.env, "PYTHONPATH": paths, _MARK: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise PreflightError(f"cannot start `{argv[0]}`: {error.strerror}") from error


def _follow(batch: Batch, folder: Path, process: subprocess.Popen[bytes]) -> Iterator[Ended]:
    """Each case as it ends, until all have or the launcher has."""
    until = time.monotonic() + batch.deadline_s + _GRACE_S
    for place, case in enumerate(batch.cases):
        ranks = cast("int", case["gpus"])
        while not _has_ended(folder, place, ranks):
            # A case can end between a look at it and the launcher's own end.
            gone = process.poll() is not None or time.monotonic() > until
            if gone and not _has_ended(folder, place, ranks):
                if (_case_folder(folder, place) / "start.json").exists():
                    yield _read_case(folder, place, ranks)
                return
            time.sleep(_POLL_S)
        yield _read_case(folder, place, ranks)


def run_batch(batch: Batch, environ: Mapping[str, str]) -> Generator[Ended, None, None]:
    """Start the launcher and yield each case as it ends; what never began is not yielded.

    Raises:
        ZerowizError: The launcher or its ranks ended before the first case began.
    """
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        folder = Path(name)
        adopt_orphans()
        others = read_children(os.getpid())
        process = _start(batch, folder, environ)
        with _ending_with_us(process, folder, others):
            yield from _follow(batch, folder, process)
            if not (_case_folder(folder, 0) / "start.json").exists():
                _refuse_launch(process, folder)


def _refuse_launch(process: subprocess.Popen[bytes], folder: Path) -> NoReturn:
    status = process.poll()
    how = "at the deadline" if not status else f"with status {status}"
    raise ZerowizError(
        f"the ranks ended {how}, before the first case began",
        *(line for line in tail(folder / "launcher.log").splitlines() if line.strip()),
    )
