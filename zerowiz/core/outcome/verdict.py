"""Judge how a supervised job ended, from what its ranks and its launcher left behind."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from zerowiz.core.decision.oom_history import MemoryKind
from zerowiz.core.outcome.oom_text import died_for, last_error

_TAIL_LINES = 40
# What a shell says of a signal.
_SIGNALLED = 128
_TERMINATED = _SIGNALLED + signal.SIGTERM
KILLED = _SIGNALLED + signal.SIGKILL
_FROM_OUTSIDE = {
    _SIGNALLED + each for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
}
# DeepSpeed's launcher leaves with `sys.exit(-9)`, which is 247 (deepspeed/launcher/launch.py, main,
# 0.19.8). 255, which would be SIGHUP, is left: ssh and pdsh end so when they fail themselves.
_WRAPPED = {256 - each: _SIGNALLED + each for each in signal.Signals if 1 < each < signal.SIGSYS}
# That of `ssh`, and of pdsh, when a connection breaks.
_NODE_LOST = 255
# Clocks of two processes, and a signal's way to the rank.
_SLACK_S = 1.0
# What a parent hears of later than its peers notice their broken connections; None is the end of
# who watched a rank, and of the rank with it.
_OUT_OF_NOWHERE = {
    None,
    *(_SIGNALLED + each for each in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)),
    *(_SIGNALLED + each for each in (signal.SIGILL, signal.SIGFPE)),
}
# How a Python that ends with an error can end in truth: threads of C++ crash it, or a launcher that
# has seen a peer end sooner tells it to. And for how long it unwinds.
_WHILE_UNWINDING = {_SIGNALLED + each for each in (signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM)}
_UNWINDING_S = 10.0
# How long one that has failed may take for the rest: handlers of atexit, uploads of logs. An error
# that is older was caught.
_TAKING_DOWN_S = 300.0
# Python's own, where it cannot flush a stdout that nobody reads any more; the launcher logs there.
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
    """zerowiz was told to end."""
    LAUNCHER = "launcher"
    """DeepSpeed's launcher failed, or was killed."""
    NODE = "node"
    """A node no longer answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    status: int | None
    """128 and the number of the signal that it died of; None where who watched it died with it."""
    ended_at: float
    """When it was gone, in seconds since 1970."""
    failed_at: float | None = None
    """When the error that it died of began to show; None where there is none."""
    told_at: float | None = None
    """When it was told to end: its launcher was gone, or another rank had failed."""
    raised: bool = False
    """An error that nobody caught shows."""
    cuda_oom: bool = False
    host_oom: bool = False
    tail: tuple[str, ...] = ()
    """The last lines of its stderr."""
    log: str = ""

    @property
    def since(self) -> float:
        """From when on it had failed; a child of it may say so even later."""
        return self.ended_at if self.failed_at is None else min(self.failed_at, self.ended_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """How a job ended."""

    status: int
    cause: Cause
    first: RankEnd | None = None
    """The rank that the others ended for."""
    launcher_status: int | None = None
    """As `subprocess` has it: negative for a signal."""
    stopped_by: int | None = None
    """The signal that told zerowiz to end, whatever the cause."""


def parse_end(content: Mapping[str, object], log: str) -> RankEnd:
    """What `worker/rank.py` wrote when its rank had ended."""
    status = cast("int", content["status"])
    lines = tuple(cast("Sequence[str]", content["tail"]))
    ended_at = cast("float", content["ended_at"])
    failed_at = cast("float | None", content["failed_at"])
    told_at = cast("float | None", content["told_at"])
    by_exit = 0 < status < _SIGNALLED
    within_s = _TAKING_DOWN_S if by_exit else _UNWINDING_S
    lately = failed_at is not None and ended_at - failed_at < within_s
    told_before = told_at is not None and (failed_at is None or told_at <= failed_at)
    unwinding = status in _WHILE_UNWINDING and lately and not told_before
    was_caught = by_exit and failed_at is not None and not lately
    error = () if was_caught else last_error(lines, pythons=unwinding)
    failed = by_exit or (unwinding and bool(error))
    # Who dies of these signals was ended from outside, whatever it had said.
    by_itself = failed or status not in {0, *_FROM_OUTSIDE}
    memory = died_for(error, on_cpu=content["accelerator"] == "cpu") if by_itself else None
    return RankEnd(
        rank=cast("int", content["rank"]),
        host=cast("str", content["host"]),
        status=status,
        ended_at=ended_at,
        failed_at=failed_at if failed and lately else None,
        told_at=told_at,
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
    """Why the job ended, and the status that tells it.

    Args:
        ends: Of every rank that is known to have started.
        launcher_status: As `subprocess` has it.
        ranks: How many ends there must be for the job to have finished.
        stopped_by: The signal that told zerowiz to end.
        stopped_at: When it came, in seconds since 1970.
        lost: Ranks of nodes that no longer answer.
    """
    failed = _in_order([end for end in ends if end.status != 0])
    told = _told(ends)
    # SIGTERM is what a launcher sends to the others; an end by it alone is no news of its own.
    own = [
        end
        for end in failed
        if end.rank not in told and (end.status != _TERMINATED or end.failed_at is not None)
    ]
    early = [end for end in own if end.since < (stopped_at or 0.0) - _SLACK_S]
    whole = len(ends) >= ranks and all(end.told_at is None for end in ends)
    first = _first(own, failed)
    if not failed and launcher_status in {0, STDOUT_UNREAD} and whole:
        status, cause = 0, Cause.FINISHED
    elif stopped_by is not None and not early:
        status, cause = _status_when_stopped(own, stopped_by), Cause.STOPPED
    elif first is not None and first.rank in lost:
        status, cause = _NODE_LOST, Cause.NODE
    elif own and first is not None:
        status, cause = _of_a_rank(first, own, launcher_status)
    else:
        status, cause = _of_the_launcher({end.rank for end in failed} - told, launcher_status)
    return JobEnd(
        status=status,
        cause=cause,
        first=first,
        launcher_status=launcher_status,
        stopped_by=stopped_by,
    )


def plain_status(launcher_status: int) -> int:
    """The launcher's status as a shell would have said it of the rank."""
    if launcher_status < 0:
        return _SIGNALLED - launcher_status
    return _WRAPPED.get(launcher_status, launcher_status)


