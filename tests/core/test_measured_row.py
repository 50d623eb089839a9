"""What was measured on a machine is kept, and calibrates what is predicted of it later."""

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from measured.rows import family_of, read_every_row, read_model, read_rows

from zerowiz.core.decision.evaluate import Verdict, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import CountedMemory, PredictedFigures, error_of, measure_run, predict_run
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, with_gpus
from zerowiz.core.measured_row import (
    Comparison,
    KeptRun,
    MachineResults,
    TrialEnd,
    compare,
    encode_comparison,
    formulas_of,
    keep_run,
    machine_key,
    make_row,
)
from zerowiz.core.measured_trial import PlannedTrial, decode_trial, plan_trial
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import COSTS, TermKind, find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.workload import Workload
from zerowiz.probe.package_data import read_gpu_table

TABLE = read_gpu_table()
H200S = parse_spec("2xH200", TABLE)
ROW = next(row for row in read_every_row() if row["id"] == "m1-000")


def planned(row: Any) -> PlannedTrial:
    trial = decode_trial(dict(row), "case")
    return plan_trial(trial, H200S, read_model(row["model"]), rates=find_rates(H200S, TABLE))


def compared(plan: PlannedTrial, *seconds: float, **said: object) -> Comparison:
    report = {"phases": {}, "ok": True, "timed_step_seconds": list(seconds), **said}
    ends = [TrialEnd(rank=rank, report=report, status=0, killed=None) for rank in range(2)]
    return compare(plan, make_row(plan, ends, Accelerator.CUDA))


def kept(*seconds: float, formulas: str = "1", row: Any = ROW, **said: object) -> KeptRun | None:
    plan = planned(row)
    before = said.pop("before", MachineResults())
    assert isinstance(before, MachineResults)
    return keep_run(plan, compared(plan, *seconds, **said), formulas, before)


def kept_surely(*seconds: float, **said: Any) -> KeptRun:
    run = kept(*seconds, **said)
    assert run is not None
    return run


def test_a_kept_run_has_its_setting_the_prediction_and_the_measured_time() -> None:
    run = kept_surely(0.5, 0.4, 0.6)
    assert (0.5, "ddp", "1") == (run.measured_seconds, run.strategy, run.formulas)
    assert ("pythia-1.4b", 4) == (run.setting["model"], run.setting["micro_batch"])
    plan = planned(ROW)
    assert plan.job is not None
    assert plan.strategy is not None
    predicted = evaluate(plan.job, plan.strategy).step_time
    assert predicted is not None
    assert predicted.expected_seconds == pytest.approx(sum(run.predicted_seconds.values()))


def test_what_is_kept_is_read_again_as_it_was() -> None:
    results = MachineResults().plus(kept_surely(0.5, 0.4, 0.6))
    assert results == decode(MachineResults, json.loads(json.dumps(encode(results))), "measured")


def test_the_speed_of_the_host_is_the_mean_of_all_readings() -> None:
    """One reading may be off by two: a run is predicted with the mean, and so is a later plan."""
    slow = kept_surely(1, 1, 1, python_call_seconds=300e-9)
    results = MachineResults().plus(slow)
    other = {**ROW, "micro_batch": 2}
    both = kept_surely(1, 1, 1, row=other, python_call_seconds=100e-9, before=results)
    alone = kept_surely(1, 1, 1, row=other, python_call_seconds=200e-9)
    assert (both.predicted_seconds, 100e-9) == (alone.predicted_seconds, both.python_call_seconds)
    calibration = results.plus(both).calibration("1")
    assert calibration is not None
    assert calibration.python_call_seconds == pytest.approx(200e-9)


def test_results_without_a_reading_leave_the_host_as_it_is_read() -> None:
    calibration = MachineResults().plus(kept_surely(1, 1, 1)).calibration("1")
    assert calibration is not None
    assert calibration.describe(H200S.host) == H200S.host


def test_a_run_that_flushed_nothing_says_nothing_of_flushes() -> None:
    capped = {**ROW, "memory_cap_bytes": ROW["peak_bytes"]}
    roomy, near = (kept_surely(1, 1, 1, row=row) for row in (ROW, capped))
    assert roomy.predicted_seconds == near.predicted_seconds


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
        {"ok": False, "error": "no"},
        {"timed_step_seconds": []},
        {"timed_step_seconds": [1, 1]},
        {"timed_allocator_retries": 2},
    ],
)
def test_a_run_that_says_nothing_of_the_machines_speed_is_not_kept(said: dict[str, Any]) -> None:
    assert kept(1, 1, 1) is not None
    assert kept(1, 1, 1, **said) is None


