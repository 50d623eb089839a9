"""Checkpoints on the disk: whole or not there, and nobody else's folder is touched."""

import json
import os
import runpy
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import TEMPLATES
from safetensors.torch import load_file, save_file

from zerowiz.probe.preflight.read_facts import read_saved


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    """The module as a script beside it imports it."""
    return runpy.run_path(str(TEMPLATES / "portable_checkpoint" / "files.py"))


@pytest.fixture
def save(files: dict[str, Any], tmp_path: Path) -> Any:
    def checkpoint(step: int, keep: int = 2) -> None:
        with files["new_checkpoint"](tmp_path, step, keep) as folder:
            (folder / "model.safetensors").write_text("weights")
            files["write_marker"](folder, {"step": step})

    return checkpoint


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


SAVED = {
    "a.weight": torch.arange(15, dtype=torch.float32).view(3, 5),
    "b": torch.tensor([1.5, -0.0, 2.0], dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4, dtype=torch.float16),
    "scalar": torch.tensor(7),
}


def test_a_file_written_in_pieces_is_read_by_safetensors(
    files: dict[str, Any], tmp_path: Path
) -> None:
    specs = [
        files["Spec"](name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)
        for name, tensor in SAVED.items()
    ]
    with files["TensorWriter"].of(tmp_path, "model", specs) as writer:
        for tensor in SAVED.values():
            for piece in tensor.view(-1).split(2):
                writer.write(piece)

    read = load_file(tmp_path / "model.safetensors")

    assert SAVED.keys() == read.keys()
    for name, tensor in SAVED.items():
        assert (tensor.shape, tensor.dtype) == (read[name].shape, read[name].dtype)
        assert torch.equal(tensor, read[name])


def test_any_part_of_a_safetensors_file_is_read(files: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(SAVED, path)

    specs = files["read_specs"](path)

    assert {name: tuple(tensor.shape) for name, tensor in SAVED.items()} == {
        name: spec.shape for name, spec in specs.items()
    }
    with path.open("rb") as file:
        values = files["read_values"](file, specs["a.weight"], 4, 7)
        assert list(range(4, 11)) == values.tolist()
        os.truncate(path, specs["a.weight"].offset_bytes + 6)
        with pytest.raises(OSError, match=r"ends within a\.weight"):
            files["read_values"](file, specs["a.weight"], 0, 2)


def test_the_newest_is_the_one_saved_last_whatever_its_step(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    save(20)
    save(5)  # the run was started again from its beginning
    save(10)
    assert ["checkpoint-10", "checkpoint-5"] == names(tmp_path)
    assert "checkpoint-10" == files["whole_checkpoints"](tmp_path)[-1].name


def test_zerowiz_finds_what_the_module_wrote(save: Any, tmp_path: Path) -> None:
    """`probe/output_folder.py` repeats the names of the folder, the marker and its key."""
    save(20)
    save(5)
    assert str(tmp_path / "checkpoint-5") == read_saved(tmp_path).portable


def test_a_step_that_was_saved_before_is_replaced(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    save(5)
    save(5)
    assert ["checkpoint-5"] == names(tmp_path)
    assert 2 == files["read_marker"](tmp_path / "checkpoint-5")["saves"]


def test_a_clock_that_is_set_back_removes_no_new_checkpoint(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(10)
    save(20)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    save(30)
    assert ["checkpoint-20", "checkpoint-30"] == names(tmp_path)
    save(40, keep=1)
    assert ["checkpoint-40"] == names(tmp_path)


def test_checkpoints_of_markers_with_a_time_alone_are_older_and_in_order_of_their_steps(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    for step, saved_at_ns in ((20, 2**62), (30, 1)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        text = json.dumps({"format": 1, "saved_at_ns": saved_at_ns, "step": step})
        (tmp_path / f"checkpoint-{step}" / "portable.json").write_text(text)
    save(10)
    assert ["checkpoint-10", "checkpoint-30"] == names(tmp_path)
    assert "checkpoint-10" == files["whole_checkpoints"](tmp_path)[-1].name


# What changes a folder, or sees it onto the disk.
CALLS = ("mkdir", "rename", "unlink", "rmdir", "fsync")


def save_and_die(save: Any, at: int) -> bool:
    """Save step 5 again in a process that is killed as it makes its call number `at`."""
    pid = os.fork()
    if pid == 0:
        calls = count(1)
        for name in CALLS:
            does = getattr(os, name)

            def or_die(*words: Any, does: Any = does, **named: Any) -> Any:
                if next(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return does(*words, **named)

            setattr(os, name, or_die)
        status = 1
        try:
            save(5)
            status = 0
        finally:
            os._exit(status)
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert end in {0, -signal.SIGKILL}, f"the save failed, and was not killed at call {at}"
    return end == -signal.SIGKILL


def test_a_save_over_a_checkpoint_of_its_step_that_is_killed_anywhere_leaves_a_whole_one(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    save(5)
    at = 1
    while save_and_die(save, at):
        there = files["whole_checkpoints"](tmp_path)
        assert 5 in [files["read_marker"](folder)["step"] for folder in there], at
        assert "weights" == (there[-1] / "model.safetensors").read_text(), at
        assert str(there[-1]) == read_saved(tmp_path).portable, at
        at += 1
    assert at > 10
    # And the next save clears up.
    save(5)
    assert ["checkpoint-5"] == names(tmp_path)


def test_a_folder_without_our_marker_is_neither_taken_nor_removed(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    for name in ("checkpoint-1", "checkpoint-99", "checkpoint-best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-best" / "portable.json").write_text(json.dumps({"format": 1}))
    for step in (2, 3, 4):
        save(step, keep=1)
    assert ["checkpoint-1", "checkpoint-4", "checkpoint-99", "checkpoint-best"] == names(tmp_path)
    assert "checkpoint-4" == files["whole_checkpoints"](tmp_path)[-1].name
    with pytest.raises(FileExistsError, match="checkpoint-99 is not one of our checkpoints"):
        save(99)


def test_keeping_none_of_them_keeps_them_all(save: Any, tmp_path: Path) -> None:
    for step in range(4):
        save(step, keep=0)
    assert [f"checkpoint-{step}" for step in range(4)] == names(tmp_path)


def test_what_an_ended_save_left_is_not_seen_and_goes_with_the_next(
    files: dict[str, Any], save: Any, tmp_path: Path
) -> None:
    save(1)
    with pytest.raises(FileNotFoundError), files["new_checkpoint"](tmp_path, 2, 2) as folder:
        (folder / "nowhere" / "model.safetensors").write_text("half")
    assert [".checkpoint-2.partial", "checkpoint-1"] == names(tmp_path)
    assert ["checkpoint-1"] == [path.name for path in files["whole_checkpoints"](tmp_path)]
    save(3)
    assert ["checkpoint-1", "checkpoint-3"] == names(tmp_path)


def test_a_removal_that_ends_halfway_leaves_nothing_that_looks_whole(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(2, keep=1)
    assert [".checkpoint-1.partial", "checkpoint-2"] == names(tmp_path)
