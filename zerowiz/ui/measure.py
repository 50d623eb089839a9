"""Show a measured run and its prediction."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, TextIO, cast

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.measure.row import Compared, Comparison
from zerowiz.ui.text.table import grid, print_table, say
from zerowiz.ui.text.units import bare_gib, seconds

_VERDICTS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight",
    Verdict.UNCERTAIN: "uncertain",
    Verdict.DOES_NOT_FIT: "does not fit",
}


def _size(size_bytes: int | None) -> str:
    """GiB with the digits that a comparison needs."""
    if size_bytes is None:
        return "?"
    return bare_gib(size_bytes) if size_bytes >= 10 * 2**30 else f"{size_bytes / 2**30:.3f}"


def _error(compared: Compared) -> str:
    return "" if compared.error is None else f"{100 * compared.error:+.1f} %"


def outcome(comparison: Comparison) -> str:
    """How the run ended, in words."""
    row = comparison.row
    if row["oom_phase"] is not None:
        return f"ran out of memory in {row['oom_phase']}"
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
    step, samples = comparison.step, cast("list[float]", comparison.row["timed_step_seconds"] or [])
    if step.measured is not None:
        median = f"{seconds(step.measured.seconds)} s, median of the last 3 of"
        yield f"Step     measured: {median} {', '.join(map(seconds, samples))}"
    if step.predicted is not None:
        found = step.predicted
        bounds = f"{seconds(found.low_seconds)} to {seconds(found.high_seconds)}"
        error = "" if step.error is None else f"; error {100 * step.error:+.1f} %"
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
    table = grid(stream, "", "predicted", "measured", "error")
    for each in (*comparison.phases, comparison.peak):
        words = (_size(each.predicted_bytes), _size(each.measured_bytes), _error(each))
        table.add_row(each.name.replace("_", " "), *words)
    print_table(table, stream)
    said = comparison.unpredicted if comparison.verdict is None else _VERDICTS[comparison.verdict]
    predicted = f"predicted: {said}" if comparison.verdict else f"not predicted: {said}"
    verdict = f"Verdict  {predicted}; {outcome(comparison)}"
    say(stream, verdict, *_step_lines(comparison), *_bus_lines(comparison), "")
