"""Judge why a supervised job ended, from what its ranks and its launcher left behind."""

import signal
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import cast

from msgspec import Struct

from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.outcome.oom_text import died_for, last_error

# Of the lines that a rank left.
_TAIL_LINES = 40
# What a shell adds to the number of a signal for the exit status; worker/rank.py repeats it.
SIGNALLED = 128
_TERMINATED = SIGNALLED + signal.SIGTERM
KILLED = SIGNALLED + signal.SIGKILL
# Another process sent one of these signals.
_FROM_OUTSIDE = {
    SIGNALLED + each for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
}
# DeepSpeed's launcher leaves with `sys.exit(-9)`, which is 247 (deepspeed/launcher/launch.py, main,
# 0.19.8). 255, which would be SIGHUP, is left out: ssh and pdsh end so when they fail themselves.
_WRAPPED = {256 - each: SIGNALLED + each for each in signal.Signals if 1 < each < signal.SIGSYS}
# The status of `ssh`, and of pdsh, when a connection breaks.
_NODE_LOST = 255
# The difference between clocks of two processes, and the time of a signal to the rank.
_SLACK_S = 1.0
# Statuses of a sudden end. The parent learns of it only after the other ranks have noticed their
# broken connections. None is the end of a rank's supervisor, and of the rank with it.
_SUDDEN = {
    None,
    *(SIGNALLED + each for each in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)),
    *(SIGNALLED + each for each in (signal.SIGILL, signal.SIGFPE)),
}
# How a Python process that already ends with an error can get another status: its C++ threads
# crash, or a launcher that has seen another rank end first sends SIGTERM. And for how long it
# unwinds.
_WHILE_UNWINDING = {SIGNALLED + each for each in (signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM)}
_UNWINDING_S = 10.0
# How long a process that has failed may take to end: atexit handlers, uploads of logs. An older
# error was caught. worker/rank.py repeats it.
TAKING_DOWN_S = 300.0
# Python's exit status where it cannot flush its stdout, because nothing reads it any more; the
# launcher logs to stdout.
STDOUT_UNREAD = 120


class Cause(StrEnum):
    """Why a job ended."""

    FINISHED = "finished"
    CUDA_OOM = "cuda_oom"
    """A rank ran out of its accelerator's memory."""
    HOST_OOM = "host_oom"
    FAILED = "failed"
    """A rank ended by itself, with an error."""
    KILLED = "killed"
    """A rank died of a signal that neither zerowiz nor DeepSpeed sent."""
    STOPPED = "stopped"
    """zerowiz was asked to end by a signal."""
    LAUNCHER = "launcher"
    """DeepSpeed's launcher failed, or was killed."""
    NODE = "node"
    """A node no longer answers."""


class RankEnd(Struct, frozen=True, kw_only=True):
    """How one rank ended."""

    rank: int
    host: str
    status: int | None
    """The exit status, or 128 plus a signal's number; None where its supervisor died with it."""
    ended_at: float
    """When it was gone, in seconds since 1970."""
    failed_at: float | None = None
    """When the error that ended it began to show, in seconds since 1970; None where none did."""
    asked_at: float | None = None
    """When it was asked to end, because its launcher was gone or another rank had failed."""
    raised: bool = False
    """Whether its stderr shows an uncaught error."""
    cuda_oom: bool = False
    host_oom: bool = False
    tail: tuple[str, ...] = ()
    """The last lines of its stderr."""
    log: str = ""

    @property
    def since(self) -> float:
        """When it failed; a child process of it may print the error after its end."""
        return self.ended_at if self.failed_at is None else min(self.failed_at, self.ended_at)


class JobEnd(Struct, frozen=True, kw_only=True):
    """How a job ended."""

    status: int
    cause: Cause
    first: RankEnd | None = None
    """The rank that ended first; the others ended because of it."""
    launcher_status: int | None = None
    """As `subprocess` returns it: negative for a signal."""
    stopped_by: int | None = None
    """The signal that asked zerowiz to end; it need not be the cause."""


def parse_end(content: Mapping[str, object], log: str) -> RankEnd:
    """Interpret the file that `worker/rank.py` wrote when its rank had ended.

    Args:
        content: The JSON object of the file.
        log: The path of the rank's log.
    """
    status = cast("int", content["status"])
    lines = tuple(cast("Sequence[str]", content["tail"]))
    ended_at = cast("float", content["ended_at"])
    failed_at = cast("float | None", content["failed_at"])
    asked_at = cast("float | None", content["told_at"])
    by_exit = 0 < status < SIGNALLED
    within_s = TAKING_DOWN_S if by_exit else _UNWINDING_S
    is_recent = failed_at is not None and ended_at - failed_at < within_s
    asked_before = asked_at is not None and (failed_at is None or asked_at <= failed_at)
    unwinding = status in _WHILE_UNWINDING and is_recent and not asked_before
    was_caught = by_exit and failed_at is not None and not is_recent
    error = () if was_caught else last_error(lines, pythons=unwinding)
    failed = by_exit or (unwinding and bool(error))
    # A rank that died of a signal from outside did not fail, whatever it had printed before.
    by_itself = failed or status not in {0, *_FROM_OUTSIDE}
    memory = died_for(error, on_cpu=content["accelerator"] == "cpu") if by_itself else None
    return RankEnd(
        rank=cast("int", content["rank"]),
        host=cast("str", content["host"]),
        status=status,
        ended_at=ended_at,
        failed_at=failed_at if failed and is_recent else None,
        asked_at=asked_at,
        raised=bool(error),
        cuda_oom=memory is MemoryKind.GPU,
        host_oom=memory is MemoryKind.HOST or (status == KILLED and bool(content["oom_killed"])),
        tail=lines[-_TAIL_LINES:],
        log=log,
    )


