"""Ranks coordinate through files that are whole or not there."""

from pathlib import Path

from zerowiz.worker.batch_files import CaseEnd, read_end, write_json


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    end: CaseEnd = {"status": 3, "killed": None, "seconds": 1.5}
    write_json(tmp_path / "end.json", dict(end))
    assert end == read_end(tmp_path / "end.json")


def test_a_file_that_nobody_wrote_is_none(tmp_path: Path) -> None:
    assert None is read_end(tmp_path / "end.json")


def test_a_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_json(tmp_path / "end.json", {})
    write_json(tmp_path / "end.json", {"status": 0})
    assert ["end.json"] == [path.name for path in tmp_path.iterdir()]
