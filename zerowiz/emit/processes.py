"""The processes of a job on this host, what ends them, and the folder that its ranks report in."""

import ctypes
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from msgspec import Struct

from zerowiz.core.job_end import RankEnd, parse_end

_POLL_S = 0.02
_PROC = Path("/proc")
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED_SIGNALS = (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
# How long to wait after each signal until the next: the first is for processes that lost their
# launcher or were asked to end already, the second for those that ignore it.
PATIENCE_S = {signal.SIGTERM: 3.0, signal.SIGKILL: 30.0}


class Process(Struct, frozen=True, kw_only=True):
    """One process; its start time distinguishes it from a later one with the same pid."""

    pid: int
    start_ticks: int
    """Clock ticks from the boot to its start (proc(5), stat, field 22)."""


class ProcessStat(Struct, frozen=True, kw_only=True):
    """Fields of `/proc/PID/stat` (proc(5))."""

    process: Process
    parent: int
    group: int
    session: int
    cpu_ticks: int
    """What it has computed, with its children that have ended."""
    name: str
    is_dead: bool
    is_stopped: bool
    """Whether it stands still until a SIGCONT, or under a debugger."""


def read_stat(pid: int) -> ProcessStat | None:
    """What the kernel says of a process; None if no process has this pid."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in brackets, and may hold brackets and spaces itself.
    words = text.rpartition(b")")[2].split()
    return ProcessStat(
        process=Process(pid=pid, start_ticks=int(words[19])),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        cpu_ticks=sum(map(int, words[11:15])),
        name=os.fsdecode(text.partition(b"(")[2].rpartition(b")")[0]),
        is_dead=words[0] in {b"Z", b"X"},
        is_stopped=words[0] in {b"T", b"t"},
    )


def read_pid_namespace() -> str:
    """This boot and its PID namespace: processes of the same one can signal each other.

    `worker/rank.py` writes the same text for a rank.
    """
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"


def adopt_orphans() -> None:
    """Become the parent of the job's orphaned processes, instead of the host's first process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_alive(process: Process) -> bool:
    """Whether the process still runs; a zombie, whose parent has not waited for it, does not."""
    stat = read_stat(process.pid)
    return stat is not None and stat.process == process and not stat.is_dead


def send(process: Process, number: int) -> None:
    """Signal this process, and no later one with the same pid."""
    if is_alive(process):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _has_variable(pid: int, variable: bytes) -> bool:
    try:
        return variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _read_stats() -> dict[int, ProcessStat]:
    """Every process of this host, zombies included, by its pid."""
    pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]
    return {pid: stat for pid in pids if (stat := read_stat(pid)) is not None}


def read_children(parent: int) -> frozenset[int]:
    """The pids of a process's children, zombies included."""
    return frozenset(pid for pid, stat in _read_stats().items() if stat.parent == parent)


def read_trees(roots: Mapping[int, int]) -> dict[int, list[ProcessStat]]:
    """By each key, the process of its pid, and all that descend from it."""
    stats = _read_stats()
    return {
        key: [stats[pid] for pid in _descendants({root}, stats) if pid in stats]
        for key, root in roots.items()
    }


def compiled_op(tree: Iterable[ProcessStat]) -> str | None:
    """The op that torch compiles in one of these processes: ninja runs in the op's folder."""
    for stat in tree:
        if stat.name == "ninja":
            with suppress(OSError):
                return (_PROC / str(stat.process.pid) / "cwd").readlink().name
    return None


def find_job(
    job_variable: str, launcher: int | None, unrelated: Iterable[int] = ()
) -> set[Process]:
    """The job's living processes on this host; zombies among them that are our children are reaped.

    Those are the processes of its launcher's group and session, those with its variable in their
    environment, those that this process adopted, and all that descend from any of them.

    Args:
        job_variable: As `NAME=VALUE`; the job was started with it in its environment.
        launcher: The pid that it was started as, not yet waited for; None where it is not known.
        unrelated: Pids of children of this process that do not belong to the job.
    """
    stats = _read_stats()
    here, not_the_jobs = os.getpid(), {os.getpid(), *unrelated}
    wanted = os.fsencode(job_variable)  # a folder may have any name
    pids = {
        pid
        for pid, stat in stats.items()
        if pid not in not_the_jobs
        and (
            launcher in {stat.group, stat.session}
            or stat.parent == here
            or _has_variable(pid, wanted)
        )
    }
    pids |= _descendants(pids, stats) - not_the_jobs
    for pid in pids:
        if stats[pid].is_dead and stats[pid].parent == here and pid != launcher:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return {stats[pid].process for pid in pids if not stats[pid].is_dead}


