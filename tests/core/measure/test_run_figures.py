"""The figures of a launched job are those of the rank that took most."""

import pytest

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measured_row import measure_run, predict_run
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.outcome import CountedMemory, PredictedFigures, error_of
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table

ALLOCATED, RESIDENT = CountedMemory.ALLOCATED, CountedMemory.RESIDENT


def report(*seconds: float, peak_bytes: int | None = 5, rss_bytes: int = 9) -> dict[str, object]:
    return {
        "timed_step_seconds": seconds,
        "peak_bytes": peak_bytes,
        "host_peak_rss_bytes": rss_bytes,
    }


def test_the_rank_that_took_most_counts() -> None:
    found = measure_run([report(1, 1, 1), report(2, 2, 2, peak_bytes=7)], ALLOCATED)
    assert found is not None
    assert (2, 7, 2) == (found.ranks, found.peak_bytes, found.step_seconds)


def test_on_the_cpu_accelerator_the_process_counts() -> None:
    found = measure_run([report(peak_bytes=None), report(peak_bytes=None, rss_bytes=11)], RESIDENT)
    assert found is not None
    assert (11, None, None) == (found.peak_bytes, found.step_seconds, found.outside_bytes)


def test_python_and_its_libraries_are_those_of_the_rank_that_took_most() -> None:
    reports = [report(rss_bytes=each) | {"outside_bytes": each - 2} for each in (9, 11, 10)]
    found = measure_run(reports, RESIDENT)
    assert found is not None
    assert (11, 9) == (found.peak_bytes, found.outside_bytes)
    predicted = PredictedFigures(memory=RESIDENT, peak_bytes=20, outside_bytes=17)
    assert (12, 9) == (
        (beside := predicted.with_outside(found.outside_bytes)).peak_bytes,
        beside.outside_bytes,
    )
    # An older record has no such figure, and a GPU has none.
    assert predicted == predicted.with_outside(None)
    on_gpu = PredictedFigures(memory=ALLOCATED, peak_bytes=20)
    assert on_gpu == on_gpu.with_outside(9)


def test_without_a_step_nothing_is_measured() -> None:
    assert measure_run([], ALLOCATED) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((1.0, 1.0), None), ((9, 2, 2, 2), 2), ((9, 9, 9, 2, 2, 2, 50, 2), 2)],
)
def test_slow_first_steps_and_a_checkpoint_leave_the_time_of_a_step(
    seconds: tuple[float, ...], expected: float | None
) -> None:
    found = measure_run([report(*seconds)], ALLOCATED)
    assert found is not None
    assert expected == found.step_seconds


def test_on_a_gpu_the_peak_of_the_allocator_is_predicted_and_on_the_cpu_the_process() -> None:
    machine, table = parse_spec("2xH200", read_gpu_table()), read_gpu_table()
    model = model_from_size("1b", 10**9)
    rates = find_rates(machine, table)
    job = PlanInput(machine=machine, model=model, workload=Workload(), rates=rates)
    planned = evaluate(job, ZERO2)
    on_gpu = predict_run(job, planned, Accelerator.CUDA)
    assert (ALLOCATED, planned.estimate.peak_bytes) == (on_gpu.memory, on_gpu.peak_bytes)
    assert on_gpu.step_seconds is not None
    assert on_gpu.low_step_seconds is not None
    assert on_gpu.high_step_seconds is not None
    assert on_gpu.low_step_seconds < on_gpu.step_seconds < on_gpu.high_step_seconds
    on_cpu = predict_run(job, planned, Accelerator.CPU)
    assert (RESIDENT, planned.device_bytes) == (on_cpu.memory, on_cpu.peak_bytes)
    assert on_cpu.peak_bytes == planned.estimate.peak_bytes + (on_cpu.outside_bytes or 0)
    assert on_gpu.outside_bytes is None


def test_steps_with_fewer_micro_batches_are_held_against_the_prediction_for_as_many() -> None:
    table = read_gpu_table()
    machine, model = parse_spec("2xH200", table), model_from_size("1b", 10**9)
    rates = find_rates(machine, table)

    def predict(steps: int) -> PredictedFigures:
        workload = Workload(accumulation_steps=steps)
        job = PlanInput(machine=machine, model=model, workload=workload, rates=rates)
        return predict_run(job, evaluate(job, ZERO2), Accelerator.CUDA)

    counted = report(9, 2, 2, 8, 2, 2) | {"timed_micro_batches": [3, 3, 3, 4, 3, 3]}
    found = measure_run([counted], ALLOCATED)
    assert found is not None
    assert (3, 2) == (found.micro_batches, found.step_seconds)
    fewer = predict(4).of_micro_batches(found.micro_batches)
    assert predict(3).step_seconds == pytest.approx(fewer.step_seconds)
    assert predict(4) == predict(4).of_micro_batches(4) == predict(4).of_micro_batches(None)


def test_an_error_is_signed_and_of_what_was_measured() -> None:
    assert -0.25 == error_of(3, 4)
    assert error_of(None, 4) is None
    assert error_of(3, None) is None
