"""Whatever happens to a real DeepSpeed job: its status tells it, and nothing is left of it."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kills.cases import CASES, DEEPSPEED, RANKS, kill_rank, misses, run_case, signalled
from kills.harness import HERE, SHIM, Job, carries, end_process, processes, supervised
from paths import TEMPLATES
from ranks.harness import drop_shared_memory, rank_environ, run

from zerowiz.probe.preflight.read_facts import find_free_port

# A real compile that is killed in the middle keeps no later job waiting.

# What ranks on the CPU accelerator load first, and build where it is not built.
OP = "deepspeed_shm_comm"
PATIENCE_S = 120.0
SAYS_WITHIN_S = 10.0


def kill_builder(job: Job) -> None:
    """The rank that compiles; the other one waits for it."""
    pid = next(pid for pid in job.seen if holds(pid, job.output / "ops" / OP / "lock"))
    job.send(signal.SIGKILL, pid)


def holds(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    try:
        return path in {each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.02)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("happens", "status"),
    [
        pytest.param(kill_builder, 137, id="the builder is killed", marks=pytest.mark.slow),
        pytest.param(
            *(kill_rank, 137),
            id="a rank is killed",
            marks=[pytest.mark.slow, pytest.mark.thorough],
        ),
        pytest.param(
            *(signalled(signal.SIGTERM), 143),
            id="TERM",
            marks=[pytest.mark.slow, pytest.mark.thorough],
        ),
        pytest.param(
            *(signalled(signal.SIGKILL), -signal.SIGKILL),
            id="zerowiz is killed",
            marks=[pytest.mark.slow, pytest.mark.thorough],
        ),
    ],
)
def test_a_job_that_ends_while_it_compiles_leaves_no_lock(
    happens: Callable[[Job], None], status: int, tmp_path: Path
) -> None:
    port, ops = find_free_port(), tmp_path / "ops"
    env = {**rank_environ(tmp_path / "reports"), "TORCH_EXTENSIONS_DIR": str(ops)}
    launcher = (DEEPSPEED, "--num_gpus", str(RANKS), "--master_port", str(port))
    with supervised(tmp_path, (*launcher, SHIM, HERE / "train.py", tmp_path, "go"), env=env) as job:
        job.wait_for_files(ops / OP / "lock")
        # The parent of the rank looks four times a second.
        time.sleep(1)
        # Else it would build the op itself, as soon as the lock is gone.
        job.wait_for("rank that waits", lambda: any(tmp_path.glob("waits-*")))
        happens(job)
        ended = job.wait()
    drop_shared_memory(f"--master_port={port}")
    assert (status, ()) == (ended.status, ended.left)
    assert [] == [each.name for each in (ops / OP).glob("lock*")]
    assert not (ops / OP / f"{OP}.so").exists()


def kill_launch(argv: list[str], env: dict[str, str], folder: Path, lock: Path) -> None:
    """Launch, and kill all its processes at once when the lock is there, as a node that stops would."""
    mark = f"TORCH_EXTENSIONS_DIR={env['TORCH_EXTENSIONS_DIR']}"
    with (folder / "killed").open("wb") as log:
        process = subprocess.Popen(
            argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_for(lock)
    finally:
        while left := [pid for pid in processes() if carries(pid, mark)]:
            for pid in left:
                end_process(pid)
            process.poll()
        process.wait()


@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_launch_after_a_killed_compile_says_what_to_do(tmp_path: Path) -> None:
    env, ops = rank_environ(tmp_path / "reports"), tmp_path / "ops"
    env["TORCH_EXTENSIONS_DIR"] = str(ops)
    lock = ops / OP / "lock"
    options = ("--yes", "--accelerator", "cpu", "--gpus-per-node", "2", "--micro-batch", "2")
    argv = [sys.executable, "-m", "zerowiz", "launch", *options, "--supervise"]
    argv += ["--model", str(TEMPLATES / "model"), str(TEMPLATES / "train_deepspeed.py")]
    argv += ["--steps", "2", "--output_dir", str(tmp_path / "out")]

    kill_launch(argv, env, tmp_path, lock)
    assert lock.exists()
    said = (tmp_path / "killed").read_text()
    assert f"note: DeepSpeed compiles `{OP}` when the job starts" in said
    began_s = time.monotonic()
    done = run(argv, env, tmp_path, timeout_s=PATIENCE_S)
    assert time.monotonic() - began_s < SAYS_WITHIN_S
    assert 5 == done.returncode, done.stderr
    assert f"hint: rm {lock}\n" in done.stderr


# One for every change; then a rank that ends by itself, a job that is asked to end, and each other
# part of a job that can end first, in a save and at the start too.
SAMPLED = "a rank is killed"
SLOW = {"a rank raises", "TERM in a step", "deepspeed is killed", "zerowiz is killed in a save"}
SLOW |= {"INT in a save", "TERM at the start"}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    if name == SAMPLED:
        return []
    return [pytest.mark.slow] if name in SLOW else [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.deepspeed
def test_what_is_sampled_has_a_case() -> None:
    assert {SAMPLED, *SLOW} < {*CASES}


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in CASES])
def test_the_status_is_right_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)  # noqa: S311 - no secret
    ended = run_case(CASES[name], tmp_path, chance)
    assert [] == misses(CASES[name], ended), ended.stderr[-4000:].decode(errors="replace")
