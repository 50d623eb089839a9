"""Start a job, supervise it, pass on signals, and collect how its ranks ended."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from zerowiz.core.job_end import KILLED, STDOUT_UNREAD, JobEnd, RankEnd, judge
from zerowiz.core.launch.plan import PROGRESS_VARIABLE, LaunchPlan
from zerowiz.core.structs import replace
from zerowiz.emit.files import release, write_held
from zerowiz.emit.processes import (
    ATTEMPT_VARIABLE,
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    GRACE_VARIABLE,
    PATIENCE_S,
    SUPERVISOR_VARIABLE,
    AttemptFolder,
    Connections,
    ProcessStat,
    adopt_orphans,
    compiled_op,
    end_job,
    handling,
    is_alive,
    read_children,
    read_pid_namespace,
    read_stat,
    read_trees,
    send,
    tell,
    watchdog,
)
from zerowiz.errors import PreflightError

# Keep signals from changing the exit status once the job is over and its status is known.
#
# A scheduler ends the zerowiz processes of the other nodes once the first has failed
# (srun --kill-on-bad-exit). One that died of that signal would hide the status of the rank that
# failed.


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect the numbers of the signals that ask for an end, in a list that grows."""
    received: list[int] = []
    with handling(ENDING_SIGNALS, lambda number, _frame: received.append(number)):
        yield received


def ignore_signals() -> None:
    """Ignore requests to end from here to the exit: the exit status is known and stays."""
    for ending_signal in ENDING_SIGNALS:
        signal.signal(ending_signal, signal.SIG_IGN)


_POLL_S = 0.2
# From the end of a rank until its supervisor has written how it ended; more than that takes to
# drain the rank's output (`worker/rank.py`, DRAIN_S).
WRITTEN_S = 5.0
# How much later the files of another node's ranks show, on a file system that shows them late.
_REMOTE_FILES_S = 5.0
_REFRESH_S = 2.0
# The share of a CPU that a rank uses which waits for no other.
_COMPUTES = 0.1
# How long no rank writes until its processes are looked at: to read them all takes milliseconds.
_QUIET_S = 1.0


class Watch(Struct, frozen=True, kw_only=True):
    """What is supervised, and for how long its ranks may save."""

    folder: Path
    """Of this attempt alone; absolute, and shared between the nodes where they share anything."""
    ranks: int
    """The count of the whole job."""
    local_ranks: tuple[int, ...] | None
    """The ranks that this host is to run; None where a launcher distributes them to the hosts."""
    grace_s: float
    """For ranks to save and end, until they are killed."""
    stopped_s: float = 25.0
    """How long a process may stand still until that is said."""
    deadline_s: float = float("inf")
    """After which it is asked to end."""
    silent_s: float = 120.0
    """How long all ranks may take no step and write no line until that is said."""
    hosts: tuple[str, ...] = ()
    """The nodes that a launcher here keeps connections to, in order; each has as many ranks."""


