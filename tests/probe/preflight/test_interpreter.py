"""Which Python a program starts, and what its files say of torch and DeepSpeed."""

import json
import os
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from zerowiz.core.preflight.facts import Installed, Torch
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight import python_report, read_facts
from zerowiz.probe.preflight.python_report import report
from zerowiz.probe.preflight.read_facts import (
    check_pdsh,
    find_free_port,
    find_interpreter,
    find_module_file,
    find_programs,
    read_installed,
)

TORCH = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
hip: Optional[str] = None
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/env/bin/python\nimport x\n", "/env/bin/python"),
        ("#! /env/bin/python3.11 -s\n", "/env/bin/python3.11"),
        ("#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n' '''\n", "/long/python"),
        ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\n", "/a b/python"),
        ("#!/bin/sh\nexec something\n", None),
        ("#!python\n", None),
        ("import x\n", None),
        ("", None),
        ("#!\n", None),
        ("\x7fELF\x02", None),
        ("#!" + "x" * 5000, None),
    ],
)
def test_the_first_line_names_the_python(tmp_path: Path, text: str, expected: str | None) -> None:
    program = tmp_path / "deepspeed"
    program.write_text(text)
    assert expected == find_interpreter(str(program), {})
    assert find_interpreter(str(tmp_path / "none"), {}) is None


def test_env_looks_on_the_path(tmp_path: Path) -> None:
    python, program = tmp_path / "python3", tmp_path / "deepspeed"
    python.touch(mode=0o755)
    program.write_text("#!/usr/bin/env python3\n")
    assert str(python) == find_interpreter(str(program), {"PATH": str(tmp_path)})
    assert find_interpreter(str(program), {"PATH": ""}) is None