def _told(ends: Sequence[RankEnd]) -> set[int]:
    """The ranks that ended for another's sake.

    Ranks of a host are told one after the other, and who was told first breaks the connections of
    those that will be.
    """
    first: dict[str, float] = {}
    for end in ends:
        if end.told_at is not None:
            first[end.host] = min(end.told_at, first.get(end.host, end.told_at))
    # When one that left nothing was gone is not known so well.
    known = [end for end in ends if end.status is not None or end.told_at is not None]
    return {end.rank for end in known if end.host in first and end.since >= first[end.host]}


def _in_order(failed: Sequence[RankEnd]) -> list[RankEnd]:
    """By when they failed.

    Who was killed while nobody was gone yet was killed for nobody's sake, and perhaps a moment
    before its parent heard of it.
    """
    first_gone = min((end.ended_at for end in failed), default=0.0)

    def place(end: RankEnd) -> tuple[float, int]:
        # Of who left nothing, the end is when it was missed.
        at = end.since - (_SLACK_S if end.status is None else 0.0)
        killed = end.status in _OUT_OF_NOWHERE and end.failed_at is None
        return at - (_SLACK_S if killed and at <= first_gone else 0.0), end.rank

    return sorted(failed, key=place)


def _first(own: Sequence[RankEnd], failed: Sequence[RankEnd]) -> RankEnd | None:
    """Who ran out of memory did not do so for another's sake; else the first in time."""
    hungry = [end for end in own if end.cuda_oom or end.host_oom]
    return next(iter((*hungry, *own, *failed)), None)


def _status_when_stopped(own: Sequence[RankEnd], stopped_by: int) -> int:
    """A script may answer the signal with a status of its own; an error is its peers' end."""
    chosen = (
        end.status
        for end in own
        if end.status is not None and 0 < end.status < _SIGNALLED and not end.raised
    )
    return next(chosen, _SIGNALLED + stopped_by)


def _of_a_rank(end: RankEnd, own: Sequence[RankEnd], launcher_status: int) -> tuple[int, Cause]:
    status = end.status
    if status is None:
        # The launcher tells the status of the first that it finds gone, which may be another.
        told = plain_status(launcher_status)
        status = KILLED if told in {0, *(each.status for each in own)} else told
    elif status == _TERMINATED:
        # It was told so while it unwound, and Python would have ended with this.
        status = 1
    if end.cuda_oom:
        return status, Cause.CUDA_OOM
    if end.host_oom:
        return status, Cause.HOST_OOM
    # Whatever ended it while it unwound, it has failed.
    killed = status > _SIGNALLED and end.failed_at is None
    return status, Cause.KILLED if killed else Cause.FAILED


def _of_the_launcher(untold: Collection[int], launcher_status: int) -> tuple[int, Cause]:
    """No rank failed by itself."""
    if launcher_status == 0:
        # A signal ended the inner launcher, and `deepspeed` says 0 (runner.py, main, 0.19.8).
        return KILLED, Cause.LAUNCHER
    if launcher_status > 0 and untold:
        # Somebody sent SIGTERM to a rank.
        return _TERMINATED, Cause.KILLED
    return plain_status(launcher_status), Cause.LAUNCHER
