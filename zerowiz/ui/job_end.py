"""Tell how an attempt ended and what follows, and show what a run took beside its plan."""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TextIO

from zerowiz.core import shell
from zerowiz.core.job_end import (
    AttemptRecord,
    AttemptSummary,
    Cause,
    JobEnd,
    MeasuredFigures,
    PredictedFigures,
    RunSummary,
    ScriptMeasurement,
    error_of,
)
from zerowiz.core.launch.plan import LaunchPlan, Resume, ResumeFrom
from zerowiz.core.script.arguments import LOCAL_RANK_FLAG
from zerowiz.core.strategy_types import Strategy
from zerowiz.translation import N_, _, listing
from zerowiz.ui.reporter import TerminalReporter
from zerowiz.ui.sentences import ROUGH_ON_CPU
from zerowiz.ui.text import bare_gib, percent, plain_log, say, seconds, show_rows

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

# What helps against an error, by words of it.
_HINTS: Mapping[re.Pattern[str], str] = {
    # How argparse, transformers 5.23 (hf_argparser.py) and Fire refuse what the launcher adds.
    re.compile(
        r"(unrecognized arguments:|not used by the HfArgumentParser:|Could not consume arg:)"
        rf".*{LOCAL_RANK_FLAG}="
    ): N_(
        "hint: the script takes no `{local_rank_flag}`, which DeepSpeed's launcher passes: let "
        'it take that, as by `parser.add_argument("{local_rank_flag}", type=int)`'
    ),
    # torch.save says it in other words than the system (caffe2/serialize/inline_container.cc).
    re.compile(
        r"No space left on device|Disk quota exceeded|iostream error|unexpected pos \d+ vs \d+"
        r"|PytorchStreamWriter failed"
    ): N_("hint: a file could not be written whole: look at the room on its disk, or your quota"),
}
# The log has them all.
_SHOWN_LINES = 15

_RESUMES_FROM: Mapping[ResumeFrom, str] = {
    ResumeFrom.CHECKPOINT: _("goes on from the checkpoint"),
    ResumeFrom.WEIGHTS: _("starts from the saved weights, with a new optimizer and schedule:"),
    ResumeFrom.START: _("starts from the beginning"),
}


def failure(end: JobEnd, strategy: Strategy, number: int, stream: TextIO) -> None:
    """Which rank failed first, why, and the last that it said; of a stopped job, that it was."""
    sentence = _(
        "attempt {number} ({strategy}) ended with status {status}: {why}",
        number=number,
        strategy=_(strategy.short_words),
        status=end.status,
        why=_why(end),
    )
    first = end.first
    if first is None or end.cause is Cause.STOPPED:
        say(stream, "", sentence)
        return
    say(
        stream,
        "",
        _(
            "{said}; rank {rank} on {host} was first, its log is {log}",
            said=sentence,
            rank=first.rank,
            host=first.host,
            log=first.log,
        ),
    )
    lines = first.tail[-_SHOWN_LINES:]
    stream.writelines(f"  | {plain_log(line)}\n" for line in lines)
    for pattern, hint in _HINTS.items():
        if any(map(pattern.search, lines)):
            say(stream, _(hint, local_rank_flag=LOCAL_RANK_FLAG), hang=len(_("hint: ")))


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
        strategy=_(strategy.short_words),
    )
    say(stream, "", f"{words} {_RESUMES_FROM[resume.resume_from]}{where}", "")


# Say at a terminal what a launch does with its job.


class TerminalLaunchReporter(TerminalReporter):
    """Loaded whole before a job starts: an environment may change while it runs."""

    def start(self, launch_plan: LaunchPlan) -> None:
        """The command, as a shell line."""
        from zerowiz.ui import show  # noqa: PLC0415 - `report` shows no plan

        for text in launch_plan.notes:
            self.note(text)
        if not self.quiet:
            with suppress(OSError):
                sys.stderr.write("\n")
                show.launch(launch_plan, sys.stderr)

    def attempt_ended(self, end: JobEnd, strategy: Strategy, number: int) -> None:
        """Which rank failed first, and why."""
        with suppress(OSError):
            failure(end, strategy, number, sys.stderr)

    def attempt_measured(self, attempt: AttemptRecord, folder: str) -> None:
        """What its memory and its steps were, beside the plan; the record is in the folder."""
        if not self.quiet:
            with suppress(OSError):
                last_lines(attempt, folder, sys.stderr)

    def next_attempt(self, strategy: Strategy, resume: Resume, number: int) -> None:
        """What is tried next, and from where the script goes on."""
        with suppress(OSError):
            following(strategy, resume, number, sys.stderr)


# Show what a job was predicted to take beside what it took.


def last_lines(attempt: AttemptRecord, folder: str, stream: TextIO) -> None:
    """The end of a supervised launch; nothing where no step was measured.

    Args:
        attempt: As it has ended.
        folder: Where its record is; empty for the current folder.
        stream: Where to write.
    """
    if attempt.measured is None:
        return
    say(
        stream,
        "",
        _(
            "{strategy}: predicted and measured, for the rank that took most",
            strategy=attempt.strategy,
        ),
    )
    _table(attempt.predicted, attempt.measured, stream)
    words = shell.join(["zerowiz", "report", *([folder] if folder else [])])
    say(stream, _("`{words}` shows this again", words=words))


