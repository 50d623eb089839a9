"""What ranks report becomes one row, and the row is held against the prediction."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from measured.rows import read_model, read_rows

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measured_row import Comparison, TrialEnd, compare, encode_comparison, make_row
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.trial import PlannedTrial, decode_trial, plan_trial
from zerowiz.probe.package_data import read_gpu_table

H200S = parse_spec("4xH200", read_gpu_table())
KNOWN = {row["id"]: row for row in read_rows()}
# Llama-3.2-1B at stage 1 on 4 GPUs.
MEASURED = KNOWN["b4-001"]


def plan(row: Any, **said: object) -> PlannedTrial:
    trial = decode_trial({**row, **said}, "case")
    rates = find_rates(H200S, read_gpu_table())
    return plan_trial(trial, H200S, read_model(row["model"]), None, rates)


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
    assert compared(MEASURED).step.measured is None


def compared(row: Any, **said: object) -> Comparison:
    return compare(plan(row), {**row, "error": None, **said})


def test_the_peak_is_compared_and_its_error_is_signed() -> None:
    peak = compared(MEASURED).peak
    assert peak.predicted_bytes is not None
    assert MEASURED["peak_bytes"] == peak.measured_bytes
    error = (peak.predicted_bytes - MEASURED["peak_bytes"]) / MEASURED["peak_bytes"]
    assert error == peak.error


def test_the_first_and_the_steady_iteration_are_compared_each_for_itself() -> None:
    phases = {each.name: each.measured_bytes for each in compared(MEASURED).phases}
    held = {name: reading["peak_bytes"] for name, reading in MEASURED["phases"].items()}
    assert held == phases
    assert held["first_step"] < held["steady_step"]


def test_every_phase_of_both_iterations_is_predicted_within_1_percent() -> None:
    errors = [each.error for each in compared(MEASURED).phases]
    assert [0] * 8 == pytest.approx(errors, abs=0.01)


def test_a_phase_that_a_run_did_not_reach_has_a_prediction_and_no_measurement() -> None:
    came = {name: MEASURED["phases"][name] for name in ("model", "init")}
    phases = {each.name: each for each in compared(MEASURED, phases=came).phases}
    assert phases["steady_step"].measured_bytes is None
    assert phases["steady_step"].predicted_bytes


def test_a_cap_stands_for_a_smaller_card() -> None:
    assert Verdict.FITS is compared(MEASURED).verdict
    assert Verdict.DOES_NOT_FIT is compared(MEASURED, memory_cap_bytes=10**9).verdict


def test_without_a_prediction_the_measurement_stands_alone() -> None:
    trial = decode_trial(MEASURED, "case")
    alone = compare(plan_trial(trial, H200S, "unknown", None), {**MEASURED, "error": None})
    assert (None, "unknown", None) == (alone.verdict, alone.unpredicted, alone.peak.error)
    assert MEASURED["peak_bytes"] == alone.peak.measured_bytes


def test_out_of_memory_is_an_answer_and_a_failure_is_none() -> None:
    died = compared(MEASURED, ok=False, oom_phase="step", peak_bytes=None)
    failed = compared(MEASURED, ok=False, error="no")
    assert (True, False) == (died.measured, died.ok)
    assert not failed.measured


def test_the_json_has_the_row_the_prediction_and_the_errors() -> None:
    content = json.loads(json.dumps(encode_comparison(compared(MEASURED))))
    assert ["row", "predicted", "error"] == list(content)
    assert content["predicted"]["peak_bytes"] == content["predicted"]["phases"]["steady_backward"]
    assert abs(content["error"]["peak"]) < 0.05
