"""What a script cannot do without, and what stands in its libraries' way."""

from pathlib import Path

import pytest

from zerowiz.core.preflight.facts import SourceFolder
from zerowiz.probe.script.engine_config import read_script_text

THERE = {"torch": True, "datasets": False, "odd": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import datasets\n", [("datasets", 1)]),
        ("import os\nfrom datasets.load import x\n", [("datasets", 2)]),
        ("import torch, datasets\nimport datasets\n", [("datasets", 1)]),
        ("import torch\nimport odd\nimport json\n", []),
        ("try:\n    import datasets\nexcept ImportError:\n    pass\n", []),
        ("def f():\n    import datasets\n", []),
        ("if x:\n    import datasets\n", []),
        ("from . import datasets\n", []),
        ("import sys\nsys.path.insert(0, 'lib')\nimport datasets\n", []),
        ("import beside\nimport folder.x\n", []),
        ("import (\n", []),
        ("\0", []),
        ("", []),
    ],
)
def test_what_is_imported_at_the_top_and_not_there_is_missing(
    tmp_path: Path, text: str, expected: list[tuple[str, int]]
) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "folder").mkdir()
    script = tmp_path / "train.py"
    script.write_text(text)
    seen = read_script_text(script, lambda name: THERE.get(name, False), script.parent)
    assert expected == [(each.name, each.line) for each in seen.missing]


def test_a_file_or_a_package_with_a_librarys_name_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    (tmp_path / "torch.py").touch()
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "datasets").mkdir()
    seen = read_script_text(script, lambda _: True, script.parent)
    assert (
        str(tmp_path / "torch.py"),
        str(tmp_path / "accelerate" / "__init__.py"),
    ) == seen.shadowing


def test_a_text_that_python_warns_of_is_read_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('import datasets\nPATTERN = "\\d"\n')
    seen = read_script_text(script, lambda _: False, tmp_path)
    assert ["datasets"] == [each.name for each in seen.missing]


def test_a_link_that_leads_to_itself_is_no_package(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import loop\n")
    (tmp_path / "loop").symlink_to("loop")
    seen = read_script_text(script, lambda _: False, tmp_path)
    assert ["loop"] == [each.name for each in seen.missing]


def test_a_script_that_is_not_there_shows_nothing(tmp_path: Path) -> None:
    assert () == read_script_text(tmp_path / "none.py", lambda _: False, tmp_path).missing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\nfrom .data import make\nfrom . import x\n", (".data", 2)),
        ("from .. import x\n", ("..", 1)),
        ("import torch\nfrom data import make\n", None),
        (
            "try:\n    from .data import make\nexcept ImportError:\n    from data import make\n",
            None,
        ),
    ],
)
def test_an_import_from_its_own_package_is_seen_where_the_path_starts_it(
    tmp_path: Path, text: str, expected: tuple[str, int] | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    found = read_script_text(script, lambda _: True, script.parent).relative
    assert expected == (None if found is None else (found.name, found.line))
    assert read_script_text(script, lambda _: True, tmp_path.parent).relative is None


@pytest.mark.parametrize(
    ("package", "script", "project", "source"),
    [
        ("own", "own/train/run.py", "setup.py", SourceFolder(path=".", project=".")),
        ("src/own", "scripts/run.py", "pyproject.toml", SourceFolder(path="src", project=".")),
        ("src/own", "src/own/run.py", "setup.py", SourceFolder(path="src", project=".")),
        ("own", "scripts/run.py", "README.md", SourceFolder(path=".")),
        ("other", "scripts/run.py", "setup.py", None),
    ],
    ids=["its own package", "under src", "in it, under src", "no project", "not here"],
)
def test_a_package_of_the_scripts_repository_is_found_beside_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    script: str,
    project: str,
    source: SourceFolder | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (f"{package}/__init__.py", script, project):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    Path(script).write_text("import own\n")
    seen = read_script_text(Path(script), lambda _: False, Path(script).parent)
    assert [("own", source)] == [(each.name, each.source) for each in seen.missing]
