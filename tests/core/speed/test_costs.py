"""The constants take the speed of the host that they are asked for."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.types import Gpu, Host, Machine, MachineSource
from zerowiz.core.speed.costs import (
    COSTS,
    Calibration,
    MeasuredStep,
    StepTime,
    Term,
    TermKind,
    calibrate,
    find_rates,
    on_host,
    time_python_call,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import Precision
from zerowiz.probe.files import read_gpu_table

# Measured steps of a machine scale what is predicted there.


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
    found = calibrate([MeasuredStep(terms=step.terms, measured_seconds=factor)])
    assert found is not None
    low, high = sorted((1.0, factor))
    assert low - 1e-6 <= corrected(found, step) <= high + 1e-6
    assert found.measured_steps == 1


def test_many_steps_find_the_term_that_is_off() -> None:
    shares = (0.1, 0.3, 0.5, 0.7, 0.9) * 4
    steps = [
        MeasuredStep(
            terms=predicted(matrix_products=share, cpu_optimizer=1 - share).terms,
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
    found = calibrate([MeasuredStep(terms=step.terms, measured_seconds=2.0)])
    assert found is not None
    assert found.factors[TermKind.GATHERING] < 1.1 < found.factors[TermKind.MATRIX_PRODUCTS]


def test_a_kind_that_no_step_had_stays_as_it_is() -> None:
    found = calibrate([MeasuredStep(terms=predicted(host=1.0).terms, measured_seconds=2.0)])
    assert found is not None
    term = Term(kind=TermKind.PCIE, exposed_seconds=3.0, formula="")
    assert found.apply(term) == term


def _factor(call_seconds: float | None) -> float:
    host = replace(Host(), python_call_seconds=call_seconds)
    return on_host(COSTS, host).host_seconds / COSTS.host_seconds


def test_a_reading_is_pulled_towards_the_mean_of_shared_hosts() -> None:
    """Else a moment in which a host was busy would decide the whole step."""
    usual = _factor(COSTS.shared_python_call_seconds)
    assert usual == pytest.approx(COSTS.shared_python_call_seconds / COSTS.python_call_seconds)
    slow, fast = _factor(4 * 143e-9), _factor(143e-9 / 4)
    assert 1.5 < slow / usual < 4
    assert slow / usual == pytest.approx(usual / fast)


def test_a_host_that_nobody_timed_is_not_pulled() -> None:
    expected = COSTS.unknown_python_call_seconds / COSTS.python_call_seconds
    assert _factor(None) == pytest.approx(expected)


# How fast this host runs Python.


def test_a_call_takes_some_nanoseconds() -> None:
    assert 1e-9 < time_python_call(time.perf_counter) < 1e-4


def test_the_least_of_all_rounds_counts() -> None:
    def ticks() -> Iterator[float]:
        now = 0.0
        for took in (3e-4, 2e-4, 5e-4):
            yield now
            now += took
            yield now
        while True:
            yield now
            now += 1.0

    clock = ticks()
    assert 2e-7 == time_python_call(lambda: next(clock))


# What a machine's GPUs can do, by the table.


def _machine(*names: str) -> Machine:
    gpus = tuple(Gpu(index=place, name=name) for place, name in enumerate(names))
    return Machine(source=MachineSource.SPEC, gpus=gpus)


@pytest.mark.parametrize("precision", Precision)
def test_an_h200_has_a_rate_in_every_precision(precision: Precision) -> None:
    rates = find_rates(_machine("NVIDIA H200"), read_gpu_table())
    assert rates is not None
    assert rates.flop_per_s(precision)


def test_an_h200_is_as_fast_as_its_datasheet_says() -> None:
    rates = find_rates(_machine("NVIDIA H200"), read_gpu_table())
    assert rates is not None
    assert 989_000_000_000_000 == pytest.approx(rates.flop_per_s(Precision.BF16), rel=0.01)
    assert 67_000_000_000_000 == rates.flop_per_s(Precision.FP32)
    assert 4_800_000_000_000 == rates.memory_bytes_per_s


def test_fp32_is_no_rate_of_the_tensor_cores() -> None:
    """TF32 has half the rate of bf16 or a quarter, and is not what torch takes by itself."""
    for gpu in read_gpu_table():
        assert gpu.fp32_flop_per_s < 0.65 * gpu.fp16_flop_per_s, gpu.name
        assert "fp32" in gpu.source


def test_no_rate_is_known_of_a_slice() -> None:
    gpu = Gpu(index=0, name="NVIDIA H200", mig_slice=1)
    machine = Machine(source=MachineSource.SPEC, gpus=(gpu,))
    assert find_rates(machine, read_gpu_table()) is None


@pytest.mark.parametrize("names", [("a card of no table",), ("NVIDIA H200", "NVIDIA A10")])
def test_no_rate_is_known_of_a_strange_gpu_and_of_two_kinds(names: tuple[str, ...]) -> None:
    assert find_rates(_machine(*names), read_gpu_table()) is None
