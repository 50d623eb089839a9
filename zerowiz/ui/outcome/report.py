"""Show what a job was predicted to take beside what it took."""

from collections.abc import Mapping
from typing import TextIO

from zerowiz.core import shell
from zerowiz.core.outcome.figures import CountedMemory, MeasuredFigures, PredictedFigures, error_of
from zerowiz.core.outcome.record import AttemptRecord, AttemptSummary, RunSummary
from zerowiz.ui.outcome.ended import CAUSES
from zerowiz.ui.sentences.doubts import ROUGH_ON_CPU
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import seconds
from zerowiz.words import N_, _

_MEMORY: Mapping[CountedMemory, str] = {
    CountedMemory.ALLOCATED: _("peak GPU memory"),
    CountedMemory.RESIDENT: _("peak process memory"),
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
        if attempt.measured is None:
            say(stream, _why_unmeasured(attempt))
        else:
            _table(attempt.predicted, attempt.measured, stream)
        say(stream, _("Logs: {logs}", logs=attempt.logs))


def _title(attempt: AttemptSummary, script: str) -> str:
    name = _(
        "{script}, attempt {number} ({strategy}), {started_at}",
        script=script,
        number=attempt.number,
        strategy=attempt.strategy,
        started_at=attempt.started_at,
    )
    if attempt.end is None:
        return _("{name}: it is running", name=name)
    return _(
        "{name}: {cause}, status {status}",
        name=name,
        cause=CAUSES[attempt.end.cause],
        status=attempt.end.status,
    )


def _why_unmeasured(attempt: AttemptSummary) -> str:
    if attempt.end is None:
        return _("Nothing is measured yet: DeepSpeed's engine has taken no optimizer step")
    return _("Nothing was measured: DeepSpeed's engine took no optimizer step")


def _table(predicted: PredictedFigures, measured: MeasuredFigures, stream: TextIO) -> None:
    planned = predicted.accumulation_steps
    outside = measured.outside_bytes
    predicted = predicted.of_micro_batches(measured.micro_batches).with_outside(outside)
    peaks = (predicted.peak_bytes, measured.peak_bytes)
    steps = (predicted.step_seconds, measured.step_seconds)
    rows = [
        (_MEMORY[predicted.memory], *map(_gib, peaks), _percent(error_of(*peaks))),
        (_("time of a step"), *map(_time, steps), _percent(error_of(*steps))),
    ]
    show_rows(stream, ("", N_("predicted"), N_("measured"), N_("off by")), rows)
    if predicted.memory is CountedMemory.RESIDENT:
        say(stream, ROUGH_ON_CPU if outside is None else _outside(outside))
    low, high = predicted.low_step_seconds, predicted.high_step_seconds
    if low is not None and high is not None:
        bounds = _("{low} to {high}", low=seconds(low), high=seconds(high))
        say(stream, _("The predicted interval of a step is {bounds} s", bounds=bounds))
    if planned is not None and measured.micro_batches and measured.micro_batches < planned:
        text = _(
            "Each step had {count} of {planned} micro-batches, because the data set is "
            "smaller than the global batch; the prediction is for {count}",
            count=measured.micro_batches,
            planned=planned,
        )
        say(stream, text)
    if measured.step_seconds is None:
        say(stream, _("A step time needs four optimizer steps; this attempt took fewer"))


def _outside(size_bytes: int) -> str:
    return _(
        "Both figures include {size} of Python and its libraries, as measured; the rest of a CPU "
        "rank is predicted only roughly",
        size=_gib(size_bytes),
    )


def _gib(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / 2**30:.2f} GiB"


def _time(value: float | None) -> str:
    return "?" if value is None else f"{seconds(value)} s"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"
