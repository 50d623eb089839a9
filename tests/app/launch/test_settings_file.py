"""A script that takes all its arguments from one file trains as planned, by a copy of that file."""

import json
import stat
import sys
from pathlib import Path

import msgspec.yaml
import pytest
from paths import TESTS
from ranks.harness import CompletedRun, rank_environ, read_reports, run

pytestmark = pytest.mark.deepspeed

SCRIPT = TESTS / "scripts" / "hf_settings_file.py"
VALUES = {
    "output_dir": "out",
    "block_size": 32,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-05,
    "max_steps": 2,
    "save_strategy": "no",
    "report_to": "none",
}


def launch(folder: Path, *words: str | Path, **env: str) -> CompletedRun:
    """Launch on two CPU ranks, and see that the job ended well."""
    done = run(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
        + ["--gpus-per-node", "2", "--model", "1m", *words],
        env={**rank_environ(folder / "reports"), **env},
        cwd=folder,
    )
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.mark.parametrize(
    "suffix",
    [".json", pytest.param(".yaml", marks=[pytest.mark.slow, pytest.mark.thorough])],
    ids=["json", "yaml"],
)
def test_a_settings_file_trains_with_what_was_settled(suffix: str, tmp_path: Path) -> None:
    yaml = suffix == ".yaml"
    text = msgspec.yaml.encode(VALUES).decode() if yaml else json.dumps(VALUES)
    own = tmp_path / f"args{suffix}"
    own.write_text(text)
    said = ("--stage", "2", "--grad-accum", "3", "--gradient-checkpointing")
    launch(tmp_path, *said, SCRIPT, own.name)

    assert text == own.read_text()
    copy = (tmp_path / f"args.ds_config_zero2{suffix}").read_bytes()
    settled = {
        "gradient_accumulation_steps": 3,
        "gradient_checkpointing": True,
        "use_cpu": True,
        "deepspeed": "ds_config_zero2.json",
    }
    assert {**VALUES, **settled} == (msgspec.yaml.decode if yaml else json.loads)(copy)
    reports = read_reports(tmp_path / "reports")
    assert [0, 1] == [report["rank"] for report in reports]
    for report in reports:
        assert 2 == report["stage"]
        assert 2 == report["micro_batch"]
        assert 3 == report["accumulation_steps"]


@pytest.mark.slow
def test_after_an_out_of_memory_the_next_copy_names_the_checkpoint(tmp_path: Path) -> None:
    own = tmp_path / "args.json"
    own.write_text(
        json.dumps({**VALUES, "max_steps": 4, "save_strategy": "steps", "save_steps": 1})
    )
    own.chmod(0o600)
    died = {"ZEROWIZ_RANK_RUNS_OUT": "1,3,1,raise", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = launch(tmp_path, "--stage", "1", "--escalate", SCRIPT, own.name, **died)
    assert "goes on from the checkpoint out/checkpoint-2" in done.stderr
    copy = tmp_path / "args.ds_config_zero2.json"
    values = json.loads(copy.read_text())
    assert ("out/checkpoint-2", "ds_config_zero2.json") == (
        values["resume_from_checkpoint"],
        values["deepspeed"],
    )
    assert 0o600 == stat.S_IMODE(copy.stat().st_mode)
    assert (tmp_path / "out" / "checkpoint-4").is_dir()
