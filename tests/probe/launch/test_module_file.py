"""Where the file of a module lies, found without importing it."""

from pathlib import Path

import pytest

from zerowiz.errors import PreflightError
from zerowiz.probe.launch.module_file import find_module_file

NEVER = "raise SystemExit('imported')\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path in ("pkg/__init__.py", "pkg/train.py", "pkg/run/__main__.py", "other/far/train.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(NEVER)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [("pkg.train", "pkg/train.py"), ("pkg.run", "pkg/run/__main__.py")],
)
def test_a_module_of_the_working_folder_is_found(place: Path, name: str, expected: str) -> None:
    assert place.is_dir()
    assert Path(expected) == find_module_file(name, {})


def test_a_module_of_pythonpath_is_found(place: Path) -> None:
    found = find_module_file("far.train", {"PYTHONPATH": f"/nowhere:{place / 'other'}"})
    assert place / "other" / "far" / "train.py" == found


@pytest.mark.parametrize("name", ["", ".", "..", "pkg.", ".train", "pkg..train"])
def test_a_name_with_an_empty_part_is_no_module(place: Path, name: str) -> None:
    assert place.is_dir()
    with pytest.raises(PreflightError, match="is not a module name"):
        find_module_file(name, {})


def test_an_installed_module_is_found(place: Path) -> None:
    assert place.is_dir()
    assert "pytest/__main__.py" == "/".join(find_module_file("pytest", {}).parts[-2:])


@pytest.mark.parametrize("name", ["pkg.none", "pkg/train.py", "train.py"])
def test_what_is_no_module_is_refused(place: Path, name: str) -> None:
    assert place.is_dir()
    with pytest.raises(PreflightError, match="module"):
        find_module_file(name, {})