class SupervisedJob:
    """A job that runs, from its launcher's start until none of its processes is left.

    Args:
        watch: What is supervised.
        folder: Of the attempt, created.
        launcher: The process of DeepSpeed's launcher.
        inbox: A descriptor on which the numbers of signals arrive.
        job_variable: As in `find_job`.
        unrelated: Children of this process that do not belong to the job.
        notice: Hears what a person should know while it runs.
    """

    def __init__(
        self,
        watch: Watch,
        folder: AttemptFolder,
        launcher: "subprocess.Popen[bytes]",
        inbox: int,
        job_variable: str,
        unrelated: frozenset[int],
        notice: Callable[[str], None],
    ) -> None:
        self.watch = watch
        self.launcher = launcher
        self.inbox = inbox
        self.job_variable = job_variable
        self.unrelated = unrelated
        self.notice = notice
        self.stopped_since: dict[int, float] = {}
        self.sign_ns, self.sign_at = 0, time.monotonic()
        self.silent_s = watch.silent_s
        self.ticks: dict[int, int] = {}
        self.pid_namespace = read_pid_namespace()
        self.folder = folder
        self.connections = Connections(launcher.pid, watch.hosts, watch.ranks)
        self.refresh_at = 0.0
        self.stopped_by: int | None = None
        self.stopped_at: float | None = None
        self.asked_to_end: set[int] = set()
        self.killed_at: dict[int, float] = {}
        self.gone_at: dict[int, float] = {}
        self.kill_at = float("inf")
        self.deadline_at = time.monotonic() + watch.deadline_s

    def follow(self) -> None:
        """Pass on signals and watch the ranks until the job is over, or the grace period is."""
        while time.monotonic() < self.kill_at:
            select.select(
                [self.inbox], [], [], min(_POLL_S, max(0, self.kill_at - time.monotonic()))
            )
            # Before the files are read: a rank that ends of a signal has not failed by itself.
            self.receive()
            if time.monotonic() > self.deadline_at:
                self.deadline_at = float("inf")
                self.stop(signal.SIGTERM)
            # It is not reaped, so no other process gets its pid.
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            is_gone = os.waitid(os.P_PID, self.launcher.pid, options) is not None
            self.read_folder()
            # Those that started only after the signal to end had come.
            if self.stopped_by is not None:
                for rank in self.ranks_here() - self.asked_to_end:
                    self.signal(rank, self.stopped_by)
            self.note_stopped()
            self.note_silent()
            if is_gone and not self.ranks_here():
                return
            has_failed = self.has_failed()
            if is_gone or has_failed:
                self.start_grace()
            # The launcher of one host ends the other ranks of that host alone.
            if is_gone or (has_failed and self.spans_hosts()):
                self.folder.order_end()

    def receive(self) -> None:
        """Pass on the signals that have arrived."""
        try:
            numbers = os.read(self.inbox, 1024)
        except BlockingIOError:
            return
        # A rank that has started since the files were read gets them too.
        self.folder.read_new()
        for number in numbers:
            if number in ENDING_SIGNALS:
                self.stop(number)
            if number in FORWARDED_SIGNALS:
                self.folder.append_order(str(number))
                for rank in self.ranks_here():
                    self.signal(rank, number)

    def stop(self, number: int) -> None:
        """Start the grace period at the first request to end; at the second, end it at once."""
        if self.stopped_by is not None or not self.folder.ranks:
            self.kill_at = 0.0
        self.stopped_by = self.stopped_by or number
        self.stopped_at = self.stopped_at or time.time()
        self.start_grace()

    def start_grace(self) -> None:
        """Have the ranks killed after the grace period, unless an earlier one runs already."""
        self.kill_at = min(self.kill_at, time.monotonic() + self.watch.grace_s)

    def signal(self, rank: int, number: int) -> None:
        """Signal a rank of this host itself, and never its launcher."""
        send(self.folder.ranks[rank].process, number)
        self.asked_to_end |= {rank} if number in ENDING_SIGNALS else set()

    def note_stopped(self) -> None:
        """Say, once, which process of the job has stood still for a while; the others wait."""
        now, before = time.monotonic(), self.stopped_since
        names = {self.launcher.pid: "DeepSpeed's launcher"}
        for number in self.ranks_here():
            rank = self.folder.ranks[number]
            names |= dict.fromkeys((rank.process.pid, rank.supervisor.pid), f"rank {number}")
        stats = map(read_stat, names)
        stopped = [stat.process.pid for stat in stats if stat is not None and stat.is_stopped]
        self.stopped_since = {pid: before.get(pid, now) for pid in stopped}
        for pid, since in self.stopped_since.items():
            if now - since > self.watch.stopped_s:
                self.stopped_since[pid] = float("inf")
                self.notice(
                    f"{names[pid]} has been stopped for {self.watch.stopped_s:.0f} s, and the job"
                    f" waits for it; it goes on with `kill -CONT {pid}`"
                )

    def note_silent(self) -> None:
        """Say which ranks compute where none has taken a step or written a line for long.

        A rank that loops while the others wait for it ends nothing. After each note the patience
        doubles: steps may take as long.
        """
        now, sign_ns = time.monotonic(), self.folder.last_sign_ns()
        if sign_ns != self.sign_ns:
            self.sign_ns, self.sign_at, self.ticks = sign_ns, now, {}
        elif not self.ticks and now - self.sign_at > _QUIET_S:
            self.ticks = {
                stat.process.pid: stat.cpu_ticks
                for tree in self.rank_trees().values()
                for stat in tree
            }
        elif self.ticks and now - self.sign_at > self.silent_s:
            trees = self.rank_trees()
            did = {number: self.work_of(number, tree) for number, tree in trees.items()}
            busy = {number: work for number, work in did.items() if work is not None}
            # Where none computes, each of them waits, and shows for what.
            first, *_others = busy or trees or self.folder.ranks
            self.notice(
                f"no rank has taken a step or written a line for {self.silent_s:.0f} s; meanwhile "
                f"{', '.join(busy.values()) or 'no rank computed'}. "
                f"`py-spy dump --pid {self.folder.ranks[first].process.pid}` shows where rank "
                f"{first} is"
            )
            self.silent_s *= 2

    def work_of(self, number: int, tree: Sequence[ProcessStat]) -> str | None:
        """What a rank has computed since all fell silent, in words; None where it waits."""
        used = {stat: stat.cpu_ticks - self.ticks.get(stat.process.pid, 0) for stat in tree}
        if sum(used.values()) <= self.silent_s * os.sysconf("SC_CLK_TCK") * _COMPUTES:
            return None
        op, busiest = compiled_op(tree), max(used, key=lambda stat: used[stat])
        if op is not None:
            return f"rank {number} compiled `{op}`"
        if busiest.process == self.folder.ranks[number].process:
            return f"rank {number} computed"
        return f"rank {number} computed in its child process {busiest.process.pid} ({busiest.name})"

    def rank_trees(self) -> dict[int, list[ProcessStat]]:
        """The processes of each rank of this host: a compiler is a child of its child."""
        here = self.ranks_here()
        return (
            read_trees({rank: self.folder.ranks[rank].process.pid for rank in here}) if here else {}
        )

    def ranks_here(self) -> set[int]:
        """The ranks that run on this host."""
        ranks = self.folder.ranks.values()
        return {rank.rank for rank in ranks if rank.runs_in(self.pid_namespace)}

    def has_failed(self) -> bool:
        """Whether a rank has failed, or its node no longer answers."""
        return bool(self.lost_ranks()) or any(end.status != 0 for end in self.folder.ends.values())

    def lost_ranks(self) -> frozenset[int]:
        """The ranks of nodes that no longer answer."""
        return frozenset().union(*self.connections.lost(self.folder.ends).values())

    def spans_hosts(self) -> bool:
        """Whether ranks run on other hosts too."""
        return any(rank.pid_namespace != self.pid_namespace for rank in self.folder.ranks.values())

    def read_folder(self) -> None:
        """Read what is new in the folder, which other hosts may write to."""
        is_ours_alone = len(self.watch.local_ranks or ()) == self.watch.ranks
        if not is_ours_alone and time.monotonic() > self.refresh_at:
            self.folder.refresh()
            self.refresh_at = time.monotonic() + _REFRESH_S
        self.folder.read_new()
        here = self.pid_namespace
        for number, rank in self.folder.ranks.items():
            if rank.pid_namespace == here and not rank.runs_in(here):
                self.gone_at.setdefault(number, time.time())

    def end(self) -> None:
        """End every process of the job on this host."""
        patience_s = dict(PATIENCE_S)
        if time.monotonic() >= self.kill_at:
            self.kill_ranks()
            del patience_s[signal.SIGTERM]
        end_job(self.job_variable, self.launcher.pid, patience_s, self.unrelated)
        self.launcher.wait()

    def kill_ranks(self) -> None:
        """Kill the ranks before anything else, so that their supervisors write how they ended."""
        self.folder.read_new()
        self.folder.order_end()
        for number, rank in self.folder.ranks.items():
            if rank.pid_namespace == self.pid_namespace and is_alive(rank.process):
                self.killed_at[number] = time.time()
                send(rank.process, signal.SIGKILL)
        until = time.monotonic() + WRITTEN_S
        while self.ranks_here() and time.monotonic() < until:
            time.sleep(_POLL_S / 4)

    def judge(self) -> JobEnd:
        """How the job ended, from all that its ranks and its launcher left behind."""
        self.folder.read_new()
        self.wait_for_remote_ends()
        # A scheduler signals the ranks and zerowiz at the same time, and the ranks may be faster.
        self.receive()
        ranks, ends = self.folder.ranks, dict(self.folder.ends)
        for number, at in self.killed_at.items():
            if number in ends and ends[number].status == KILLED:
                asked_at = ends[number].asked_at or at
                ends[number] = replace(ends[number], asked_at=asked_at, memory=None)
        expected = set(ranks) if self.watch.local_ranks is None else {*self.watch.local_ranks}
        now = time.time()
        lost = [
            RankEnd(
                rank=number,
                host=ranks[number].host,
                status=None,
                ended_at=self.gone_at.get(number, now),
                asked_at=self.killed_at.get(number),
            )
            for number in sorted(expected & ranks.keys() - ends.keys())
        ]
        return judge(
            (*ends.values(), *lost),
            launcher_status=self.launcher.returncode,
            ranks=len(expected | ends.keys()),
            stopped_by=self.stopped_by,
            stopped_at=self.stopped_at,
            lost=self.lost_ranks(),
        )

    def wait_for_remote_ends(self) -> None:
        """Wait until the ranks of other hosts have written how they ended.

        Where each host has its own supervisor, this one answers for its own ranks, and waits for
        the others only after a failure.
        """
        local_ranks = self.watch.local_ranks
        if local_ranks is not None:
            ended_well = self.launcher.returncode in {0, STDOUT_UNREAD}
            went_well = ended_well and {*local_ranks} <= self.folder.ends.keys()
            if not went_well and self.stopped_by is None:
                # The other nodes learn of a launcher that failed, or a lost rank, by this alone.
                self.folder.order_end()
            if not self.has_failed():
                return
        patience_s = _REMOTE_FILES_S
        if self.has_failed() and self.spans_hosts():
            self.folder.order_end()
            patience_s += self.watch.grace_s
        until = time.monotonic() + patience_s
        while any(
            rank.pid_namespace != self.pid_namespace
            and number not in self.folder.ends.keys() | self.lost_ranks()
            for number, rank in self.folder.ranks.items()
        ):
            self.receive()
            if time.monotonic() > until or self.kill_at == 0:
                return
            time.sleep(_POLL_S)
            self.read_folder()


