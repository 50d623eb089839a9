"""The pre-commit hook, installed and run by pre-commit itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "dist", "build", "demo")
HOOKS = ROOT / ".pre-commit-hooks.yaml"
pytestmark = [pytest.mark.package, pytest.mark.thorough]

IDENTITY = ("-c", "user.name=zerowiz", "-c", "user.email=zerowiz@example.org")

GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}\n'
BROKEN = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}\n'


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True)


def committed(folder: Path) -> Path:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    return folder


def test_pre_commit_finds_the_configs_and_stops_at_a_broken_one(tmp_path: Path) -> None:
    sources, work = tmp_path / "zerowiz", tmp_path / "work"
    shutil.copytree(ROOT, sources, ignore=NOT_SOURCES)
    shutil.copy(HOOKS, sources)
    committed(sources)
    work.mkdir()
    (work / "ds_config_good.json").write_text(GOOD)
    (work / "ds_config_broken.json").write_text(BROKEN)
    (work / "package.json").write_text('{"zero": 1}')
    committed(work)
    hook = ("-m", "pre_commit", "try-repo", str(sources), "zerowiz-check")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *hook, *words], cwd=work, capture_output=True, text=True, check=False
        )

    stopped = run("--all-files")
    assert 1 == stopped.returncode, stopped.stdout + stopped.stderr
    assert "exit code: 6" in stopped.stdout
    assert "ds_config_broken.json:1:61 error ZW204" in stopped.stdout
    assert "package.json" not in stopped.stdout
    passed = run("--files", "ds_config_good.json", "package.json")
    assert (0, True) == (passed.returncode, "Passed" in passed.stdout), passed.stdout
