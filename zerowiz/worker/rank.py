"""Supervise one rank of a launch: keep its output, pass on signals, and report how it ended.

DeepSpeed's launcher starts this file by its path, in place of the script, so it needs the standard
library alone. The training is its child process. This process ends as the training did: the
launcher sees the same exit status, or the same signal.

zerowiz itself is the supervisor of the whole job (`emit/job.py`). Both sides exchange files
in the folder of the attempt (`emit/processes.py`). This file may import neither core nor emit,
so it repeats their values; `tests/worker/test_contract.py` holds them together.
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

# emit/processes.py: the environment variables of a supervised job, and its file of orders.
ATTEMPT_VARIABLE = "ZEROWIZ_ATTEMPT"
SUPERVISOR_VARIABLE = "ZEROWIZ_SUPERVISOR"
GRACE_VARIABLE = "ZEROWIZ_GRACE_S"
MEMORY_VARIABLE = "ZEROWIZ_REPORTS"
ORDERS_FILE = "orders"
END_ORDER = "end"
# The default of `--grace-seconds` (cli/launch.py).
GRACE_S = 30.0

POLL_S = 0.25
# How long an incomplete line is kept back, so that ranks do not write into each other's lines.
HOLD_S = 0.05
# For the output of a rank's own children once the rank has ended: the longest pause, and in all.
QUIET_S, DRAIN_S = 0.2, 2.0
# A kill by the kernel counts for a rank that ended within this many polls after it.
OOM_POLLS = 20
CHUNK_BYTES = 1 << 16
TAIL_LINES = 200
LINE_BYTES = 2000
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# core/job_end.py: how long a failed rank may take to end; an older error was caught.
TAKING_DOWN_S = 300.0
# core/job_end.py: how an uncaught error begins, and the line above one that ends nothing.
TRACEBACK = b"Traceback (most recent call last)"
ENDS_NOTHING = re.compile(
    rb"Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|^Process \S+:$"
)
# torch/utils/file_baton.py (2.13): the file that stands while an op is built; the process that made
# it keeps it open, and leaves it where it is killed.
LOCK_FILE = "lock"
# torch/utils/cpp_extension.py, _get_build_directory (2.13): where the folders of the ops are.
EXTENSIONS_VARIABLE, EXTENSIONS_FOLDER = "TORCH_EXTENSIONS_DIR", "torch_extensions"
SIGNALLED = 128  # what a shell adds to the number of a signal for the exit status

# core/launch/plan.py: a person looks on. What first_steps.py writes for them is in no log.
PROGRESS_VARIABLE = "ZEROWIZ_PROGRESS"
PROGRESS = re.compile(rb"\x1b\[2K[^\r\n]*[\r\n]?")
# What is left of it behind other words is erased (ECMA-48, EL).
ERASED = b"\x1b[K"
# Of an Accelerator that is configured from outside (core/script/config_delivery.py); on DeepSpeed's
# CPU accelerator it needs a state of its own first (prepared_script.py).
ACCELERATE_ON_CPU = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
# core/script/config_delivery.py: the config whose name the script fixes, where another is read.
BASE_VARIABLE = "ZEROWIZ_BASE_FILE"
# Signals that this process ignores: launchers and terminals signal the process group or the tree,
# so the rank gets them as well, and this process has to outlive it.
IGNORED_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
)


def rank_command(words: list[str]) -> list[str]:
    """The training's own command.

    Args:
        words: The script, or `-m` and a module, and what follows it. DeepSpeed's launcher may put
            `--local_rank=N` before them.
    """
    local = [word for word in words[:1] if word.startswith("--local_rank=")]
    words = words[len(local) :]
    program = words[: 2 if words[0] == "-m" else 1]
    is_prepared = ACCELERATE_ON_CPU.items() <= os.environ.items() or BASE_VARIABLE in os.environ
    is_seen = PROGRESS_VARIABLE in os.environ
    is_measured = ATTEMPT_VARIABLE in os.environ or (is_seen and os.environ.get("RANK") == "0")
    is_prepared = is_prepared or (is_seen and not is_measured)
    before = {"prepared_script.py": is_prepared, "measured_script.py": is_measured}
    first = [str(Path(__file__).with_name(name)) for name, needed in before.items() if needed]
    return [sys.executable, "-u", *first, *program, *local, *words[len(program) :]]


def read_pid_namespace() -> str:
    """This boot and its PID namespace: processes of the same one can signal each other.

    `emit/processes.py` makes the same text for the supervisor. Where /proc cannot be read, the
    host's name stands for it.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()