def test_gpus_that_were_kept_from_talking_directly_are_another_machine() -> None:
    jobs = [planned({**ROW, "nccl_p2p": talks}).job for talks in (True, False)]
    assert 2 == len({machine_key(job.machine) for job in jobs if job is not None})


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
        plan, seconds = planned(row), slower * row["step_seconds"][-1]
        if _is_calibrated_on(row):
            run = keep_run(plan, compared(plan, seconds, seconds, seconds), "1", results)
            results = results if run is None else results.plus(run)
        elif plan.job is not None and plan.strategy is not None:
            held_out.append((plan.job, plan.strategy, seconds))
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


# What ranks report becomes one row, and the row is held against the prediction.

ROW_H200S = parse_spec("4xH200", read_gpu_table())
KNOWN = {row["id"]: row for row in read_rows()}
# Llama-3.2-1B at stage 1 on 4 GPUs.
MEASURED = KNOWN["b4-001"]


def plan(row: Any, **said: object) -> PlannedTrial:
    trial = decode_trial({**row, **said}, "case")
    rates = find_rates(ROW_H200S, read_gpu_table())
    return plan_trial(trial, ROW_H200S, read_model(row["model"]), None, rates)


def report(row: Any, **said: object) -> dict[str, object]:
    """What a rank would have said on the way to this row."""
    keys = ("phases", "gpu", "params", "versions", "wrapper", "step_seconds", "context_bytes")
    more = ("context_and_nccl_bytes", "device_used_outside_allocator_bytes", "host_peak_rss_bytes")
    memory = ("peak_reserved_bytes", "allocator_retries", "ok", "oom_phase")
    return {"error": None, **{key: row[key] for key in (*keys, *more, *memory)}, **said}


def end(rank: int, status: int = 0, killed: str | None = None, **said: object) -> TrialEnd:
    return TrialEnd(
        rank=rank, report=report(MEASURED, rank=rank, **said), status=status, killed=killed
    )


def row_of(*ends: TrialEnd) -> dict[str, Any]:
    return dict(make_row(plan(MEASURED), ends, Accelerator.CUDA))


def test_a_row_has_every_field_of_the_measured_file_and_its_values() -> None:
    row = row_of(*(end(rank) for rank in range(4)))
    assert set() == set(MEASURED) - set(row)
    assert {key: row[key] for key in MEASURED} == dict(MEASURED)


def test_a_row_is_json_and_names_the_peak_of_every_rank() -> None:
    row = json.loads(json.dumps(row_of(end(0), end(1))))
    assert [0, 1] == [each["rank"] for each in row["rank_peaks"]]
    assert MEASURED["peak_bytes"] == row["rank_peaks"][1]["peak_bytes"]


def test_running_out_of_memory_on_any_rank_is_told_from_failing() -> None:
    lost = end(0, status=-9, killed="peer", ok=False)
    row = row_of(lost, end(1, status=3, ok=False, oom_phase="step"))
    assert (False, "step", None, None) == (
        row["ok"],
        row["oom_phase"],
        row["error"],
        row["peak_bytes"],
    )


def test_a_kill_for_want_of_host_memory_is_no_failure() -> None:
    row = row_of(end(0, -9, "peer", ok=False), end(1, -9, "host_memory", ok=False))
    assert (False, "host_memory", None) == (row["ok"], row["oom_phase"], row["error"])
    assert compare(plan(MEASURED), row).measured


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ([end(0, 1, ok=False, error="ValueError in model: no")], "ValueError in model: no"),
        ([end(0, -9, "peer", ok=False), end(1, -6, ok=False)], "rank 1 ended by signal 6"),
        ([end(0, 7, ok=False)], "rank 0 ended by status 7"),
        ([end(0, -9, "deadline", ok=False)], "rank 0 was ended at the deadline"),
        ([end(0, -9, "launcher", ok=False)], "rank 0 was ended with the launcher"),
    ],
)
def test_the_first_cause_is_the_error(ends: list[TrialEnd], error: str) -> None:
    row = row_of(*ends)
    assert (False, None, error) == (row["ok"], row["oom_phase"], row["error"])


def test_a_rank_that_said_nothing_leaves_nulls() -> None:
    silent = TrialEnd(rank=0, report={}, status=-9, killed=None)
    row = row_of(silent)
    assert (None, None, {}) == (row["gpu"], row["step_seconds"], row["phases"])
    assert MEASURED["params"] == row["params"]


def test_what_is_of_cuda_is_null_on_the_cpu_accelerator() -> None:
    row = make_row(plan(MEASURED, memory_cap_bytes=5), [end(0)], Accelerator.CPU)
    assert (None, None, False) == (
        row["memory_cap_bytes"],
        row["nccl_p2p"],
        row["expandable_segments"],
    )


TIMED = (0.9, 0.31, 0.3, 0.3, 0.29)
LINK = {"collective": "all_reduce", "size_bytes": 2**20, "bus_bytes_per_s": 10**9}


def timed(
    rank: int, seconds: float = 9.0, samples: Sequence[float] = TIMED, bus: object = None
) -> TrialEnd:
    """The end of a rank whose steps ran freely after those that were measured."""
    free = {"timed_step_seconds": samples, "timed_peak_bytes": 5, "timed_allocator_retries": 1}
    said = report(MEASURED, rank=rank, bus=bus, **free)
    return TrialEnd(rank=rank, report=said, status=0, killed=None, seconds=seconds)


