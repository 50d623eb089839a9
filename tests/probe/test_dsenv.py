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


@pytest.mark.parametrize(
    ("here", "environ", "expected"),
    [
        pytest.param(".deepspeed_env", {}, ["A=1", "A=2"], id="that of the home folder first"),
        pytest.param("mine", {"DS_ENV_FILE": "mine"}, ["A=2"], id="another name renames both"),
    ],
)
def test_both_files_are_read(
    home: Path, tmp_path: Path, here: str, environ: dict[str, str], expected: list[str]
) -> None:
    (home / ".deepspeed_env").write_text("A=1", encoding="utf-8")
    (tmp_path / here).write_text("A=2", encoding="utf-8")
    assert expected == read_env_lines(environ, tmp_path)


def test_neither_has_to_be_there(tmp_path: Path) -> None:
    assert [] == read_env_lines({}, tmp_path)


def test_an_absolute_name_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("A=1", encoding="utf-8")
    assert ["A=1"] == read_env_lines({"DS_ENV_FILE": str(tmp_path / "mine")}, tmp_path)


def test_one_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read: it is not text"):
        read_env_lines({}, tmp_path)
