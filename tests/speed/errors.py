"""How right predicted step times are: by group, by pair, and as the tables of docs/accuracy.md."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from accuracy.split import Split
from speed.pairs import APART, log_error, rank_by_other_runs, rank_runs, rank_settings
from speed.public import SOURCES, read_published
from speed.repeats import by_setting, describe_repeats, find_repeats, quantile
from speed.samples import Sample, kind_of, read_samples

from zerowiz.core.speed.costs import COSTS, Calibration, Costs, MeasuredStep, calibrate


class Line(NamedTuple):
    """The errors of one group; fractions of what was measured."""

    group: str
    value: str
    runs: int
    median: float
    most: float
    """Nine in ten have no more."""
    signed: float
    """The median with its sign."""


def is_inside(sample: Sample, costs: Costs) -> bool:
    """Whether what was measured lies within the bounds of the prediction."""
    found = sample.predict(costs)
    return found is not None and found.low_seconds <= sample.measured_seconds <= found.high_seconds


GROUPS: Mapping[str, Callable[[Sample], str]] = {
    "": lambda _: "all",
    "job": kind_of,
    "strategy": lambda each: each.rank.strategy.name,
    "GPUs": lambda each: f"{each.row['gpus']} x {each.row.get('gpu') or 'NVIDIA H200'}",
    "link": lambda each: "no peer-to-peer" if each.row.get("nccl_p2p") is False else "NVLink",
    "checkpointing": lambda each: "with" if each.row["gradient_checkpointing"] else "without",
    "method": lambda each: each.rank.workload.method.value,
    "precision": lambda each: (
        (each.rank.workload.torch_autocast or each.rank.workload.precision).value
    ),
    "file": lambda each: each.row["file"].removesuffix(".jsonl"),
}


def lines(samples: Sequence[Sample], costs: Costs) -> Iterator[Line]:
    """The errors of each group."""
    for name, group in GROUPS.items():
        for value in sorted({group(each) for each in samples}):
            logs = [log_error(each, costs) for each in samples if group(each) == value]
            errors = [abs(math.exp(log) - 1) for log in logs]
            median, most = statistics.median(errors), quantile(errors, 0.9)
            yield Line(name, value, len(logs), median, most, math.exp(statistics.median(logs)) - 1)


def summary(samples: Sequence[Sample], costs: Costs) -> str:
    """How many lie within their interval, and how many pairs are called right."""
    inside = sum(is_inside(each, costs) for each in samples)
    return (
        f"{inside} of {len(samples)} steps are within their interval. We predict the right order for"
        f" {rank_settings(samples, costs)} pairs of settings of one workload that differ by more than"
        f" {APART:.0%}, and for {rank_runs(samples, costs)} such pairs of single runs."
    )


def _markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = ("| " + " | ".join(headings) + " |", "|" + "---|" * len(headings))
    return "\n".join((*head, *("| " + " | ".join(row) + " |" for row in rows))) + "\n"


def _calibration_of(samples: Sequence[Sample]) -> Calibration | None:
    """What a plan learns from the fitted steps of a lease."""
    fitted = [each for each in samples if each.side is Split.FITTED]
    host_only = Calibration(
        factors={},
        measured_steps=len(fitted),
        python_call_seconds=statistics.fmean(
            call_seconds
            for each in fitted
            if (call_seconds := each.machine.host.python_call_seconds) is not None
        ),
    )
    known = [
        MeasuredStep(terms=predicted.terms, measured_seconds=each.measured_seconds)
        for each in fitted
        if (predicted := each.predict(calibration=host_only)) is not None
    ]
    return calibrate(known, host_only.python_call_seconds)


def calibrated_errors(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Of what was set aside in a lease, once its fitted steps have calibrated the plan.

    First those of each run, then those of each setting: there the median of its runs counts, of
    what was predicted as of what was measured. A lease without fitted steps calibrates nothing, and
    has none.
    """
    if all(each.side is Split.SET_ASIDE for each in samples):
        return [], []
    calibration = _calibration_of(samples)
    aside = [each for each in samples if each.side is Split.SET_ASIDE]
    by_run, by_its_setting = list[float](), list[float]()
    for runs in by_setting(aside):
        # Every sample has a prediction (samples.py, sample_of).
        found = [each.predict(calibration=calibration) for each in runs]
        predicted = [each.expected_seconds for each in found if each is not None]
        measured = [each.measured_seconds for each in runs]
        by_run += [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
        error = statistics.median(predicted) / statistics.median(measured) - 1
        by_its_setting.append(abs(error))
    return by_run, by_its_setting


def _of_calibration() -> Iterator[str]:
    yield (
        "This table shows predictions after `measure`. `zerowiz measure` keeps what it saw. The fitted"
        " steps of a lease calibrate its machine. We then predict its steps that are set aside again. A"
        " file is a lease. A lease without fitted steps is not here.\n"
    )
    leases: dict[str, list[Sample]] = {}
    for each in read_samples():
        if each.free_running:
            leases.setdefault(GROUPS["file"](each), []).append(each)
    rows, of_runs, of_settings = [], list[float](), list[float]()
    for file, samples in leases.items():
        by_run, by_its_setting = calibrated_errors(samples)
        if not by_run:
            continue
        of_runs += by_run
        of_settings += by_its_setting
        rows.append((GROUPS["GPUs"](samples[0]), file, *_figures(by_run)))
    yield _markdown(
        ("machine", "file", "set aside", "median", "nine in ten"),
        [
            *rows,
            ("all", "single runs", *_figures(of_runs)),
            ("all", "settings, each the median of its runs", *_figures(of_settings)),
        ],
    )


def _figures(errors: Sequence[float]) -> tuple[str, str, str]:
    return str(len(errors)), f"{statistics.median(errors):.1%}", f"{quantile(errors, 0.9):.1%}"


def _of_synchronised() -> str:
    samples = [each for each in read_samples() if not each.free_running]
    first = next(lines(samples, COSTS))
    return (
        f"These tables leave out {first.runs} older steps of stages 0 to 2. We synchronised them at each"
        f" phase to read the memory. Half of them are within {first.median:.1%} of the prediction for"
        f" steps that run freely, and nine in ten within {first.most:.1%}.\n"
    )


def _of_sides() -> Iterator[str]:
    for side in Split:
        samples = [each for each in read_samples() if each.side is side and each.free_running]
        yield f"Steps on the side {side.value}:\n"
        yield _markdown(
            ("", "", "runs", "median", "nine in ten", "median, signed"),
            (
                (
                    *(line.group, line.value, str(line.runs)),
                    *(f"{line.median:.1%}", f"{line.most:.1%}", f"{line.signed:+.1%}"),
                )
                for line in lines(samples, COSTS)
            ),
        )
        yield summary(samples, COSTS) + "\n"


def _of_others() -> Iterator[str]:
    yield "Others published these times. Their steps ran freely (`tests/measured/public_times.json`):\n"
    found = list(read_published())
    groups = {
        source: [each for each in found if each.run["source"] == source] for source in SOURCES
    }
    yield _markdown(
        ("source", "strategy", "times", "median", "nine in ten", "median, signed"),
        (
            (
                *(source, strategy, str(len(errors))),
                f"{statistics.median(map(abs, errors)):.1%}",
                f"{quantile([*map(abs, errors)], 0.9):.1%}",
                f"{statistics.median(errors):+.1%}",
            )
            for source, published in groups.items()
            for strategy in dict.fromkeys(each.run["strategy"] for each in published)
            if (errors := [each.error for each in published if each.run["strategy"] == strategy])
        ),
    )


def _of_repeats() -> str:
    free = [each for each in read_samples() if each.free_running]
    measured, predicted = rank_by_other_runs(free, COSTS)
    return (
        f"{describe_repeats(find_repeats(free))} Pairs of single runs whose settings both ran more than"
        f" once: the median of their other runs says the right order for {measured}, and zerowiz for"
        f" {predicted}.\n"
    )


@cache
def step_times() -> str:
    """The section of docs/accuracy.md."""
    sides = (*_of_sides(), *_of_calibration(), _of_synchronised())
    return "\n".join((*sides, _of_repeats(), *_of_others()))
