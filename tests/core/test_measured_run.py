"""What was measured on a machine is kept, and calibrates what is predicted of it later."""

import hashlib
import json
import math
import statistics
from typing import Any

import pytest
from measured.rows import family_of, read_every_row, read_model
from measured.trials import decode_trial, plan_trial

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import (
    Cause,
    CountedMemory,
    JobEnd,
    PredictedFigures,
    SteadyStep,
    error_of,
    measure_run,
    predict_run,
    steady_step,
)
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, with_gpus
from zerowiz.core.measured_run import (
    Compared,
    ComparedStep,
    KeptRun,
    MachineResults,
    ScriptMeasurement,
    formulas_of,
    keep_run,
    machine_key,
)
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import COSTS, StepTime, TermKind, find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table

TABLE = read_gpu_table()
H200S = parse_spec("2xH200", TABLE)
ROW = next(row for row in read_every_row() if row["id"] == "m1-000")

SLOW = (9.0, 4.0)
PREDICTED = StepTime(terms=(), expected_seconds=1.2, low_seconds=1.0, high_seconds=1.5, tokens=2048)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # The median of the steps after the first third, on the slowest rank.
        ([[*SLOW, 1.3, 1.0, 1.2, 1.1]], (1.15, 1.0, 1.3, 4)),
        ([[*SLOW, 1.0, 1.0, 1.0, 1.0], [*SLOW, 1.0, 2.0, 2.0, 3.0]], (2.0, 1.0, 3.0, 4)),
        # Fewer than three on any rank are none.
        ([], None),
        ([[]], None),
        ([[1.0, 1.0]], None),
        ([[1.0, 1.0, 1.0], [1.0, 1.0]], None),
    ],
)
def test_the_steady_step(
    samples: list[list[float]], expected: tuple[float, float, float, int] | None
) -> None:
    found = steady_step(samples)
    read = found and (found.seconds, found.low_seconds, found.high_seconds, found.steps)
    assert expected == read


def test_an_error_of_a_comparison_is_signed_and_needs_both() -> None:
    measured = SteadyStep(seconds=1.0, low_seconds=1.0, high_seconds=1.0, steps=3)
    assert pytest.approx(0.2) == ComparedStep(predicted=PREDICTED, measured=measured).error
    assert ComparedStep(predicted=None, measured=measured).error is None
    assert ComparedStep(predicted=PREDICTED, measured=None).error is None
    assert -0.25 == Compared(name="peak", predicted_bytes=3, measured_bytes=4).error
    assert Compared(name="peak", predicted_bytes=3, measured_bytes=None).error is None


def planned(row: Any, call_seconds: float | None = None) -> tuple[Job, StrategyRow]:
    """The job of a row, on two H200s whose host runs Python so fast."""
    trial = decode_trial(dict(row), "case")
    plan = plan_trial(trial, H200S, read_model(row["model"]), rates=find_rates(H200S, TABLE))
    assert plan.job is not None
    assert plan.strategy is not None
    host = replace(plan.job.machine.host, python_call_seconds=call_seconds)
    return replace(plan.job, machine=replace(plan.job.machine, host=host)), plan.strategy


def kept(
    *seconds: float,
    formulas: str = "1",
    row: Any = ROW,
    before: MachineResults | None = None,
    call_seconds: float | None = None,
    status: int = 0,
    **said: object,
) -> KeptRun | None:
    job, strategy = planned(row, call_seconds)
    cause = Cause.FINISHED if status == 0 else Cause.FAILED
    run = ScriptMeasurement(
        name=strategy.name,
        planned=evaluate(job, strategy),
        end=decode(JobEnd, {"status": status, "cause": cause.value}, "end"),
        ranks=[{"steps": 9, "timed_step_seconds": list(seconds), **said}] * 2,
        wanted_steps=9,
    )
    return keep_run(job, run, formulas, before or MachineResults())


def kept_surely(*seconds: float, **said: Any) -> KeptRun:
    run = kept(*seconds, **said)
    assert run is not None
    return run


def test_a_kept_run_has_its_setting_the_prediction_and_the_measured_time() -> None:
    run = kept_surely(0.5, 0.4, 0.6)
    assert (0.5, "ddp", "1") == (run.measured_seconds, run.strategy, run.formulas)
    assert ("pythia-1.4b", 4) == (run.setting["model"], run.setting["micro_batch"])
    predicted = evaluate(*planned(ROW)).step_time
    assert predicted is not None
    assert predicted.expected_seconds == pytest.approx(sum(run.predicted_seconds.values()))


