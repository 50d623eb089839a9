"""How long a run takes and what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.catalog import RunCost, RunLength, predict_run
from zerowiz.core.speed.costs import StepTime


def step(expected_seconds: float = 2.0, tokens: int = 8192) -> StepTime:
    return StepTime(
        terms=(),
        expected_seconds=expected_seconds,
        low_seconds=expected_seconds / 2,
        high_seconds=expected_seconds * 3,
        tokens=tokens,
    )


def test_a_run_is_as_many_steps_as_its_tokens_need() -> None:
    found = predict_run(step(), 1800 * 8192, 10.0)
    assert 1800 == found.steps
    assert (1.0, 0.5, 3.0) == (found.expected_hours, found.low_hours, found.high_hours)
    assert RunCost(expected_cost=10.0, low_cost=5.0, high_cost=30.0) == found.cost


def test_the_last_step_may_be_a_part_of_one() -> None:
    assert 2 == predict_run(step(), 8193, None).steps


def test_without_a_price_there_is_no_cost() -> None:
    assert predict_run(step(), 8192, None).cost is None


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (RunLength(data_tokens=1000), 1000),
        (RunLength(data_tokens=1000, epochs=3), 3000),
        (RunLength(data_sequences=10), 20480),
        (RunLength(data_sequences=10, epochs=0.5), 10240),
        (RunLength(data_tokens=3, epochs=0.5), 2),
    ],
)
def test_data_is_tokens_or_sequences_and_epochs_repeat_it(length: RunLength, expected: int) -> None:
    assert expected == length.tokens(2048)


STEPS = st.builds(step, st.floats(1e-3, 1e3, allow_nan=False), st.integers(1, 10**8))
TOKENS = st.integers(1, 10**15)


@given(STEPS, TOKENS, TOKENS, st.floats(0, 1e6))
def test_more_tokens_never_take_less_time_nor_cost_less(
    one: StepTime, tokens: int, more: int, price: float
) -> None:
    shorter, longer = sorted((tokens, tokens + more))
    first, second = predict_run(one, shorter, price), predict_run(one, longer, price)
    assert first.cost is not None
    assert second.cost is not None
    assert first.expected_hours <= second.expected_hours
    assert first.cost.expected_cost <= second.cost.expected_cost


@given(STEPS, TOKENS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_price_changes_no_time_and_a_higher_one_never_costs_less(
    one: StepTime, tokens: int, price: float, more: float
) -> None:
    cheap, dear = predict_run(one, tokens, price), predict_run(one, tokens, price + more)
    free = predict_run(one, tokens, None)
    assert cheap.expected_hours == dear.expected_hours == free.expected_hours
    assert cheap.cost is not None
    assert dear.cost is not None
    assert cheap.cost.expected_cost <= dear.cost.expected_cost


@given(STEPS, TOKENS, st.floats(0, 1e6))
def test_the_bounds_of_a_run_surround_what_is_expected(
    one: StepTime, tokens: int, price: float
) -> None:
    found = predict_run(one, tokens, price)
    assert found.cost is not None
    assert found.low_hours <= found.expected_hours <= found.high_hours
    assert found.cost.low_cost <= found.cost.expected_cost <= found.cost.high_cost
