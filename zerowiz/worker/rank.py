"""Stand beside one rank of a supervised job: keep its output, and how it ended.

DeepSpeed's launcher starts this file in the script's place, by its path: it needs the standard
library alone. The training is its child, and its end is this process's own: the launcher sees the
exit status, or the signal, that it would have seen without it.
"""

import ctypes
import errno
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

POLL_S = 0.25
# How long the beginning of a line waits for its end, so that ranks do not write into each other's.
HOLD_S = 0.05
# What a rank's own children may still write once it has ended: until they pause, and in all.
QUIET_S, DRAIN_S = 0.2, 2.0
# A kill by the kernel counts for a rank that ended so many looks after it, or fewer.
OOM_LOOKS = 20
CHUNK_BYTES = 1 << 16
TAIL_LINES = 200
LINE_BYTES = 2000
ROOM_BYTES = 1 << 15
# linux/prctl.h
PR_SET_PDEATHSIG = 1
# As core/outcome/verdict.py has it: an error that is older was caught.
TAKING_DOWN_S = 300.0
TRACEBACK = b"Traceback (most recent call last)"
# As core/outcome/oom_text.py has it: an error that ends nothing stands below this.
ENDS_NOTHING = re.compile(
    rb"Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|^Process \S+:$"
)

# Where no `--local_rank` was handed on, which DeepSpeed's own launcher does, mpirun started it.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID")
MPI_LOCAL_RANKS = (
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK", "SLURM_LOCALID"),
)
# Open MPI says these under names of its own, and without them DeepSpeed asks mpi4py
# (deepspeed/comm/comm.py, init_distributed, 0.19.8).
OPENMPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
# The launchers signal the group or the tree, so the rank has them too; INT, a terminal's, as well.
LEFT_TO_THE_RANK = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
)


def rank_command(words: list[str]) -> list[str]:
    """The training's own command; the launcher puts `--local_rank=N` before the script."""
    local = [word for word in words[:1] if word.startswith("--local_rank=")]
    script, *args = words[len(local) :]
    return [sys.executable, "-u", script, *local, *args]


def place(words: list[str]) -> tuple[int, int]:
    """The rank and the local rank."""
    if words[0].startswith("--local_rank="):
        return int(os.environ["RANK"]), int(words[0].partition("=")[2])
    ranks, local_ranks = (
        [int(os.environ[name]) for name in names if name in os.environ] or [0]
        for names in (MPI_RANKS, MPI_LOCAL_RANKS)
    )
    return ranks[0], local_ranks[0]


def read_space() -> str:
    """What processes that can signal each other share: the boot and the process namespace."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()


def start_ticks(pid: int) -> int:
    """When a process began; with its pid, it is that process and no later one (proc(5), stat)."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[19])


def oom_kills() -> int:
    """How many processes the kernel has killed for memory, in this one's group or on the host."""
    with suppress(OSError):
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, path in groups:
            kind, name = ("memory", "memory.oom_control") if controllers else ("", "memory.events")
            file = Path("/sys/fs/cgroup", kind, path.lstrip("/"), name)
            if controllers in {"", "memory"} and file.exists():
                return count("oom_kill", file)
    with suppress(OSError):
        return count("oom_kill", Path("/proc/vmstat"))
    return 0


def count(key: str, path: Path) -> int:
    """A number from a file of `key number` lines."""
    rows = (line.split() for line in path.read_text().splitlines())
    return next((int(row[1]) for row in rows if row[0] == key), 0)


