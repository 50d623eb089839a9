"""Read the locks under which torch builds ops, and which process of this host has each open."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from zerowiz.core.launch.doctor.facts import LOCK_NOTE, Lock

_PROC = Path("/proc")
# torch/utils/file_baton.py (2.13): the file that stands while an op is built. The process that
# made it keeps it open, and removes it right after it has closed it.
LOCK_FILE = "lock"
_CLOSED_BEFORE_REMOVED_S = 0.1
# Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO: the PID namespace that sees every process.
_HOST_NAMESPACE = 0xEFFFFFFC

_FileId = tuple[int, int]


class _Holders(Struct, frozen=True, kw_only=True):
    """Who has which lock open."""

    pids: Mapping[_FileId, int]
    """By the device and the inode of the lock: in a container its path may be another."""
    hidden_users: frozenset[int]
    """Whose Pythons could not be looked at."""
    folders: frozenset[str]
    """Where processes run: compilers that have lost their rank, in the folder of their op."""


def read_locks(folder: Path, ops: Iterable[str]) -> tuple[Lock, ...]:
    """The locks on these ops.

    Args:
        folder: Where torch builds ops, each in a folder with its name.
        ops: Their names.
    """
    seen = {op: status for op in ops if (status := _stat(folder / op / LOCK_FILE)) is not None}
    if not seen:
        return ()
    holders = _find_holders()
    time.sleep(_CLOSED_BEFORE_REMOVED_S)
    return tuple(
        _describe(folder / op / LOCK_FILE, op, status, holders)
        for op, status in seen.items()
        if _made(status) == _made(_stat(folder / op / LOCK_FILE))
    )


def _file_id(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


def _made(status: os.stat_result | None) -> tuple[int, int]:
    return (0, 0) if status is None else (status.st_ino, status.st_mtime_ns)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _describe(path: Path, op: str, status: os.stat_result, holders: _Holders) -> Lock:
    holder_pid = holders.pids.get(_file_id(status))
    is_quiet = holder_pid is None and os.path.realpath(path.parent) not in holders.folders
    return Lock(
        path=str(path),
        op=op,
        age_milliseconds=int(1000 * max(0.0, time.time() - status.st_mtime)),
        made=_made(status),
        holder_pid=holder_pid,
        left_by_rank=is_quiet and _was_left_by_rank(path, _made(status)),
        sees_all=_sees_all_of(status.st_uid, holders),
        in_container=_namespace_inode() != _HOST_NAMESPACE,
    )


def _find_holders() -> _Holders:
    """Which process has which lock open."""
    pids: dict[_FileId, int] = {}
    hidden_users: set[int] = set()
    folders: set[str] = set()
    for process in _processes():
        try:
            opened = list((process / "fd").iterdir())
        except PermissionError:
            hidden_users |= _user_of_python(process)
            continue
        except OSError:
            continue
        with suppress(OSError):
            folders.add(str((process / "cwd").readlink()))
        for descriptor in opened:
            with suppress(OSError):
                # Of all others not even the status is read: a dead file server would not answer.
                if descriptor.readlink().name == LOCK_FILE:
                    # A child that it starts has it too, until it is another program. Linux lists
                    # processes by their number, and a parent's is the smaller one.
                    pids.setdefault(_file_id(descriptor.stat()), int(process.name))
    return _Holders(pids=pids, hidden_users=frozenset(hidden_users), folders=frozenset(folders))


def _processes() -> Iterator[Path]:
    return (path for path in _PROC.iterdir() if path.name.isdigit())


def _user_of_python(process: Path) -> set[int]:
    """Whose process it is, if it is a Python: nothing else makes such a lock."""
    with suppress(OSError):
        if b"python" in (process / "cmdline").read_bytes():
            lines = (process / "status").read_text(errors="replace").splitlines()
            users = next(line for line in lines if line.startswith("Uid:")).split()
            # proc(5): the real, effective, saved and file system user; a file is the last one's.
            return {int(users[4])}
    return set()


def _sees_all_of(user: int, holders: _Holders) -> bool:
    """Whether a process of this user would have been seen; those of others may be hidden."""
    return os.geteuid() in {0, user} and user not in holders.hidden_users


def _was_left_by_rank(path: Path, made: tuple[int, int]) -> bool:
    """Whether a supervised rank of this PID namespace made it, and has died."""
    try:
        note = json.loads(path.with_name(LOCK_NOTE).read_text(encoding="utf-8"))
        is_ours = note["space"] == read_pid_namespace() and tuple(note["made"]) == made
        return is_ours and not _is_alive(int(note["pid"]), note["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_alive(pid: int, start_ticks: int) -> bool:
    try:
        words = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    # proc(5), stat, fields 3 and 22.
    return words[0] not in {b"Z", b"X"} and int(words[19]) == start_ticks


def _namespace_inode() -> int:
    status = _stat(_PROC / "self/ns/pid")
    return 0 if status is None else status.st_ino


def read_pid_namespace() -> str:
    """This boot and its PID namespace, as `worker/rank.py` writes it."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{_namespace_inode()}"
