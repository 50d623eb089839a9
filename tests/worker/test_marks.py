"""Ranks agree through files that are whole or not there."""

from pathlib import Path

from zerowiz.worker.marks import read_mark, write_mark


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_mark(tmp_path / "end.json", {"status": 3})
    assert {"status": 3} == read_mark(tmp_path / "end.json")


def test_a_mark_that_nobody_wrote_is_none(tmp_path: Path) -> None:
    assert None is read_mark(tmp_path / "end.json")


def test_a_mark_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_mark(tmp_path / "end.json", {})
    write_mark(tmp_path / "end.json", {"status": 0})
    assert ["end.json"] == [path.name for path in tmp_path.iterdir()]
