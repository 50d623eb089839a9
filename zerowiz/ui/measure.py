"""Show a measured run and its prediction."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, TextIO, cast

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measured_row import HOST_MEMORY, Comparison, ScriptMeasurement
from zerowiz.core.measured_trial import ComparedStep, SteadyStep
from zerowiz.translation import N_, _, listing
from zerowiz.ui.sentences import ROUGH_ON_CPU
from zerowiz.ui.text import bare_gib, labelled, say, seconds, show_rows

_VERDICTS = {
    Verdict.FITS: _("fits"),
    Verdict.TIGHT: _("tight"),
    Verdict.UNCERTAIN: _("uncertain"),
    Verdict.DOES_NOT_FIT: _("does not fit"),
}


# What a row calls otherwise.
_PLACES: Mapping[object, str] = {
    "timing": _("a timed step, after the measured ones"),
    HOST_MEMORY: _("the host: the kernel killed a rank"),
}


def _size(size_bytes: int | None) -> str:
    """GiB with the digits that a comparison needs."""
    if size_bytes is None:
        return "?"
    return bare_gib(size_bytes) if size_bytes >= 10 * 2**30 else f"{size_bytes / 2**30:.3f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"


def _error_at_end(error: float | None) -> str:
    return "" if error is None else _("; error {error}", error=_percent(error))


def outcome(comparison: Comparison) -> str:
    """How the run ended, in words."""
    row = comparison.row
    if row["oom_phase"] is not None:
        return _(
            "ran out of memory in {oom_phase}",
            oom_phase=_(str(_PLACES.get(row["oom_phase"], row["oom_phase"]))),
        )
    return _("ran") if comparison.ok else _("failed: {error}", error=row["error"])


def _run_line(comparison: Comparison) -> str:
    row = comparison.row
    tokens = _(
        "{micro_batch} x {sequence_tokens} tokens",
        micro_batch=row["micro_batch"],
        sequence_tokens=row["sequence_tokens"],
    )
    where = f"{row['gpus']} x {row['gpu'] or _('unknown')}"
    return _(
        "{id}: {model}, stage {stage}, {where}, {tokens}, {optimizer}",
        id=row["id"],
        model=row["model"],
        stage=row["stage"],
        where=where,
        tokens=tokens,
        optimizer=row["optimizer"],
    )


def _step_lines(comparison: Comparison) -> Iterator[str]:
    """The time of a step: predicted, and measured where nothing waits inside it."""
    row, step = comparison.row, comparison.step
    samples = cast("list[float]", row["timed_step_seconds"] or [])
    if step.measured is not None:
        yield _measured_line(step.measured)
    elif comparison.ok and row["timed_steps"]:
        left = _(
            "time was left for {samples} of {timed_steps} steps",
            samples=len(samples),
            timed_steps=row["timed_steps"],
        )
        yield labelled(_("Step"), _("not measured: {left}", left=left))
    if step.predicted is not None:
        interval = step.predicted
        bounds = _(
            "{low_seconds} to {high_seconds}",
            low_seconds=seconds(interval.low_seconds),
            high_seconds=seconds(interval.high_seconds),
        )
        error = _error_at_end(step.error)
        yield labelled(
            _("Step"),
            _(
                "predicted: {expected_seconds} s, {bounds}{error}",
                expected_seconds=seconds(interval.expected_seconds),
                bounds=bounds,
                error=error,
            ),
        )


def _measured_line(steady: SteadyStep) -> str:
    """The time of a step, and how far single ones were from it."""
    return labelled(
        _("Step"),
        _(
            "measured: {seconds} s, median of the last {steps} steps"
            " ({low_seconds} to {high_seconds} s)",
            seconds=seconds(steady.seconds),
            steps=steady.steps,
            low_seconds=seconds(steady.low_seconds),
            high_seconds=seconds(steady.high_seconds),
        ),
    )


def _bus_lines(comparison: Comparison) -> Iterator[str]:
    """What the links carry, by the size of the message."""
    readings = cast("list[dict[str, Any]]", comparison.row["bus"] or [])
    for size_bytes, same in groupby(sorted(readings, key=_message), key=_message):
        rates = listing(f"{e['collective']} {e['bus_bytes_per_s'] / 1e9:.3g}" for e in same)
        yield labelled(
            _("Bus"),
            _(
                "{size_mebibytes} MiB: {rates} GB/s",
                size_mebibytes=size_bytes // 2**20,
                rates=rates,
            ),
        )


def _message(reading: dict[str, Any]) -> int:
    return cast("int", reading["size_bytes"])


def comparison(comparison: Comparison, stream: TextIO) -> None:
    """The phases, the peak and the verdict."""
    say(stream, _run_line(comparison), _("In GiB, of rank 0"))
    rows = [
        (
            _(phase.name.replace("_", " ")),
            *(_size(phase.predicted_bytes), _size(phase.measured_bytes), _percent(phase.error)),
        )
        for phase in (*comparison.phases, comparison.peak)
    ]
    show_rows(stream, ("", N_("predicted"), N_("measured"), N_("off by")), rows)
    if comparison.row.get("accelerator") == Accelerator.CPU.value:
        say(stream, _(ROUGH_ON_CPU))
    judgement = (
        comparison.unpredicted if comparison.verdict is None else _VERDICTS[comparison.verdict]
    )
    predicted = (
        _("predicted: {said}", said=judgement)
        if comparison.verdict
        else _("not predicted: {said}", said=judgement)
    )
    verdict = labelled(
        _("Verdict"), _("{predicted}; {outcome}", predicted=predicted, outcome=outcome(comparison))
    )
    say(stream, verdict, *_step_lines(comparison), *_bus_lines(comparison), "")


def ended(comparison: Comparison, number: int, total: int) -> str:
    """One candidate of many, as it ends."""
    step = comparison.step.measured
    took = "" if step is None else _(", {seconds:.3g} s a step", seconds=step.seconds)
    return _(
        "{number} of {total}: {id} {outcome}{took}",
        number=number,
        total=total,
        id=comparison.row["id"],
        outcome=outcome(comparison),
        took=took,
    )


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
    off = N_("off by")
    headings = ("predicted", N_("peak in GiB"), off, "predicted", N_("step in s"), off)
    rows = [_candidate(row) for row in sorted(comparisons, key=_took)]
    show_rows(stream, ("strategy", *headings), rows, ("predicted", off))
    say(stream, *(line for row in comparisons for line in _bus_lines(row)))
    say(stream, *(f"{row.row['id']}: {outcome(row)}" for row in comparisons if not row.ok))


def _took(comparison: Comparison) -> float:
    """What is not known stands last."""
    step = comparison.step.measured
    return inf if step is None else step.seconds


def script_run(run: ScriptMeasurement, stream: TextIO) -> None:
    """A person's own script: its peak and its step, predicted beside measured."""
    peak = run.peak
    say(
        stream,
        _(
            "{strategy}: {steps} of {wanted_steps} optimizer steps",
            strategy=run.planned.strategy.name,
            steps=run.steps,
            wanted_steps=run.wanted_steps,
        ),
    )
    known = peak.measured_bytes is not None
    measured = f"{_size(peak.measured_bytes)} GiB" if known else _("not counted here")
    error = _error_at_end(peak.error)
    predicted = f"{_size(peak.predicted_bytes)} GiB"
    say(
        stream,
        labelled(
            _("Peak"),
            _(
                "measured: {measured}; predicted: {predicted}{error}",
                measured=measured,
                predicted=predicted,
                error=error,
            ),
        ),
    )
    if run.on_cpu:
        say(stream, _(ROUGH_ON_CPU))
    say(stream, *_script_step(run.step, run.samples))
    if run.out_of_memory is not None:
        say(stream, _("It ran out of {memory} memory", memory=run.out_of_memory))


def _script_step(step: ComparedStep, samples: Sequence[Sequence[float]]) -> Iterator[str]:
    for rank, each_step in enumerate(samples):
        if each_step:
            yield _(
                "Rank {rank}   {each_step} s",
                rank=rank,
                each_step=listing(f"{value:.3g}" for value in each_step),
            )
    if step.measured is not None:
        yield _measured_line(step.measured)
    if step.predicted is not None:
        error = _error_at_end(step.error)
        yield labelled(
            _("Step"),
            _(
                "predicted: {expected_seconds} s{error}",
                expected_seconds=seconds(step.predicted.expected_seconds),
                error=error,
            ),
        )
