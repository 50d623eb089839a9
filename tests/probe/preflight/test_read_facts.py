"""Compilers, CUDA's toolkit, libaio and the folder of ops, as torch and DeepSpeed look for them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from kills.harness import HERE

from zerowiz.core.launch.plan import CoreBinding
from zerowiz.core.preflight.facts import (
    ASYNC_IO,
    CPU_ADAM,
    FUSED_ADAM,
    Lock,
    Op,
    Toolchain,
)
from zerowiz.probe.files import Files
from zerowiz.probe.preflight import read_facts
from zerowiz.probe.preflight.read_facts import (
    can_write,
    find_cuda_home,
    find_file_system,
    read_extensions,
    read_locks,
    read_toolchain,
    try_core_binding,
)

# Who holds the lock of an op, with torch's own lock and processes that really hold it.

OP = "cpu_adam"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="its own lock is held")


@contextmanager
def builder(folder: Path, seconds: float = 60) -> Iterator[int]:
    """A process that holds the lock."""
    argv = [sys.executable, str(HERE / "baton.py"), str(folder / OP), str(seconds)]
    with subprocess.Popen(argv, start_new_session=True) as process:
        try:
            until = time.monotonic() + 30
            while not (folder / OP / "lock").exists():
                assert time.monotonic() < until
                time.sleep(0.01)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read(folder: Path) -> tuple[Lock, ...]:
    return read_locks(folder, (OP, "fused_adam"))


@needs_torch
def test_a_lock_that_a_process_has_open_is_none_and_what_a_killed_one_left_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with builder(tmp_path):
        assert () == read(tmp_path) == read(tmp_path / "link")
    (left,) = read(tmp_path)
    assert (str(tmp_path / OP / "lock"), OP) == (left.path, left.op)
    assert 60_000 > left.age_milliseconds >= 0


def test_a_lock_that_is_closed_already_is_about_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / OP).mkdir()
    path = tmp_path / OP / "lock"
    path.touch()
    monkeypatch.setattr(time, "sleep", lambda _: path.unlink())
    assert () == read_locks(tmp_path, (OP,))


NOBODY = 65534


@pytest.mark.parametrize(
    ("file_system", "expected"),
    [
        ("overlay", True),
        ("ext4", Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC),
        ("nfs4", False),
        ("fuse.unheard-of", False),
        (None, False),
    ],
)
def test_whoever_shares_a_file_system_may_hold_a_lock(
    tmp_path: Path, file_system: str | None, expected: bool
) -> None:
    (tmp_path / OP).mkdir()
    (tmp_path / OP / "lock").touch()
    (lock,) = read_locks(tmp_path, (OP,), file_system)
    assert expected == lock.sees_all


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_may_hold_a_lock_of_its_own() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / OP).mkdir()
        path = folder / OP / "lock"
        path.touch()
        seen = []
        for owner in (0, NOBODY):
            os.chown(path, owner, owner)
            with warnings.catch_warnings():
                # Of the threads of pytest-xdist, since Python 3.12.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                (lock,) = read_locks(folder, (OP,), "overlay")
                os._exit(1 if lock.sees_all else 2)
            seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1)
        assert [False, True] == seen


# Ranks get cores of their own where a trial shows that they can.

# What DeepSpeed's launcher starts it as; the program behind the words is run as numactl would.
_ALLOWS = '#!/bin/sh\necho "$@" >> "$TRIED"\nexec true\n'
_REFUSES = "#!/bin/sh\necho 'set_mempolicy: Operation not permitted' >&2\nexit 1\n"

Install = Callable[[str], dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    def put(text: str) -> dict[str, str]:
        program = tmp_path / "numactl"
        program.write_text(text)
        program.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin", "TRIED": str(tmp_path / "tried")}

    return put


def kernel(root: Path, siblings: dict[int, str]) -> Files:
    """The lists of a kernel."""
    for core, threads in siblings.items():
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(threads + "\n")
    return Files(root=root)


def test_nothing_is_bound_without_numactl(tmp_path: Path) -> None:
    found = try_core_binding({"PATH": str(tmp_path)}, 1, Files())
    assert found.cores is None
    assert "`numactl` is not installed" in found.notes[0]


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [
        ({n: f"{n % 8},{n % 8 + 8}" for n in (0, 1, 2, 3, 8, 9, 10, 11)}, "0-3"),
        ({3: "3", 5: "5"}, "3,5"),
    ],
    ids=["one of two threads", "gaps"],
)
def test_all_cores_are_tried_with_memory(
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    siblings: dict[int, str],
    cores: str,
) -> None:
    environ = install(_ALLOWS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*siblings})
    assert try_core_binding(environ, 2, kernel(tmp_path / "host", siblings)) == CoreBinding(
        cores=cores
    )
    assert [f"-m all -C {cores} true"] == Path(environ["TRIED"]).read_text().splitlines()


@pytest.mark.parametrize(
    ("text", "beside", "ranks"),
    [(_REFUSES, {}, 1), (_ALLOWS, {"KMP_AFFINITY": "compact"}, 1), (_ALLOWS, {}, 100_000)],
    ids=["a container that forbids it", "another binding", "too few cores"],
)
def test_ranks_that_cannot_be_bound_are_noted(
    install: Install, text: str, beside: dict[str, str], ranks: int
) -> None:
    found = try_core_binding({**install(text), **beside}, ranks, Files())
    assert found.cores is None
    assert "as `numactl` cannot bind each to its own here" in found.notes[0]


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


def tools(folder: Path, environ: Mapping[str, str], *ops: Op, cuda: bool = False) -> Toolchain:
    """What is found with these on the path, `HERE` for the folder in a variable."""
    said = {name: text.replace("HERE", str(folder)) for name, text in environ.items()}
    return read_toolchain({"PATH": str(folder), **said}, ops or (CPU_ADAM,), cuda=cuda)


@pytest.mark.parametrize(
    ("there", "environ", "expected"),
    [
        pytest.param((), {}, {"has_compiler": False, "has_ninja": False}, id="an empty path"),
        pytest.param(
            ("c++", "ninja"), {}, {"has_compiler": True, "has_ninja": True}, id="on the path"
        ),
        pytest.param(("clang++",), {"CXX": "clang++"}, {"has_compiler": True}, id="of CXX"),
        pytest.param(("clang++",), {"CXX": "clang++ -O1"}, {"has_compiler": True}, id="words"),
        pytest.param(("clang++",), {"CXX": "g++-99"}, {"has_compiler": False}, id="another"),
        pytest.param(("clang++",), {"CXX": "'"}, {"has_compiler": False}, id="odd words"),
    ],
)
def test_the_compilers_are_those_of_the_jobs_path(
    tmp_path: Path, there: tuple[str, ...], environ: dict[str, str], expected: dict[str, bool]
) -> None:
    for name in there:
        tool(tmp_path, name)
    found = tools(tmp_path, environ)
    assert expected == {name: getattr(found, name) for name in expected}
    assert (None, False, None) == (found.cuda_home, found.has_nvcc, found.has_libaio)


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"CUDA_HOME": "/opt/cuda", "PATH": ""}, "/opt/cuda"),
        ({"CUDA_PATH": "/opt/cuda", "PATH": ""}, "/opt/cuda"),
        ({"PATH": "HERE/bin"}, "HERE"),
    ],
)
def test_the_toolkit_is_found_as_torch_finds_it(
    tmp_path: Path, environ: dict[str, str], home: str
) -> None:
    tool(tmp_path / "bin", "nvcc")
    said = {name: text.replace("HERE", str(tmp_path)) for name, text in environ.items()}
    assert home.replace("HERE", str(tmp_path)) == find_cuda_home(said)


@pytest.mark.parametrize(
    ("has_nvcc", "op", "release"),
    [(True, FUSED_ADAM, (12, 8)), (True, CPU_ADAM, None), (False, FUSED_ADAM, None)],
)
def test_nvcc_is_asked_for_its_release_where_an_op_needs_it(
    tmp_path: Path, has_nvcc: bool, op: Op, release: tuple[int, int] | None
) -> None:
    if has_nvcc:
        tool(tmp_path / "bin", "nvcc", NVCC)
    environ = {"CUDA_HOME": "HERE", "PATH": os.environ["PATH"]}
    found = tools(tmp_path, environ, op, cuda=True)
    assert (has_nvcc, release) == (found.has_nvcc, found.cuda_version)


@pytest.mark.parametrize("text", ["#!/bin/sh\nsleep 60\n", "#!/bin/sh\nexit 1\n", "", "\0"])
def test_an_odd_nvcc_is_an_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(read_facts, "_PATIENCE_S", 0.3)
    tool(tmp_path / "bin", "nvcc", text)
    environ = {"CUDA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    assert read_toolchain(environ, (FUSED_ADAM,), cuda=True).cuda_version is None


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_libaio_is_there_when_a_program_links_to_it(tmp_path: Path) -> None:
    header, library = tmp_path / "libaio.h", tmp_path / "libaio.so"
    header.write_text("typedef struct io_context *io_context_t;\n")
    make = ["c++", "-shared", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(make, input=b"", check=True)
    flags = {"CFLAGS": f"-nostdinc -I{tmp_path}", "LDFLAGS": f"-nodefaultlibs -L{tmp_path} -lc"}
    environ = {"PATH": os.environ["PATH"], **flags}

    def has_libaio(**changed: str) -> bool | None:
        return read_toolchain({**environ, **changed}, (ASYNC_IO,), cuda=False).has_libaio

    assert has_libaio() is True
    assert has_libaio(CFLAGS="-nostdinc") is False
    assert read_toolchain(environ, (CPU_ADAM,), cuda=False).has_libaio is None
    library.unlink()
    assert has_libaio(LDFLAGS="-nostdlib") is False


def test_built_ops_and_locks_are_seen(tmp_path: Path) -> None:
    for name, file in (("cpu_adam", "cpu_adam.so"), ("fused_adam", "lock")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    os.utime(tmp_path / "fused_adam" / "lock", (1e9, 1e9))

    seen = read_extensions(str(tmp_path), (CPU_ADAM, FUSED_ADAM, ASYNC_IO), Files())

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
