"""Who holds the lock of an op, with torch's own lock and processes that really hold it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from kills.harness import HERE

from zerowiz.core.preflight.facts import LOCK_NOTE, Lock
from zerowiz.emit.processes import remove_lock
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight.toolchain import read_locks, read_pid_namespace

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


def read(folder: Path) -> Lock:
    (lock,) = read_locks(folder, (OP, "fused_adam"))
    return lock


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def write_note(lock: Lock, **changed: object) -> None:
    """What a rank supervisor writes beside the lock of its rank."""
    note = {"space": read_pid_namespace(), "pid": 1, "start_ticks": -1, "made": lock.made}
    Path(lock.path).with_name(LOCK_NOTE).write_text(json.dumps({**note, **changed}))


@needs_torch
def test_who_builds_is_found_and_who_was_killed_is_not(tmp_path: Path) -> None:
    with builder(tmp_path) as pid:
        lock = read(tmp_path)
        assert (str(tmp_path / OP / "lock"), OP, pid) == (lock.path, lock.op, lock.holder_pid)
        assert lock.left_by_rank is False
    left = read(tmp_path)
    assert (None, False, lock.made) == (left.holder_pid, left.left_by_rank, left.made)
    assert 60_000 > left.age_milliseconds >= 0


@needs_torch
def test_the_holder_is_found_under_another_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with builder(tmp_path) as pid:
        assert pid == read(tmp_path / "link").holder_pid


def test_a_child_that_is_not_yet_its_compiler_does_not_hold_the_lock(tmp_path: Path) -> None:
    (tmp_path / OP).mkdir()
    path = tmp_path / OP / "lock"
    code = f"import os, time; os.open({str(path)!r}, os.O_CREAT); os.fork(); print(flush=True)"
    argv = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert b"\n\n" == process.stdout.read(2)
        assert process.pid == read(tmp_path).holder_pid
        os.killpg(process.pid, signal.SIGKILL)


@needs_torch
def test_a_build_that_ends_meanwhile_leaves_no_lock(tmp_path: Path) -> None:
    with builder(tmp_path, 0.3):
        until = time.monotonic() + 30
        while read_locks(tmp_path, (OP,)):
            assert time.monotonic() < until
    assert not (tmp_path / OP / "lock").exists()


def test_a_lock_that_is_closed_already_is_about_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / OP).mkdir()
    path = tmp_path / OP / "lock"
    path.touch()
    monkeypatch.setattr(time, "sleep", lambda _: path.unlink())
    assert () == read_locks(tmp_path, (OP,))


@needs_torch
def test_a_rank_that_died_left_the_lock_that_its_note_names(tmp_path: Path) -> None:
    with builder(tmp_path) as pid:
        write_note(read(tmp_path), pid=pid, start_ticks=start_ticks(pid))
        assert (pid, False) == (read(tmp_path).holder_pid, read(tmp_path).left_by_rank)
        ticks = start_ticks(pid)
    lock = read(tmp_path)
    write_note(lock, pid=pid, start_ticks=ticks)
    assert read(tmp_path).left_by_rank
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path / OP) as compiler:
        assert read(tmp_path).left_by_rank is False
        compiler.kill()
    assert read(tmp_path).left_by_rank


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"space": "another boot:1"}, False),
        ({"made": [1, 1]}, False),
        ({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}, False),
        ({"pid": os.getpid(), "start_ticks": 1}, True),
        ({"pid": None}, False),
    ],
)
def test_a_note_is_believed_for_its_own_lock_namespace_and_process(
    tmp_path: Path, changed: dict[str, object], expected: bool
) -> None:
    (tmp_path / OP).mkdir()
    (tmp_path / OP / "lock").touch()
    write_note(read(tmp_path), **changed)
    assert expected == read(tmp_path).left_by_rank


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_a_note_that_is_none_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / OP).mkdir()
    (tmp_path / OP / "lock").touch()
    (tmp_path / OP / LOCK_NOTE).write_text(text)
    assert read(tmp_path).left_by_rank is False


NOBODY = 65534


def read_as(user: int, folder: Path) -> bool:
    """Whether another user sees every process that could hold the lock."""
    with warnings.catch_warnings():
        # Of the threads of pytest-xdist, since Python 3.12.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.setgid(user)
        os.setuid(user)
        os._exit(1 if read(folder).sees_all else 2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_process_that_cannot_be_looked_at_may_hold_it() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / OP).mkdir()
        path = folder / OP / "lock"
        path.touch()
        assert read(folder).sees_all
        assert read_as(NOBODY, folder) is False
        os.chown(path, NOBODY, NOBODY)
        assert read_as(NOBODY, folder) is True
        # A process that changes its user is hidden even from its own (proc(5), PR_SET_DUMPABLE).
        code = f"import os, time; os.setuid({NOBODY}); print(flush=True); time.sleep(60)"
        argv = [sys.executable, "-c", code]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as hidden:
            assert hidden.stdout is not None
            assert b"\n" == hidden.stdout.readline()
            assert (read_as(NOBODY, folder), read(folder).sees_all) == (False, True)
            hidden.kill()


def test_only_the_lock_that_was_read_is_removed(tmp_path: Path) -> None:
    path = tmp_path / OP / "lock"
    path.parent.mkdir()
    path.touch()
    lock = read(tmp_path)
    os.utime(path, (1, 1))
    assert (False, True) == (remove_lock(lock), path.exists())
    write_note(read(tmp_path))
    assert remove_lock(read(tmp_path)) is True
    assert [] == [*path.parent.iterdir()]
    assert remove_lock(lock) is False


def test_a_lock_that_cannot_be_removed_is_an_error_with_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "my ops"
    path = folder / OP / "lock"
    path.mkdir(parents=True)
    with pytest.raises(PreflightError, match="cannot remove") as e:
        remove_lock(read(folder))
    assert (f"rm '{path}'",) == e.value.hints
