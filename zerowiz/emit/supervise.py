"""Start a job and supervise it until none of its processes is left on this host."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from zerowiz.core.outcome.verdict import JobEnd
from zerowiz.emit.attempt_folder import (
    ATTEMPT_VARIABLE,
    GRACE_VARIABLE,
    SUPERVISOR_VARIABLE,
    AttemptFolder,
)
from zerowiz.emit.job import SupervisedJob, Watch
from zerowiz.emit.processes import (
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    adopt_orphans,
    read_children,
    read_pid_namespace,
)
from zerowiz.emit.watchdog import watchdog
from zerowiz.errors import PreflightError
from zerowiz.words import _

__all__ = ["Watch", "supervise", "watched_env"]


def watched_env(watch: Watch) -> dict[str, str]:
    """The variables that tell the ranks, on every node, that they are supervised, and by whom."""
    return {
        ATTEMPT_VARIABLE: str(watch.folder),
        SUPERVISOR_VARIABLE: read_pid_namespace(),
        GRACE_VARIABLE: str(watch.grace_s),
    }


def supervise(
    argv: Sequence[str], environ: Mapping[str, str], watch: Watch, received: Sequence[int] = ()
) -> JobEnd:
    """Run the job to its end; none of its processes is left on this host then.

    Signals are passed on to the ranks. The first one that asks for an end starts the grace period,
    the second ends the job at once.

    Args:
        argv: DeepSpeed's launcher, with `worker/rank.py` before the script.
        environ: The job's whole environment.
        watch: What is supervised.
        received: Signals that came before, of `noted_signals`; they count for this job too.

    Raises:
        PreflightError: The command could not be started.
    """
    adopt_orphans()
    folder = AttemptFolder(watch.folder)
    folder.create()
    job_variable = f"{ATTEMPT_VARIABLE}={watch.folder}"
    with (
        closing(folder),
        _signals() as inbox,
        watchdog(job_variable, folder, watch.grace_s) as pipe,
    ):
        unrelated = read_children(os.getpid())
        launcher = _start(argv, {**environ, **watched_env(watch), **folder.memory_env()})
        pipe.send_launcher(launcher.pid)
        job = SupervisedJob(watch, folder, launcher, inbox, job_variable, unrelated)
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
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    caught = [each for each in FORWARDED_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, _note) for each in (*caught, signal.SIGCHLD)}
    wakeup_before = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for each, handler in before.items():
            signal.signal(each, handler)
        unread = _read(reader)
        os.close(reader)
        os.close(writer)
        for number in unread:
            if number in ENDING_SIGNALS:
                os.kill(os.getpid(), number)


def _read(reader: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(reader, 1024)
    return b""


def _note(_number: int, _frame: object) -> None:
    """Do nothing: Python writes the number to the wake-up descriptor."""


def _ignore_user_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2 in DeepSpeed's launcher, which they would end.

    Some schedulers signal every process. `worker/rank.py` gives the training its handlers back.
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
            preexec_fn=_ignore_user_signals,  # noqa: PLW1509 - this process has no other thread
        )
    except OSError as error:
        raise PreflightError(
            _("cannot start `{argv}`: {strerror}", argv=argv[0], strerror=error.strerror),
            _("see what the launch needs: `zerowiz doctor SCRIPT`"),
        ) from error
