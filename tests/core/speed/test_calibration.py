"""Measured steps of a machine scale what is predicted there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.speed.costs import Calibration, MeasuredStep, StepTime, Term, TermKind, calibrate


def predicted(**seconds: float) -> StepTime:
    terms = tuple(
        Term(kind=TermKind(name), exposed_seconds=value, formula="")
        for name, value in seconds.items()
    )
    total = sum(seconds.values())
    return StepTime(
        terms=terms,
        expected_seconds=total,
        low_seconds=total / 2,
        high_seconds=total * 2,
        tokens=1024,
    )


def corrected(found: Calibration, step: StepTime) -> float:
    return sum(found.apply(term).exposed_seconds for term in step.terms)


def test_nothing_is_learned_from_nothing() -> None:
    assert calibrate([]) is None


@given(factor=st.floats(min_value=0.3, max_value=3))
def test_a_measured_step_moves_the_prediction_towards_it_and_not_beyond(factor: float) -> None:
    step = predicted(matrix_products=0.6, host=0.4)
    found = calibrate([MeasuredStep(predicted=step, measured_seconds=factor)])
    assert found is not None
    low, high = sorted((1.0, factor))
    assert low - 1e-6 <= corrected(found, step) <= high + 1e-6
    assert found.measured_steps == 1


def test_many_steps_find_the_term_that_is_off() -> None:
    shares = (0.1, 0.3, 0.5, 0.7, 0.9) * 4
    steps = [
        MeasuredStep(
            predicted=predicted(matrix_products=share, cpu_optimizer=1 - share),
            measured_seconds=share + 2 * (1 - share),
        )
        for share in shares
    ]
    found = calibrate(steps)
    assert found is not None
    assert found.factors[TermKind.CPU_OPTIMIZER] == pytest.approx(2, rel=0.1)
    assert found.factors[TermKind.MATRIX_PRODUCTS] == pytest.approx(1, rel=0.1)


def test_one_step_moves_a_small_term_little() -> None:
    step = predicted(matrix_products=0.95, gathering=0.05)
    found = calibrate([MeasuredStep(predicted=step, measured_seconds=2.0)])
    assert found is not None
    assert found.factors[TermKind.GATHERING] < 1.1 < found.factors[TermKind.MATRIX_PRODUCTS]


def test_a_kind_that_no_step_had_stays_as_it_is() -> None:
    found = calibrate([MeasuredStep(predicted=predicted(host=1.0), measured_seconds=2.0)])
    assert found is not None
    term = Term(kind=TermKind.PCIE, exposed_seconds=3.0, formula="")
    assert found.apply(term) == term