# Start a job and supervise it until none of its processes is left on this host.


def watched_env(watch: Watch) -> dict[str, str]:
    """The variables that tell the ranks, on every node, that they are supervised, and by whom."""
    return {
        ATTEMPT_VARIABLE: str(watch.folder),
        SUPERVISOR_VARIABLE: read_pid_namespace(),
        GRACE_VARIABLE: str(watch.grace_s),
    }


def supervise(
    argv: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    received: Sequence[int] = (),
    notice: Callable[[str], None] = lambda _: None,
    stdout: int | None = None,
) -> JobEnd:
    """Run the job to its end; none of its processes is left on this host then.

    Signals are passed on to the ranks. The first one that asks for an end starts the grace period,
    the second ends the job at once.

    Args:
        argv: DeepSpeed's launcher, with `worker/rank.py` before the script.
        environ: The job's whole environment.
        watch: What is supervised.
        received: Signals that came before, of `noted_signals`; they count for this job too.
        notice: Hears what a person should know while the job runs.
        stdout: The descriptor that the job writes its output to; None for that of this process.

    Raises:
        PreflightError: The command could not be started.
    """
    adopt_orphans()
    folder = AttemptFolder(watch.folder)
    folder.create(notice)
    job_variable = f"{ATTEMPT_VARIABLE}={watch.folder}"
    with (
        closing(folder),
        _signals() as inbox,
        watchdog(job_variable, folder, watch.grace_s) as pipe,
    ):
        unrelated = read_children(os.getpid())
        launcher = _start(argv, {**environ, **watched_env(watch), **folder.memory_env()}, stdout)
        tell(pipe, f"{launcher.pid}\n".encode())
        job = SupervisedJob(watch, folder, launcher, inbox, job_variable, unrelated, notice)
        try:
            for number in received:
                os.kill(os.getpid(), number)
            job.follow()
        finally:
            job.end()
        return job.judge()


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor on which the numbers of the signals arrive; an ignored signal stays ignored."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Python writes the number to the wake-up descriptor: there is nothing more to do.
        with handling((*FORWARDED_SIGNALS, signal.SIGCHLD), lambda _number, _frame: None):
            wakeup_before = signal.set_wakeup_fd(writer)
            yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        unread = b""
        with suppress(BlockingIOError):
            unread = os.read(reader, 1024)
        os.close(reader)
        os.close(writer)
        for number in unread:
            if number in ENDING_SIGNALS:
                os.kill(os.getpid(), number)