def write_whole(path: Path, content: object) -> None:
    """Put a file in place whole; a disk that is full ends no training."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(path)


def make_room(path: Path) -> int:
    """A file with room for what is said later, whatever fills the disk until then; -1 for none."""
    with suppress(OSError):
        room = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with suppress(OSError):
            os.posix_fallocate(room, 0, ROOM_BYTES)
        return room
    return -1


def write_all(target: int, piece: bytes) -> bool:
    """Write all of it; False when nobody reads any more."""
    left = memoryview(piece)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError as error:
            # A disk may be full for a while.
            return error.errno not in {errno.EPIPE, errno.ECONNRESET}
    return True


class Stream:
    """One stream of the rank, on its way to where it would have gone, and to the log."""

    def __init__(self, source: int, targets: Iterable[int]) -> None:
        self.source = source
        self.targets = list(targets)
        self.held = b""
        self.lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.failed_at: float | None = None

    def read(self) -> bool:
        """Pass on whole lines, and steps of a progress bar; False at the end of the stream."""
        chunk = os.read(self.source, CHUNK_BYTES)
        self.held += chunk
        whole = max(self.held.rfind(b"\n"), self.held.rfind(b"\r")) + 1
        if not chunk or len(self.held) > CHUNK_BYTES:
            whole = len(self.held)
        self.release(whole)
        return bool(chunk)

    def release(self, size: int | None = None) -> None:
        """Pass on the first bytes that are held, or all."""
        piece = self.held[:size]
        self.held = self.held[len(piece) :]
        self.targets = [target for target in self.targets if write_all(target, piece)]
        self.remember(piece)

    def remember(self, piece: bytes) -> None:
        """Keep the last lines, and when the last error began to show."""
        first, *others = piece.split(b"\n")
        begun = self.lines.pop() if self.lines else b""
        lines = [b"".join((begun, first)), *others]
        if TRACEBACK in piece:
            self.date([*[*self.lines][-1:], *lines])
        # Of a progress bar, its last state.
        self.lines.extend(line.rpartition(b"\r")[2][:LINE_BYTES] for line in lines)

    def date(self, lines: list[bytes]) -> None:
        """Note when an error shows; one that ends nothing is none, once another has shown."""
        lately = self.failed_at is not None and time.time() - self.failed_at < TAKING_DOWN_S
        for above, line in pairwise([b"", *lines]):
            if TRACEBACK in line and not (lately and ENDS_NOTHING.search(above)):
                self.failed_at, lately = time.time(), True

    def tail(self) -> list[str]:
        """The last lines, as text."""
        lines = [line.decode("utf-8", "replace").rstrip() for line in self.lines]
        return lines[:-1] if lines and not lines[-1] else lines


class RankSupervisor:
    """The training process of one rank."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.folder = folder
        self.rank, local_rank = place(words)
        self.launcher = os.getppid()
        self.oom_kills = deque([oom_kills()], maxlen=OOM_LOOKS)
        space = read_space()
        self.remote = os.environ.get("ZEROWIZ_SUPERVISOR", space) != space
        self.connection = {1, 2} if self.remote else set()
        self.orders_seen = len(self.orders())
        self.told: str | None = None
        self.told_at: float | None = None
        self.kill_at = float("inf")
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        self.pid, out, err = start(rank_command(words))
        log = open_log(folder / f"rank-{self.rank}.log")
        self.stderr = Stream(err, [2, *log])
        self.streams = {out: Stream(out, [1, *log]), err: self.stderr}
        self.who = {"rank": self.rank, "host": socket.gethostname()}
        processes = {
            name: {"pid": pid, "start_ticks": start_ticks(pid)}
            for name, pid in (("process", self.pid), ("beside", os.getpid()))
        }
        born = {"local_rank": local_rank, "space": space, "started_at": time.time()}
        write_whole(folder / f"rank-{self.rank}.json", {**self.who, **processes, **born})
        self.partial = folder / f"rank-{self.rank}.end.partial"
        self.room = make_room(self.partial)

    def orders(self) -> list[str]:
        """What the supervisor has left for the ranks so far: signals, and `end`."""
        # A file that is there is read afresh over NFS; that a new one is there shows late.
        with suppress(OSError, ValueError):
            # What follows the last end of a line is not written whole yet.
            return (self.folder / "orders").read_text().split("\n")[:-1]
        return []

    def send(self, number: int) -> None:
        """Signal the rank; it is not reaped yet, so its pid is its own."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, why: str) -> None:
        """Ask the rank to end, once."""
        if self.told is None:
            self.told, self.told_at = why, time.time()
            self.kill_at = time.monotonic() + float(os.environ.get("ZEROWIZ_GRACE_S", "30"))
            self.send(signal.SIGTERM)

    def look_around(self) -> None:
        """Whether somebody wants the rank signalled, or ended."""
        self.oom_kills.append(oom_kills())
        if os.getppid() != self.launcher:
            self.end("launcher")
        orders = self.orders()
        if "end" in orders:
            self.end("supervisor")
        for order in orders[self.orders_seen :]:
            # On its own host the supervisor signals the rank itself.
            if self.remote and order.isdigit():
                self.send(int(order))
        # The file only grows, but may be out of reach for a while.
        self.orders_seen = max(self.orders_seen, len(orders))
        if time.monotonic() > self.kill_at:
            self.send(signal.SIGKILL)

    def watch(self) -> int:
        """Pass on what the rank writes until it has ended; its status, as wait(2) has it."""
        poller = select.poll()
        wake = wake_on_children()
        for source in (wake, *self.streams):
            poller.register(source, select.POLLIN)
        # The launcher of another host: when the connection to it is gone, a pipe says so unasked.
        for target in self.connection:
            poller.register(target, 0)
        look_at, pid, status = 0.0, 0, 0
        while not pid:
            held = any(stream.held for stream in self.streams.values())
            ready = {fd for fd, _ in poller.poll(1000 * (HOLD_S if held else POLL_S))}
            for gone in self.pass_on(ready) | (ready & self.connection):
                poller.unregister(gone)
            if ready & self.connection:
                self.end("connection")
            if wake in ready:
                os.read(wake, CHUNK_BYTES)
            # Before the look: who has ended was told nothing.
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid and time.monotonic() >= look_at:
                self.look_around()
                look_at = time.monotonic() + POLL_S
        return status

    def pass_on(self, ready: set[int]) -> set[int]:
        """Move what has arrived; the streams that have ended."""
        for source, stream in self.streams.items():
            if source not in ready:
                stream.release()
        ended = {source for source in ready & {*self.streams} if not self.streams[source].read()}
        for source in ended:
            del self.streams[source]
        return ended

    def drain(self) -> None:
        """Pass on what is still on its way; a child of the rank may hold a stream open for long."""
        until = time.monotonic() + DRAIN_S
        while self.streams and time.monotonic() < until:
            ready, _, _ = select.select([*self.streams], [], [], QUIET_S)
            self.pass_on({*ready})
            if not ready:
                return

    def report(self, status: int, ended_at: float) -> None:
        """Write how the rank ended: an exit status, or 128 and the signal."""
        content = {
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status),
            "ended_at": ended_at,
            "failed_at": self.stderr.failed_at,
            "told": self.told,
            "told_at": self.told_at,
            "oom_killed": oom_kills() > self.oom_kills[0],
            "accelerator": os.environ.get("DS_ACCELERATOR"),
        }
        path = self.folder / f"rank-{self.rank}.end.json"
        # On a disk that is full, how it ended, without its last lines.
        for tail in (self.stderr.tail(), []):
            text = json.dumps({**self.who, **content, "tail": tail}).encode()
            with suppress(OSError):
                if os.pwrite(self.room, text, 0) == len(text):
                    os.ftruncate(self.room, len(text))
                    self.partial.replace(path)
                    return
        write_whole(path, {**self.who, **content, "tail": []})


def start(command: list[str]) -> tuple[int, int, int]:
    """Start the training; its pid, and where its stdout and its stderr come out."""
    libc = ctypes.CDLL(None)
    here = os.getpid()
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nobody would read it any more.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != here:
            os._exit(128 + signal.SIGKILL)
        # The supervisor had the launcher ignore them (emit/supervise.py).
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        become(command)
    os.close(out_end)
    os.close(err_end)
    for number in LEFT_TO_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    return pid, out, err


def become(command: list[str]) -> NoReturn:
    """Be the training, with the signals as Python found them."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def open_log(path: Path) -> list[int]:
    """The log's descriptor; none where it cannot be written."""
    with suppress(OSError):
        return [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)]
    return []


def wake_on_children() -> int:
    """A descriptor that is readable once a child has ended."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def leave(status: int) -> NoReturn:
    """End as the rank did, but without a core of its own."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def main() -> NoReturn:
    """Be the rank where nobody watches, else stand beside it."""
    words = sys.argv[1:]
    for name, told in OPENMPI.items():
        if told in os.environ:
            os.environ.setdefault(name, os.environ[told])
    folder = os.environ.get("ZEROWIZ_ATTEMPT")
    if folder is None:
        become(rank_command(words))
    rank = RankSupervisor(words, Path(folder))
    status, ended_at = rank.watch(), time.time()
    rank.drain()
    rank.report(status, ended_at)
    leave(status)


if __name__ == "__main__":
    main()
