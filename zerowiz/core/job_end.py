"""Why an attempt ended, what its ranks measured beside the prediction, and what follows."""

import hashlib
import json
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import cast

from msgspec import Struct, structs

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.job import Job, RanOut
from zerowiz.core.launch.plan import ResumeFrom
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.speed.costs import (
    COSTS,
    Calibration,
    Costs,
    MeasuredStep,
    Term,
    TermKind,
    calibrate,
)
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import encode, replace


class PredictedFigures(Struct, frozen=True, kw_only=True):
    """What a plan says of one rank."""

    peak_bytes: int
    """Of torch's allocator; of a CPU rank, without Python and its libraries."""
    step_seconds: float | None = None
    low_step_seconds: float | None = None
    high_step_seconds: float | None = None


class MeasuredFigures(Struct, frozen=True, kw_only=True):
    """What the ranks of one attempt measured of themselves."""

    ranks: int
    """How many reported; with a folder on each node, those of this node."""
    peak_bytes: int | None
    """Of the rank that held most, as of PredictedFigures."""
    step_seconds: float | None
    """Of the slowest rank, once steps take equally long; None after too few."""
    outside_bytes: int | None = None
    """What else that rank's process held when its engine was built; None on GPUs."""


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """How far a prediction is off, signed, as a fraction of what was measured."""
    if predicted is None or not measured:
        return None
    return predicted / measured - 1


# Find in the last lines of a rank whether it ran out of memory, and of which memory.

# The texts that name each memory: of torch 2.13, CUDA, cuBLAS, cuDNN 8 and 9, NCCL, Triton and
# bitsandbytes; and of Python, C++, numpy, pyarrow and torch (c10/core/impl/alloc_cpu.cpp). What
# looks like one is none: the memory that a block of threads shares, /dev/shm, locked memory.
_TEXTS: Mapping[MemoryKind, re.Pattern[str]] = {
    MemoryKind.GPU: re.compile(
        r"torch\.(cuda\.)?OutOfMemoryError|(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory"
        r"|Cuda failure[ \d]*'?out of memory|Failed to CUDA calloc"
        r"|Triton Error \[\w+\]: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_(INTERNAL_ERROR_DEVICE_ALLOCATION|ALLOC)_FAILED"
        r"|^Error out of memory at line \d+ in file"
    ),
    MemoryKind.HOST: re.compile(
        r"^(\[rank\d+\]: *)?([\w.]*_Array|[\w.]*Arrow)?MemoryError\b|std::bad_alloc"
        r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
        r"|^(?!.*\bibv_).*Cannot allocate memory"
    ),
}
# A child of the rank: where the kernel counted a kill for want of memory, it was that.
_CHILD_KILLED = re.compile(r"DataLoader worker \(pid.*\) is killed by signal: Killed")

# How an uncaught error begins, in Python, in C++ and in bitsandbytes, which then exits. "terminate
# called without an active exception" is not one: a thread still ran when Python had ended, for a
# reason of its own.
TRACEBACK = "Traceback (most recent call last)"
_PYTHONS = re.compile(re.escape(TRACEBACK))
_UNCAUGHT = re.compile(
    rf"{_PYTHONS.pattern}|^terminate called after|^Error .+ at line \d+ in file .*csrc"
)
# Above an error that ends nothing Python prints one of these: in a thread, in a child process of
# multiprocessing, or while the interpreter shuts down. worker/rank.py repeats it.
ENDS_NOTHING = re.compile(
    r"Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|^Process \S+:$"
)
# Stands between an error and the one that it caused (traceback.py of Python).
_HANDLED = re.compile(r"During handling of the above exception")
_CHAINED = re.compile(rf"{_HANDLED.pattern}|The above exception was the direct cause")
# What torch and NCCL raise when a GPU or a connection fails: where a rank that is out of memory
# still cleans up, such an error follows. Any other is a mistake of its own.
_CLEANING_UP = re.compile(r"(\[rank\d+\]: )?(RuntimeError|torch\.[\w.]+)\b")
# The frames of a traceback, as Python, torch's hook of a rank, a group of errors and rich print
# them: they quote the script, whatever it says.
_FRAME = re.compile(r"(\[rank\d+\]: )?( *\| )?( {2}File | {4})|[│╰]")


