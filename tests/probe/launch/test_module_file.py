"""Where the file of a module lies, found without importing it."""

import subprocess
import sys
from pathlib import Path

import pytest

from zerowiz.errors import PreflightError
from zerowiz.probe.preflight.interpreter import find_module_file

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
@pytest.mark.usefixtures("place")
def test_a_module_of_the_working_folder_is_found(name: str, expected: str) -> None:
    assert Path(expected) == find_module_file(name, {})


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("tune.py", "tune/__init__.py", "tune/__main__.py"), "tune/__main__.py"),
        (("tune.py", "tune/__main__.py"), "tune.py"),
        (("tune/__main__.py", "later/tune.py"), "later/tune.py"),
        (("tune.py", "later/tune/__init__.py", "later/tune/__main__.py"), "tune.py"),
        (("tune.py", "tune/__init__.py"), None),
    ],
)
def test_the_file_is_the_one_that_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...], expected: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("print(__file__)\n" * path.endswith(("e.py", "main__.py")))
    environ = {"PYTHONPATH": str(tmp_path / "later")}
    done = subprocess.run(
        [sys.executable, "-m", "tune"], env=environ, capture_output=True, text=True, check=False
    )
    if expected is None:
        assert "is a package and cannot be directly executed" in done.stderr
        with pytest.raises(PreflightError, match="is a package without"):
            find_module_file("tune", environ)
        return
    assert Path(expected).resolve() == Path(done.stdout.strip()).resolve()
    assert Path(expected).resolve() == find_module_file("tune", environ).resolve()


def test_a_module_of_pythonpath_is_found(place: Path) -> None:
    found = find_module_file("far.train", {"PYTHONPATH": f"/nowhere:{place / 'other'}"})
    assert place / "other" / "far" / "train.py" == found


@pytest.mark.parametrize("name", ["", ".", "..", "pkg.", ".train", "pkg..train"])
@pytest.mark.usefixtures("place")
def test_a_name_with_an_empty_part_is_no_module(name: str) -> None:
    with pytest.raises(PreflightError, match="is not a module name"):
        find_module_file(name, {})


@pytest.mark.usefixtures("place")
def test_an_installed_module_is_found() -> None:
    assert "pytest/__main__.py" == "/".join(find_module_file("pytest", {}).parts[-2:])


@pytest.mark.parametrize("name", ["pkg.none", "pkg/train.py", "train.py"])
@pytest.mark.usefixtures("place")
def test_what_is_no_module_is_refused(name: str) -> None:
    with pytest.raises(PreflightError, match="module"):
        find_module_file(name, {})
