"""Which of two settings is faster: of runs, of settings as a plan sees them, and by measuring again."""

import pytest
from speed.pairs import as_planned, rank_by_other_runs, rank_runs, rank_settings
from speed.samples import Sample, read_samples

from zerowiz.core.speed.costs import COSTS
from zerowiz.core.structs import replace

FREE = [each for each in read_samples() if each.free_running]


def _rivals() -> tuple[Sample, Sample]:
    """Two runs of one workload, of which the first is predicted to take much less time."""
    for fast in FREE:
        for slow in FREE:
            if fast.setting == slow.setting and 2 * _predicted(fast) < _predicted(slow):
                return fast, slow
    raise AssertionError("no rivals")


def _predicted(sample: Sample) -> float:
    found = sample.predict()
    assert found is not None
    return found.expected_seconds


FAST, SLOW = _rivals()


def run(sample: Sample, number: int, seconds: float) -> Sample:
    return sample._replace(id=f"{sample.id}@{number}", measured_seconds=seconds)


def test_only_rivals_whose_times_differ_are_ranked() -> None:
    alone = run(FAST, 1, 1.0), run(FAST, 2, 2.0)
    assert rank_runs(alone, COSTS) == (0, 0)
    assert rank_runs([run(FAST, 1, 1.0), run(SLOW, 1, 1.05)], COSTS) == (0, 0)
    assert rank_runs([run(FAST, 1, 1.0), run(SLOW, 1, 2.0)], COSTS) == (1, 1)
    assert rank_runs([run(FAST, 1, 2.0), run(SLOW, 1, 1.0)], COSTS) == (0, 1)


def test_one_odd_run_does_not_decide_between_settings() -> None:
    runs = [*(run(FAST, n, 1.0) for n in (1, 2)), run(FAST, 3, 9.0), run(SLOW, 1, 2.0)]
    assert rank_runs(runs, COSTS) == (2, 3)
    assert rank_settings(runs, COSTS) == (1, 1)


def test_settings_are_compared_on_one_host() -> None:
    """Else the setting whose host was read in a busy moment seems slow."""

    def read_at(sample: Sample, call_seconds: float) -> Sample:
        host = replace(sample.machine.host, python_call_seconds=call_seconds)
        return sample._replace(machine=replace(sample.machine, host=host))

    runs = read_at(run(FAST, 1, 1.0), 300e-9), read_at(run(SLOW, 1, 2.0), 100e-9)
    readings = [each.machine.host.python_call_seconds for each in as_planned(runs)]
    assert readings == pytest.approx([200e-9, 200e-9])


def test_another_run_of_both_settings_says_an_order_too() -> None:
    fast = [run(FAST, number, seconds) for number, seconds in enumerate((1.0, 1.0, 1.0, 3.0))]
    slow = [run(SLOW, number, 2.0) for number in range(3)]
    measured, predicted = rank_by_other_runs([*fast, *slow], COSTS)
    # The odd run is slower than each of the three, and the others say that it is faster.
    assert measured == predicted == (9, 12)
    assert rank_by_other_runs([run(FAST, 1, 1.0), run(SLOW, 1, 2.0)], COSTS) == ((0, 0), (0, 0))


def test_what_differs_much_is_ranked_right() -> None:
    runs, settings = rank_runs(FREE, COSTS), rank_settings(FREE, COSTS)
    assert settings.pairs > 300
    assert settings.right / settings.pairs > 0.94
    # One setting timed twice differs by 8 % in the median, and by three quarters where the host is busy.
    assert runs.right / runs.pairs > 0.88
