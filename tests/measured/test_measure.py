"""A batch of cases runs under a launcher: each ends by itself, and nothing outlives the batch."""

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from measured.measure import Batch, EndedCase, plan_case, run_batch
from measured.trials import decode_trials
from paths import ROOT, TEMPLATES
from ranks.harness import CompletedRun, rank_environ
from ranks.harness import run as run_command

from zerowiz.core.decision.evaluate import evaluate_with
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.structs import replace
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import read_gpu_table

LAUNCHER = (sys.executable, str(Path(__file__).with_name("fake_deepspeed.py")))


def case(seen: Path, name: str, *parts: str) -> dict[str, object]:
    what = {"gpus": len(parts), "offload": "none", "config": {"do": parts, "seen": str(seen)}}
    return {"id": name, **what}


def batch_of(
    *cases: dict[str, object],
    launcher: tuple[str, ...] = LAUNCHER,
    deadline_s: float = 60,
    case_deadline_s: float = 30,
) -> Batch:
    return Batch(
        cases=cases,
        ops=(),
        launcher=launcher,
        env={},
        deadline_s=deadline_s,
        case_deadline_s=case_deadline_s,
    )


def run(batch: Batch) -> list[EndedCase]:
    return list(run_batch(batch, os.environ))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_case_ends_in_order_and_a_dead_one_ends_no_other(tmp_path: Path) -> None:
    cases = [
        case(tmp_path, "a", "run", "run"),
        case(tmp_path, "b", "die"),
        case(tmp_path, "c", "run"),
    ]
    ended = run(batch_of(*cases))
    assert [0, 1, 2] == [each.index for each in ended]
    assert [[0, 0], [-6], [0]] == [[end.status for end in each.ends] for each in ended]


def test_a_case_runs_on_its_first_ranks_as_a_world_that_meets_on_one_port(tmp_path: Path) -> None:
    both, alone = run(batch_of(case(tmp_path, "a", "run", "run"), case(tmp_path, "b", "run")))
    assert ["2", "2", "1"] == [end.report["world"] for end in (*both.ends, *alone.ends)]
    assert both.ends[0].report["port"] == both.ends[1].report["port"]
    assert {"a-0", "a-1", "b-0"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("part", "status"), [("run_out", 3), ("fail", 1), ("die", -6)])
def test_a_rank_that_fails_ends_the_ranks_that_hang_for_it(
    tmp_path: Path, part: str, status: int
) -> None:
    cases = (case(tmp_path, "a", "hang", part), case(tmp_path, "b", "run", "run"))
    first, second = run(batch_of(*cases))
    assert [(-9, "peer"), (status, None)] == [(end.status, end.killed) for end in first.ends]
    assert [0, 0] == [end.status for end in second.ends]


def test_ranks_that_offload_divide_the_cores_and_others_share_them(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this host has one core")
    cases = [
        {**case(tmp_path, "a", "run", "run"), "offload": "all"},
        case(tmp_path, "b", "run", "run"),
    ]
    bound = replace(batch_of(*cases), cores=allowed)
    divided, shared = ([end.report["cores"] for end in each.ends] for each in run(bound))
    each = len(allowed) // 2
    assert [allowed[:each], allowed[each : 2 * each]] == divided
    assert [allowed, allowed] == shared
    unbound = run(batch_of(cases[0]))
    assert [allowed, allowed] == [end.report["cores"] for end in unbound[0].ends]


def test_a_case_that_hangs_ends_at_its_own_deadline(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "hang", "hang"), case(tmp_path, "b", "run"))
    first, second = run(batch_of(*cases, case_deadline_s=1))
    assert ["deadline", "deadline"] == [end.killed for end in first.ends]
    assert 0 == second.ends[0].status


def test_what_did_not_begin_before_the_deadline_is_not_there(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "hang"), case(tmp_path, "b", "run"))
    [ended] = run(batch_of(*cases, deadline_s=2))
    assert (0, "deadline") == (ended.index, ended.ends[0].killed)


def test_leaving_early_leaves_no_process_behind(tmp_path: Path) -> None:
    cases = (case(tmp_path, "a", "run", "run"), case(tmp_path, "b", "hang", "hang"))
    with closing(run_batch(batch_of(*cases), os.environ)) as ended:
        next(ended)
        marks = [tmp_path / "b-0", tmp_path / "b-1"]
        until = time.monotonic() + 20
        while not all(mark.exists() and mark.read_text() for mark in marks):
            assert time.monotonic() < until
            time.sleep(0.02)
    assert [False, False] == [is_alive(int(mark.read_text())) for mark in marks]


