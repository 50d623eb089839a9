"""The record of a run says what was tried and how it ended."""

import json

import pytest

from zerowiz.core.outcome import (
    AttemptRecord,
    Cause,
    CountedMemory,
    JobEnd,
    MeasuredFigures,
    PredictedFigures,
    RankEnd,
    ResumeFrom,
    RunRecord,
    parse_record,
    render_record,
)
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError

RUNS = AttemptRecord(
    strategy="zero2",
    why="sharding gradients and optimizer states is enough",
    config_path="ds_config_zero2.json",
    plan_path="ds_config_zero2.plan.json",
    command=("deepspeed", "train.py"),
    env={"DS_ACCELERATOR": "cpu"},
    logs="/out/.zerowiz/runs/1/attempt-1",
    resume_from=ResumeFrom.START,
    resume_path=None,
    started_at="2026-11-22T04:30:00Z",
    predicted=PredictedFigures(memory=CountedMemory.ALLOCATED, peak_bytes=9),
)
FIRST = RankEnd(
    rank=3, host="n2", status=1, ended_at=7.0, cuda_oom=True, tail=("no",), log="rank-3.log"
)
DIED = replace(
    RUNS,
    ended_at="2026-11-22T04:31:00Z",
    end=JobEnd(status=1, cause=Cause.CUDA_OOM, first=FIRST),
)
WELL = replace(RUNS, ended_at="2026-11-22T04:40:00Z", end=JobEnd(status=0, cause=Cause.FINISHED))
RECORD = RunRecord(
    zerowiz_version="1", script="train.py", script_args=(), job=None, attempts=(RUNS,)
)


def test_a_run_that_goes_on_has_no_exit_yet() -> None:
    content = json.loads(render_record(replace(RECORD, attempts=(DIED, RUNS))))
    assert (None, None) == (content["exit"], content["ended_at"])
    assert [1, 2] == [attempt["number"] for attempt in content["attempts"]]
    assert content["attempts"][1]["end"] is None


def test_the_rank_that_was_first_is_named_with_its_last_lines() -> None:
    [attempt] = json.loads(render_record(replace(RECORD, attempts=(DIED,), exit_status=1)))[
        "attempts"
    ]
    assert {
        "status": 1,
        "cause": "cuda_oom",
        "rank": 3,
        "host": "n2",
        "log": "rank-3.log",
        "last_lines": ["no"],
    } == attempt["end"]


def test_a_run_lasts_from_its_first_attempt_to_its_last() -> None:
    content = json.loads(render_record(replace(RECORD, attempts=(DIED, WELL), exit_status=0)))
    assert 0 == content["exit"]
    assert RUNS.started_at == content["started_at"]
    assert WELL.ended_at == content["ended_at"]


def test_what_was_predicted_and_measured_is_read_again() -> None:
    measured = MeasuredFigures(ranks=2, peak_bytes=7, step_seconds=0.5)
    text = render_record(replace(RECORD, attempts=(replace(DIED, measured=measured), RUNS)))
    died, runs = parse_record(json.loads(text), "zerowiz-run.json").attempts
    assert (RUNS.predicted, measured) == (died.predicted, died.measured)
    assert died.end is not None
    assert (1, Cause.CUDA_OOM) == (died.end.status, died.end.cause)
    assert (2, None, None) == (runs.number, runs.end, runs.measured)


def test_a_record_without_predictions_is_refused_by_name() -> None:
    content = json.loads(render_record(RECORD))
    del content["attempts"][0]["predicted"]
    with pytest.raises(UsageError, match=r"`zerowiz-run\.json"):
        parse_record(content, "zerowiz-run.json")