def judge(
    ends: Sequence[RankEnd],
    *,
    launcher_status: int,
    ranks: int,
    stopped_by: int | None = None,
    stopped_at: float | None = None,
    lost: Collection[int] = (),
) -> JobEnd:
    """Why the job ended, and the exit status that says so.

    Args:
        ends: Of every rank that is known to have started.
        launcher_status: As `subprocess` returns it: negative for a signal.
        ranks: How many ends there must be for the job to have finished.
        stopped_by: The signal that asked zerowiz to end.
        stopped_at: When it came, in seconds since 1970.
        lost: Ranks of nodes that no longer answer.
    """
    failed = _in_order([end for end in ends if end.status != 0])
    asked = _asked_to_end(ends)
    # A launcher sends SIGTERM to the other ranks, so an end by SIGTERM alone is no failure.
    own = [
        end
        for end in failed
        if end.rank not in asked and (end.status != _TERMINATED or end.failed_at is not None)
    ]
    early = [end for end in own if end.since < (stopped_at or 0.0) - _SLACK_S]
    whole = len(ends) >= ranks and all(end.asked_at is None for end in ends)
    first = _first(own, failed)
    if not failed and launcher_status in {0, STDOUT_UNREAD} and whole:
        status, cause = 0, Cause.FINISHED
    elif stopped_by is not None and not early:
        status, cause = _status_when_stopped(own, stopped_by), Cause.STOPPED
    elif first is not None and first.rank in lost:
        status, cause = _NODE_LOST, Cause.NODE
    elif own and first is not None:
        status, cause = _judge_rank(first, own, launcher_status)
    else:
        status, cause = _judge_launcher({end.rank for end in failed} - asked, launcher_status)
    return JobEnd(
        status=status,
        cause=cause,
        first=first,
        launcher_status=launcher_status,
        stopped_by=stopped_by,
    )


def plain_status(launcher_status: int) -> int:
    """The launcher's status as a shell would give it for the rank: 128 plus a signal's number."""
    if launcher_status < 0:
        return SIGNALLED - launcher_status
    return _WRAPPED.get(launcher_status, launcher_status)


def _asked_to_end(ends: Sequence[RankEnd]) -> set[int]:
    """The ranks that ended because another one had failed.

    The ranks of a host are asked to end one after the other. The first of them breaks its
    connections to the next ones, which then fail before they are asked.
    """
    first: dict[str, float] = {}
    for end in ends:
        if end.asked_at is not None:
            first[end.host] = min(end.asked_at, first.get(end.host, end.asked_at))
    # The time of an end without a report is not exact enough.
    known = [end for end in ends if end.status is not None or end.asked_at is not None]
    return {end.rank for end in known if end.host in first and end.since >= first[end.host]}


def _in_order(failed: Sequence[RankEnd]) -> list[RankEnd]:
    """The failed ranks in the order of time.

    A rank that ended suddenly while all others ran did not end because of them. Its parent may
    have learned of it a moment after it happened, so it counts as _SLACK_S earlier.
    """
    first_gone = min((end.ended_at for end in failed), default=0.0)

    def by_time(end: RankEnd) -> tuple[float, int]:
        # Without a report, `ended_at` is when the rank was found missing.
        at = end.since - (_SLACK_S if end.status is None else 0.0)
        is_sudden = end.status in _SUDDEN and end.failed_at is None
        return at - (_SLACK_S if is_sudden and at <= first_gone else 0.0), end.rank

    return sorted(failed, key=by_time)


def _first(own: Sequence[RankEnd], failed: Sequence[RankEnd]) -> RankEnd | None:
    """The rank that the others ended for: one out of memory if there is one, else the earliest.

    No rank runs out of memory because another one has ended.
    """
    out_of_memory = [end for end in own if end.cuda_oom or end.host_oom]
    return next(iter((*out_of_memory, *own, *failed)), None)


def _status_when_stopped(own: Sequence[RankEnd], stopped_by: int) -> int:
    """The status that the script chose when it was asked to end, else that of the signal.

    A rank with an uncaught error chose nothing: it failed because the others had ended.
    """
    chosen = (
        end.status
        for end in own
        if end.status is not None and 0 < end.status < SIGNALLED and not end.raised
    )
    return next(chosen, SIGNALLED + stopped_by)


def _judge_rank(end: RankEnd, own: Sequence[RankEnd], launcher_status: int) -> tuple[int, Cause]:
    status = end.status
    if status is None:
        # The launcher returns the status of the first rank that it finds gone: maybe another one.
        of_launcher = plain_status(launcher_status)
        status = KILLED if of_launcher in {0, *(each.status for each in own)} else of_launcher
    elif status == _TERMINATED:
        # SIGTERM came while Python unwound; without it Python would have ended with 1.
        status = 1
    if end.cuda_oom:
        return status, Cause.CUDA_OOM
    if end.host_oom:
        return status, Cause.HOST_OOM
    # A rank with an error has failed, whatever signal came while it unwound.
    killed = status > SIGNALLED and end.failed_at is None
    return status, Cause.KILLED if killed else Cause.FAILED


def _judge_launcher(not_asked: Collection[int], launcher_status: int) -> tuple[int, Cause]:
    """Judge a job of which no rank failed by itself.

    Args:
        not_asked: Ranks that ended badly although nothing had asked them to end.
        launcher_status: As in `judge`.
    """
    if launcher_status == 0:
        # A signal ended the inner launcher; `deepspeed` returns 0 then (runner.py, main, 0.19.8).
        return KILLED, Cause.LAUNCHER
    if launcher_status > 0 and not_asked:
        # Something else sent SIGTERM to a rank.
        return _TERMINATED, Cause.KILLED
    return plain_status(launcher_status), Cause.LAUNCHER
