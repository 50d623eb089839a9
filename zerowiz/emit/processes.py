"""Find the processes of a job on this host, signal them, and see that none is left."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_POLL_S = 0.02
_PROC = Path("/proc")
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED_SIGNALS = (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
# How long to wait after each signal until the next: the first is for processes that lost their
# launcher or were asked to end already, the second for those that ignore it.
PATIENCE_S = {signal.SIGTERM: 3.0, signal.SIGKILL: 30.0}


class Process(Struct, frozen=True, kw_only=True):
    """One process; its start time distinguishes it from a later one with the same pid."""

    pid: int
    start_ticks: int
    """Clock ticks from the boot to its start (proc(5), stat, field 22)."""


class _ProcessStat(Struct, frozen=True, kw_only=True):
    """Fields of `/proc/PID/stat` (proc(5))."""

    process: Process
    parent: int
    group: int
    session: int
    is_dead: bool


def _read_stat(pid: int) -> _ProcessStat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in brackets, and may hold brackets and spaces itself.
    words = text.rpartition(b")")[2].split()
    return _ProcessStat(
        process=Process(pid=pid, start_ticks=int(words[19])),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        is_dead=words[0] in {b"Z", b"X"},
    )


def read_pid_namespace() -> str:
    """This boot and its PID namespace: processes of the same one can signal each other.

    `worker/rank.py` writes the same text for a rank.
    """
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"


def adopt_orphans() -> None:
    """Become the parent of the job's orphaned processes, instead of the host's first process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_alive(process: Process) -> bool:
    """Whether the process still runs; a zombie, whose parent has not waited for it, does not."""
    stat = _read_stat(process.pid)
    return stat is not None and stat.process == process and not stat.is_dead


def send(process: Process, number: int) -> None:
    """Signal this process, and no later one with the same pid."""
    if is_alive(process):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _has_variable(pid: int, variable: bytes) -> bool:
    try:
        return variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _read_stats() -> dict[int, _ProcessStat]:
    """Every process of this host, zombies included, by its pid."""
    pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
    return {pid: stat for pid in pids if (stat := _read_stat(pid)) is not None}


def read_children(parent: int) -> frozenset[int]:
    """The pids of a process's children, zombies included."""
    return frozenset(pid for pid, stat in _read_stats().items() if stat.parent == parent)


def find_job(
    job_variable: str, launcher: int | None, unrelated: Iterable[int] = ()
) -> set[Process]:
    """The job's living processes on this host; zombies among them that are our children are reaped.

    Those are the processes of its launcher's group and session, those with its variable in their
    environment, those that this process adopted, and all that descend from any of them.

    Args:
        job_variable: As `NAME=VALUE`; the job was started with it in its environment.
        launcher: The pid that it was started as, not yet waited for; None where it is not known.
        unrelated: Pids of children of this process that do not belong to the job.
    """
    stats = _read_stats()
    here, not_the_jobs = os.getpid(), {os.getpid(), *unrelated}
    wanted = os.fsencode(job_variable)  # a folder may have any name
    found = {
        pid
        for pid, stat in stats.items()
        if pid not in not_the_jobs
        and (
            launcher in {stat.group, stat.session}
            or stat.parent == here
            or _has_variable(pid, wanted)
        )
    }
    found |= _descendants(found, stats) - not_the_jobs
    for pid in found:
        if stats[pid].is_dead and stats[pid].parent == here and pid != launcher:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return {stats[pid].process for pid in found if not stats[pid].is_dead}


def _descendants(roots: set[int], stats: Mapping[int, _ProcessStat]) -> set[int]:
    found, fresh = set(roots), set(roots)
    while fresh:
        fresh = {pid for pid, stat in stats.items() if stat.parent in fresh} - found
        found |= fresh
    return found


def end_job(
    job_variable: str,
    launcher: int | None,
    patience_s: Mapping[signal.Signals, float],
    unrelated: Iterable[int] = (),
) -> int:
    """Send one signal after the other until no process of the job is left; how many are left.

    Args:
        job_variable: As in `find_job`.
        launcher: As in `find_job`.
        patience_s: How long to wait after each signal, in seconds, in order.
        unrelated: As in `find_job`.
    """

    def find() -> set[Process]:
        return find_job(job_variable, launcher, unrelated)

    left: set[Process] = set()
    for number, wait_s in patience_s.items():
        signalled: set[Process] = set()
        until = time.monotonic() + wait_s
        # A process that forked while /proc was read, and ended, has a child that was not seen.
        while left := find() or find():
            if time.monotonic() > until:
                break
            # A process can have been started since the last search.
            for process in left if number == signal.SIGKILL else left - signalled:
                send(process, number)
            signalled |= left
            time.sleep(_POLL_S)
        if not left:
            break
    return len(left)
