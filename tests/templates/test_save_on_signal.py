"""SIGUSR1 asks a running script for a checkpoint, SIGTERM for a checkpoint and the end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks.harness import BIN, drop_shared_memory, end_group, rank_environ
from templates.jobs import RAW, TRAINER, write_config

from zerowiz.probe.preflight.interpreter import find_free_port

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.thorough]

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