def _descendants(roots: set[int], stats: Mapping[int, ProcessStat]) -> set[int]:
    pids, fresh = set(roots), set(roots)
    while fresh:
        fresh = {pid for pid, stat in stats.items() if stat.parent in fresh} - pids
        pids |= fresh
    return pids


def end_job(
    job_variable: str,
    launcher: int | None,
    patience_s: Mapping[signal.Signals, float],
    unrelated: Iterable[int] = (),
) -> int:
    """Send one signal after the other until no process of the job is left; how many are left.

    Args:
        job_variable: As in `find_job`.
        launcher: As in `find_job`.
        patience_s: How long to wait after each signal, in seconds, in order.
        unrelated: As in `find_job`.
    """

    def find() -> set[Process]:
        return find_job(job_variable, launcher, unrelated)

    left: set[Process] = set()
    for number, wait_s in patience_s.items():
        signalled: set[Process] = set()
        until = time.monotonic() + wait_s
        # A process that forked while /proc was read, and ended, has a child that was not seen.
        while left := find() or find():
            if time.monotonic() > until:
                break
            # A process can have been started since the last search.
            for process in left if number == signal.SIGKILL else left - signalled:
                send(process, number)
            signalled |= left
            time.sleep(_POLL_S)
        if not left:
            break
    return len(left)


# Find the nodes that pdsh has lost, by the `ssh` processes that it keeps.
#
# It keeps one `ssh` for each node, which ends when the node's command ends, or when the node no
# longer answers (`core/launch/plan.py`, KEEPALIVE). After a loss pdsh waits for the other
# nodes without end, and the ranks there wait for the lost ones.

_CONNECTIONS_POLL_S = 1.0
# From the end of an `ssh` until a shared file system shows how the ranks of its node ended.
_SETTLE_S = 5.0


class Connections:
    """The connections of one job.

    Args:
        launcher: The pid of DeepSpeed's runner, which starts pdsh.
        hosts: The nodes as the hostfile names them, in its order; empty without a hostfile.
        ranks: The count of the whole job; each node has as many.
    """

    def __init__(self, launcher: int, hosts: Sequence[str], ranks: int) -> None:
        self._launcher = launcher
        share = ranks // max(1, len(hosts))
        # deepspeed/launcher/launch.py (0.19.8): ranks go by the order of the hosts.
        self._ranks_of = {
            host: frozenset(range(number * share, (number + 1) * share))
            for number, host in enumerate(hosts)
        }
        self._gone_since: dict[str, float] = {}
        self._poll_at = 0.0

    def lost(self, ended: Collection[int]) -> dict[str, frozenset[int]]:
        """The nodes whose connection is gone, each with those of its ranks that left no end.

        Args:
            ended: The ranks that are known to have ended; a node all of whose ranks have is not
                lost.
        """
        now = time.monotonic()
        if self._ranks_of and now >= self._poll_at:
            self._poll_at = now + _CONNECTIONS_POLL_S
            for pid in read_children(self._launcher):
                if Path(_words(pid)[0]).name.startswith("pdsh"):
                    gone = self._ranks_of.keys() - _connected(pid, self._ranks_of)
                    self._gone_since = {host: self._gone_since.get(host, now) for host in gone}
        left = {host: self._ranks_of[host] - set(ended) for host in self._gone_since}
        return {
            host: ranks
            for host, ranks in left.items()
            if ranks and now - self._gone_since[host] >= _SETTLE_S
        }


def _connected(pid: int, hosts: Collection[str]) -> set[str]:
    """The hosts that pdsh has an `ssh` to."""
    clients = [_words(child) for child in read_children(pid)]
    # The first word that names a host: the command follows it, and may name other hosts.
    named = (next((word for word in words if word in hosts), None) for words in clients)
    return {host for host in named if host is not None}