def test_what_is_kept_is_read_again_as_it_was() -> None:
    results = MachineResults().plus(kept_surely(0.5, 0.4, 0.6))
    assert results == decode(MachineResults, json.loads(json.dumps(encode(results))), "measured")


def test_the_speed_of_the_host_is_the_mean_of_all_readings() -> None:
    """One reading may be off by two: a run is predicted with the mean, and so is a later plan."""
    slow = kept_surely(1, 1, 1, call_seconds=300e-9)
    results = MachineResults().plus(slow)
    other = {**ROW, "micro_batch": 2}
    both = kept_surely(1, 1, 1, row=other, call_seconds=100e-9, before=results)
    alone = kept_surely(1, 1, 1, row=other, call_seconds=200e-9)
    assert (both.predicted_seconds, 100e-9) == (alone.predicted_seconds, both.python_call_seconds)
    calibration = results.plus(both).calibration("1")
    assert calibration is not None
    assert calibration.python_call_seconds == pytest.approx(200e-9)


def test_results_without_a_reading_leave_the_host_as_it_is_read() -> None:
    calibration = MachineResults().plus(kept_surely(1, 1, 1)).calibration("1")
    assert calibration is not None
    assert calibration.describe(H200S.host) == H200S.host


def test_of_one_setting_the_latest_run_is_kept() -> None:
    other = {**ROW, "micro_batch": 2}
    runs = (kept_surely(1, 1, 1), kept_surely(3, 3, 3, row=other), kept_surely(2, 2, 2))
    results = MachineResults()
    for run in runs:
        results = results.plus(run)
    assert [3, 2] == [run.measured_seconds for run in results.runs]


def test_no_more_than_a_hundred_runs_are_kept() -> None:
    results = MachineResults()
    for tokens in range(1, 102):
        run = kept_surely(1, 1, 1)
        results = results.plus(replace(run, setting={"sequence_tokens": tokens}))
    assert [2, 101] == [results.runs[i].setting["sequence_tokens"] for i in (0, -1)]


@pytest.mark.parametrize(
    "said",
    [
        {"status": 1},
        {"timed_step_seconds": []},
        {"timed_step_seconds": [1, 1]},
        {"allocator_retries": 2},
    ],
)
def test_a_run_that_says_nothing_of_the_machines_speed_is_not_kept(said: dict[str, Any]) -> None:
    assert kept(1, 1, 1) is not None
    assert kept(1, 1, 1, **said) is None


def test_gpus_that_were_kept_from_talking_directly_are_another_machine() -> None:
    jobs = [planned({**ROW, "nccl_p2p": talks})[0] for talks in (True, False)]
    assert 2 == len({machine_key(job.machine) for job in jobs})


def test_runs_of_other_formulas_calibrate_nothing() -> None:
    run = kept_surely(1, 1, 1, formulas="1")
    assert MachineResults(runs=(run,)).calibration("1") is not None
    assert MachineResults(runs=(run,)).calibration("2") is None
    renamed = replace(run, predicted_seconds={"a term of before": 1.0})
    assert MachineResults(runs=(renamed,)).calibration("1") is None


def test_formulas_have_another_name_where_a_constant_is_another() -> None:
    slower = replace(COSTS, hook_seconds=2 * COSTS.hook_seconds)
    assert 3 == len({formulas_of("1"), formulas_of("2"), formulas_of("1", slower)})


def test_machines_with_other_speeds_have_other_keys() -> None:
    specs = ("1xH200", "2xH200", "2xH100-80GB", "2x2xH200", "4xA100-40GB", "4xA100-80GB")
    machines = [parse_spec(spec, TABLE) for spec in specs]
    keys = {machine_key(machine) for machine in machines}
    assert len(specs) == len(keys)
    assert machine_key(with_gpus(H200S, 1)) in keys
    assert all("/" not in key and " " not in key for key in keys)


def _steady_rows() -> list[Any]:
    """Of 2 H200s, whose steps are steady after three, and whose times were not disturbed."""
    return [
        row
        for row in read_every_row()
        if row["file"] in {"h200.jsonl", "2026-11-h200.jsonl", "2026-11-accumulation.jsonl"}
        and family_of(row) is not None
        and not row.get("packing")
        and (row["ok"], row["kind"], row["gpus"]) == (True, "engine", 2)
        and row["stage"] in {0, 1, 2}
        and row.get("offload", "none") == "none"
        and (row["nccl_p2p"], row["memory_cap_bytes"]) == (True, None)
        and len(row.get("step_seconds") or ()) > 2
        and (row["lora_rank"], row["precision"]) == (None, "bf16")
    ]