def last_error(lines: Sequence[str], *, pythons: bool = False) -> tuple[str, ...]:
    """The lines from the last uncaught error on, with the errors that caused it; empty for none.

    Args:
        lines: The last lines of a rank's stderr.
        pythons: Whether only Python's errors count; one of C++ is then a result of the end.
    """
    opens = _PYTHONS if pythons else _UNCAUGHT
    start: int | None = None
    chained = False
    for number, line in enumerate(lines):
        if _CHAINED.search(line):
            chained = True
        elif opens.search(line):
            if start is not None and ENDS_NOTHING.search(lines[number - 1]):
                continue
            start = number if start is None or not chained else start
            chained = False
    return () if start is None else tuple(lines[start:])


def died_for(error: Sequence[str], *, on_cpu: bool) -> MemoryKind | None:
    """Which memory an error says was too small; None where it says nothing of memory.

    Args:
        error: The error that ended the rank, of `last_error`.
        on_cpu: Whether the accelerator is the CPU: such a rank has the host's memory alone.
    """
    lines = _reasons(error)
    kinds = (MemoryKind.HOST,) if on_cpu else (MemoryKind.GPU, MemoryKind.HOST)
    return next((kind for kind in kinds if any(map(_TEXTS[kind].search, lines))), None)


def _reasons(error: Sequence[str]) -> Sequence[str]:
    """The last error and its causes, without what they quote, and one that was handled before."""
    lines = [line for line in error if not _FRAME.match(line)]
    opened = max((n for n, line in enumerate(lines) if _UNCAUGHT.search(line)), default=0)
    if any(_CLEANING_UP.match(line) for line in lines[opened + 1 : opened + 2]):
        return lines
    return lines[max((n for n, line in enumerate(lines) if _HANDLED.search(line)), default=0) :]


# Judge why a supervised job ended, from what its ranks and its launcher left behind.

# Of the lines that a rank left.
_TAIL_LINES = 40
# What a shell adds to the number of a signal for the exit status; worker/rank.py repeats it.
SIGNALLED = 128
_TERMINATED = SIGNALLED + signal.SIGTERM
KILLED = SIGNALLED + signal.SIGKILL
# Another process sent one of these signals.
_FROM_OUTSIDE = {
    SIGNALLED + number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
}
# DeepSpeed's launcher leaves with `sys.exit(-9)`, which is 247 (deepspeed/launcher/launch.py, main,
# 0.19.8). 255, which would be SIGHUP, is left out: ssh and pdsh end so when they fail themselves.
_WRAPPED = {
    256 - number: SIGNALLED + number for number in signal.Signals if 1 < number < signal.SIGSYS
}
# The status of `ssh`, and of pdsh, when a connection breaks.
_NODE_LOST = 255
# The difference between clocks of two processes, and the time of a signal to the rank.
_SLACK_S = 1.0
# Statuses of a sudden end. The parent learns of it only after the other ranks have noticed their
# broken connections. None is the end of a rank's supervisor, and of the rank with it.
_SUDDEN = {
    None,
    *(SIGNALLED + number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)),
    *(SIGNALLED + number for number in (signal.SIGILL, signal.SIGFPE)),
}
# How a Python process that already ends with an error can get another status: its C++ threads
# crash, or a launcher that has seen another rank end first sends SIGTERM. And for how long it
# unwinds.
_WHILE_UNWINDING = {
    SIGNALLED + number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM)
}
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
    """A rank ran out of its GPU's memory."""
    HOST_OOM = "host_oom"
    """The host ran out of memory, or a rank that trains on its CPU did."""
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


