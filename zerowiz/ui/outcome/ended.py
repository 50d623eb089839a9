"""Tell how an attempt ended, and what follows it."""

import re
import signal
from collections.abc import Mapping
from typing import TextIO

from zerowiz.core.outcome.resume import Resume, ResumeFrom
from zerowiz.core.outcome.verdict import Cause, JobEnd
from zerowiz.core.script import LOCAL_RANK_FLAG
from zerowiz.core.strategy import Strategy
from zerowiz.ui.text.table import say

CAUSES: Mapping[Cause, str] = {
    Cause.FINISHED: "it finished",
    Cause.CUDA_OOM: "it ran out of GPU memory",
    Cause.HOST_OOM: "the host ran out of memory",
    Cause.FAILED: "it failed",
    Cause.KILLED: "it was killed",
    Cause.STOPPED: "it was told to end",
    Cause.LAUNCHER: "DeepSpeed's launcher ended before its ranks",
    Cause.NODE: "a node no longer answers",
}

# How argparse, transformers 5.23 (hf_argparser.py) and Fire refuse what DeepSpeed's launcher adds.
_REFUSES_LOCAL_RANK = re.compile(
    r"(unrecognized arguments:|not used by the HfArgumentParser:|Could not consume arg:)"
    rf".*{LOCAL_RANK_FLAG}="
)
# The log has them all.
_SHOWN_LINES = 15

_RESUMES_FROM: Mapping[ResumeFrom, str] = {
    ResumeFrom.CHECKPOINT: "goes on from the checkpoint",
    ResumeFrom.WEIGHTS: "starts from the saved weights, with a new optimizer and schedule:",
    ResumeFrom.START: "starts from the beginning",
}


def failure(end: JobEnd, strategy: Strategy, number: int, stream: TextIO) -> None:
    """Which rank failed first, why, and the last that it said."""
    said = f"attempt {number} ({strategy.name}) ended with status {end.status}: {_why(end)}"
    first = end.first
    if first is None:
        say(stream, "", said)
        return
    say(stream, "", f"{said}; rank {first.rank} on {first.host} was first, its log is {first.log}")
    lines = first.tail[-_SHOWN_LINES:]
    stream.writelines(f"  | {line}\n" for line in lines)
    if any(map(_REFUSES_LOCAL_RANK.search, lines)):
        hint = (
            f"hint: the script takes no `{LOCAL_RANK_FLAG}`, which DeepSpeed's launcher passes;"
            " `zerowiz launch ... deepspeed --no_local_rank SCRIPT ...` starts it without"
        )
        say(stream, hint, hang=len("hint: "))


def _why(end: JobEnd) -> str:
    """Its cause; a signal by name, as SIGSEGV is a bug and SIGKILL somebody's will."""
    names = {128 + number: number.name for number in signal.Signals}
    killed_by = names.get(end.status) if end.cause is Cause.KILLED else None
    return CAUSES[end.cause] if killed_by is None else f"{CAUSES[end.cause]} by {killed_by}"


def following(strategy: Strategy, resume: Resume, number: int, stream: TextIO) -> None:
    """What is tried next, and from where the script goes on."""
    where = f" {resume.path}" if resume.path else ""
    words = f"attempt {number}: {strategy.name}, at the same global batch; the script"
    say(stream, "", f"{words} {_RESUMES_FROM[resume.resume_from]}{where}", "")