def run(summary: RunSummary, stream: TextIO) -> None:
    """Every attempt of a run."""
    for attempt in summary.attempts:
        if attempt.number > 1:
            say(stream, "")
        say(stream, _title(attempt, summary.script))
        if attempt.measured is not None:
            _table(attempt.predicted, attempt.measured, stream)
        elif attempt.end is None and not attempt.is_gone:
            text = _("Nothing is measured yet: DeepSpeed's engine has taken no optimizer step")
            say(stream, text)
        else:
            say(stream, _("Nothing was measured: DeepSpeed's engine took no optimizer step"))
        say(stream, _("Logs: {logs}", logs=attempt.logs))


def _title(attempt: AttemptSummary, script: str) -> str:
    name = _(
        "{script}, attempt {number} ({strategy}), {started_at}",
        script=script,
        number=attempt.number,
        strategy=attempt.strategy,
        started_at=attempt.started_at,
    )
    if attempt.is_gone:
        return _(
            "{name}: it has ended; zerowiz was killed or its disk full before it could say how",
            name=name,
        )
    if attempt.end is None:
        return _("{name}: it is running", name=name)
    return _(
        "{name}: {cause}, status {status}",
        name=name,
        cause=CAUSES[attempt.end.cause],
        status=attempt.end.status,
    )


def _table(predicted: PredictedFigures, measured: MeasuredFigures, stream: TextIO) -> None:
    peaks = (predicted.peak_bytes, measured.peak_bytes)
    steps = (predicted.step_seconds, measured.step_seconds)
    is_rough = measured.outside_bytes is not None
    rows = [
        (_("peak memory"), *map(_gib, peaks), "" if is_rough else percent(error_of(*peaks))),
        (_("time of a step"), *map(_time, steps), percent(error_of(*steps))),
    ]
    show_rows(stream, ("", N_("predicted"), N_("measured"), N_("off by")), rows)
    if is_rough:
        say(stream, _(ROUGH_ON_CPU))
    low, high = predicted.low_step_seconds, predicted.high_step_seconds
    if low is not None and high is not None:
        bounds = _("{low} to {high}", low=seconds(low), high=seconds(high))
        say(stream, _("The predicted interval of a step is {bounds} s", bounds=bounds))
    if measured.step_seconds is None:
        say(stream, _("A step time needs four optimizer steps; this attempt took fewer"))


def _gib(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / 2**30:.2f} GiB"


def _time(value: float | None) -> str:
    return "?" if value is None else f"{seconds(value)} s"


# Show runs of `measure` beside their plans.


def _bare_size(size_bytes: int | None) -> str:
    """GiB with the digits that a comparison needs."""
    if size_bytes is None:
        return "?"
    return bare_gib(size_bytes) if size_bytes >= 10 * 2**30 else f"{size_bytes / 2**30:.3f}"


def outcome(run: ScriptMeasurement) -> str:
    """How a run ended, in words."""
    if run.out_of_memory is not None:
        return _("ran out of {memory} memory", memory=run.out_of_memory)
    return _("ran") if run.measured else _("failed")


def ended(run: ScriptMeasurement, number: int, total: int) -> str:
    """One run of many, as it ends."""
    step = run.step_seconds[1]
    took = "" if step is None else _(", {seconds:.3g} s a step", seconds=step)
    return _(
        "{number} of {total}: {id} {outcome}{took}",
        number=number,
        total=total,
        id=run.name,
        outcome=outcome(run),
        took=took,
    )


def _candidate(run: ScriptMeasurement) -> tuple[str, ...]:
    peaks, steps = run.peak_bytes, run.step_seconds
    return (
        run.name,
        *map(_bare_size, peaks),
        "" if run.on_cpu else percent(error_of(*peaks)),
        *("?" if step is None else f"{step:.3g}" for step in steps),
        percent(error_of(*steps)),
    )


def candidates(runs: Sequence[ScriptMeasurement], stream: TextIO) -> None:
    """Every run that has ended, the fastest first: predicted beside measured."""
    off = N_("off by")
    headings = ("predicted", N_("peak in GiB"), off, "predicted", N_("step in s"), off)
    # What is not known stands last.
    rows = [_candidate(run) for run in sorted(runs, key=lambda run: run.step_seconds[1] or inf)]
    show_rows(stream, ("strategy", *headings), rows, ("predicted", off))
    if any(run.on_cpu for run in runs):
        say(stream, ROUGH_ON_CPU)
    say(stream, *(f"{run.name}: {outcome(run)}" for run in runs if run.end.status != 0))


def script_run(run: ScriptMeasurement, stream: TextIO) -> None:
    """One run: the steps of each rank, and its row of the table."""
    say(
        stream,
        _(
            "{strategy}: {steps} of {wanted_steps} optimizer steps",
            strategy=_(run.planned.strategy.short_words),
            steps=run.steps,
            wanted_steps=run.wanted_steps,
        ),
    )
    for rank, each_step in enumerate(run.samples):
        took = listing(f"{value:.3g}" for value in each_step)
        say(stream, _("Rank {rank}   {each_step} s", rank=rank, each_step=took or "?"))
    candidates([run], stream)
