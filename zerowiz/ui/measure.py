"""Show measured runs beside their plans."""

from collections.abc import Sequence
from math import inf
from typing import TextIO

from zerowiz.core.job_end import ScriptMeasurement, error_of
from zerowiz.translation import N_, _, listing
from zerowiz.ui.sentences import ROUGH_ON_CPU
from zerowiz.ui.text import bare_gib, percent, say, show_rows


def _size(size_bytes: int | None) -> str:
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
        *map(_size, peaks),
        percent(error_of(*peaks)),
        *("?" if step is None else f"{step:.3g}" for step in steps),
        percent(error_of(*steps)),
    )


def candidates(runs: Sequence[ScriptMeasurement], stream: TextIO) -> None:
    """Every run that has ended, the fastest first: predicted beside measured."""
    off = N_("off by")
    headings = ("predicted", N_("peak in GiB"), off, "predicted", N_("step in s"), off)
    rows = [_candidate(run) for run in sorted(runs, key=_took)]
    show_rows(stream, ("strategy", *headings), rows, ("predicted", off))
    if any(run.on_cpu for run in runs):
        say(stream, ROUGH_ON_CPU)
    say(stream, *(f"{run.name}: {outcome(run)}" for run in runs if run.end.status != 0))


def _took(run: ScriptMeasurement) -> float:
    """What is not known stands last."""
    step = run.step_seconds[1]
    return inf if step is None else step


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
