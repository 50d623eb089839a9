"""Show a measured run and its prediction."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, TextIO, cast

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.measure.own_script import ScriptRun
from zerowiz.core.measure.row import HOST_MEMORY, Comparison
from zerowiz.core.measure.timing import ComparedStep
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import bare_gib, seconds

_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight",
    Verdict.UNCERTAIN: "uncertain",
    Verdict.DOES_NOT_FIT: "does not fit",
}


# What a row calls otherwise.
_PLACES: Mapping[object, str] = {
    "timing": "a timed step, after the measured ones",
    HOST_MEMORY: "the host: the kernel killed a rank",
}


def _size(size_bytes: int | None) -> str:
    """GiB with the digits that a comparison needs."""
    if size_bytes is None:
        return "?"
    return bare_gib(size_bytes) if size_bytes >= 10 * 2**30 else f"{size_bytes / 2**30:.3f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"


def _error_at_end(error: float | None) -> str:
    return "" if error is None else f"; error {_percent(error)}"


def outcome(comparison: Comparison) -> str:
    """How the run ended, in words."""
    row = comparison.row
    if row["oom_phase"] is not None:
        return f"ran out of memory in {_PLACES.get(row['oom_phase'], row['oom_phase'])}"
    return "ran" if comparison.ok else f"failed: {row['error']}"


def _run_line(comparison: Comparison) -> str:
    row = comparison.row
    tokens = f"{row['micro_batch']} x {row['sequence_tokens']} tokens"
    where = f"{row['gpus']} x {row['gpu'] or 'unknown'}"
    return (
        f"{row['id']}: {row['model']}, stage {row['stage']}, {where}, {tokens}, {row['optimizer']}"
    )


def _step_lines(comparison: Comparison) -> Iterator[str]:
    """The time of a step: predicted, and measured where nothing waits inside it."""
    row, step = comparison.row, comparison.step
    samples = cast("list[float]", row["timed_step_seconds"] or [])
    if step.measured is not None:
        median = f"{seconds(step.measured.seconds)} s, median of the last 3 of"
        yield f"Step     measured: {median} {', '.join(map(seconds, samples))}"
    elif comparison.ok and row["timed_steps"]:
        left = f"time was left for {len(samples)} of {row['timed_steps']} steps"
        yield f"Step     not measured: {left}"
    if step.predicted is not None:
        found = step.predicted
        bounds = f"{seconds(found.low_seconds)} to {seconds(found.high_seconds)}"
        error = _error_at_end(step.error)
        yield f"Step     predicted: {seconds(found.expected_seconds)} s, {bounds}{error}"


def _bus_lines(comparison: Comparison) -> Iterator[str]:
    """What the links carry, by the size of the message."""
    readings = cast("list[dict[str, Any]]", comparison.row["bus"] or [])
    for size_bytes, same in groupby(sorted(readings, key=_message), key=_message):
        rates = ", ".join(f"{e['collective']} {e['bus_bytes_per_s'] / 1e9:.3g}" for e in same)
        yield f"Bus      {size_bytes // 2**20} MiB: {rates} GB/s"


def _message(reading: dict[str, Any]) -> int:
    return cast("int", reading["size_bytes"])


def comparison(comparison: Comparison, stream: TextIO) -> None:
    """The phases, the peak and the verdict."""
    say(stream, _run_line(comparison), "In GiB, of rank 0")
    rows = [
        (
            each.name.replace("_", " "),
            *(_size(each.predicted_bytes), _size(each.measured_bytes), _percent(each.error)),
        )
        for each in (*comparison.phases, comparison.peak)
    ]
    show_rows(stream, ("", "predicted", "measured", "error"), rows)
    said = comparison.unpredicted if comparison.verdict is None else _VERDICTS[comparison.verdict]
    predicted = f"predicted: {said}" if comparison.verdict else f"not predicted: {said}"
    verdict = f"Verdict  {predicted}; {outcome(comparison)}"
    say(stream, verdict, *_step_lines(comparison), *_bus_lines(comparison), "")


def ended(comparison: Comparison, number: int, total: int) -> str:
    """One candidate of many, as it ends."""
    step = comparison.step.measured
    took = "" if step is None else f", {step.seconds:.3g} s a step"
    return f"{number} of {total}: {comparison.row['id']} {outcome(comparison)}{took}"


def _candidate(comparison: Comparison) -> tuple[str, ...]:
    peak, step = comparison.fullest, comparison.step
    predicted, measured = step.predicted, step.measured
    return (
        str(comparison.row["id"]),
        *(_size(peak.predicted_bytes), _size(peak.measured_bytes), _percent(peak.error)),
        "?" if predicted is None else f"{predicted.expected_seconds:.3g}",
        "?" if measured is None else f"{measured.seconds:.3g}",
        _percent(step.error),
    )


def candidates(comparisons: Sequence[Comparison], stream: TextIO) -> None:
    """Every candidate that has ended, the fastest first: predicted beside measured."""
    headings = ("predicted", "peak in GiB", "error", "predicted", "step in s", "error")
    rows = [_candidate(each) for each in sorted(comparisons, key=_took)]
    show_rows(stream, ("strategy", *headings), rows, ("predicted", "error"))
    say(stream, *(line for each in comparisons for line in _bus_lines(each)))
    say(stream, *(f"{each.row['id']}: {outcome(each)}" for each in comparisons if not each.ok))


def _took(comparison: Comparison) -> float:
    """What is not known stands last."""
    step = comparison.step.measured
    return inf if step is None else step.seconds


def script_run(run: ScriptRun, stream: TextIO) -> None:
    """A person's own script: its peak and its step, predicted beside measured."""
    peak = run.peak
    say(stream, f"{run.planned.strategy.name}: {run.steps} of {run.wanted_steps} optimizer steps")
    known = peak.measured_bytes is not None
    measured = f"{_size(peak.measured_bytes)} GiB" if known else "not counted here"
    error = _error_at_end(peak.error)
    predicted = f"{_size(peak.predicted_bytes)} GiB"
    say(stream, f"Peak     measured: {measured}; predicted: {predicted}{error}")
    say(stream, *_script_step(run.step, run.samples))
    if run.out_of_memory is not None:
        say(stream, f"It ran out of {run.out_of_memory} memory")


def _script_step(step: ComparedStep, samples: Sequence[Sequence[float]]) -> Iterator[str]:
    for rank, each_step in enumerate(samples):
        if each_step:
            yield f"Rank {rank}   {', '.join(f'{each:.3g}' for each in each_step)} s"
    if step.measured is not None:
        yield f"Step     measured: {seconds(step.measured.seconds)} s, median of the last 3"
    if step.predicted is not None:
        error = _error_at_end(step.error)
        yield f"Step     predicted: {seconds(step.predicted.expected_seconds)} s{error}"