def identify(pid: int) -> dict[str, int]:
    """The pid, and what distinguishes the process from a later one with the same pid.

    That is when it started, in clock ticks since the boot (proc(5), stat, field 22).
    """
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return {"pid": pid, "start_ticks": int(stat.rpartition(b")")[2].split()[19])}


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory.

    It counts those of this process's control group, or those of the host where the group's count
    cannot be read.
    """
    with suppress(OSError):
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, path in groups:
            kind, name = ("memory", "memory.oom_control") if controllers else ("", "memory.events")
            # Of a container the host's path may be named, whose files are at the top then.
            for place in (path.lstrip("/"), ""):
                file = Path("/sys/fs/cgroup", kind, place, name)
                if controllers in {"", "memory"} and file.exists():
                    return count("oom_kill", file)
    with suppress(OSError):
        return count("oom_kill", Path("/proc/vmstat"))
    return 0


def count(key: str, path: Path) -> int:
    """The number in a file of `key number` lines; 0 where the key is missing."""
    rows = (line.split() for line in path.read_text().splitlines())
    return next((int(row[1]) for row in rows if row[0] == key), 0)


def write_whole(path: Path, content: object) -> None:
    """Write a JSON file in one step. A full disk is no error: it must not end the training."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        try:
            partial.write_text(json.dumps(content), encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def write_all(target: int, piece: bytes) -> bool:
    """Write all of it; False once nothing reads the other end any more."""
    left = memoryview(piece)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError as error:
            # Other errors, such as a full disk, may pass.
            return error.errno not in {errno.EPIPE, errno.ECONNRESET}
    return True


class Stream:
    """Copies one stream of the rank to where it would have gone, and to the log.

    Args:
        source: The descriptor to read from.
        targets: The descriptors to write to.
    """

    def __init__(self, source: int, targets: Iterable[int]) -> None:
        self.source = source
        self.targets = list(targets)
        self.is_seen = PROGRESS_VARIABLE in os.environ and os.isatty(self.targets[0])
        self.held = b""
        self.lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.failed_at: float | None = None

    def read(self) -> bool:
        """Read what is there, and pass on whole lines; False at the end of the stream.

        A carriage return ends a line too, so that progress bars move.
        """
        chunk = os.read(self.source, CHUNK_BYTES)
        self.held += chunk
        whole = max(self.held.rfind(b"\n"), self.held.rfind(b"\r")) + 1
        if not chunk or len(self.held) > CHUNK_BYTES:
            whole = len(self.held)
        self.release(whole)
        return bool(chunk)

    def release(self, size: int | None = None) -> None:
        """Pass on the first bytes of what is kept back, or all of it."""
        piece = self.held[:size]
        self.held = self.held[len(piece) :]
        logged = PROGRESS.sub(b"", piece)
        seen = ERASED + piece if self.is_seen and piece else piece
        self.targets = [
            target
            for target in self.targets
            if write_all(target, seen if target in {1, 2} else logged)
        ]
        self.remember(logged)

    def remember(self, piece: bytes) -> None:
        """Keep the last lines, and the time at which the last error began to show."""
        first, *others = piece.split(b"\n")
        begun = self.lines.pop() if self.lines else b""
        lines = [b"".join((begun, first)), *others]
        if TRACEBACK in piece:
            self.date([*[*self.lines][-1:], *lines])
        # Of a progress bar only the last state.
        self.lines.extend(line.rpartition(b"\r")[2][:LINE_BYTES] for line in lines)

    def date(self, lines: list[bytes]) -> None:
        """Note the time of each traceback in these lines.

        After a recent error, one that ends nothing does not count: it shows while Python ends.
        """
        recently = self.failed_at is not None and time.time() - self.failed_at < TAKING_DOWN_S
        for above, line in pairwise([b"", *lines]):
            if TRACEBACK in line and not (recently and ENDS_NOTHING.search(above)):
                self.failed_at, recently = time.time(), True

    def tail(self) -> list[str]:
        """The last lines, as text."""
        lines = [line.decode("utf-8", "replace").rstrip() for line in self.lines]
        return lines[:-1] if lines and not lines[-1] else lines


def open_locks(pid: int) -> dict[Path, tuple[int, int]]:
    """Each lock of an op that a rank has open, and what tells it from a later one at its path."""
    held: dict[Path, tuple[int, int]] = {}
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                path = descriptor.readlink()
                if path.name == LOCK_FILE and builds_ops(path.parent.parent):
                    made = lock_made(path)
                    held |= {} if made is None else {path: made}
    return held


def builds_ops(folder: Path) -> bool:
    """Whether torch builds ops in folders below this one."""
    value = os.environ.get(EXTENSIONS_VARIABLE)
    return os.path.realpath(value) == str(folder) if value else EXTENSIONS_FOLDER in folder.parts


def lock_made(path: Path) -> tuple[int, int] | None:
    """The inode of a lock, and when it was made in nanoseconds; None where there is none."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


class RankSupervisor:
    """Starts the training process of one rank, and supervises it to its end.

    Args:
        words: The script or the module, and its arguments, as the launcher passed them.
        folder: The folder of the attempt.
    """

    def __init__(self, words: list[str], folder: Path) -> None:
        self.folder = folder
        self.rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        self.launcher = os.getppid()
        self.oom_kills = deque([oom_kills()], maxlen=OOM_POLLS)
        namespace = read_pid_namespace()
        self.remote = os.environ.get(SUPERVISOR_VARIABLE, namespace) != namespace
        self.connection = {1, 2} if self.remote else set()
        self.orders_seen = len(self.orders())
        self.grace_s = float(os.environ.get(GRACE_VARIABLE, GRACE_S))
        self.asked_by: str | None = None
        self.asked_at: float | None = None
        self.kill_at = float("inf")
        self.memory = Path("" if self.remote else os.environ.get(MEMORY_VARIABLE, ""))
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        self.pid, out, err = start(rank_command(words))
        log = open_log(folder / f"rank-{self.rank}.log")
        self.stderr = Stream(err, [2, *log])
        self.streams = {out: Stream(out, [1, *log]), err: self.stderr}
        self.identity = {"rank": self.rank, "host": socket.gethostname()}
        processes = {"process": identify(self.pid), "beside": identify(os.getpid())}
        self.locks: dict[Path, tuple[int, int]] = {}
        started = {**self.identity, **processes, "local_rank": local_rank, "space": namespace}
        self.remember(started)
        write_whole(folder / f"rank-{self.rank}.json", started)

    def remember(self, content: object) -> None:
        """Report to the supervisor's memory, too: no full disk and no lost folder is in its way."""
        with suppress(OSError), self.memory.open("ab") as memory:
            memory.write(json.dumps(content).encode() + b"\n")

    def orders(self) -> list[str]:
        """The supervisor's orders to the ranks so far: numbers of signals, and END_ORDER."""
        # NFS shows new content of a known file at once, but a new file only late; so the supervisor
        # makes the file before it starts the job.
        with suppress(OSError, ValueError):
            # The last line is not written whole yet: no line end follows it.
            return (self.folder / ORDERS_FILE).read_text().split("\n")[:-1]
        return []

    def send(self, number: int) -> None:
        """Signal the rank; it is not reaped yet, so no other process has its pid."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, why: str) -> None:
        """Ask the rank to end, once, and start its grace period.

        Args:
            why: What asks for it: `launcher`, `connection` or `supervisor`.
        """
        if self.asked_by is None:
            self.asked_by, self.asked_at = why, time.time()
            self.kill_at = time.monotonic() + self.grace_s
            self.locks |= open_locks(self.pid)
            self.send(signal.SIGTERM)

    def poll_reasons(self) -> None:
        """Signal or end the rank where the launcher, an order or the grace period asks for it."""
        self.oom_kills.append(oom_kills())
        self.locks |= open_locks(self.pid)
        if os.getppid() != self.launcher:
            self.end("launcher")
        orders = self.orders()
        if END_ORDER in orders:
            self.end("supervisor")
        for order in orders[self.orders_seen :]:
            # On its own host the supervisor signals the rank itself.
            if self.remote and order.isdigit():
                self.send(int(order))
        # The file only grows, but cannot always be read.
        self.orders_seen = max(self.orders_seen, len(orders))
        if time.monotonic() > self.kill_at:
            self.send(signal.SIGKILL)

    def watch(self) -> int:
        """Pass on what the rank writes until it has ended; its status, as of wait(2)."""
        poller = select.poll()
        wake = wake_on_children()
        for source in (wake, *self.streams):
            poller.register(source, select.POLLIN)
        # The launcher is on another host: poll(2) reports a broken pipe to it without being asked.
        for target in self.connection:
            poller.register(target, 0)
        poll_at, pid, status = 0.0, 0, 0
        while not pid:
            held = any(stream.held for stream in self.streams.values())
            ready = {fd for fd, _ in poller.poll(1000 * (HOLD_S if held else POLL_S))}
            for gone in self.pass_on(ready) | (ready & self.connection):
                poller.unregister(gone)
            if ready & self.connection:
                self.end("connection")
            if wake in ready:
                os.read(wake, CHUNK_BYTES)
            # Before the reasons: a rank that has ended was not asked to.
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid and time.monotonic() >= poll_at:
                self.poll_reasons()
                poll_at = time.monotonic() + POLL_S
        return status

    def pass_on(self, ready: set[int]) -> set[int]:
        """Copy what has arrived on these streams; the ones of them that have ended."""
        for source, stream in self.streams.items():
            if source not in ready:
                stream.release()
        ended = {source for source in ready & {*self.streams} if not self.streams[source].read()}
        for source in ended:
            del self.streams[source]
        return ended

    def drain(self) -> None:
        """Pass on what is still in the pipes, but not for long: the rank's children may hold them.

        It stops after a pause of QUIET_S, and at the latest after DRAIN_S.
        """
        until = time.monotonic() + DRAIN_S
        while self.streams and time.monotonic() < until:
            ready, _, _ = select.select([*self.streams], [], [], QUIET_S)
            self.pass_on({*ready})
            if not ready:
                return

    def report(self, status: int, ended_at: float) -> None:
        """Write how the rank ended.

        Args:
            status: As of wait(2); the file has an exit status, or 128 plus the signal's number.
            ended_at: In seconds since 1970.
        """
        by_exit = os.WIFEXITED(status)
        content = {
            "status": os.WEXITSTATUS(status) if by_exit else SIGNALLED + os.WTERMSIG(status),
            "exited": by_exit,
            "ended_at": ended_at,
            "failed_at": self.stderr.failed_at,
            "told": self.asked_by,
            "told_at": self.asked_at,
            "oom_killed": oom_kills() > self.oom_kills[0],
            "accelerator": os.environ.get("DS_ACCELERATOR"),
        }
        report = {**self.identity, **content, "tail": self.stderr.tail()}
        self.remember(report)
        write_whole(self.folder / f"rank-{self.rank}.end.json", report)


def start(command: list[str]) -> tuple[int, int, int]:
    """Start the training; its pid, and the descriptors of its stdout and its stderr."""
    libc = ctypes.CDLL(None)
    here = os.getpid()
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        # The kernel kills the training when this process dies: nothing would read its output.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != here:
            os._exit(SIGNALLED + signal.SIGKILL)
        # The supervisor made the launcher ignore these (emit/job.py).
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        become(command)
    os.close(out_end)
    os.close(err_end)
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return pid, out, err


def become(command: list[str]) -> NoReturn:
    """Replace this process by the training, without the signal handlers that Python set."""
    # zerowiz lets the launcher ignore Ctrl-C where a person looks on (emit/job.py).
    seen = (signal.SIGINT,) if PROGRESS_VARIABLE in os.environ else ()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *seen):
        signal.signal(number, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def open_log(path: Path) -> list[int]:
    """The descriptor of the log, in a list; empty where the log cannot be written."""
    with suppress(OSError):
        return [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)]
    return []


def wake_on_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def leave(status: int) -> NoReturn:
    """End as the rank did, but without a core dump."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(SIGNALLED + number)
    os._exit(os.WEXITSTATUS(status))


def main() -> NoReturn:
    """Supervise the rank of a supervised job; of another job, become the training."""
    words = sys.argv[1:]
    folder = os.environ.get(ATTEMPT_VARIABLE)
    if folder is None:
        become(rank_command(words))
    rank = RankSupervisor(words, Path(folder))
    status, ended_at = rank.watch(), time.time()
    rank.drain()
    rank.report(status, ended_at)
    for path, made in rank.locks.items():
        if lock_made(path) == made:
            with suppress(OSError):
                path.unlink()
    leave(status)


if __name__ == "__main__":
    main()
