"""Which Python a program starts, and what its files say of torch and DeepSpeed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_host import build_host

from zerowiz.core.launch.plan import Launcher
from zerowiz.core.preflight.facts import Package, Torch
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight.interpreter import (
    check_launcher,
    find_free_port,
    find_module_file,
    is_taken,
    parse_capabilities,
    parse_interpreter,
    parse_torch_version,
    read_installed,
    read_interfaces,
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


# Whether what starts ranks on other nodes is installed.


def install(folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        (folder / name).touch(mode=0o755)
    return {"PATH": str(folder)}


def test_what_is_installed_passes(tmp_path: Path) -> None:
    check_launcher(Launcher.PDSH, install(tmp_path, "pdsh", "ssh"))
    check_launcher(Launcher.OPENMPI, install(tmp_path, "ompi_info", "mpirun"))


@pytest.mark.parametrize(
    ("launcher", "package"),
    [(Launcher.PDSH, "pdsh"), (Launcher.OPENMPI, "openmpi-bin"), (Launcher.MPICH, "mpich")],
)
def test_what_is_missing_is_named_with_its_package(
    launcher: Launcher, package: str, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError) as caught:
        check_launcher(launcher, install(tmp_path, "ssh"))
    assert f"`apt-get install {package}`" in caught.value.hints[0]


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
    assert place / "other" / "far" / "train.py" == found.absolute()


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


# Ports that are taken, and interfaces that are not there.

ADAPTERS = {
    "sys/class/net/lo/type": "772",
    "sys/class/net/eth0/type": "1",
    "sys/class/infiniband/mlx5_0/node_type": "1: CA",
    "sys/class/infiniband/mlx5_1/node_type": "1: CA",
}


def test_a_port_with_a_listener_is_taken_and_a_left_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        assert is_taken(port) is True
    assert is_taken(port) is False


def test_what_an_ended_job_left_of_a_port_does_not_count() -> None:
    """Who closes first leaves the port waiting, which forbids a plain listener there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", port))
    assert is_taken(port) is False


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("32768\t60999\n", 10_000, 29_399),
        ("16384\t65535\n", 10_000, 16_383),
        ("1024\t65535\n", 1_024, 65_535),  # nothing is left, so the kernel is asked
        ("no", 10_000, 29_399),
    ],
)
def test_a_free_port_is_none_that_the_kernel_gives_to_connections(
    tmp_path: Path, text: str, low: int, high: int
) -> None:
    (tmp_path / "range").write_text(text)
    ports = {find_free_port(tmp_path / "range") for _ in range(20)}
    assert all(low <= port <= high for port in ports)
    assert 1 < len(ports)
    assert {False} == {is_taken(port) for port in ports}


def test_no_port_at_all_is_unknown() -> None:
    assert is_taken(70000) is None


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "ib0,eth0", True),
        ("NCCL_SOCKET_IFNAME", "ib0", False),
        ("NCCL_SOCKET_IFNAME", "^docker", True),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", False),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
        ("NCCL_IB_HCA", "mlx5", True),
        ("NCCL_IB_HCA", "=mlx5_1:1", True),
        ("NCCL_IB_HCA", "=mlx5", False),
        ("NCCL_IB_HCA", "mlx4_0", False),
        ("NCCL_IB_HCA", "^mlx5_0", True),
    ],
)
def test_a_variable_names_what_is_there_or_nothing(
    tmp_path: Path, variable: str, value: str, expected: bool
) -> None:
    files = build_host(tmp_path, ADAPTERS)
    assert {variable: expected} == read_interfaces({variable: value}, files)


def test_where_nothing_is_listed_nothing_is_said(tmp_path: Path) -> None:
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
    assert {} == read_interfaces(dict.fromkeys(names, "eth0"), build_host(tmp_path, {}))
    assert {} == read_interfaces({"NCCL_SOCKET_IFNAME": "x"}, build_host(tmp_path, ADAPTERS))
