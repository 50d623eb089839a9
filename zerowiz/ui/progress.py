"""Show how long a wait has lasted and how far it has come, where somebody is looking."""

import sys
import threading
from typing import TYPE_CHECKING, Self, TextIO

from zerowiz.ui.text import is_dumb, plain

if TYPE_CHECKING:
    from rich.progress import Progress


# What takes no longer needs no words.
_SHOWN_AFTER_S = 0.5
# Of what is done, and how long that took.
_COUNT_COLUMNS = 24


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
        self._label = self._words = plain(label)
        self._stream = stream
        self._total = total
        self._done = 0
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
            self._words = plain(f"{self._label}: {what}")
            self._update()

    def done(self, name: str) -> None:
        """One of the things is done."""
        del name
        with self._lock:
            self._done += 1
            self._update()

    def _update(self) -> None:
        if self._drawn is not None:
            self._drawn.update(self._task, description=self._words, completed=self._done)

    def _show(self) -> None:
        with self._lock:
            if self._has_ended or self._stream is None:
                return
            if is_dumb():
                self._stream.write(f"{self._words} ...\n")
                return
            self._drawn = _draw(self._stream, is_counted=self._total is not None)
            self._task = self._drawn.add_task(self._words, total=self._total, completed=self._done)
            self._drawn.start()


def _draw(stream: TextIO, *, is_counted: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(file=stream, no_color=True)
    room = max(console.width - _COUNT_COLUMNS, 1)
    words = Column(no_wrap=True, overflow="ellipsis", max_width=room)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=words),
        *([MofNCompleteColumn(" of ")] if is_counted else []),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Else what goes to stdout would be shown on this stream, though stdout may be a file.
        redirect_stdout=sys.stdout.isatty(),
    )
