"""Show what a job was predicted to take beside what it took."""

import shlex
from collections.abc import Mapping
from typing import TextIO

from zerowiz.core.outcome.figures import CountedMemory, MeasuredFigures, PredictedFigures, error_of
from zerowiz.core.outcome.record import AttemptRecord, AttemptSummary, RunSummary
from zerowiz.ui.outcome.ended import CAUSES
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import seconds

_MEMORY: Mapping[CountedMemory, str] = {
    CountedMemory.ALLOCATED: "peak GPU memory",
    CountedMemory.RESIDENT: "peak process memory",
}


def last_lines(attempt: AttemptRecord, folder: str, stream: TextIO) -> None:
    """The end of a supervised launch; nothing where no step was measured.

    Args:
        attempt: As it has ended.
        folder: Where its record is; empty for the current folder.
        stream: Where to write.
    """
    if attempt.measured is None:
        return
    say(stream, "", f"{attempt.strategy}: predicted and measured, for the rank that took most")
    _table(attempt.predicted, attempt.measured, stream)
    words = shlex.join(["zerowiz", "report", *([folder] if folder else [])])
    say(stream, f"`{words}` shows this again")


def run(summary: RunSummary, stream: TextIO) -> None:
    """Every attempt of a run."""
    for attempt in summary.attempts:
        if attempt.number > 1:
            say(stream, "")
        say(stream, _title(attempt, summary.script))
        if attempt.measured is None:
            say(stream, _why_unmeasured(attempt))
        else:
            _table(attempt.predicted, attempt.measured, stream)
        say(stream, f"Logs: {attempt.logs}")


def _title(attempt: AttemptSummary, script: str) -> str:
    name = f"{script}, attempt {attempt.number} ({attempt.strategy}), {attempt.started_at}"
    if attempt.end is None:
        return f"{name}: it is running"
    return f"{name}: {CAUSES[attempt.end.cause]}, status {attempt.end.status}"


def _why_unmeasured(attempt: AttemptSummary) -> str:
    if attempt.end is None:
        return "Nothing is measured yet: DeepSpeed's engine has taken no optimizer step"
    return "Nothing was measured: DeepSpeed's engine took no optimizer step"


def _table(predicted: PredictedFigures, measured: MeasuredFigures, stream: TextIO) -> None:
    peaks = (predicted.peak_bytes, measured.peak_bytes)
    steps = (predicted.step_seconds, measured.step_seconds)
    rows = [
        (_MEMORY[predicted.memory], *map(_gib, peaks), _percent(error_of(*peaks))),
        ("time of a step", *map(_time, steps), _percent(error_of(*steps))),
    ]
    show_rows(stream, ("", "predicted", "measured", "error"), rows)
    low, high = predicted.low_step_seconds, predicted.high_step_seconds
    if low is not None and high is not None:
        bounds = f"{seconds(low)} to {seconds(high)}"
        say(stream, f"The predicted interval of a step is {bounds} s")
    if measured.step_seconds is None:
        say(stream, "A step time needs four optimizer steps; this attempt took fewer")


def _gib(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / 2**30:.2f} GiB"


def _time(value: float | None) -> str:
    return "?" if value is None else f"{seconds(value)} s"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"
