"""Fork a watchdog, which ends the job if zerowiz itself is killed."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from zerowiz.emit.processes import (
    FORWARDED_SIGNALS,
    PATIENCE_S,
    AttemptFolder,
    end_job,
    read_pid_namespace,
    send,
)

_POLL_S = 0.1
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
        time.sleep(_POLL_S)
        folder.read_new()
    end_job(job_variable, launcher, PATIENCE_S)
