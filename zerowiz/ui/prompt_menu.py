"""What a question offers, and what its answers lead to, worked out beside the keyboard."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from zerowiz.core.decision.questions import AnswerKind, Choice, Question
from zerowiz.translation import _

# Work out what an answer leads to beside the keyboard, so that no key waits for it.

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
        # Once the question is answered its loop is closed.
        with suppress(RuntimeError):
            self._redraw()


MUST_CHOOSE = frozenset({AnswerKind.CHOICE, AnswerKind.CONFIRM})
"""What is answered by a choice alone; elsewhere what is typed is an answer, too."""

_YES_OR_NO = (Choice(value="yes", title=_("yes")), Choice(value="no", title=_("no")))


def choices_of(question: Question) -> tuple[Choice, ...]:
    """What can be chosen; empty where the answer is typed."""
    return _YES_OR_NO if question.kind is AnswerKind.CONFIRM else question.choices


def as_answer(typed: str) -> str:
    """A typed path, without what only a shell understands, or only completion needs."""
    path = os.path.expanduser(typed) if typed.startswith("~") else typed  # noqa: PTH111 - a prefix
    return path.rstrip("/") or path
