"""Leave somebody behind who ends the job, should zerowiz itself be killed."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from zerowiz.emit.attempt import AttemptFolder
from zerowiz.emit.processes import FORWARDED, PATIENCE_S, end_job, read_space

_POLL_S = 0.1
_ALL_IS_WELL = b"."


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogOrders:
    """What binds the heir: a pipe that closes when this process is gone, however it went."""

    lifeline: int

    def name(self, launcher: int) -> None:
        """Tell who the launcher is."""
        self.tell(f"{launcher}\n".encode())

    def tell(self, what: bytes) -> None:
        """Say something; an heir that was killed itself is not missed."""
        with suppress(BrokenPipeError):
            os.write(self.lifeline, what)


@contextmanager
def watchdog(mark: str, folder: Path, grace_s: float) -> Iterator[WatchdogOrders]:
    """Have a process beside this one that outlives it for as long as the job does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        _inherit(reader, mark, folder, grace_s)
    os.close(reader)
    try:
        will = WatchdogOrders(lifeline=writer)
        yield will
        will.tell(_ALL_IS_WELL)
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


def _inherit(lifeline: int, mark: str, folder: Path, grace_s: float) -> NoReturn:
    """Wait for the end of the parent, and end its job unless it had done so."""
    try:
        os.setsid()
        for each in FORWARDED:
            signal.signal(each, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        said = b""
        while chunk := os.read(lifeline, 64):
            said += chunk
        if not said.endswith(_ALL_IS_WELL):
            _end(int(said) if said else None, mark, folder, grace_s)
    finally:
        os._exit(0)


def _end(launcher: int | None, mark: str, path: Path, grace_s: float) -> None:
    """Give the ranks the grace, then end all."""
    folder, space = AttemptFolder(path), read_space()
    folder.tell_to_end()
    until = time.monotonic() + grace_s
    folder.look()
    while any(rank.runs_here(space) for rank in folder.ranks.values()):
        if time.monotonic() > until:
            break
        time.sleep(_POLL_S)
        folder.look()
    end_job(mark, launcher, PATIENCE_S)
