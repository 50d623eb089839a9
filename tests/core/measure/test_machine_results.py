"""What was measured on a machine is kept, and calibrates what is predicted of it later."""

import hashlib
import json
import math
import statistics
from typing import Any

import pytest
from measured.rows import family_of, read_every_row, read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator, with_gpus
from zerowiz.core.measured_row import (
    Comparison,
    KeptRun,
    MachineResults,
    TrialEnd,
    compare,
    formulas_of,
    keep_run,
    machine_key,
    make_row,
)
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.speed.costs import COSTS, TermKind, find_rates
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.trial import PlannedTrial, decode_trial, plan_trial
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

    def error(job: PlanInput, strategy: StrategyRow, seconds: float) -> float:
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