def _is_calibrated_on(row: Any) -> bool:
    return hashlib.sha256(row["id"].encode()).digest()[0] % 2 == 0


def _errors(slower: float) -> tuple[list[float], list[float]]:
    """Of one half of the runs, bare and calibrated by the other, were the machine so much slower.

    An error is the logarithm of predicted to measured, without its sign.
    """
    results, held_out = MachineResults(), []
    for row in _steady_rows():
        seconds = slower * row["step_seconds"][-1]
        if _is_calibrated_on(row):
            run = kept(seconds, seconds, seconds, row=row, before=results)
            results = results if run is None else results.plus(run)
        else:
            held_out.append((*planned(row), seconds))
    calibration = results.calibration("1")
    assert calibration is not None
    assert calibration.measured_steps >= 40
    assert len(held_out) >= 40

    def error(job: Job, strategy: StrategyRow, seconds: float) -> float:
        predicted = evaluate(job, strategy).step_time
        assert predicted is not None
        return abs(math.log(predicted.expected_seconds / seconds))

    bare = [error(*each) for each in held_out]
    calibrated = [error(replace(job, calibration=calibration), *rest) for job, *rest in held_out]
    return bare, calibrated


def test_runs_of_a_machine_do_no_harm_to_predictions_of_other_settings() -> None:
    """Also where the formulas were fitted on runs of such a machine."""
    bare, calibrated = _errors(1.0)
    assert statistics.mean(calibrated) <= statistics.mean(bare)


@pytest.mark.parametrize("slower", [0.7, 1.4])
def test_runs_of_a_machine_bring_predictions_of_other_settings_nearer(slower: float) -> None:
    """A faster or a slower machine than those that the formulas were fitted on."""
    bare, calibrated = _errors(slower)
    assert statistics.mean(calibrated) < 0.7 * statistics.mean(bare)
    assert statistics.median(calibrated) < 0.7 * statistics.median(bare)


def test_every_kind_of_term_can_be_kept() -> None:
    run = kept_surely(1, 1, 1)
    every = replace(run, predicted_seconds={kind.value: 1.0 for kind in TermKind})
    assert every.step is not None
    assert len(TermKind) == every.step.predicted.expected_seconds


# The figures of a launched job are those of the rank that took most.

ALLOCATED, RESIDENT = CountedMemory.ALLOCATED, CountedMemory.RESIDENT


def report_run_figures(
    *seconds: float, peak_bytes: int | None = 5, rss_bytes: int = 9
) -> dict[str, object]:
    return {
        "timed_step_seconds": seconds,
        "peak_bytes": peak_bytes,
        "host_peak_rss_bytes": rss_bytes,
    }


def test_the_rank_that_took_most_counts() -> None:
    found = measure_run(
        [report_run_figures(1, 1, 1), report_run_figures(2, 2, 2, peak_bytes=7)], ALLOCATED
    )
    assert found is not None
    assert (2, 7, 2) == (found.ranks, found.peak_bytes, found.step_seconds)


def test_on_the_cpu_accelerator_the_process_counts() -> None:
    found = measure_run(
        [report_run_figures(peak_bytes=None), report_run_figures(peak_bytes=None, rss_bytes=11)],
        RESIDENT,
    )
    assert found is not None
    assert (11, None, None) == (found.peak_bytes, found.step_seconds, found.outside_bytes)


def test_python_and_its_libraries_are_those_of_the_rank_that_took_most() -> None:
    reports = [
        report_run_figures(rss_bytes=each) | {"outside_bytes": each - 2} for each in (9, 11, 10)
    ]
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
    found = measure_run([report_run_figures(*seconds)], ALLOCATED)
    assert found is not None
    assert expected == found.step_seconds


def test_on_a_gpu_the_peak_of_the_allocator_is_predicted_and_on_the_cpu_the_process() -> None:
    machine, table = parse_spec("2xH200", read_gpu_table()), read_gpu_table()
    model = model_from_size("1b", 10**9)
    rates = find_rates(machine, table)
    job = Job(machine=machine, model=model, workload=Workload(), rates=rates)
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
        job = Job(machine=machine, model=model, workload=workload, rates=rates)
        return predict_run(job, evaluate(job, ZERO2), Accelerator.CUDA)

    counted = report_run_figures(9, 2, 2, 8, 2, 2) | {"timed_micro_batches": [3, 3, 3, 4, 3, 3]}
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
