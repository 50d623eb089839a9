"""Show how long a wait has lasted and how far it has come, where somebody is looking."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TextIO

from zerowiz.translation import _, listing
from zerowiz.ui.text import cells, is_dumb, plain

if TYPE_CHECKING:
    from rich.progress import Progress


# What takes no longer needs no words.
_SHOWN_AFTER_S = 0.5


class TerminalWait:
    """A line that tells of a wait and is gone after it; nothing where no terminal is.

    A terminal that cannot move its cursor gets one plain line.

    Args:
        label: What is waited for: `tracing the model`.
        stream: Where it is shown; None shows it nowhere.
        total: How many things are done one after the other; None where they are not counted.
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None,
        total: int | None = None,
    ) -> None:
        self._label = label
        self._stream = stream
        self._total = total
        self._done = 0
        self._began_s = time.monotonic()
        self._now = ""
        self._lock = threading.Lock()
        self._has_ended = False
        self._drawn: Progress | None = None
        self._timer = threading.Timer(_SHOWN_AFTER_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._has_ended = True
            if self._drawn is not None:
                self._drawn.stop()

    def at(self, what: str) -> None:
        """What it waits for now."""
        with self._lock:
            self._now = what
            self._update()

    def done(self, name: str) -> None:
        """One of the things is done."""
        del name
        with self._lock:
            self._done += 1
            self._update()

    @property
    def _words(self) -> str:
        return plain(f"{self._label}: {self._now}" if self._now else self._label)

    def _progress(self) -> str:
        """Such as `2 of 5, 0:12`."""
        clock = _clock(time.monotonic() - self._began_s)
        if self._total is None:
            return clock
        return listing([_("{done} of {total}", done=self._done, total=self._total), clock])

    def _update(self) -> None:
        if self._drawn is not None:
            self._drawn.update(self._task, description=self._words, completed=self._done)

    def _show(self) -> None:
        with self._lock:
            if self._has_ended or self._stream is None:
                return
            if is_dumb():
                self._stream.write(f"{self._words} ({self._progress()})\n")
                return
            self._drawn = _draw(self._progress, self._stream)
            self._task = self._drawn.add_task(self._words, total=self._total, completed=self._done)
            self._drawn.start()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _draw(progress: Callable[[], str], stream: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task
    from rich.text import Text

    console = Console(file=stream)

    class Line(ProgressColumn):
        """What is waited for, as far as there is room, and how long that lasts."""

        def render(self, task: Task) -> Text:
            times = progress()
            label = Text(task.description)
            label.truncate(max(0, console.width - cells(times) - 2), overflow="ellipsis")
            return label.append(f"  {times}")

    return Progress(
        Line(),
        console=console,
        transient=True,
        # Else what goes to stdout would be shown on this stream, though stdout may be a file.
        redirect_stdout=sys.stdout.isatty(),
    )