def test_a_launcher_that_ends_at_once_is_told_with_its_last_words() -> None:
    words = (sys.executable, "-c", "raise SystemExit('no slots here')")
    with pytest.raises(ZerowizError) as refused:
        run(batch_of({"gpus": 1}, launcher=words))
    assert "with status 1:\nno slots here" in refused.value.message


# Real ranks.

MODEL = str(TEMPLATES / "model")
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}


def measure_really(
    folder: Path, *cases: dict[str, Any]
) -> tuple[list[dict[str, Any]], CompletedRun]:
    """The rows of these cases on CPU ranks, and how the command ended."""
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(Path(__file__).with_name("measure.py")), "cases.json"]
    done = run_command(
        [*command, "--output", "rows.jsonl", "--accelerator", "cpu"],
        env=rank_environ(folder / "reports") | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
    )
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], done


def assert_timed(row: dict[str, Any], *, least: int, most: int) -> None:
    """Every rank took the same number of steps, and as many as say enough."""
    (count,) = {len(each["timed_step_seconds"] or ()) for each in row["rank_times"]}
    assert least <= count <= most


@pytest.mark.slow
@pytest.mark.deepspeed
def test_real_ranks_are_measured_and_a_dead_case_ends_no_other(tmp_path: Path) -> None:
    common = {"model": MODEL, "sequence_tokens": 64, "gpus": 2}
    by_trainer = {"kind": "trainer", "stage": 2, "accumulation_steps": 2, "timed_steps": 3}
    encoder = {"model": "tiny-bert", "config": BERT, "stage": 0, "gpus": 1}
    rows, done = measure_really(
        tmp_path,
        {**common, "id": "broken", "stage": 2, "ds_config": {"train_batch_size": "none"}},
        {**common, "id": "sharded", "stage": 3, "gradient_checkpointing": True},
        {**common, "id": "trainer", **by_trainer},
        {**common, "id": "alone", **encoder, "steps": 2, "timed_steps": 0},
    )

    assert 1 == done.returncode
    broken, *ran = rows
    sharded, trainer, alone = ran
    assert (False, None) == (broken["ok"], broken["oom_phase"])
    assert "in init" in broken["error"]
    assert [True, True, True] == [row["ok"] for row in ran], rows
    assert ["DeepSpeedZeroOptimizer_Stage3", "AdamW"] == sharded["wrapper"]
    assert "DeepSpeedZeroOptimizer" == trainer["wrapper"][0]
    assert [[0, 1], [0, 1], [0]] == [[each["rank"] for each in row["rank_peaks"]] for row in ran]
    assert [3, 3, 2] == [len(row["step_seconds"]) for row in ran]
    assert 10_818_432 == sharded["params"]
    for row, (least, most) in zip(ran, ((8, 40), (3, 3), (0, 0)), strict=True):
        assert_timed(row, least=least, most=most)
    assert sharded["steady_step_seconds"] > 0
    assert alone["steady_step_seconds"] is None
    parts = ("forward", "backward", "step")
    phases = {"model", "init"} | {
        f"{when}_{part}" for when in ("first", "steady") for part in parts
    }
    assert [phases] * 3 == [{*row["phases"]} for row in ran]
    # Weights, masters and moments of a whole replica are more than a half of them.
    assert alone["phases"]["steady_step"]["allocated_bytes"] > 16 * alone["params"] // 2
    assert () == done.shared_memory_left


def _peaks(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(Path(__file__).with_name(name).read_text("utf-8"))
    return rows


PEAKS = [*_peaks("2026-11-traced.json"), *_peaks("2026-11-peaks.json")]
# How far a prediction is off by what no formula counts; README.md says what that is.
UNCOUNTED = {
    "six-a3": -0.134,
    "six-p2": -0.023,
    "six-p3": -0.006,
    "v5-phi3-z3-all-ck": 0.058,
    "v5-olmoe-z3": 0.016,
    "v5-granitemoe-z3": 0.012,
}


@pytest.mark.slow
@pytest.mark.parametrize("row", PEAKS, ids=[row["case"]["id"] for row in PEAKS])
def test_the_fullest_rank_takes_on_a_gpu_what_is_predicted(row: dict[str, Any]) -> None:
    """Families by their traces, parts that are offloaded, autocast, and GPUs that others fill."""
    (trial,) = decode_trials([row["case"]])
    planned = plan_case(trial, parse_spec(f"{trial.gpus}xH200", read_gpu_table()))
    job, strategy = planned.job, planned.strategy
    assert job is not None
    assert strategy is not None
    buffers = job.own_buffers or job.buffers(strategy)[0]
    predicted = evaluate_with(job, strategy, buffers).estimate.peak_bytes
    off = UNCOUNTED.get(row["case"]["id"], 0)
    assert predicted / row["measured_peak_bytes"] - 1 == pytest.approx(off, abs=0.002)
