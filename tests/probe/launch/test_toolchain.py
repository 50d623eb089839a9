"""Compilers, CUDA's toolkit, libaio and the folder of ops, as torch and DeepSpeed look for them."""

import os
import shutil
import time
from pathlib import Path

import pytest

from zerowiz.core.preflight.facts import ASYNC_IO, CPU_ADAM, FUSED_ADAM, Installed, Torch
from zerowiz.core.structs import replace
from zerowiz.probe.preflight.toolchain import (
    can_write,
    find_cuda_home,
    find_extensions_folder,
    find_file_system,
    parse_nvcc,
    read_extensions,
    read_toolchain,
)
from zerowiz.probe.recording import HostFiles

NVCC = """\
#!/bin/sh
echo 'nvcc: NVIDIA (R) Cuda compiler driver'
echo 'Cuda compilation tools, release 12.8, V12.8.93'
"""


def tool(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_an_empty_path_has_no_tools(tmp_path: Path) -> None:
    tools = read_toolchain({"PATH": str(tmp_path)}, (CPU_ADAM,), own=None, cuda=False)
    assert (False, False, None) == (tools.has_compiler, tools.has_ninja, tools.python_headers)
    assert (None, None, None) == (tools.cuda_home, tools.cuda_version, tools.has_libaio)


def test_tools_are_looked_for_on_the_path_of_the_job(tmp_path: Path) -> None:
    tool(tmp_path, "c++")
    tool(tmp_path, "ninja")
    tools = read_toolchain({"PATH": str(tmp_path)}, (CPU_ADAM,), own=None, cuda=False)
    assert (True, True) == (tools.has_compiler, tools.has_ninja)


@pytest.mark.parametrize(
    ("said", "expected"),
    [("clang++", True), ("g++-99", False), ("clang++ -O1", True), ("'", False)],
)
def test_the_compiler_is_the_one_of_cxx(tmp_path: Path, said: str, expected: bool) -> None:
    tool(tmp_path, "clang++")
    environ = {"PATH": str(tmp_path), "CXX": said}
    assert expected is read_toolchain(environ, (CPU_ADAM,), own=None, cuda=False).has_compiler


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_is_what_the_variable_says(variable: str) -> None:
    assert "/opt/cuda" == find_cuda_home({variable: "/opt/cuda", "PATH": ""})


def test_cuda_home_is_where_nvcc_on_the_path_lies(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvcc")
    assert str(tmp_path) == find_cuda_home({"PATH": str(tmp_path / "bin")})


def test_nvcc_is_asked_for_its_release_where_an_op_needs_it(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "nvcc", NVCC)
    environ = {"CUDA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    needed = read_toolchain(environ, (FUSED_ADAM,), own=None, cuda=True)
    assert (True, (12, 8)) == (needed.has_nvcc, needed.cuda_version)
    assert read_toolchain(environ, (CPU_ADAM,), own=None, cuda=True).cuda_version is None


def test_a_toolkit_without_nvcc_is_seen(tmp_path: Path) -> None:
    environ = {"CUDA_HOME": str(tmp_path), "PATH": ""}
    tools = read_toolchain(environ, (FUSED_ADAM,), own=None, cuda=True)
    assert (False, None) == (tools.has_nvcc, tools.cuda_version)


@pytest.mark.parametrize("text", ["#!/bin/sh\nsleep 60\n", "#!/bin/sh\nexit 1\n", "", "\0"])
def test_an_odd_nvcc_is_an_unknown_one(tmp_path: Path, text: str) -> None:
    tool(tmp_path / "bin", "nvcc", text)
    environ = {"CUDA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    began_s = time.monotonic()
    assert read_toolchain(environ, (FUSED_ADAM,), own=None, cuda=True).cuda_version is None
    assert 30 > time.monotonic() - began_s


def test_the_release_of_nvcc_is_read() -> None:
    assert (12, 8) == parse_nvcc(NVCC)
    assert parse_nvcc("") is None


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_libaio_is_there_when_the_compiler_finds_header_and_library(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "libaio.h").write_text(
        "struct io_context;\ntypedef struct io_context *io_context_t;\n"
    )
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libaio.so"
    flags = {"CFLAGS": f"-nostdinc -I{tmp_path}/include", "LDFLAGS": f"-L{tmp_path}/lib"}
    environ = {"PATH": os.environ["PATH"], **flags}

    def has_libaio(**changed: str) -> bool | None:
        tools = read_toolchain({**environ, **changed}, (ASYNC_IO,), own=None, cuda=False)
        return tools.has_libaio

    library.touch()
    assert has_libaio() is True
    assert has_libaio(CFLAGS="-nostdinc") is False
    assert read_toolchain(environ, (CPU_ADAM,), own=None, cuda=False).has_libaio is None


# A compiler whose linker finds no library, and one that finds it.
STUB = """\
#!/bin/sh
case "$*" in
  *-print-file-name*) echo '{library}' ;;
  *) echo 'typedef struct io_context *io_context_t; io_context_t zerowiz;' ;;
esac
"""


@pytest.mark.parametrize(
    ("library", "expected"), [("libaio.so", False), ("/usr/lib/libaio.so", True)]
)
def test_the_header_alone_is_not_enough(tmp_path: Path, library: str, expected: bool) -> None:
    tool(tmp_path, "c++", STUB.format(library=library))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    tools = read_toolchain(environ, (ASYNC_IO,), own=None, cuda=False)
    assert expected is tools.has_libaio


def test_a_compiler_that_says_nothing_leaves_libaio_unknown(tmp_path: Path) -> None:
    tool(tmp_path, "c++")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert read_toolchain(environ, (ASYNC_IO,), own=None, cuda=False).has_libaio is None


INSTALLED = Installed(program="deepspeed", own=True, torch=Torch(version="2.13.0"))


def test_ops_are_built_where_the_variable_says() -> None:
    assert "/x" == find_extensions_folder({"TORCH_EXTENSIONS_DIR": "/x"}, INSTALLED)


def test_ops_are_built_where_torch_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils import cpp_extension

    major, _, minor = (torch.version.cuda or "").partition(".")
    cuda = (int(major), int(minor)) if minor else None
    installed = replace(INSTALLED, torch=Torch(version=torch.__version__, cuda_version=cuda))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
        folder = Path(cpp_extension._get_build_directory("op", verbose=False))
        assert str(folder.parent) == find_extensions_folder(os.environ, installed)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_where_another_python_builds_is_unknown() -> None:
    other = Installed(program="deepspeed", own=False, torch=Torch(version="2.13.0"))
    assert find_extensions_folder({"HOME": "/home/x"}, other) is None


def test_built_ops_and_locks_are_seen(tmp_path: Path) -> None:
    for name, file in (("cpu_adam", "cpu_adam.so"), ("fused_adam", "lock")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    os.utime(tmp_path / "fused_adam" / "lock", (1e9, 1e9))

    seen = read_extensions(str(tmp_path), (CPU_ADAM, FUSED_ADAM, ASYNC_IO), HostFiles())

    assert (frozenset({"cpu_adam"}), True) == (seen.built, seen.writable)
    (lock,) = seen.locks
    assert ("fused_adam", str(tmp_path / "fused_adam" / "lock")) == (lock.op, lock.path)
    assert lock.age_milliseconds > 1e11


def test_a_folder_that_is_not_there_yet_is_as_writable_as_the_one_above(tmp_path: Path) -> None:
    assert can_write(tmp_path / "a" / "b") is True
    (tmp_path / "file").touch()
    assert can_write(tmp_path / "file" / "b") is False


MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /home rw shared:2 master:7 - nfs4 server:/home rw
24 22 0:22 / /home/a\\040b rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/usr", "ext4"), ("/home/me/x", "nfs4"), ("/home/a b/x", "tmpfs"), ("/homes", "ext4")],
)
def test_the_longest_mount_point_above_a_path_decides(path: str, expected: str) -> None:
    assert expected == find_file_system(MOUNTS, Path(path))


def test_without_mounts_the_file_system_is_unknown() -> None:
    assert find_file_system("", Path("/usr")) is None
    assert find_file_system("odd\n", Path("/usr")) is None
