"""The wheel: built from a copy of the sources, installed apart from them, and run."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerowiz.core.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "dist", "build", "demo")

pytestmark = pytest.mark.package


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that cannot see the checkout."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through the sdist, as a release is."""
    sources = tmp_path_factory.mktemp("sources") / "zerowiz"
    shutil.copytree(ROOT, sources, ignore=NOT_SOURCES)
    built = run(sys.executable, "-m", "build", "--no-isolation", cwd=sources)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (sources / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The `bin` of a fresh environment, which borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    done = run(sys.executable, *pip, wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = sysconfig.get_paths()
    borrowed = f"{paths['purelib']}\n{paths['platlib']}\n"
    (packages / "borrowed.pth").write_text(borrowed, encoding="utf-8")
    yield folder / "bin"
    shutil.rmtree(folder)


def test_the_same_sources_make_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Wherever they lie, and whenever they were fetched."""
    sources = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns("dist")
    shutil.copytree(wheel.parents[1], sources, ignore=ignored, copy_function=shutil.copy)
    built = run(sys.executable, "-m", "build", "--no-isolation", cwd=sources)
    assert built.returncode == 0, built.stdout + built.stderr
    first, again = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (wheel.parent, sources / "dist")
    )
    assert 2 == len(first)
    assert first == again


def test_the_wheel_carries_templates_and_tables_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {"zerowiz/templates": ROOT / "templates", "zerowiz/data": ROOT / "zerowiz/data"}
    shipped = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"zerowiz/data/locale/ja/LC_MESSAGES/zerowiz.mo"} < shipped
    assert set() == (shipped | {"zerowiz/py.typed", "zerowiz/data/errors.md"}) - names
    assert {"zerowiz"} == {name.split("/")[0] for name in names if ".dist-info/" not in name}


def test_the_installed_command_plans_outside_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    plan = ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
    done = run(installed / "zerowiz", *plan, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "zero3" == json.loads(done.stdout)["chosen"]


def test_the_configs_in_the_wheel_are_those_of_the_checkout(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for strategy in STRATEGIES:
        text = (ROOT / "templates" / strategy.config_name).read_bytes()
        assert text == archive.read(f"zerowiz/templates/{strategy.config_name}")
