"""Show how long a wait has lasted and how far it has come, where somebody is looking."""

import sys
import threading
import time
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
        usual_seconds: How long it takes as a rule, where nothing is counted.
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None,
        total: int | None = None,
        usual_seconds: int | None = None,
    ) -> None:
        self._label = label
        self._stream = stream
        self._pace = Pace(total, usual_seconds)
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
            self._pace.advance()
            self._update()

    @property
    def _words(self) -> str:
        return plain(f"{self._label}: {self._now}" if self._now else self._label)

    def _update(self) -> None:
        if self._drawn is not None:
            self._drawn.update(self._task, description=self._words, completed=self._pace.done)

    def _show(self) -> None:
        with self._lock:
            if self._has_ended or self._stream is None:
                return
            if is_dumb():
                self._stream.write(f"{self._words} ({self._pace.words()})\n")
                return
            self._drawn = _draw(self._pace, self._stream)
            self._task = self._drawn.add_task(
                self._words, total=self._pace.total, completed=self._pace.done
            )
            self._drawn.start()


class Pace:
    """How long something has lasted, and how long it will."""

    def __init__(self, total: int | None, usual_seconds: int | None) -> None:
        self.total = total
        self.done = 0
        self._usual_s = usual_seconds
        self._began_s = self._done_at_s = time.monotonic()

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        self._done_at_s = time.monotonic()

    def left_s(self) -> float | None:
        """By the pace of what is done, or by what is usual; None where neither is known."""
        now_s = time.monotonic()
        if self.total is not None and self.done:
            each_s = (self._done_at_s - self._began_s) / self.done
            return max(0.0, each_s * (self.total - self.done) - (now_s - self._done_at_s))
        if self._usual_s is None:
            return None
        left_s = self._usual_s - (now_s - self._began_s)
        return left_s if left_s > 0 else None

    def words(self) -> str:
        """Such as `2 of 5, 0:12, about 0:18 left`."""
        counted = (
            [] if self.total is None else [_("{done} of {total}", done=self.done, total=self.total)]
        )
        left_s = self.left_s()
        left = [] if left_s is None else [_("about {clock} left", clock=_clock(left_s))]
        return listing([*counted, _clock(time.monotonic() - self._began_s), *left])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _draw(pace: Pace, stream: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task
    from rich.text import Text

    console = Console(file=stream)

    class Line(ProgressColumn):
        """What is waited for, as far as there is room, and how long that lasts."""

        def render(self, task: Task) -> Text:
            times = pace.words()
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
