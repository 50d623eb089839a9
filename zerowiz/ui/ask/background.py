"""Work out what an answer leads to beside the keyboard, so that no key waits for it."""

import threading
from collections.abc import Callable

PENDING = "..."
# What is known so soon is shown at once, without a line that flickers.
_AT_ONCE_SECONDS = 0.02


class Background:
    """A consequence that is worked out in a thread; of answers that are typed over, none is.

    Args:
        consequence: What an answer leads to, in a line.
        redraw: Called, in that thread, once it is known.
    """

    def __init__(self, consequence: Callable[[str], str], redraw: Callable[[], None]) -> None:
        self._consequence, self._redraw = consequence, redraw
        self._known: dict[str, str] = {}
        self._wanted: str | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._works = False

    def __call__(self, answer: str) -> str:
        """The line, or PENDING until it is known."""
        with self._lock:
            if answer in self._known:
                return self._known[answer]
            self._wanted = answer
            self._done.clear()
            if not self._works:
                self._works = True
                # A job that is launched, or an end by Ctrl-C, waits for no thread.
                threading.Thread(target=self._work, daemon=True).start()
        self._done.wait(_AT_ONCE_SECONDS)
        return self._known.get(answer, PENDING)

    def _work(self) -> None:
        while True:
            with self._lock:
                answer = self._wanted
                if answer is None or answer in self._known:
                    self._works = False
                    self._done.set()
                    break
            line = self._consequence(answer)
            with self._lock:
                self._known[answer] = line
        self._redraw()
