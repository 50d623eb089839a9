"""Which of two settings is faster: how often zerowiz knows, and how often a measurement does."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from typing import NamedTuple

from speed.repeats import by_setting
from speed.samples import Sample

from zerowiz.core.speed.costs import Costs
from zerowiz.core.structs import replace

APART = 0.10
"""By which two steps differ before their order counts."""


class Ranking(NamedTuple):
    """Pairs whose times differ, and those of them whose order was known."""

    right: int
    pairs: int

    def __str__(self) -> str:
        return f"{self.right} of {self.pairs} ({self.right / max(1, self.pairs):.1%})"


def _predicted_seconds(sample: Sample, costs: Costs) -> float:
    found = sample.predict(costs)
    assert found is not None
    return found.expected_seconds


def log_error(sample: Sample, costs: Costs) -> float:
    """Of the prediction, signed, as a logarithm."""
    return math.log(_predicted_seconds(sample, costs) / sample.measured_seconds)


def _rivals(samples: Iterable[Sample]) -> Iterator[tuple[Sample, Sample]]:
    """Each two of which a person could take one for the other."""
    alike: dict[object, list[Sample]] = {}
    for each in samples:
        alike.setdefault((each.setting, each.free_running), []).append(each)
    for one, other in chain.from_iterable(combinations(each, 2) for each in alike.values()):
        ways = [(each.rank.strategy.name, each.rank.workload) for each in (one, other)]
        if ways[0] != ways[1]:
            yield one, other


def _are_apart(one: Sample, other: Sample) -> bool:
    seconds = one.measured_seconds, other.measured_seconds
    return max(seconds) > min(seconds) * (1 + APART)


def _count(pairs: Iterable[tuple[Sample, Sample]], predict: Callable[[Sample], float]) -> Ranking:
    both = [sorted(pair, key=lambda each: each.measured_seconds) for pair in pairs]
    predicted = {id(each): each for pair in both for each in pair}
    seconds = {key: predict(each) for key, each in predicted.items()}
    right = sum(seconds[id(fast)] < seconds[id(slow)] for fast, slow in both)
    return Ranking(right, len(both))


def rank_runs(samples: Iterable[Sample], costs: Costs) -> Ranking:
    """Of single runs, each with the reading of its own host."""
    pairs = (pair for pair in _rivals(samples) if _are_apart(*pair))
    return _count(pairs, lambda each: _predicted_seconds(each, costs))


def as_planned(samples: Iterable[Sample]) -> list[Sample]:
    """The settings as a plan compares them: on one host, whose reading is the mean of all.

    What was measured of a setting is the median of its runs.
    """
    groups = by_setting(samples)
    readings: dict[object, list[float]] = {}
    for each in (run for group in groups for run in group):
        call_seconds = each.machine.host.python_call_seconds
        if call_seconds is not None:
            readings.setdefault(_gpus(each), []).append(call_seconds)
    return [
        _on_host(group, statistics.fmean(readings[_gpus(group[0])]))
        for group in groups
        if _gpus(group[0]) in readings
    ]


def _gpus(sample: Sample) -> object:
    return sample.row.get("gpu"), sample.row["gpus"]


def _on_host(runs: Sequence[Sample], call_seconds: float) -> Sample:
    machine = runs[0].machine
    host = replace(machine.host, python_call_seconds=call_seconds)
    return runs[0]._replace(
        measured_seconds=statistics.median(each.measured_seconds for each in runs),
        machine=replace(machine, host=host),
    )


def rank_settings(samples: Iterable[Sample], costs: Costs) -> Ranking:
    """Of settings, `as_planned`."""
    return rank_runs(as_planned(samples), costs)


def rank_by_other_runs(samples: Iterable[Sample], costs: Costs) -> tuple[Ranking, Ranking]:
    """Of runs of settings that ran more than once: by the median of their others, and by zerowiz."""
    others = {
        run.id: statistics.median(each.measured_seconds for each in group if each is not run)
        for group in by_setting(samples)
        if len(group) > 1
        for run in group
    }
    pairs = list(_repeated_pairs(samples))
    return (
        _count(pairs, lambda each: others[each.id]),
        _count(pairs, lambda each: _predicted_seconds(each, costs)),
    )


def _repeated_pairs(samples: Iterable[Sample]) -> Iterator[tuple[Sample, Sample]]:
    repeated = {id(group[0]): group for group in by_setting(samples) if len(group) > 1}
    for one, other in _rivals(group[0] for group in repeated.values()):
        runs = product(repeated[id(one)], repeated[id(other)])
        yield from (pair for pair in runs if _are_apart(*pair))