def test_a_row_has_the_free_steps_of_every_rank_and_the_steady_one() -> None:
    slower = [2 * each for each in TIMED]
    row = row_of(timed(0, bus=[LINK]), timed(1, 11.0, slower))
    assert (6, TIMED, 0.6) == (
        *(row["timed_steps"], row["timed_step_seconds"], row["steady_step_seconds"]),
    )
    assert pytest.approx(0.02 / 0.3, abs=1e-4) == row["steady_step_spread"]
    assert [TIMED, slower] == [each["timed_step_seconds"] for each in row["rank_times"]]
    assert ([LINK], 11.0) == (row["bus"], row["case_seconds"])


def test_free_steps_change_no_size_of_a_row() -> None:
    bare, free = row_of(end(0), end(1)), row_of(timed(0), timed(1))
    assert {key: bare[key] for key in MEASURED} == {key: free[key] for key in MEASURED}


def test_a_run_that_dies_in_the_free_steps_ran_out_of_memory_there() -> None:
    row = row_of(end(0, status=3, ok=False, oom_phase="timing"))
    assert (False, "timing", None) == (row["ok"], row["oom_phase"], row["steady_step_seconds"])
    assert MEASURED["phases"] == row["phases"]


def test_the_step_is_compared_where_it_was_timed() -> None:
    row = row_of(timed(0))
    step = compare(plan(MEASURED), row).step
    assert step.predicted is not None
    assert step.measured is not None
    assert 0.3 == step.measured.seconds
    assert step.predicted.expected_seconds / 0.3 - 1 == step.error
    content = encode_comparison(compare(plan(MEASURED), row))
    assert step.predicted.expected_seconds == content["predicted"]["step_seconds"]  # type: ignore[index]
    assert step.error == content["error"]["step_seconds"]  # type: ignore[index]


def test_a_row_of_before_has_no_steady_step() -> None:
    assert compared_row(MEASURED).step.measured is None


def compared_row(row: Any, **said: object) -> Comparison:
    return compare(plan(row), {**row, "error": None, **said})


def test_the_peak_is_compared_and_its_error_is_signed() -> None:
    peak = compared_row(MEASURED).peak
    assert peak.predicted_bytes is not None
    assert MEASURED["peak_bytes"] == peak.measured_bytes
    error = (peak.predicted_bytes - MEASURED["peak_bytes"]) / MEASURED["peak_bytes"]
    assert error == peak.error


def test_the_first_and_the_steady_iteration_are_compared_each_for_itself() -> None:
    phases = {each.name: each.measured_bytes for each in compared_row(MEASURED).phases}
    held = {name: reading["peak_bytes"] for name, reading in MEASURED["phases"].items()}
    assert held == phases
    assert held["first_step"] < held["steady_step"]


def test_every_phase_of_both_iterations_is_predicted_within_1_percent() -> None:
    errors = [each.error for each in compared_row(MEASURED).phases]
    assert [0] * 8 == pytest.approx(errors, abs=0.01)


def test_a_phase_that_a_run_did_not_reach_has_a_prediction_and_no_measurement() -> None:
    came = {name: MEASURED["phases"][name] for name in ("model", "init")}
    phases = {each.name: each for each in compared_row(MEASURED, phases=came).phases}
    assert phases["steady_step"].measured_bytes is None
    assert phases["steady_step"].predicted_bytes


def test_a_cap_stands_for_a_smaller_card() -> None:
    assert Verdict.FITS is compared_row(MEASURED).verdict
    assert Verdict.DOES_NOT_FIT is compared_row(MEASURED, memory_cap_bytes=10**9).verdict


def test_without_a_prediction_the_measurement_stands_alone() -> None:
    trial = decode_trial(MEASURED, "case")
    alone = compare(plan_trial(trial, ROW_H200S, "unknown", None), {**MEASURED, "error": None})
    assert (None, "unknown", None) == (alone.verdict, alone.unpredicted, alone.peak.error)
    assert MEASURED["peak_bytes"] == alone.peak.measured_bytes


def test_out_of_memory_is_an_answer_and_a_failure_is_none() -> None:
    died = compared_row(MEASURED, ok=False, oom_phase="step", peak_bytes=None)
    failed = compared_row(MEASURED, ok=False, error="no")
    assert (True, False) == (died.measured, died.ok)
    assert not failed.measured


def test_the_json_has_the_row_the_prediction_and_the_errors() -> None:
    content = json.loads(json.dumps(encode_comparison(compared_row(MEASURED))))
    assert ["row", "predicted", "error"] == list(content)
    assert content["predicted"]["peak_bytes"] == content["predicted"]["phases"]["steady_backward"]
    assert abs(content["error"]["peak"]) < 0.05


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
