"""The shipped training scripts train, and their ranks are what the config says."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import TESTS
from ranks.harness import BIN, drop_shared_memory, end_group, rank_environ, read_reports, run
from templates.jobs import RAW, TRAINER, by_environment, eval_loss, launch, losses, write_config

from zerowiz.probe.preflight.read_facts import find_free_port

IN_CODE = TESTS / "scripts" / "hf_in_code.py"


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.thorough
def test_bf16_states_are_bf16_in_memory(tmp_path: Path) -> None:
    bf16 = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    config = write_config(tmp_path, 2, bf16=bf16)
    _, reports = launch(tmp_path, RAW, "--deepspeed", "--deepspeed_config", config, "--steps", "2")
    assert 2 == len(reports)
    for report in reports:
        assert ["bfloat16"] == report["master_dtypes"] == report["state_dtypes"]


@pytest.mark.deepspeed
@pytest.mark.slow
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
    words = ("--use_cpu", "--bf16", "--max_steps", "10", "--per_device_train_batch_size", "4")
    options = (*words, "--do_eval")
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


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.thorough
def test_arguments_built_in_code_take_the_config_from_the_environment(tmp_path: Path) -> None:
    config = write_config(tmp_path, 2)
    _, reports = launch(tmp_path, IN_CODE, env=by_environment(config))
    assert [(2, 2, 2), (2, 2, 2)] == [
        (report["stage"], report["micro_batch"], report["accumulation_steps"]) for report in reports
    ]


@pytest.mark.deepspeed
@pytest.mark.slow
def test_trainer_script_trains_without_deepspeed(tmp_path: Path) -> None:
    env = rank_environ(tmp_path / "reports")
    options = ("--use_cpu", "--max_steps", "5", "--save_strategy", "no")
    done = run([sys.executable, TRAINER, *options], env=env, cwd=tmp_path).good
    assert [1, 5] == list(losses(done.stdout))
    assert [] == read_reports(tmp_path / "reports")


# SIGUSR1 asks a running script for a checkpoint, SIGTERM for a checkpoint and the end.

PATIENCE_S = 200.0
LONG = ("1000000",)
SCRIPTS = {
    "raw": (RAW, "--deepspeed", "--deepspeed_config", "{config}", "--steps", *LONG),
    "trainer": (TRAINER, "--use_cpu", "--bf16", "--deepspeed", "{config}", "--max_steps", *LONG)
    + ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
}


def wait_for(seen: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < until
        time.sleep(0.2)


def rank_1(folder: Path) -> int:
    """The process of the second rank of the job that runs in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            here = (process / "cwd").readlink() == folder
        except OSError:
            continue
        if here and b"--local_rank=1" in words and b"-m" not in words:
            return int(process.name)
    raise AssertionError("no rank 1")


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_signal_to_one_rank_saves_all_of_the_run(name: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, 2)
    words = [str(word).format(config=config) for word in SCRIPTS[name]]
    port = str(find_free_port())
    log = tmp_path / "log"
    argv = [str(BIN / "deepspeed"), "--num_gpus", "2", "--master_port", port, *words]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*argv, "--save_on_signal", "--output_dir", "out"],
            env=rank_environ(tmp_path / "reports"),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as job,
    ):
        try:
            wait_for(lambda: "step 1 " in log.read_text() or job.poll() is not None)
            os.kill(rank_1(tmp_path), signal.SIGUSR1)
            wait_for(lambda: any(tmp_path.glob("out/checkpoint-*/portable.json")))
            assert job.poll() is None
            (first,) = tmp_path.glob("out/checkpoint-*")
            os.kill(rank_1(tmp_path), signal.SIGTERM)
            assert 128 + signal.SIGTERM == job.wait(PATIENCE_S), log.read_text()[-4000:]
        finally:
            end_group(job.pid)
            drop_shared_memory(f"--master_port {port}")
    checkpoints = list(tmp_path.glob("out/checkpoint-*/portable.json"))
    assert 2 == len(checkpoints)
    assert first / "portable.json" in checkpoints
    assert "eval_loss" not in log.read_text()
