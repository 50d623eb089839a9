"""Start a job and watch over it until none of its processes is left."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from zerowiz.core.outcome.verdict import JobEnd
from zerowiz.emit.attempt import AttemptFolder
from zerowiz.emit.job import SupervisedJob, Watch
from zerowiz.emit.processes import ENDING, FORWARDED, adopt_orphans, read_children, read_space
from zerowiz.emit.watchdog import watchdog
from zerowiz.errors import PreflightError

__all__ = ["Watch", "supervise", "watched_env"]


def watched_env(watch: Watch) -> dict[str, str]:
    """What tells the ranks, on every node, that they are watched, and by whom."""
    return {
        "ZEROWIZ_ATTEMPT": str(watch.folder),
        "ZEROWIZ_SUPERVISOR": read_space(),
        "ZEROWIZ_GRACE_S": str(watch.grace_s),
    }


def supervise(
    argv: Sequence[str], environ: Mapping[str, str], watch: Watch, told: Sequence[int] = ()
) -> JobEnd:
    """Run the job to its end; none of its processes is left on this host then.

    Signals are handed on to the ranks. The first that asks for an end gives them the grace, the
    second ends it.

    Args:
        argv: DeepSpeed's launcher, with `worker/rank.py` before the script.
        environ: The job's whole environment.
        watch: What is watched.
        told: Signals that have come before, as of `noted_signals`: they are for this job too.

    Raises:
        PreflightError: The command could not be started.
    """
    adopt_orphans()
    AttemptFolder(watch.folder).open()
    mark = f"ZEROWIZ_ATTEMPT={watch.folder}"
    with _signals() as inbox, watchdog(mark, watch.folder, watch.grace_s) as will:
        others = read_children(os.getpid())
        launcher = _start(argv, {**environ, **watched_env(watch)})
        will.name(launcher.pid)
        job = SupervisedJob(watch, launcher, inbox, mark, others)
        try:
            for number in told:
                os.kill(os.getpid(), number)
            job.follow()
        finally:
            job.end()
        return job.judge()


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor on which the numbers of the signals arrive; what was ignored stays ignored."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    heard = [each for each in FORWARDED if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, _note) for each in (*heard, signal.SIGCHLD)}
    wakeup_before = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for each, handler in before.items():
            signal.signal(each, handler)
        unheard = _read(reader)
        os.close(reader)
        os.close(writer)
        for number in unheard:
            if number in ENDING:
                os.kill(os.getpid(), number)


def _read(reader: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(reader, 1024)
    return b""


def _note(_number: int, _frame: object) -> None:
    """The wake-up descriptor has it."""


def _ignore_users_signals() -> None:
    """Some schedulers signal every process, and these would end DeepSpeed's launcher.

    `worker/rank.py` gives them back to the training.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _start(argv: Sequence[str], environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - no shell is wanted
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_ignore_users_signals,  # noqa: PLW1509 - no thread is about
        )
    except OSError as error:
        raise PreflightError(f"cannot start `{argv[0]}`: {error.strerror}") from error