def _words(pid: int) -> list[str]:
    """The command line of a process; an empty word where it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [""]
    return text.split("\0")


@contextmanager
def handling(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Within, a function hears of these signals; one that is ignored, as by `nohup`, stays so.

    But for SIGCHLD: where that is ignored, nobody can wait for a child.
    """
    caught = [
        number
        for number in numbers
        if number is signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


# End as Ctrl-C does where another signal asks for it, so that nothing is left behind.

# A terminal that is closed, and `kill` without a number.
_ENDING = (signal.SIGHUP, signal.SIGTERM)


@contextmanager
def ending_as_ctrl_c() -> Iterator[None]:
    """Within, a signal that asks for an end raises KeyboardInterrupt, once."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        for number in _ENDING:
            # What is done about the first is not to be broken off by a second.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handling(_ENDING, interrupt):
        yield


ATTEMPT_VARIABLE = "ZEROWIZ_ATTEMPT"
"""Environment variable: the path of this folder."""
SUPERVISOR_VARIABLE = "ZEROWIZ_SUPERVISOR"
"""Environment variable: the PID namespace of the supervisor, of `read_pid_namespace`."""
GRACE_VARIABLE = "ZEROWIZ_GRACE_S"
"""Environment variable: seconds from a request to end until a rank is killed."""
MEMORY_VARIABLE = "ZEROWIZ_REPORTS"
"""Environment variable: the path of the memory to which ranks of the supervisor's host report."""

MEASURED_FOLDER = "measured"
"""What the ranks have measured of their steps, a file for each (`worker/measured_script.py`)."""

ORDERS_FILE = "orders"
"""One order to a line: the number of a signal, or END_ORDER."""
END_ORDER = "end"


class RankProcess(Struct, frozen=True, kw_only=True):
    """A rank that was started, on this host or another."""

    rank: int
    host: str
    pid_namespace: str
    """Processes of one namespace can signal each other; of `read_pid_namespace`."""
    process: Process
    """The training."""
    supervisor: Process
    """`worker/rank.py`, which keeps the rank's output and writes how it ended."""

    def runs_in(self, pid_namespace: str) -> bool:
        """Whether the rank, or its supervisor, is a living process of this namespace."""
        return self.pid_namespace == pid_namespace and (
            is_alive(self.process) or is_alive(self.supervisor)
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def read_measured(folder: Path) -> dict[int, Mapping[str, object]]:
    """What each rank of an attempt has measured of its steps; ranks without a step are left out.

    Args:
        folder: Of the attempt.
    """
    read = {path: _read(path) for path in (folder / MEASURED_FOLDER).glob("rank-*.json")}
    return {
        int(path.stem.removeprefix("rank-")): content for path, content in read.items() if content
    }


class AttemptFolder:
    """What is known of the ranks. Each file is written whole, so it is read once.

    Args:
        path: Of the folder, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._memory: int | None = None
        self._memory_read = 0
        self.ranks: dict[int, RankProcess] = {}
        self.ends: dict[int, RankEnd] = {}
        self.has_ordered_end = False

    def read_new(self) -> None:
        """Read the reports and the files that were not there at the last call."""
        for content in self._read_memory():
            seen = self.ends if "status" in content else self.ranks
            if content["rank"] not in seen:
                self._take(content)
        with suppress(OSError):
            for path in self.path.glob("rank-*.json"):
                number, _, kind = path.name.removeprefix("rank-").partition(".")
                seen = self.ends if kind == "end.json" else self.ranks
                if int(number) not in seen and (written := _read(path)) is not None:
                    self._take(written)

    def _read_memory(self) -> Iterator[dict[str, Any]]:
        """What was reported to the memory since the last call, a line for each report."""
        if self._memory is None:
            return
        length = os.fstat(self._memory).st_size - self._memory_read
        *lines, _ = os.pread(self._memory, length, self._memory_read).split(b"\n")
        for line in lines:
            self._memory_read += len(line) + 1
            with suppress(ValueError):
                yield json.loads(line)

    def _take(self, content: dict[str, Any]) -> None:
        rank = content["rank"]
        if "status" in content:
            self.ends[rank] = parse_end(content, str(self.path / f"rank-{rank}.log"))
        else:
            self.ranks[rank] = RankProcess(
                rank=rank,
                host=content["host"],
                pid_namespace=content["space"],
                process=Process(**content["process"]),
                supervisor=Process(**content["beside"]),
            )

    def last_sign_ns(self) -> int:
        """When a rank last wrote a line or reported a step; 0 where none did, or no file says."""
        with suppress(OSError):
            files = (*self.path.glob("rank-*.log"), *self.path.glob(f"{MEASURED_FOLDER}/*.json"))
            stats = [file.stat() for file in files]
            return max((stat.st_mtime_ns for stat in stats if stat.st_size), default=0)
        return 0

    def create(self, notice: Callable[[str], None]) -> None:
        """Make the folder, an empty file of orders, and the memory, before the job starts."""
        self._memory = os.memfd_create("zerowiz-reports")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ORDERS_FILE).touch()
        except OSError as error:
            notice(f"the output of the ranks is not kept in files: {error}")

    def close(self) -> None:
        """Let go of the memory; what was read of it stays."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def memory_env(self) -> dict[str, str]:
        """The variable that tells the ranks of this host where they report, once it is created."""
        return {MEMORY_VARIABLE: f"/proc/{os.getpid()}/fd/{self._memory}"}

    def append_order(self, order: str) -> bool:
        """Leave an order for the rank supervisors; whether it could be written.

        Args:
            order: The number of a signal, or END_ORDER.
        """
        with suppress(OSError), (self.path / ORDERS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(f"{order}\n")
            return True
        return False

    def order_end(self) -> None:
        """Have every rank supervisor end its rank, on whichever host it is; written once."""
        if not self.has_ordered_end:
            self.has_ordered_end = self.append_order(END_ORDER)

    def refresh(self) -> None:
        """Change the folder: a network file system then shows what others wrote to it (nfs(5))."""
        with suppress(OSError):
            path = self.path / f"look-{socket.gethostname()}-{os.getpid()}"
            path.touch()
            path.unlink()


def is_gone(folder: Path) -> bool:
    """Whether every rank that an attempt started here has ended: nobody may have written how.

    Args:
        folder: Of the attempt.
    """
    attempt, here = AttemptFolder(folder), read_pid_namespace()
    attempt.read_new()
    running = [rank for rank in attempt.ranks.values() if rank.rank not in attempt.ends]
    is_known = all(rank.pid_namespace == here for rank in running)
    orders = folder / ORDERS_FILE
    # What watches zerowiz has ended the job, maybe before a rank started.
    was_ended = orders.is_file() and END_ORDER in orders.read_text(encoding="utf-8").split()
    has_begun = was_ended or bool(attempt.ranks)
    return has_begun and is_known and not any(rank.runs_in(here) for rank in running)


# Fork a watchdog, which ends the job if zerowiz itself is killed.

_WATCH_POLL_S = 0.1
_JOB_HAS_ENDED = b"."


def tell(pipe: int, message: bytes) -> None:
    """Send the watchdog a message: the pid of the launcher, with a line end behind it.

    Without effect where the watchdog itself was killed.
    """
    with suppress(BrokenPipeError):
        os.write(pipe, message)


@contextmanager
def watchdog(job_variable: str, folder: AttemptFolder, grace_s: float) -> Iterator[int]:
    """Run a watchdog for as long as the block runs; it outlives this process if that is killed.

    The block gets the pipe to it, which closes when this process is gone, for whatever reason.

    Args:
        job_variable: As in `find_job`.
        folder: Of the attempt, created.
        grace_s: How long the ranks have to save and end before they are killed, in seconds.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        _run(reader, job_variable, folder, grace_s)
    os.close(reader)
    try:
        yield writer
        tell(writer, _JOB_HAS_ENDED)
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


def _run(reader: int, job_variable: str, folder: AttemptFolder, grace_s: float) -> NoReturn:
    """Wait for the end of the parent, and end its job unless the parent has done so."""
    try:
        os.setsid()
        for forwarded_signal in FORWARDED_SIGNALS:
            signal.signal(forwarded_signal, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        received = b""
        while chunk := os.read(reader, 64):
            received += chunk
        if not received.endswith(_JOB_HAS_ENDED):
            _end(int(received) if received else None, job_variable, folder, grace_s)
    finally:
        os._exit(0)


def _end(launcher: int | None, job_variable: str, folder: AttemptFolder, grace_s: float) -> None:
    """Give the ranks the grace period, then end every process of the job."""
    pid_namespace = read_pid_namespace()
    folder.read_new()
    folder.order_end()
    if not folder.has_ordered_end:  # the folder is gone: no rank supervisor hears of it
        for rank in folder.ranks.values():
            if rank.pid_namespace == pid_namespace:
                send(rank.process, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while any(rank.runs_in(pid_namespace) for rank in folder.ranks.values()):
        if time.monotonic() > until:
            break
        time.sleep(_WATCH_POLL_S)
        folder.read_new()
    end_job(job_variable, launcher, PATIENCE_S)
