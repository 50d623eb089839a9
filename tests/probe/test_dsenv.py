"""The person's files of variables."""

from pathlib import Path

import pytest

from zerowiz.errors import UsageError
from zerowiz.probe.nodes import read_env_lines


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def texts(environ: dict[str, str], folder: Path) -> list[str]:
    return read_env_lines(environ, folder)


def test_the_one_of_the_home_folder_comes_first(home: Path, tmp_path: Path) -> None:
    (home / ".deepspeed_env").write_text("A=1", encoding="utf-8")
    (tmp_path / ".deepspeed_env").write_text("A=2", encoding="utf-8")
    assert ["A=1", "A=2"] == texts({}, tmp_path)


def test_neither_has_to_be_there(tmp_path: Path) -> None:
    assert [] == texts({}, tmp_path)


def test_another_name_renames_both(home: Path, tmp_path: Path) -> None:
    (home / ".deepspeed_env").write_text("A=1", encoding="utf-8")
    (tmp_path / "mine").write_text("A=2", encoding="utf-8")
    assert ["A=2"] == texts({"DS_ENV_FILE": "mine"}, tmp_path)


def test_an_absolute_name_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("A=1", encoding="utf-8")
    assert ["A=1"] == texts({"DS_ENV_FILE": str(tmp_path / "mine")}, tmp_path)


def test_one_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read: it is not text"):
        read_env_lines({}, tmp_path)
