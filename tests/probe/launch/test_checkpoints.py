"""What a script has saved, found in its output folder."""

import os
from pathlib import Path

import pytest

from zerowiz.core.outcome.resume import Saved
from zerowiz.probe.launch.checkpoints import read_saved


def save(folder: Path, *files: str) -> str:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return str(folder)


@pytest.mark.parametrize("folder", [None, Path("/no/such/folder")])
def test_where_there_is_no_folder_nothing_was_saved(folder: Path | None) -> None:
    assert Saved() == read_saved(folder)


def test_the_newest_of_each_kind_is_found(tmp_path: Path) -> None:
    weights = ("model.safetensors", "config.json")
    save(tmp_path / "checkpoint-9", *weights, "portable.json")
    portable = save(tmp_path / "checkpoint-10", *weights, "portable.json")
    engine = save(tmp_path / "checkpoint-30", "global_step30/mp_rank_00_model_states.pt")
    sharded = save(tmp_path / "checkpoint-20", "model.safetensors.index.json", "config.json")
    assert Saved(portable=portable, engine=engine, weights=sharded) == read_saved(tmp_path)


def test_what_was_saved_before_this_job_is_another_runs(tmp_path: Path) -> None:
    files = ("portable.json", "model.safetensors", "config.json", "global_step9/states.pt")
    old = Path(save(tmp_path / "checkpoint-9", *files))
    new = save(tmp_path / "checkpoint-3", *files)
    for path in (old, *old.iterdir()):
        os.utime(path, (1e9, 1e9))
    assert Saved(portable=new, engine=new, weights=new) == read_saved(tmp_path, since=1e9 + 1)
    # An old folder that was written to again is new.
    os.utime(old / "config.json")
    assert str(old) == read_saved(tmp_path, since=1e9 + 1).weights


def test_the_newest_portable_one_is_the_last_that_was_saved(tmp_path: Path) -> None:
    for step, saved_at_ns in ((3, 20), (9, 10)):
        folder = Path(save(tmp_path / f"checkpoint-{step}", "portable.json"))
        (folder / "portable.json").write_text(f'{{"saved_at_ns": {saved_at_ns}}}')
    assert str(tmp_path / "checkpoint-3") == read_saved(tmp_path).portable


def test_what_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-2", "model.safetensors")
    save(tmp_path / "checkpoint-3", "pytorch_model.bin", "config.json")
    save(tmp_path / ".checkpoint-4.partial", "portable.json")
    save(tmp_path / "runs", "portable.json")
    (tmp_path / "checkpoint-5").write_text("a file")
    assert Saved() == read_saved(tmp_path)
