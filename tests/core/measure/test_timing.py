"""What counts of steps that ran freely, and how far a prediction is off."""

import pytest

from zerowiz.core.measure.timing import ComparedStep, SteadyStep, steady_step
from zerowiz.core.speed.terms import StepTime

COLD = (9.0, 4.0, 2.0)
PREDICTED = StepTime(terms=(), expected_seconds=1.2, low_seconds=1.0, high_seconds=1.5, tokens=2048)


def test_the_median_of_the_last_three_steps_counts() -> None:
    steady = steady_step([[*COLD, 1.0, 1.2, 1.1]])
    assert steady is not None
    assert 1.1 == steady.seconds
    assert pytest.approx(0.2 / 1.1) == steady.spread_fraction


def test_the_slowest_rank_counts() -> None:
    fast, slow = [*COLD, 1.0, 1.0, 1.0], [*COLD, 1.0, 2.0, 3.0]
    assert SteadyStep(seconds=2.0, spread_fraction=1.0) == steady_step([fast, slow])


@pytest.mark.parametrize("samples", [[], [[]], [[1.0, 1.0]], [[1.0, 1.0, 1.0], [1.0, 1.0]]])
def test_fewer_than_three_steps_on_any_rank_are_no_steady_step(samples: list[list[float]]) -> None:
    assert steady_step(samples) is None


def test_an_error_is_signed_and_needs_both() -> None:
    measured = SteadyStep(seconds=1.0, spread_fraction=0.0)
    assert pytest.approx(0.2) == ComparedStep(predicted=PREDICTED, measured=measured).error
    assert ComparedStep(predicted=None, measured=measured).error is None
    assert ComparedStep(predicted=PREDICTED, measured=None).error is None
