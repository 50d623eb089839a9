"""`zerowiz launch`: the job that it becomes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cli.harness import (
    HF_IN_CODE,
    HF_PARSER,
    Result,
    Run,
    clean_environ,
    make_interpreter,
    run_process,
)
from cli.shown import CPU, RANK_PROGRAM, shown

# What stands where `deepspeed` would: it says how it was started, and ends with a status of its own.
SPY = """\
#!/bin/sh
printf '%s\\n' "$@" > argv.txt
env > env.txt
exit 7
"""


@pytest.fixture
def spied(folder: Path, tmp_path: Path) -> Run:
    """Run with an interpreter beside which lies the spy."""
    python, needed = make_interpreter(tmp_path / "bin", SPY)

    def run(*words: str, **env: str) -> Result:
        return run_process(folder, *words, python=python, env={**needed, **env})

    return run


def test_a_launch_becomes_the_job_and_ends_with_its_status(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = (*CPU, "--no-supervise", "train.py", "--run_name", "a b")
    result = spied("launch", "--yes", *words, KEPT="as it is")
    assert 7 == result.code, result.stderr
    assert "" == result.stdout
    argv = (folder / "argv.txt").read_text().splitlines()
    assert RANK_PROGRAM not in argv
    assert ["train.py", "--run_name", "a b", "--deepspeed", "ds_config_zero0.json"] == argv[-5:]
    assert ["--num_gpus", "2"] == argv[:2]
    env = dict(
        line.split("=", 1) for line in (folder / "env.txt").read_text().splitlines() if "=" in line
    )
    assert ("cpu", "as it is") == (env["DS_ACCELERATOR"], env["KEPT"])
    assert (
        0 == json.loads((folder / "ds_config_zero0.json").read_text())["zero_optimization"]["stage"]
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_where_nobody_reads_any_more_the_status_and_the_record_stay(
    folder: Path, tmp_path: Path, unbuffered: str
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    reader, writer = os.pipe()
    os.close(reader)
    words = ("launch", "--yes", "--quiet", *CPU, "--supervise", "train.py")
    python, needed = make_interpreter(tmp_path / "bin", SPY)
    done = subprocess.run(
        [python, "-m", "zerowiz", *words],
        cwd=folder,
        env=clean_environ(**needed, PYTHONUNBUFFERED=unbuffered),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writer,
        check=False,
    )
    os.close(writer)
    assert (7, 7) == (
        done.returncode,
        json.loads((folder / "zerowiz-run.json").read_text())["exit"],
    )


def test_a_supervised_launch_ends_with_the_jobs_status_and_leaves_a_record(
    spied: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    result = spied("launch", "--yes", *CPU, "--supervise", "train.py", "--hub_token", "s3cr3t")
    assert 7 == result.code, result.stderr
    argv = (folder / "argv.txt").read_text().splitlines()
    assert [RANK_PROGRAM, "train.py"] == argv[-6:-4]
    assert 0o600 == (folder / "zerowiz-run.json").stat().st_mode & 0o777
    text = (folder / "zerowiz-run.json").read_text()
    assert "s3cr3t" not in text
    record = json.loads(text)
    [attempt] = record["attempts"]
    assert (7, "ddp", 7) == (record["exit"], attempt["strategy"], attempt["end"]["status"])
    assert "ds_config_zero0.plan.json" == attempt["plan_path"]
    assert attempt["started_at"] <= attempt["ended_at"]
    assert "attempt 1 (ddp) ended with status 7" in result.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--escalate", "--no-supervise"), "zerowiz must supervise it"),
        (("--escalate", "--config", "mine.json"), "`--config mine.json` conflict"),
    ],
)
def test_what_cannot_escalate_is_refused(
    here: Run, folder: Path, words: tuple[str, ...], expected: str
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "mine.json").write_text("{}")
    result = here("launch", *CPU, *words, "train.py")
    assert 2 == result.code
    assert expected in result.problem


def test_what_a_dry_run_shows_is_what_a_launch_does(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    words = (*CPU, "--stage", "2", "train.py", "--x")
    dry_run = spied("launch", "--dry-run", *words)
    assert 7 == spied("launch", *words).code
    _, _, *config, _, _ = dry_run.stdout.splitlines()
    assert "\n".join(config) + "\n" == (folder / "ds_config_zero2.json").read_text()
    expected = shown(dry_run)
    argv = (folder / "argv.txt").read_text().splitlines()
    assert [*expected.options] == argv[:2]
    assert [*expected.script] == argv[-2:]


def test_a_second_launch_rewrites_what_the_first_wrote(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    for tokens in (128, 256, 128):
        words = (*CPU, "--stage", "2", "--seq-len", str(tokens), "train.py", "--bf16")
        result = spied("launch", *words)
        assert 7 == result.code, result.stderr
        plan = json.loads((folder / "ds_config_zero2.plan.json").read_text())
        assert tokens == plan["workload"]["sequence_tokens"]


def test_a_config_that_was_changed_by_hand_stops_the_launch(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    config = folder / "ds_config_zero0.json"
    config.write_text('{"mine": true}\n')
    refused = spied("launch", *CPU, "train.py")
    assert 1 == refused.code
    assert "ds_config_zero0.json" in refused.problem
    assert "--force" in refused.hints
    assert '{"mine": true}\n' == config.read_text()
    assert not (folder / "argv.txt").exists()
    assert 7 == spied("launch", "--force", *CPU, "train.py").code
    assert "zero_optimization" in json.loads(config.read_text())


def test_a_plan_made_elsewhere_is_made_again_where_the_job_starts(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    planned = spied("init", "--yes", "--machine", "4xA100-40GB", "--model", "10m")
    assert 0 == planned.code, planned.stderr
    assert "--machine" not in planned.stdout
    refused = spied("launch")
    assert 5 == refused.code, refused.stderr
    assert 7 == spied("launch", "--accelerator", "cpu").code