# Another Python is asked: that of a virtual environment with libraries that are made here.


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, with a DeepSpeed that was installed with one op."""
    root = tmp_path_factory.mktemp("other")
    venv.create(root, symlinks=True)
    (site,) = root.glob("lib/python3*/site-packages")
    for name in ("deepspeed", "torch", "torch/cuda", "transformers", "bare"):
        (site / name).mkdir()
        (site / name / "__init__.py").touch()
    for name in ("deepspeed-0.18.1", "transformers-4.57.1", "transformers_more-1"):
        (site / f"{name}.dist-info").mkdir()
    (site / "deepspeed" / "git_version_info_installed.py").write_text(
        "version='0.18.1'\ninstalled_ops={'cpu_adam': True, 'async_io': False}\n"
    )
    program = root / "bin" / "deepspeed"
    program.write_text(f"#!{root}/bin/python\n")
    return program


def write_torch(program: Path, version: str, cuda: str | None) -> None:
    (folder,) = program.parents[1].glob("lib/python3*/site-packages/torch")
    (folder / "version.py").write_text(TORCH.format(version=version, cuda=cuda))


def ask(program: Path, *names: str, **environ: str) -> Installed:
    return read_installed(str(program), {"HOME": "/home/x", **environ}, names)


def test_another_python_says_what_it_has(other: Path) -> None:
    write_torch(other, "2.13.0+cpu", None)
    told = ask(other, "deepspeed", "torch", "transformers", "bare", "peft")
    assert (False, None) == (told.own, told.failure)
    expected = {"deepspeed": "0.18.1", "torch": None, "transformers": "4.57.1", "bare": None}
    assert expected == told.modules
    assert (True, False) == (told.lacks("peft"), told.lacks("bare"))
    assert (frozenset({"cpu_adam"}), True) == (told.prebuilt, told.has_headers)


@pytest.mark.parametrize(
    ("torch", "folder"),
    [
        (Torch(version="2.13.0+cpu"), "cpu"),
        (Torch(version="2.13.0+cu130", cuda_version=(13, 0)), "cu130"),
        (Torch(version="2.6.0a0+nv25.1", cuda_version=(12, 8)), "cu128"),
    ],
)
def test_torch_says_what_it_was_built_with(other: Path, torch: Torch, folder: str) -> None:
    write_torch(other, torch.version, ".".join(map(str, torch.cuda_version or ())) or None)
    told = ask(other, "torch")
    assert torch == told.torch
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    assert f"/home/x/.cache/torch_extensions/{python}_{folder}" == told.extensions_folder
    assert "/ops" == ask(other, "torch", TORCH_EXTENSIONS_DIR="/ops").extensions_folder


def test_a_torch_that_says_nothing_is_an_unknown_one(other: Path) -> None:
    (folder,) = other.parents[1].glob("lib/python3*/site-packages/torch")
    (folder / "version.py").write_text("__version__ = something()\n")
    told = ask(other, "torch")
    assert (None, False, None) == (told.torch, told.lacks("torch"), told.extensions_folder)


def test_what_is_read_of_torch_is_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    told = report(["torch"], os.environ)
    assert torch.__version__ == told["torch"]["version"]
    assert (torch.version.cuda is None) == (told["torch"]["cuda_version"] is None)
    folder = Path(cpp_extension._get_build_directory("op", verbose=False))
    assert str(folder.parent) == told["extensions_folder"]


def test_this_python_is_its_own_and_says_the_same_as_a_child(tmp_path: Path) -> None:
    program = tmp_path / "deepspeed"
    program.write_text(f"#!{sys.executable}\n")
    names = ("torch", "deepspeed", "json", "no_such_library")
    told = read_installed(str(program), os.environ, names)
    assert (True, None, True) == (told.own, told.failure, told.lacks("no_such_library"))
    child = [sys.executable, python_report.__file__, *names]
    assert report(names, os.environ) == json.loads(subprocess.check_output(child))


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (None, "does not exist"),
        ("#!/bin/sh\necho 'no module named encodings' >&2\nexit 3\n", "status 3: no module named"),
        ("#!/bin/sh\nsleep 60\n", "does not answer within 0.2 s"),
        ("#!/bin/sh\necho hello\n", "cannot be asked"),
        ("", "cannot be asked"),
    ],
    ids=["moved", "broken", "slow", "odd", "empty"],
)
def test_a_python_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, failure: str
) -> None:
    monkeypatch.setattr(read_facts, "_PATIENCE_S", 0.2 if "within" in failure else 30)
    program, python = tmp_path / "deepspeed", tmp_path / "python3"
    program.write_text(f"#!{python}\n")
    if text is not None:
        python.write_text(text)
        python.chmod(0o755)
    told = ask(program, "torch")
    assert failure in (told.failure or "")
    assert (None, False) == (told.modules, told.lacks("torch"))


# Whether what starts ranks on other nodes is installed.


def install(folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        (folder / name).touch(mode=0o755)
    return {"PATH": str(folder)}


def test_what_is_installed_passes(tmp_path: Path) -> None:
    check_pdsh(install(tmp_path, "pdsh", "ssh"))


def test_what_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught:
        check_pdsh(install(tmp_path, "pdsh"))
    assert "`apt-get install openssh-client`" in caught.value.hints[0]


# Where the file of a module lies, found without importing it.

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
    [
        ("pkg.train", "pkg/train.py"),
        ("pkg.run", "pkg/run/__main__.py"),
        ("far.train", "other/far/train.py"),
        ("pytest", "pytest/__main__.py"),
    ],
)
def test_a_module_is_found_here_by_pythonpath_or_installed(
    place: Path, name: str, expected: str
) -> None:
    found = find_module_file(name, {"PYTHONPATH": f"/nowhere:{place / 'other'}"})
    assert found.as_posix().endswith(expected)


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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        *(
            (name, "is not a module name")
            for name in ("", ".", "..", "pkg.", ".train", "pkg..train")
        ),
        ("pkg.none", "there is no module"),
        ("pkg/train.py", "is not a module name"),
        ("train.py", "is not a module name"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_is_no_module_is_refused(name: str, problem: str) -> None:
    with pytest.raises(PreflightError, match=problem):
        find_module_file(name, {})


# Ports on which a job's first rank can listen.


def test_a_free_port_is_none_on_which_a_process_listens() -> None:
    ports = {find_free_port() for _ in range(20)}
    assert 1 < len(ports)
    for port in ports:
        with socket.create_server(("", port)):
            assert 10_000 <= port < 29_400


@pytest.mark.parametrize("is_virtual", [True, False])
def test_the_folders_of_a_job_are_those_of_the_python_that_runs_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_virtual: bool
) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "tool"
    for folder in (theirs / "bin", own / "bin"):
        folder.mkdir(parents=True)
    if is_virtual:
        (theirs / "pyvenv.cfg").touch()
    program = theirs / "bin" / "deepspeed"
    program.write_text(f"#!{theirs}/bin/python\n", encoding="utf-8")
    program.chmod(0o755)
    # As `uvx` and `pipx` run zerowiz.
    monkeypatch.setattr(sys, "executable", str(own / "bin" / "python"))
    monkeypatch.setattr(sys, "prefix", str(own))
    found = find_programs({"PATH": str(theirs / "bin")})
    assert (str(program), str(theirs / "bin")) == (found.deepspeed, found.bin_folder)
    assert (str(theirs / "torch_extensions") if is_virtual else None) == found.extensions_folder
    assert str(own / "bin") == found.tool_folder