_WANT_OF = {MemoryKind.GPU: Cause.CUDA_OOM, MemoryKind.HOST: Cause.HOST_OOM}


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
    exited: bool = False
    """Whether it chose the status itself: after `sys.exit(137)` there was no SIGKILL."""
    memory: MemoryKind | None = None
    """What it ran out of."""
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
    exited = cast("bool", content["exited"])
    by_exit = exited and status != 0
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
    killed = not exited and status == KILLED
    killed = killed or (by_itself and any(map(_CHILD_KILLED.search, _reasons(error))))
    return RankEnd(
        rank=cast("int", content["rank"]),
        host=cast("str", content["host"]),
        status=status,
        ended_at=ended_at,
        failed_at=failed_at if failed and is_recent else None,
        asked_at=asked_at,
        raised=bool(error),
        exited=exited,
        memory=memory or (MemoryKind.HOST if killed and content["oom_killed"] else None),
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
    culprits = [
        end
        for end in failed
        if end.rank not in asked and (end.status != _TERMINATED or end.failed_at is not None)
    ]
    early = [end for end in culprits if end.since < (stopped_at or 0.0) - _SLACK_S]
    whole = len(ends) >= ranks and all(end.asked_at is None for end in ends)
    # No rank runs out of memory because another one has ended.
    out_of_memory = [end for end in culprits if end.memory is not None]
    first = next(iter((*out_of_memory, *culprits, *failed)), None)
    if not failed and launcher_status in {0, STDOUT_UNREAD} and whole:
        status, cause = 0, Cause.FINISHED
    elif stopped_by is not None and not early:
        status, cause = _status_when_stopped(culprits, stopped_by), Cause.STOPPED
    elif first is not None and first.rank in lost:
        status, cause = _NODE_LOST, Cause.NODE
    elif culprits and first is not None:
        status, cause = _judge_rank(first, culprits, launcher_status)
    else:
        status, cause = _judge_launcher({end.rank for end in failed} - asked, launcher_status)
    return JobEnd(
        status=status,
        cause=cause,
        first=first,
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
        is_sudden = end.status in _SUDDEN and not end.exited and end.failed_at is None
        return at - (_SLACK_S if is_sudden and at <= first_gone else 0.0), end.rank

    return sorted(failed, key=by_time)


def _status_when_stopped(culprits: Sequence[RankEnd], stopped_by: int) -> int:
    """The status that the script chose when it was asked to end, else that of the signal.

    A rank with an uncaught error chose nothing: it failed because the others had ended.
    """
    chosen = (
        end.status
        for end in culprits
        if end.status is not None and 0 < end.status < SIGNALLED and not end.raised
    )
    return next(chosen, SIGNALLED + stopped_by)


def _judge_rank(
    end: RankEnd, culprits: Sequence[RankEnd], launcher_status: int
) -> tuple[int, Cause]:
    status = end.status
    if status is None:
        # The launcher returns the status of the first rank that it finds gone: maybe another one.
        of_launcher = plain_status(launcher_status)
        status = (
            KILLED if of_launcher in {0, *(other.status for other in culprits)} else of_launcher
        )
    elif status == _TERMINATED:
        # SIGTERM came while Python unwound; without it Python would have ended with 1.
        status = 1
    if end.memory is not None:
        return status, _WANT_OF[end.memory]
    # A rank with an error has failed, whatever signal came while it unwound.
    killed = status > SIGNALLED and not end.exited and end.failed_at is None
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


# The record of a run, `zerowiz-run.json`: its attempts, and how each of them ended.

SCHEMA_VERSION = 1
FILE_NAME = "zerowiz-run.json"


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """One start of the job."""

    strategy: str
    why: str
    """Why this strategy was chosen, in a sentence."""
    config_path: str
    plan_path: str | None
    command: tuple[str, ...]
    """With passwords replaced."""
    env: Mapping[str, str]
    logs: str
    """The folder with one log for each rank."""
    resume_from: ResumeFrom
    resume_path: str | None
    started_at: str
    """In UTC, such as 2026-11-22T04:30:00Z."""
    predicted: PredictedFigures
    ended_at: str | None = None
    end: JobEnd | None = None
    measured: MeasuredFigures | None = None
    """None as long as it runs, and where no rank took a step that DeepSpeed's engine counts."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """All attempts of one launch."""

    zerowiz_version: str
    script: str
    script_args: tuple[str, ...]
    """With passwords replaced."""
    job: str | None
    """The scheduler's identifier of the job."""
    attempts: tuple[AttemptRecord, ...]
    exit_status: int | None = None
    """None as long as the run lasts."""


def _encode_end(end: JobEnd | None) -> dict[str, object] | None:
    if end is None:
        return None
    first = end.first
    return {
        "status": end.status,
        "cause": end.cause.value,
        "rank": None if first is None else first.rank,
        "host": None if first is None else first.host,
        "log": None if first is None else first.log,
        "last_lines": [] if first is None else list(first.tail),
    }


def render_record(record: RunRecord) -> str:
    """The record as JSON.

    Args:
        record: With at least one attempt.
    """
    first, last = record.attempts[0], record.attempts[-1]
    content = {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": record.zerowiz_version,
        "script": record.script,
        "script_args": list(record.script_args),
        "job": record.job,
        "started_at": first.started_at,
        "ended_at": None if record.exit_status is None else last.ended_at,
        "exit": record.exit_status,
        "attempts": [
            {
                "number": number,
                "strategy": attempt.strategy,
                "why": attempt.why,
                "config_path": attempt.config_path,
                "plan_path": attempt.plan_path,
                "command": list(attempt.command),
                "env": dict(attempt.env),
                "logs": attempt.logs,
                "goes_on_from": {"what": attempt.resume_from.value, "path": attempt.resume_path},
                "started_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "end": _encode_end(attempt.end),
                "predicted": encode(attempt.predicted),
                "measured": encode(attempt.measured),
            }
            for number, attempt in enumerate(record.attempts, start=1)
        ],
    }
    return json.dumps(content, indent=2) + "\n"


class EndSummary(Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    status: int
    cause: Cause


class AttemptSummary(Struct, frozen=True, kw_only=True):
    """What the record says of one attempt, for a person."""

    number: int
    strategy: str
    started_at: str
    logs: str
    predicted: PredictedFigures
    end: EndSummary | None = None
    """None as long as it runs, and where zerowiz was killed."""
    is_gone: bool = False
    """Whether none of its ranks runs any more, and nobody wrote how it ended."""
    measured: MeasuredFigures | None = None


class RunSummary(Struct, frozen=True, kw_only=True):
    """What the record says of a run, for a person."""

    script: str
    attempts: tuple[AttemptSummary, ...]


def encode_summary(summary: RunSummary) -> dict[str, object]:
    """The summary as `report --json` prints it."""
    attempts = [encode(attempt) for attempt in summary.attempts]
    return {"schema_version": SCHEMA_VERSION, "script": summary.script, "attempts": attempts}


# Decide which strategy a job continues with after it ran out of memory.
#
# It is the same decision as before, with one more fact: what ran out of memory does not fit.


def decide_again(decision: Decision, strategy: Strategy, memory: MemoryKind) -> Decision:
    """Decide again: the strategy that ran out of memory, and those that need as much, do not fit.

    The step and the batch stay the same. A stage that a person asked for was the one to begin with,
    so it constrains the new decision no longer.

    Args:
        decision: The decision that the attempt was started by.
        strategy: The strategy that it ran with.
        memory: The memory that was too small.
    """
    seen = RanOut(strategy=strategy.name, memory=memory)
    job = replace(decision.job, ran_out=(*decision.job.ran_out, seen))
    constraints = replace(decision.constraints, stage=None, force=False)
    return decide(job, constraints)


# The memory that was too small, by the cause of an end; another strategy helps for no other cause.
_MEMORY = {cause: memory for memory, cause in _WANT_OF.items()}


def memory_of(cause: Cause, *, lives_on_host: bool) -> MemoryKind | None:
    """The memory that a job ran out of; None where it ended for another reason.

    Args:
        cause: Of its end.
        lives_on_host: Whether the ranks train in the host's memory: it is their device's, then.
    """
    memory = _MEMORY.get(cause)
    return MemoryKind.GPU if lives_on_host and memory is not None else memory


# What steps took that ran freely.

_LEAST_STEPS = 3
# The first third is slower: kernels are chosen, the allocator fills its cache, ZeRO-3 learns in
# which order it gathers. Of those after it, each counts: on a shared host a step differs from the
# next one by a tenth (a standard deviation of the logarithm), whatever the one before took.
_SLOW_PART = 3


def steady_step(samples_by_rank: Sequence[Sequence[float]]) -> float | None:
    """The seconds of a steady step of the slowest rank: the median of those after the first third.

    None where some rank took fewer than three.

    Args:
        samples_by_rank: The seconds of every step that ran freely, in order.

    Example:
        >>> steady_step([[0.9, 0.5, 0.3, 0.2, 0.4, 0.3]])
        0.3
    """
    from statistics import median  # noqa: PLC0415 - only a measured run needs it

    if not samples_by_rank or any(len(sample) < _LEAST_STEPS for sample in samples_by_rank):
        return None
    return max(median(samples[len(samples) // _SLOW_PART :]) for samples in samples_by_rank)


def samples_of(report: Mapping[str, object]) -> Sequence[float]:
    """The seconds of every step that ran freely, as a rank reported them; empty if none did."""
    return cast("Sequence[float]", report.get("timed_step_seconds") or ())


# Figures of a launched job: its prediction, and what its ranks report while they train.


def predict_run(planned: StrategyEstimate) -> PredictedFigures:
    """What is compared of a plan with the job that it started.

    Args:
        planned: The strategy that runs.
    """
    step = planned.step_time
    return PredictedFigures(
        peak_bytes=planned.estimate.peak_bytes,
        step_seconds=None if step is None else step.expected_seconds,
        low_step_seconds=None if step is None else step.low_seconds,
        high_step_seconds=None if step is None else step.high_seconds,
    )


def measure_run(reports: Collection[Mapping[str, object]]) -> MeasuredFigures | None:
    """What the ranks have reported; None where none of them took a step.

    Args:
        reports: Of each rank that said something.
    """
    if not reports:
        return None
    most = max(reports, key=lambda report: cast("int", report["peak_bytes"]))
    steps = [steady_step([samples_of(report)]) for report in reports]
    return MeasuredFigures(
        ranks=len(reports),
        peak_bytes=cast("int", most["peak_bytes"]),
        outside_bytes=cast("int | None", most.get("outside_bytes")),
        step_seconds=max((step for step in steps if step is not None), default=None),
    )


# Hold what a measured run took against its plan, and keep it for later plans of the machine.

_OUT_OF_MEMORY = {Cause.CUDA_OOM: "GPU", Cause.HOST_OOM: "host"}


class ScriptMeasurement(Struct, frozen=True, kw_only=True):
    """How a script ran for some steps, beside its plan."""

    name: str
    """Its strategy, and what of its step is not as the options alone would have it."""
    planned: StrategyEstimate
    end: JobEnd
    ranks: Sequence[Mapping[str, object]]
    """What each rank reported."""
    wanted_steps: int

    @property
    def steps(self) -> int:
        """The optimizer steps that every rank took."""
        return min((cast("int", rank.get("steps", 0)) for rank in self.ranks), default=0)

    @property
    def samples(self) -> list[Sequence[float]]:
        """The seconds of every step after the first, of each rank."""
        return [samples_of(rank) for rank in self.ranks]

    @property
    def step_seconds(self) -> tuple[float | None, float | None]:
        """Of a step, predicted and measured: with whatever the script does between two of them."""
        planned = self.planned.step_time
        return None if planned is None else planned.expected_seconds, steady_step(self.samples)

    @property
    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Of the rank that held most, predicted and measured."""
        peaks = [cast("int", rank["peak_bytes"]) for rank in self.ranks if rank]
        measured = max(peaks) if len(peaks) == len(self.ranks) else None
        # It ends with its steps, before it evaluates.
        return self.planned.estimate.training_peak_bytes, measured

    @property
    def on_cpu(self) -> bool:
        """Whether the peak is that of the processes."""
        return any(rank.get("outside_bytes") is not None for rank in self.ranks)

    @property
    def out_of_memory(self) -> str | None:
        """The memory that was too small, `GPU` or `host`."""
        return _OUT_OF_MEMORY.get(self.end.cause)

    @property
    def measured(self) -> bool:
        """Whether the run says something: running out of memory does, failing does not."""
        return self.out_of_memory is not None or (self.end.status == 0 and self.steps > 0)


def encode_script_run(run: ScriptMeasurement) -> dict[str, object]:
    """The run as `measure --json` says it."""
    (predicted, measured), times = run.peak_bytes, run.step_seconds
    return {
        "name": run.name,
        "strategy": run.planned.strategy.name,
        "ended": run.end.cause.value,
        "status": run.end.status,
        "steps": run.steps,
        "ranks": [dict(rank) for rank in run.ranks],
        "measured": {"peak_bytes": measured, "step_seconds": times[1]},
        "predicted": {"peak_bytes": predicted, "step_seconds": times[0]},
        "error": {"peak": error_of(predicted, measured), "step_seconds": error_of(*times)},
    }


# Keep what was measured on one machine, so that later plans are calibrated by it.

# More runs of one machine move a calibration by less than a step repeats.
_MOST_RUNS = 100


class KeptRun(Struct, frozen=True, kw_only=True):
    """One measured setting, and what was predicted of it from the machine's data alone."""

    setting: Mapping[str, object]
    """By the names of a measured row."""
    formulas: str
    """Which predicted the terms, as `formulas_of` names them."""
    measured_seconds: float
    """Of a steady optimizer step."""
    predicted_seconds: Mapping[str, float]
    """Of each kind of term; empty where no time was predicted."""
    python_call_seconds: float | None = None
    """How fast the host ran Python beside these steps."""

    @property
    def step(self) -> MeasuredStep | None:
        """The prediction beside the measured time; None where these formulas had no such terms."""
        kinds = {kind.value for kind in TermKind}
        if not self.predicted_seconds or not kinds.issuperset(self.predicted_seconds):
            return None
        terms = tuple(
            Term(kind=TermKind(kind), exposed_seconds=seconds, formula="")
            for kind, seconds in self.predicted_seconds.items()
        )
        return MeasuredStep(terms=terms, measured_seconds=self.measured_seconds)


class MachineResults(Struct, frozen=True, kw_only=True):
    """The runs of one machine: of each setting the latest."""

    runs: tuple[KeptRun, ...] = ()

    def mean_call_seconds(self, also: float | None = None) -> float | None:
        """How fast the host runs Python, on average; None where nobody read it.

        Args:
            also: One more reading.
        """
        read = (*(run.python_call_seconds for run in self.runs), also)
        known = [seconds for seconds in read if seconds is not None]
        return sum(known) / len(known) if known else None

    def plus(self, run: KeptRun) -> "MachineResults":
        """The results with one more run in them; beyond a hundred the oldest goes."""
        others = [other for other in self.runs if other.setting != run.setting]
        return MachineResults(runs=(*others, run)[-_MOST_RUNS:])

    def calibration(self, formulas: str) -> Calibration | None:
        """What the runs say of this machine; None where these formulas predicted none of them.

        Args:
            formulas: Those of the plan. Others may have predicted the same runs differently.
        """
        runs = (run.step for run in self.runs if run.formulas == formulas)
        return calibrate([step for step in runs if step is not None], self.mean_call_seconds())


def formulas_of(version: str, costs: Costs = COSTS) -> str:
    """A name for the formulas of a version of zerowiz, which changes with their constants."""
    digest = hashlib.sha256(json.dumps(encode(costs)).encode()).hexdigest()[:8]
    return f"{version}+{digest}"


def machine_key(machine: Machine) -> str:
    """What tells a machine from others with other speeds: its GPUs, how many, and their link."""
    gpus = "+".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    total_bytes = machine.total_bytes or 0
    link = machine.interconnect.link_class.value
    words = f"{machine.nodes}x{len(machine.gpus)} {gpus} {total_bytes >> 30}gib {link}"
    return re.sub(r"[^a-z0-9.+]+", "-", words.lower())


def keep_run(
    job: Job, run: ScriptMeasurement, formulas: str, before: MachineResults
) -> KeptRun | None:
    """What is kept of a run of a model; None where it says nothing of how fast this machine is.

    A run that failed, or that retried its allocations, does not.

    Args:
        job: What ran.
        run: How it ran.
        formulas: Those that predict it.
        before: What is kept of the machine: its host's speed is the mean of all readings.
    """
    step_seconds = run.step_seconds[1]
    retried = any(rank.get("allocator_retries") for rank in run.ranks)
    if run.end.status != 0 or step_seconds is None or retried:
        return None
    strategy, read = run.planned.strategy, job.machine.host.python_call_seconds
    host = replace(job.machine.host, python_call_seconds=before.mean_call_seconds(read))
    machine = replace(job.machine, host=host)
    bare = replace(job, machine=machine, calibration=None)
    predicted = evaluate(bare, strategy).step_time
    terms = () if predicted is None else predicted.terms
    said = {
        "model": job.model.name.rstrip("/").rpartition("/")[2],
        "params": job.model.params,
        "strategy": strategy.name,
        "state_dtype": job.state_dtype,
        **structs.asdict(job.workload),
    }
    return KeptRun(
        # As it will be read again: two runs of one setting must be equal.
        setting=json.loads(json.dumps(encode(said))),
        formulas=formulas,
        measured_seconds=step_seconds,
        # The run flushed nothing, however near it came to its limit.
        predicted_seconds={
            term.kind.value: term.exposed_seconds
            for term in terms
            if term.kind is not TermKind.ALLOCATOR
        },
        python_call_seconds=read,
    )
