"""A pseudo-terminal for any program, with the time at which something stands on its screen."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte
from cli.harness import cpu_seconds

COLUMNS, LINES = 100, 60
ENTER, DOWN, UP, ESC, TAB, CTRL_C = "\r", "\x1b[B", "\x1b[A", "\x1b", "\t", "\x03"
# So long nothing comes once a question is drawn.
_QUIET_S = 0.4


class _Screen(pyte.Screen):  # type: ignore[misc]
    """Answers what programs ask a terminal, such as where its cursor is."""

    child: Any = None

    def write_process_input(self, data: str) -> None:
        """Send an answer."""
        if self.child is not None:
            self.child.send(data)


class PtyScreen:
    """One program at a terminal.

    Args:
        argv: The program and its words.
        folder: Where it runs.
        environ: Its whole environment.
        patience_s: For what it is waited for.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        patience_s: float = 60.0,
    ) -> None:
        self._screen = _Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._patience_s = patience_s
        self.received = b""
        self.began_s = time.perf_counter()
        program, *words = argv
        self.child = pexpect.spawn(
            program, words, cwd=str(folder), env=dict(environ), dimensions=(LINES, COLUMNS)
        )
        self.child.delaybeforesend = None
        self._screen.child = self.child

    @property
    def text(self) -> str:
        """What stands on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def _read(self, timeout_s: float) -> bool | None:
        """Take in what came; None where nothing did, False where the program has ended."""
        try:
            got = self.child.read_nonblocking(65536, timeout=timeout_s)
        except pexpect.TIMEOUT:
            return None
        except pexpect.EOF:
            return False
        self._stream.feed(got)
        self.received += got
        return True

    def wait(self, holds: Callable[[], bool]) -> float | None:
        """Seconds since now until it holds; None where it never does."""
        began_s = time.perf_counter()
        while not holds():
            if self._read(0.02) is False and not holds():
                return None
            if time.perf_counter() - began_s > self._patience_s:
                return None
        return time.perf_counter() - began_s

    def wait_for(self, words: str) -> bool:
        """Whether these words come to stand on the screen."""
        return self.wait(lambda: words in self.text) is not None

    def settle(self) -> bool:
        """Read on until nothing comes for a moment; whether the program still runs."""
        while (more := self._read(_QUIET_S)) is not None:
            if more is False:
                return False
        return True

    def redraw(self, key: str) -> float | None:
        """Seconds from a key to the last that is drawn for it; None where nothing is."""
        began_s = time.perf_counter()
        last_s: float | None = None
        self.child.send(key)
        while self._read(_QUIET_S):
            last_s = time.perf_counter() - began_s
        return last_s

    def press(self, keys: str) -> None:
        """Send keys, as they are."""
        self.child.send(keys)

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        return cpu_seconds(self.child.pid)

    def status(self) -> int:
        """Wait for its end; its exit status, or 128 and the number of the signal."""
        self.wait(lambda: False)
        return self.close()

    def close(self) -> int:
        """End it where it runs."""
        self.child.close(force=True)
        exit_status, signal_status = self.child.exitstatus, self.child.signalstatus
        return int(exit_status if exit_status is not None else 128 + signal_status)
