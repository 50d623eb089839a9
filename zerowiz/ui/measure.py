"""Show a measured run and its prediction."""

from typing import TextIO, cast

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.measure.row import Compared, Comparison
from zerowiz.ui.text.table import grid, print_table, say
from zerowiz.ui.text.units import bare_gib

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


def _seconds_line(comparison: Comparison) -> str | None:
    seconds = cast("list[float] | None", comparison.row["step_seconds"])
    return None if not seconds else f"Step     {', '.join(f'{each:.2f}' for each in seconds)} s"


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
    lines = (f"Verdict  {predicted}; {outcome(comparison)}", _seconds_line(comparison), "")
    say(stream, *(line for line in lines if line is not None))
