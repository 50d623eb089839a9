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
    JobEnd,
    KeptRun,
    MachineResults,
    ScriptMeasurement,
    error_of,
    formulas_of,
    keep_run,
    machine_key,
    measure_run,
    predict_run,
    steady_step,
)
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import with_gpus
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import COSTS, StepTime, TermKind, find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.workload import Workload
from zerowiz.probe.files import read_gpu_table

TABLE = read_gpu_table()
H200S = parse_spec("2xH200", TABLE)
ROW = next(row for row in read_every_row() if row["id"] == "m1-000")

SLOW = (9.0, 4.0)
PREDICTED = StepTime(terms=(), expected_seconds=1.2, low_seconds=1.0, high_seconds=1.5, tokens=2048)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # The median of the steps after the first third, on the slowest rank.
        ([[*SLOW, 1.3, 1.0, 1.2, 1.1]], 1.15),
        ([[*SLOW, 1.0, 1.0, 1.0, 1.0], [*SLOW, 1.0, 2.0, 2.0, 3.0]], 2.0),
        # Fewer than three on any rank are none.
        ([], None),
        ([[]], None),
        ([[1.0, 1.0]], None),
        ([[1.0, 1.0, 1.0], [1.0, 1.0]], None),
    ],
)
def test_the_steady_step(samples: list[list[float]], expected: float | None) -> None:
    assert expected == steady_step(samples)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (error_of(PREDICTED.expected_seconds, 1.0), 0.2),
        (error_of(3, 4), -0.25),
        (error_of(3, None), None),
        (error_of(None, 4), None),
    ],
)
def test_an_error_is_signed_and_needs_both(error: float | None, expected: float | None) -> None:
    assert error == (None if expected is None else pytest.approx(expected))


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
    assert (0.5, "ddp", "1") == (run.measured_seconds, run.setting["strategy"], run.formulas)
    assert ("pythia-1.4b", 4) == (run.setting["model"], run.setting["micro_batch"])
    predicted = evaluate(*planned(ROW)).step_time
    assert predicted is not None
    assert predicted.expected_seconds == pytest.approx(sum(run.predicted_seconds.values()))


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


def test_of_one_setting_the_latest_run_is_kept_and_of_all_a_hundred() -> None:
    run = kept_surely(1, 1, 1)
    results = MachineResults()
    for tokens in (*range(1, 102), 2):
        results = results.plus(replace(run, setting={"sequence_tokens": tokens}))
    assert [*range(3, 102), 2] == [run.setting["sequence_tokens"] for run in results.runs]
    assert results == decode(MachineResults, json.loads(json.dumps(encode(results))), "measured")


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


def test_runs_of_other_formulas_calibrate_nothing() -> None:
    run = kept_surely(1, 1, 1, formulas="1")
    calibration = MachineResults(runs=(run,)).calibration("1")
    assert calibration is not None
    # No run read the speed of the host.
    assert calibration.describe(H200S.host) == H200S.host
    assert MachineResults(runs=(run,)).calibration("2") is None
    renamed = replace(run, predicted_seconds={"a term of before": 1.0})
    assert MachineResults(runs=(renamed,)).calibration("1") is None
    # A constant that is another makes others of them.
    slower = replace(COSTS, hook_seconds=2 * COSTS.hook_seconds)
    assert 3 == len({formulas_of("1"), formulas_of("2"), formulas_of("1", slower)})


def test_machines_with_other_speeds_have_other_keys() -> None:
    specs = ("1xH200", "2xH200", "2xH100-80GB", "2x2xH200", "4xA100-40GB", "4xA100-80GB")
    machines = [parse_spec(spec, TABLE) for spec in specs]
    # GPUs that were kept from talking directly.
    apart = planned({**ROW, "nccl_p2p": False})[0].machine
    keys = {machine_key(machine) for machine in (*machines, apart)}
    assert len(specs) + 1 == len(keys)
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


@pytest.mark.parametrize(("slower", "at_most"), [(1.0, 1.0), (0.7, 0.7), (1.4, 0.7)])
def test_runs_of_a_machine_bring_predictions_of_other_settings_nearer(
    slower: float, at_most: float
) -> None:
    """Of a faster or slower machine than the formulas were fitted on; on such a one they do no harm."""
    bare, calibrated = _errors(slower)
    assert statistics.mean(calibrated) <= at_most * statistics.mean(bare)
    assert slower == 1 or statistics.median(calibrated) < at_most * statistics.median(bare)


def test_every_kind_of_term_can_be_kept() -> None:
    run = kept_surely(1, 1, 1)
    every = replace(run, predicted_seconds={kind.value: 1.0 for kind in TermKind})
    assert every.step is not None
    assert set(TermKind) == {term.kind for term in every.step.terms}


# The figures of a launched job are those of the rank that took most.


def report(*seconds: float, peak_bytes: int = 5, **said: int) -> dict[str, object]:
    return {"timed_step_seconds": seconds, "peak_bytes": peak_bytes, **said}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        # The rank that took most counts, and Python and its libraries are those of that rank.
        ([report(1, 1, 1), report(2, 2, 2, peak_bytes=7)], (7, 2, None)),
        ([report(peak_bytes=size, outside_bytes=size - 2) for size in (9, 11, 10)], (11, None, 9)),
        # Slow first steps and a checkpoint leave the time of a step.
        ([report(1.0, 1.0)], (5, None, None)),
        ([report(9, 2, 2, 2)], (5, 2, None)),
        ([report(9, 9, 9, 2, 2, 2, 50, 2)], (5, 2, None)),
        ([], None),
    ],
)
def test_a_run_is_measured_by_what_its_ranks_reported(
    reports: list[dict[str, object]], expected: tuple[int, float | None, int | None] | None
) -> None:
    found = measure_run(reports)
    assert expected == (found and (found.peak_bytes, found.step_seconds, found.outside_bytes))
    assert found is None or len(reports) == found.ranks


def test_the_peak_of_the_allocator_and_the_time_with_its_bounds_are_predicted() -> None:
    planned = evaluate(
        Job(
            machine=H200S,
            model=model_from_size("1b", 10**9),
            workload=Workload(),
            rates=find_rates(H200S, TABLE),
        ),
        ZERO2,
    )
    figures = predict_run(planned)
    assert planned.estimate.peak_bytes == figures.peak_bytes < planned.device_bytes
    low, expected, high = figures.low_step_seconds, figures.step_seconds, figures.high_step_seconds
    assert (low or 0) < (expected or 0) < (high or 0)
