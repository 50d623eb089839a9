"""What counts of steps that ran freely, and how far a prediction is off."""

import pytest

from zerowiz.core.speed.costs import StepTime
from zerowiz.core.trial import ComparedStep, SteadyStep, count_timed_steps, steady_step

SLOW = (9.0, 4.0)
PREDICTED = StepTime(terms=(), expected_seconds=1.2, low_seconds=1.0, high_seconds=1.5, tokens=2048)


def test_the_median_of_the_steps_after_the_first_third_counts() -> None:
    steady = steady_step([[*SLOW, 1.3, 1.0, 1.2, 1.1]])
    assert SteadyStep(seconds=1.15, low_seconds=1.0, high_seconds=1.3, steps=4) == steady
    assert steady is not None
    assert pytest.approx(0.3 / 1.15) == steady.spread_fraction


def test_the_slowest_rank_counts() -> None:
    fast, slow = [*SLOW, 1.0, 1.0, 1.0, 1.0], [*SLOW, 1.0, 2.0, 2.0, 3.0]
    found = SteadyStep(seconds=2.0, low_seconds=1.0, high_seconds=3.0, steps=4)
    assert found == steady_step([fast, slow])


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.5, 10), (12.0, 6), (0.01, 40), (0.0, 40), (1.0, 6)]
)
def test_as_many_steps_are_timed_as_say_enough(step_seconds: float, steps: int) -> None:
    assert steps == count_timed_steps(6, 40, step_seconds)


def test_a_number_of_steps_that_was_asked_for_is_that_number() -> None:
    assert [3, 0] == [count_timed_steps(n, n, 0.1) for n in (3, 0)]


@pytest.mark.parametrize("samples", [[], [[]], [[1.0, 1.0]], [[1.0, 1.0, 1.0], [1.0, 1.0]]])
def test_fewer_than_three_steps_on_any_rank_are_no_steady_step(samples: list[list[float]]) -> None:
    assert steady_step(samples) is None


def test_an_error_is_signed_and_needs_both() -> None:
    measured = SteadyStep(seconds=1.0, low_seconds=1.0, high_seconds=1.0, steps=3)
    assert pytest.approx(0.2) == ComparedStep(predicted=PREDICTED, measured=measured).error
    assert ComparedStep(predicted=None, measured=measured).error is None
    assert ComparedStep(predicted=PREDICTED, measured=None).error is None
