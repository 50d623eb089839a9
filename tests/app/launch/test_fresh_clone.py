"""What is committed is enough: a clone of the repository launches the same job, asking nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import TEMPLATES
from ranks.harness import rank_environ, read_reports, run

pytestmark = pytest.mark.deepspeed

ZEROWIZ = (sys.executable, "-m", "zerowiz")
# What is free of the host changes from one run to the next, so the budget is said.
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "2GB")
JOB = (*CPU, "--model", "model", "--stage", "2", "--micro-batch", "2", "--seq-len", "64")
CONFIG, PLAN = "ds_config_zero2.json", "ds_config_zero2.plan.json"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository in which somebody ran the wizard, and committed what it wrote."""
    origin, cloned = tmp_path / "origin", tmp_path / "clone"
    shutil.copytree(TEMPLATES, origin, ignore=shutil.ignore_patterns("__pycache__", "ds_config*"))
    (origin / "train_deepspeed.py").rename(origin / "train.py")
    words = (*JOB, "train.py", "--steps", "2")
    environ = rank_environ(tmp_path / "unused")
    done = run([*ZEROWIZ, "init", "--yes", *words], env=environ, cwd=origin)
    assert 0 == done.returncode, done.stderr
    (origin / ".gitignore").write_text(".zerowiz/\n")
    git(origin, "init", "--quiet")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--message", "a job")
    git(tmp_path, "clone", "--quiet", str(origin), str(cloned))
    return cloned


def test_a_fresh_clone_is_launched_and_a_file_that_is_edited_then_is_kept(
    clone: Path, tmp_path: Path
) -> None:
    assert not (clone / ".zerowiz").exists()
    environ = rank_environ(tmp_path / "reports")
    launch = [*ZEROWIZ, "launch", "--yes"]
    # Longer sequences: both files are written anew.
    done = run([*launch, "--seq-len", "32"], env=environ, cwd=clone)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "from `zerowiz.toml`: " in done.stderr
    reports = read_reports(tmp_path / "reports")
    assert [(0, 2, 2), (1, 2, 2)] == [
        (report["rank"], report["stage"], report["micro_batch"]) for report in reports
    ]
    plan = json.loads((clone / PLAN).read_text())
    assert 32 == plan["workload"]["sequence_tokens"]

    shutil.rmtree(clone / ".zerowiz")
    edited = (clone / CONFIG).read_text().replace('"stage": 2', '"stage": 1')
    (clone / CONFIG).write_text(edited)
    refused = run(launch, env=environ, cwd=clone)
    assert 1 == refused.returncode, refused.stderr
    assert f"`{CONFIG}` exists and was not written by zerowiz" in refused.stderr
    assert edited == (clone / CONFIG).read_text()
