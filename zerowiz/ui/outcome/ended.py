"""Tell how an attempt ended, and what follows it."""

import re
import signal
from collections.abc import Mapping
from typing import TextIO

from zerowiz.core.outcome.resume import Resume, ResumeFrom
from zerowiz.core.outcome.verdict import Cause, JobEnd
from zerowiz.core.script.options import LOCAL_RANK_FLAG
from zerowiz.core.strategy import Strategy
from zerowiz.ui.text.plain import plain_log
from zerowiz.ui.text.table import say
from zerowiz.words import _

CAUSES: Mapping[Cause, str] = {
    Cause.FINISHED: _("it finished"),
    Cause.CUDA_OOM: _("it ran out of GPU memory"),
    Cause.HOST_OOM: _("the host ran out of memory"),
    Cause.FAILED: _("it failed"),
    Cause.KILLED: _("it was killed"),
    Cause.STOPPED: _("it was asked to stop"),
    Cause.LAUNCHER: _("DeepSpeed's launcher ended before its ranks"),
    Cause.NODE: _("a node no longer answers"),
}

# How argparse, transformers 5.23 (hf_argparser.py) and Fire refuse what DeepSpeed's launcher adds.
_REFUSES_LOCAL_RANK = re.compile(
    r"(unrecognized arguments:|not used by the HfArgumentParser:|Could not consume arg:)"
    rf".*{LOCAL_RANK_FLAG}="
)
# The log has them all.
_SHOWN_LINES = 15

_RESUMES_FROM: Mapping[ResumeFrom, str] = {
    ResumeFrom.CHECKPOINT: _("goes on from the checkpoint"),
    ResumeFrom.WEIGHTS: _("starts from the saved weights, with a new optimizer and schedule:"),
    ResumeFrom.START: _("starts from the beginning"),
}


def failure(end: JobEnd, strategy: Strategy, number: int, stream: TextIO) -> None:
    """Which rank failed first, why, and the last that it said."""
    said = _(
        "attempt {number} ({strategy}) ended with status {status}: {why}",
        number=number,
        strategy=strategy.name,
        status=end.status,
        why=_why(end),
    )
    first = end.first
    if first is None:
        say(stream, "", said)
        return
    say(
        stream,
        "",
        _(
            "{said}; rank {rank} on {host} was first, its log is {log}",
            said=said,
            rank=first.rank,
            host=first.host,
            log=first.log,
        ),
    )
    lines = first.tail[-_SHOWN_LINES:]
    stream.writelines(f"  | {plain_log(line)}\n" for line in lines)
    if any(map(_REFUSES_LOCAL_RANK.search, lines)):
        hint = _(
            "hint: the script takes no `{local_rank_flag}`, which DeepSpeed's launcher "
            "passes; `zerowiz launch ... deepspeed --no_local_rank SCRIPT ...` starts "
            "it without",
            local_rank_flag=LOCAL_RANK_FLAG,
        )
        say(stream, hint, hang=len(_("hint: ")))


def _why(end: JobEnd) -> str:
    """Its cause; a signal by name, as SIGSEGV is a bug and SIGKILL somebody's will."""
    names = {128 + number: number.name for number in signal.Signals}
    killed_by = names.get(end.status) if end.cause is Cause.KILLED else None
    return (
        CAUSES[end.cause]
        if killed_by is None
        else _("{cause} by {killed_by}", cause=CAUSES[end.cause], killed_by=killed_by)
    )


def following(strategy: Strategy, resume: Resume, number: int, stream: TextIO) -> None:
    """What is tried next, and from where the script goes on."""
    where = f" {resume.path}" if resume.path else ""
    words = _(
        "attempt {number}: {strategy}, at the same global batch; the script",
        number=number,
        strategy=strategy.name,
    )
    say(stream, "", f"{words} {_RESUMES_FROM[resume.resume_from]}{where}", "")
