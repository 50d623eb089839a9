"""Which Python a program starts, and what its files say of torch and DeepSpeed."""

import os
import sys
from pathlib import Path

import pytest

from zerowiz.core.preflight.facts import Package, Torch
from zerowiz.probe.preflight.interpreter import (
    parse_capabilities,
    parse_interpreter,
    parse_torch_version,
    read_installed,
    read_interpreter,
)

CPU_TORCH = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.13.0+cpu'
debug = False
cuda: Optional[str] = None
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = None
"""
TABLE = """\
import torch

PYTORCH_RELEASES_CODE_CC: dict[str, dict[str, set[int]]] = {
    "12.6": {
        "x86_64": {50, 60},
        "aarch64": {80, 90},
    },
    "13.0": {
        "x86_64": {75, 80},
    },
}


def after():
    return {}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/env/bin/python\nimport x\n", "/env/bin/python"),
        ("#! /env/bin/python3.11\n", "/env/bin/python3.11"),
        ("#!/bin/sh\n'''exec' /a b/python \"$0\" \"$@\"\n' '''\n", "/a b/python"),
        ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\n", "/a b/python"),
        ("#!/bin/sh\nexec something\n", None),
        ("#!python\n", None),
        ("import x\n", None),
        ("", None),
        ("#!\n", None),
        ("\x7fELF\x02", None),
    ],
)
def test_the_first_line_names_the_python(text: str, expected: str | None) -> None:
    assert expected == parse_interpreter(text, "")


def test_env_looks_on_the_path(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.touch(mode=0o755)
    assert str(python) == parse_interpreter("#!/usr/bin/env python3\n", str(tmp_path))
    assert parse_interpreter("#!/usr/bin/env python3\n", "") is None


def test_a_program_that_is_not_there_names_none(tmp_path: Path) -> None:
    assert read_interpreter(str(tmp_path / "none"), {}) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CPU_TORCH, Torch(version="2.13.0+cpu")),
        (
            CPU_TORCH.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '13.0'"),
            Torch(version="2.13.0+cpu", cuda_version=(13, 0)),
        ),
        (
            "__version__ = '2.6.0a0+nv25.1'\ncuda = '12.8'\n",
            Torch(version="2.6.0a0+nv25.1", cuda_version=(12, 8)),
        ),
        (
            "__version__ = '2.9.1+rocm6.4'\ncuda = None\nhip: Optional[str] = '6.4.43'\n",
            Torch(version="2.9.1+rocm6.4", hip=True),
        ),
        ("__version__ = something()\ncuda = None\n", None),
        ("__version__ = '2.9.1'\n", None),
        ("", None),
    ],
)
def test_torch_says_what_it_was_built_with(text: str, expected: Torch | None) -> None:
    assert expected == parse_torch_version(text)


@pytest.mark.parametrize(
    ("text", "cuda", "architecture", "expected"),
    [
        (TABLE, (12, 6), "x86_64", frozenset({(5, 0), (6, 0)})),
        (TABLE, (12, 6), "aarch64", frozenset({(8, 0), (9, 0)})),
        (TABLE, (13, 0), "aarch64", None),
        (TABLE, (12, 8), "x86_64", None),
        ("", (12, 6), "x86_64", None),
        ("PYTORCH_RELEASES_CODE_CC = {\n    1 +\n}\n", (12, 6), "x86_64", None),
        ('PYTORCH_RELEASES_CODE_CC = {\n    "12.6": {50},\n}\n', (12, 6), "x86_64", None),
    ],
)
def test_the_table_of_torch_tells_for_which_gpus_a_release_has_code(
    text: str, cuda: tuple[int, int], architecture: str, expected: frozenset[tuple[int, int]] | None
) -> None:
    assert expected == parse_capabilities(text, cuda, architecture)


def test_what_is_read_of_torch_is_what_torch_says() -> None:
    import torch
    import torch.cuda

    told = parse_torch_version(Path(torch.__file__).with_name("version.py").read_text())
    assert told is not None
    assert (torch.__version__, torch.version.cuda is None) == (
        told.version,
        told.cuda_version is None,
    )
    text = Path(torch.cuda.__file__).read_text()
    for cuda, row in torch.cuda.PYTORCH_RELEASES_CODE_CC.items():
        major, minor = cuda.split(".")
        for architecture, codes in row.items():
            read = parse_capabilities(text, (int(major), int(minor)), architecture)
            assert frozenset(divmod(code, 10) for code in codes) == read


def make_environment(root: Path, python: str = "python3") -> Path:
    """Another Python's folder, with a DeepSpeed that was installed with one op."""
    site = root / "lib" / "python3.12" / "site-packages"
    for name in ("deepspeed", "torch"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    (site / "deepspeed" / "git_version_info_installed.py").write_text(
        "version='0.18.1'\ngit_hash='unknown'\ninstalled_ops={'cpu_adam': True, 'async_io': False}\n"
    )
    (site / "deepspeed" / "ops" / "op_builder").mkdir(parents=True)
    (site / "deepspeed" / "ops" / "op_builder" / "cpu_adam.py").touch()
    (site / "torch" / "version.py").write_text(CPU_TORCH)
    (root / "bin").mkdir()
    (root / "bin" / python).touch(mode=0o755)
    program = root / "bin" / "deepspeed"
    program.write_text(f"#!{root}/bin/{python}\n")
    return program


def test_another_python_is_read_by_its_own_folders(tmp_path: Path) -> None:
    program = make_environment(tmp_path)
    installed = read_installed(str(program), {}, ("deepspeed", "torch", "peft"))
    assert (False, True) == (installed.own, installed.interpreter_exists)
    assert Package(present=True, version="0.18.1") == installed.packages["deepspeed"]
    assert Torch(version="2.13.0+cpu") == installed.torch
    assert frozenset({"cpu_adam"}) == installed.prebuilt == installed.cuda_builders


def test_the_version_of_a_library_is_that_of_its_metadata(tmp_path: Path) -> None:
    program = make_environment(tmp_path)
    [site] = tmp_path.glob("lib/python3*/site-packages")
    for name in ("transformers", "transformers-4.57.1.dist-info", "transformers_more-1.dist-info"):
        (site / name).mkdir()
    (site / "transformers" / "__init__.py").touch()
    installed = read_installed(str(program), {}, ("transformers",))
    assert Package(present=True, version="4.57.1") == installed.packages["transformers"]


def test_what_another_python_seems_to_lack_is_unknown(tmp_path: Path) -> None:
    program = make_environment(tmp_path)
    assert Package(present=None) == read_installed(str(program), {}, ("peft",)).packages["peft"]


def test_an_environment_that_moved_has_no_python(tmp_path: Path) -> None:
    program = make_environment(tmp_path)
    (tmp_path / "bin" / "python3").unlink()
    assert read_installed(str(program), {}, ()).interpreter_exists is False


def test_this_python_is_known_as_its_own(tmp_path: Path) -> None:
    program = tmp_path / "deepspeed"
    program.write_text(f"#!{sys.executable}\n")
    installed = read_installed(str(program), {}, ("json", "no_such_library"))
    assert installed.own is True
    assert (True, False) == (
        installed.packages["json"].present,
        installed.packages["no_such_library"].present,
    )


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"#!" + b"x" * 5000])
def test_an_odd_program_is_an_unknown_one(tmp_path: Path, content: bytes) -> None:
    program = tmp_path / "deepspeed"
    program.write_bytes(content)
    installed = read_installed(str(program), dict(os.environ), ("deepspeed",))
    assert (None, None) == (installed.interpreter, installed.own)