def _ignore_user_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2 in DeepSpeed's launcher, which they would end.

    Some schedulers signal every process. `worker/rank.py` gives the training its handlers back.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _start(
    argv: Sequence[str], environ: Mapping[str, str], stdout: int | None
) -> "subprocess.Popen[bytes]":
    if PROGRESS_VARIABLE in environ:
        _say_start()
    try:
        return subprocess.Popen(  # noqa: S603 - no shell is wanted
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,
            preexec_fn=_ignore_user_signals,  # noqa: PLW1509 - this process has no other thread
        )
    except OSError as error:
        raise _cannot_start(argv, error) from error


def _cannot_start(argv: Sequence[str], error: OSError) -> PreflightError:
    return PreflightError(
        f"cannot start `{argv[0]}`: {error.strerror}",
        "see what the launch needs: `zerowiz doctor SCRIPT`",
    )


def _say_start() -> None:
    """Begin the line of a person who looks on; rank 0 goes on with it (`worker/first_steps.py`)."""
    sys.stderr.write("zerowiz: starting DeepSpeed\r")
    sys.stderr.flush()


# How often it is looked whether the launcher still runs.
_LOOK_S = 1.0


def _await_ctrl_c(launcher: int) -> NoReturn:
    """Beside a launcher that ignores Ctrl-C, say that it came, and end what has no ranks yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The launcher alone holds the files of the job.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while os.getppid() == launcher:
        if signal.sigtimedwait({signal.SIGINT}, _LOOK_S) is None:
            continue
        os.write(2, b"\x1b[2K\rinterrupted\n")
        children = read_children(launcher)
        # The launcher of a node ends its ranks itself (deepspeed 0.19.8, launcher/launch.py).
        if not any(map(read_children, children)):
            for pid in (launcher, *children - {os.getpid()}):
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
        break
    os._exit(0)


# Execute a LaunchPlan: write its files, then replace this process by the job.


def execute(plan: LaunchPlan, environ: Mapping[str, str], *, force: bool = False) -> NoReturn:
    """Write the plan's files and replace this process by its command.

    Raises:
        HandEditedError: A file was changed by hand, and `force` is off; no file is written then.
        ZerowizError: A file could not be written, or the command could not be started.
    """
    # The command inherits the descriptors, and so holds the files.
    write_held(plan.files, force=force)
    sys.stdout.flush()
    sys.stderr.flush()
    if PROGRESS_VARIABLE in plan.env:
        # Ctrl-C reaches the ranks, and ends them: of the launcher it would only make a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say_start()
        if not os.fork():
            _await_ctrl_c(os.getppid())
    try:
        os.execvpe(plan.argv[0], plan.argv, plan.environ(environ))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise _cannot_start(plan.argv, error) from error


# Run a script for some optimizer steps, under the launcher that a launch starts.

# `worker/measured_script.py` reads it.
STEPS_VARIABLE = "ZEROWIZ_MEASURED_STEPS"


def run_own_script(
    plan: LaunchPlan,
    watch: Watch,
    steps: int,
    environ: Mapping[str, str],
    *,
    force: bool = False,
) -> JobEnd:
    """Launch the script as `launch` does; its ranks end after so many optimizer steps.

    What it writes to stdout goes to stderr: stdout is for results.

    Args:
        plan: The launch.
        watch: What is supervised; in its folder the ranks report.
        steps: After which the ranks end.
        environ: The caller's environment.
        force: Whether files that somebody changed are overwritten.

    Raises:
        ZerowizError: It could not be started.
    """
    held = write_held(plan.files, force=force)
    measured = {STEPS_VARIABLE: str(steps)}
    try:
        return supervise(
            plan.argv, {**plan.environ(environ), **measured}, watch, stdout=sys.stderr.fileno()
        )
    finally:
        release(held)
        _drop_shared_memory(plan.master_port)


def _drop_shared_memory(port: int | None) -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    pattern = f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"
    for buffer in Path("/dev/shm").glob(pattern):  # noqa: S108 - DeepSpeed's own place
        buffer.unlink(missing_ok=True)
