"""The shipped training scripts train, and their ranks are what the config says."""

import sys
from pathlib import Path

import pytest
from paths import TESTS
from ranks.harness import rank_environ, read_reports, run
from templates.jobs import (
    RAW,
    TRAINER,
    by_environment,
    eval_loss,
    launch,
    losses,
    write_config,
)

IN_CODE = TESTS / "scripts" / "hf_in_code.py"

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def test_raw_loop_takes_stage_batch_and_precision_from_the_config(tmp_path: Path) -> None:
    config = write_config(tmp_path, 2)
    done, reports = launch(
        tmp_path, RAW, "--deepspeed", "--deepspeed_config", config, "--steps", "10"
    )
    assert [0, 1] == [report["rank"] for report in reports]
    for report in reports:
        assert 2 == report["stage"]
        assert 2 == report["world_size"]
        assert (2, 2, 8) == tuple(
            report[key] for key in ("micro_batch", "accumulation_steps", "train_batch_size")
        )
        assert ["DeepSpeedZeroOptimizer", "AdamW"] == report["optimizer_classes"]
        assert ["bfloat16"] == report["parameter_dtypes"]
        assert ["float32"] == report["master_dtypes"] == report["state_dtypes"]
        # Every rank keeps all weights, and half of Adam's two moments (alignment pads the halves).
        assert report["parameters"] == report["resident_parameters"]
        assert pytest.approx(report["parameters"], rel=0.001) == report["state_elements"]
    seen = losses(done.stdout)
    assert [1, 5, 10] == list(seen)
    assert seen[1] > 5
    assert seen[10] < 4
    assert eval_loss(done.stdout) < 4


@pytest.mark.thorough
def test_bf16_states_are_bf16_in_memory(tmp_path: Path) -> None:
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    config = write_config(tmp_path, 2, bf16=bf16)
    _, reports = launch(tmp_path, RAW, "--deepspeed", "--deepspeed_config", config, "--steps", "2")
    assert 2 == len(reports)
    for report in reports:
        assert ["bfloat16"] == report["master_dtypes"] == report["state_dtypes"]


@pytest.mark.thorough
def test_trainer_shards_everything_at_stage_3_by_environment_alone(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        3,
        train_micro_batch_size_per_gpu="auto",
        gradient_accumulation_steps="auto",
        gradient_clipping="auto",
        bf16={"enabled": "auto"},
    )
    options = ("--use_cpu", "--bf16", "--max_steps", "10", "--per_device_train_batch_size", "4")
    done, reports = launch(tmp_path, TRAINER, *options, env=by_environment(config))
    assert [0, 1] == [report["rank"] for report in reports]
    for report in reports:
        assert 3 == report["stage"]
        assert (4, 1, 8) == tuple(
            report[key] for key in ("micro_batch", "accumulation_steps", "train_batch_size")
        )
        assert ["DeepSpeedZeroOptimizer_Stage3", "AdamW"] == report["optimizer_classes"]
        # Between steps a rank keeps whole only what lies under the persistence threshold.
        assert report["resident_parameters"] < report["parameters"] / 10
    assert losses(done.stdout)[10] < 4
    assert eval_loss(done.stdout) < 4


@pytest.mark.thorough
def test_arguments_built_in_code_take_the_config_from_the_environment(tmp_path: Path) -> None:
    config = write_config(tmp_path, 2)
    _, reports = launch(tmp_path, IN_CODE, env=by_environment(config))
    assert [(2, 2, 2), (2, 2, 2)] == [
        (report["stage"], report["micro_batch"], report["accumulation_steps"]) for report in reports
    ]


def test_trainer_script_trains_without_deepspeed(tmp_path: Path) -> None:
    env = rank_environ(tmp_path / "reports")
    options = ("--use_cpu", "--max_steps", "5", "--save_strategy", "no")
    done = run([sys.executable, TRAINER, *options], env=env, cwd=tmp_path)
    assert 0 == done.returncode, done.stderr[-4000:]
    assert [1, 5] == list(losses(done.stdout))
    assert [] == read_reports(tmp_path / "reports")
