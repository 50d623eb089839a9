"""The GitHub Action: its step checks configs as GitHub's shell runs it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from paths import ROOT

from zerowiz.core.strategies import STRATEGIES

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def checked(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the last step as GitHub does, with the defaults of what is not given."""
    (step,) = (step for step in ACTION["runs"]["steps"] if "FILES" in step.get("env", {}))
    values = {name: row["default"] for name, row in ACTION["inputs"].items()} | inputs
    given = {
        name: values[text.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    environ = {
        **os.environ,
        **given,
        "RUNNER_TEMP": str(folder),
        "GITHUB_ACTIONS": "true",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    # docs.github.com, workflow syntax: `shell: bash` is this.
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        shell, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("config", "inputs", "code"),
    [
        ('{"zero_optimization": {"stage": 4}}', {}, 6),
        ('{"train_batch_size": 8, "bf16": {"enabled": true}}', {"files": "configs/*.json"}, 0),
        ('{"train_batch_size": 6}', {"options": "--world-size 4"}, 6),
    ],
)
def test_the_step_ends_as_the_check_does(
    config: str, inputs: dict[str, str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds_config.json").write_text(config, encoding="utf-8")
    done = checked(tmp_path, **inputs)
    assert code == done.returncode, done.stdout + done.stderr
    assert "::error file=configs/" in done.stdout or not code
    log = json.loads((tmp_path / "zerowiz.sarif").read_text(encoding="utf-8"))
    assert bool(log["runs"][0]["results"]) is bool(code)


# The wheel: built from a copy of the sources, installed apart from them, and run.

NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "dist", "build", "demo")


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


@pytest.mark.package
@pytest.mark.slow
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


@pytest.mark.package
def test_the_wheel_carries_templates_and_tables_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {
        "zerowiz/templates": ROOT / "templates",
        "zerowiz/data": ROOT / "zerowiz/data",
    }
    shipped = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"zerowiz/data/locale/ja/LC_MESSAGES/zerowiz.mo"} < shipped
    assert set() == (shipped | {"zerowiz/py.typed", "zerowiz/data/errors.md"}) - names
    outside = {name for name in names if not re.match(r"zerowiz(-[^/]+\.dist-info)?/", name)}
    version = next(name for name in names if ".dist-info/" in name).split(".dist-info/")[0]
    assert {f"{version}.data/data/share/man/man1/zerowiz.1"} == outside


@pytest.mark.package
def test_the_man_page_has_the_help_of_every_command(wheel: Path) -> None:
    package = zipfile.ZipFile(wheel)
    (page,) = (name for name in package.namelist() if name.endswith("zerowiz.1"))
    text = package.read(page).decode()
    # What else begins with a dot or a quote would be lost.
    assert not re.findall(r"^[.'](?!(?:TH|SH|nf|fi)\b).*", text, re.MULTILINE)
    assert [".SH LAUNCH"] == re.findall(r"^.SH LAUNCH$", text, re.MULTILINE)
    assert r"  zerowiz launch \-\-dry\-run train.py" in text


@pytest.mark.package
def test_the_installed_command_plans_outside_of_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    plan = ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
    done = run(installed / "zerowiz", *plan, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "zero3" == json.loads(done.stdout)["chosen"]


@pytest.mark.package
def test_the_configs_in_the_wheel_are_those_of_the_checkout(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for strategy in STRATEGIES:
        text = (ROOT / "templates" / strategy.config_name).read_bytes()
        assert text == archive.read(f"zerowiz/templates/{strategy.config_name}")


# The pre-commit hook, installed and run by pre-commit itself.

HOOKS = ROOT / ".pre-commit-hooks.yaml"

IDENTITY = ("-c", "user.name=zerowiz", "-c", "user.email=zerowiz@example.org")

GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}\n'
BROKEN = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}\n'


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True)


def committed(folder: Path) -> Path:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    return folder


@pytest.mark.package
@pytest.mark.thorough
def test_pre_commit_finds_the_configs_and_stops_at_a_broken_one(tmp_path: Path) -> None:
    sources, work = tmp_path / "zerowiz", tmp_path / "work"
    shutil.copytree(ROOT, sources, ignore=NOT_SOURCES)
    shutil.copy(HOOKS, sources)
    committed(sources)
    work.mkdir()
    (work / "ds_config_good.json").write_text(GOOD)
    (work / "ds_config_broken.json").write_text(BROKEN)
    (work / "package.json").write_text('{"zero": 1}')
    committed(work)
    hook = ("-m", "pre_commit", "try-repo", str(sources), "zerowiz-check")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *hook, *words], cwd=work, capture_output=True, text=True, check=False
        )

    stopped = run("--all-files")
    assert 1 == stopped.returncode, stopped.stdout + stopped.stderr
    assert "exit code: 6" in stopped.stdout
    assert "ds_config_broken.json:1:61 error ZW204" in stopped.stdout
    assert "package.json" not in stopped.stdout
    passed = run("--files", "ds_config_good.json", "package.json")
    assert (0, True) == (passed.returncode, "Passed" in passed.stdout), passed.stdout
