"""`zerowiz launch --escalate`: a job that ran out of memory goes on with the next strategy, from its checkpoint."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import TEMPLATES
from ranks.harness import CompletedRun, rank_environ, run_loaded

ZEROWIZ = (sys.executable, "-m", "zerowiz")
# What is free of the host changes from one run to the next, so the budget is said.
RANKS = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "2GB")
JOB = (*RANKS, "--model", str(TEMPLATES / "model"))
STEP = ("--micro-batch", "2", "--grad-accum", "2")

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def launch(folder: Path, runs_out: str, *words: str | Path) -> CompletedRun:
    """Start at ZeRO-2, in which a rank dies."""
    environ = rank_environ(folder / "reports")
    environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "ZEROWIZ_RANK_RUNS_OUT": runs_out}
    options = ("--yes", "--stage", "2", "--allow-slow", "--escalate", *JOB)
    return run_loaded([*ZEROWIZ, "launch", *options, *words], env=environ, cwd=folder)


def read_record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "zerowiz-run.json").read_text()))


def printed_losses(done: CompletedRun) -> dict[str, str]:
    """By step, as a person reads them."""
    return dict(
        re.findall(r"^(?:step )?(\d+|eval)(?:  |_)loss ([\d.]+)", done.stdout, re.MULTILINE)
    )


@pytest.mark.parametrize("shared", ["1", pytest.param("2", marks=pytest.mark.thorough)])
def test_after_a_rank_ran_out_the_next_strategy_goes_on_from_the_checkpoint(
    tmp_path: Path, shared: str
) -> None:
    template = str(TEMPLATES / "train_deepspeed.py")
    script = ("--sequence-parallel", shared, template, "--steps", "6", "--save_steps", "3")
    done = launch(tmp_path, "1,5,2", *STEP, *script)

    assert 0 == done.returncode, done.stderr[-4000:]
    record = read_record(tmp_path)
    first, second = record["attempts"]
    assert ("zero2", "host_oom", 1) == (
        first["strategy"],
        first["end"]["cause"],
        first["end"]["rank"],
    )
    assert "can't allocate memory" in "".join(first["end"]["last_lines"])
    assert ("zero3", "finished", 0) == (
        second["strategy"],
        second["end"]["cause"],
        second["end"]["status"],
    )
    assert {"what": "checkpoint", "path": "out/checkpoint-3"} == second["goes_on_from"]
    assert "zero2 ran out of memory" in second["why"]
    assert 0 == record["exit"]
    losses = printed_losses(done)
    assert {"1", "4", "5", "6", "eval"} == set(losses)
    assert float(losses["6"]) < float(losses["4"]) < float(losses["1"])
    # What ZeRO-2 prints where nothing ends it, to the last digit.
    whole = tmp_path / "whole"
    whole.mkdir()
    unbroken = printed_losses(launch(whole, "9,9,9", *STEP, *script))
    both = ("1", "5", "6", "eval")
    assert [losses[step] for step in both] == [unbroken[step] for step in both]
    assert ["finished"] == [each["end"]["cause"] for each in read_record(whole)["attempts"]]
    for name in ("ds_config_zero2.json", "ds_config_zero3.json", "ds_config_zero3.plan.json"):
        assert (tmp_path / name).is_file()
    assert "goes on from the checkpoint out/checkpoint-3" in done.stderr


@pytest.mark.thorough
def test_a_further_attempt_keeps_the_step_that_was_chosen(tmp_path: Path) -> None:
    words = ("--steps", "2", "--save_steps", "0", "--seq_len", "32")
    script = (TEMPLATES / "train_deepspeed.py", *words)
    done = launch(tmp_path, "1,1,2", "--global-batch", "8", *script)

    assert 0 == done.returncode, done.stderr[-4000:]
    assert ["zero2", "zero3"] == [each["strategy"] for each in read_record(tmp_path)["attempts"]]
    for stage in (2, 3):
        config = json.loads((tmp_path / f"ds_config_zero{stage}.json").read_text())
        assert 4 == config["train_micro_batch_size_per_gpu"]
        assert 1 == config["gradient_accumulation_steps"]
    again = json.loads((tmp_path / "ds_config_zero3.plan.json").read_text())["reproduce"]["argv"]
    assert "4" == again[again.index("--micro-batch") + 1]


@pytest.mark.thorough
def test_a_true_allocation_failure_escalates_and_the_schedule_goes_on(tmp_path: Path) -> None:
    script = (TEMPLATES / "train_hf.py", "--use_cpu", "--bf16", "--max_steps", "6")
    accumulation = ("--gradient_accumulation_steps", "2")
    schedule = ("--lr_scheduler_type", "linear", "--save_strategy", "steps", "--save_steps", "3")
    done = launch(tmp_path, "0,5,2", *script, *schedule, *accumulation, "--logging_steps", "1")

    assert 0 == done.returncode, done.stderr[-4000:]
    first, second = read_record(tmp_path)["attempts"]
    assert ("zero2", "host_oom") == (first["strategy"], first["end"]["cause"])
    assert "can't allocate memory" in "".join(first["end"]["last_lines"])
    assert ("zero3", "checkpoint") == (second["strategy"], second["goes_on_from"]["what"])
    state = json.loads((tmp_path / "out/checkpoint-6/trainer_state.json").read_text())
    logged = {row["step"]: row for row in state["log_history"] if "learning_rate" in row}
    assert [1, 2, 3, 4, 5, 6] == sorted(logged)
    rates = [logged[step]["learning_rate"] for step in sorted(logged)]
    # Linear to 0 over all six steps: what was taken before the restart counts.
    assert pytest.approx([1e-3 * (6 - step) / 6 for step in range(6)]) == rates
    assert logged[6]["loss"] < logged[4]["loss"] < logged[1]["loss"]


def test_a_failure_of_another_kind_is_the_status_and_is_never_tried_again(tmp_path: Path) -> None:
    script = (TEMPLATES / "train_deepspeed.py", "--corpus", "no-such-corpus.txt")
    done = launch(tmp_path, "9,9,9", *STEP, *script)

    assert done.returncode not in {0, 2, 3, 4, 5}
    assert "no-such-corpus.txt" in done.stdout + done.stderr
    record = read_record(tmp_path)
    [attempt] = record["attempts"]
    assert ("failed", done.returncode) == (attempt["end"]["cause"], record["exit"])
    assert not (tmp_path / "ds_config_zero3.json").exists()
