"""Find the processes of a job on this host, signal them, and see that none is left."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
_PROC = Path("/proc")
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
# What was told to end, or lost its launcher, and what holds out against that.
PATIENCE_S = {signal.SIGTERM: 3.0, signal.SIGKILL: 30.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One process, told from a later one of the same pid by when it began."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """What `/proc/PID/stat` says (proc(5))."""

    process: Process
    parent: int
    group: int
    session: int
    is_dead: bool


def _read_row(pid: int) -> _Row | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name, in brackets, may hold anything.
    words = text.rpartition(b")")[2].split()
    return _Row(
        process=Process(pid=pid, start_ticks=int(words[19])),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        is_dead=words[0] in {b"Z", b"X"},
    )


def read_space() -> str:
    """What processes that can signal each other share; as `worker/rank.py` has it."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"


def adopt_orphans() -> None:
    """Become the parent of what the job leaves behind, instead of the host's first process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_alive(process: Process) -> bool:
    """Whether it still runs; one that nobody has asked about yet, after its end, does not."""
    row = _read_row(process.pid)
    return row is not None and row.process == process and not row.is_dead


def send(process: Process, number: int) -> None:
    """Signal this process, and no later one of its pid."""
    if is_alive(process):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def read_children(parent: int) -> frozenset[int]:
    """The pids of a process's children."""
    rows = (_read_row(int(e.name)) for e in os.scandir(_PROC) if e.name.isdigit())
    return frozenset(r.process.pid for r in rows if r is not None and r.parent == parent)


def find_job(mark: str, launcher: int | None, apart: Iterable[int] = ()) -> set[Process]:
    """The job's living processes on this host; its zombies that are ours are buried.

    Those are its launcher's group and session, those that carry its mark, what this process
    adopted, and all that descend from any of them.

    Args:
        mark: As `NAME=VALUE`, in the environment that the job was started with.
        launcher: The pid that it was started as, not yet waited for; None where it is not known.
        apart: Children of this process that are not the job's.
    """
    rows = {int(e.name): _read_row(int(e.name)) for e in os.scandir(_PROC) if e.name.isdigit()}
    living = {pid: row for pid, row in rows.items() if row is not None}
    here, others = os.getpid(), {os.getpid(), *apart}
    wanted = mark.encode()
    found = {
        pid
        for pid, row in living.items()
        if pid not in others
        and (launcher in {row.group, row.session} or row.parent == here or _carries(pid, wanted))
    }
    found |= _descendants(found, living) - others
    for pid in found:
        if living[pid].is_dead and living[pid].parent == here and pid != launcher:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return {living[pid].process for pid in found if not living[pid].is_dead}


def _descendants(roots: set[int], rows: Mapping[int, _Row]) -> set[int]:
    found, fresh = set(roots), set(roots)
    while fresh:
        fresh = {pid for pid, row in rows.items() if row.parent in fresh} - found
        found |= fresh
    return found


def end_job(
    mark: str,
    launcher: int | None,
    patience_s: Mapping[signal.Signals, float],
    apart: Iterable[int] = (),
) -> int:
    """Signal all that is left of the job, harder and harder; how many would not go.

    Args:
        mark: As in `find_job`.
        launcher: As in `find_job`.
        patience_s: How long to wait after each signal, in order.
        apart: As in `find_job`.
    """
    left: set[Process] = set()
    for number, wait_s in patience_s.items():
        told: set[Process] = set()
        until = time.monotonic() + wait_s
        # One that forked while it was looked for, and ended, has a child that was not seen.
        while left := find_job(mark, launcher, apart) or find_job(mark, launcher, apart):
            if time.monotonic() > until:
                break
            # A process can have been started since the last look.
            for process in left if number == signal.SIGKILL else left - told:
                send(process, number)
            told |= left
            time.sleep(_POLL_S)
        if not left:
            break
    return len(left)
