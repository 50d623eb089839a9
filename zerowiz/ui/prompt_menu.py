"""A menu of answers, what its keys do, and the paths that complete what is typed."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

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
        self._redraw()


# A stream that counts the rows written between two questions, so that going back erases them.


class CountedStream:
    """Stderr, for what is shown between questions.

    Args:
        count: Hears of each piece how many rows it ends.
    """

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count

    def write(self, text: str) -> int:
        """As that of a stream."""
        self._count(text.count("\n"))
        return sys.stderr.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As that of a stream."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        """What else a stream has is that of stderr."""
        attribute: object = getattr(sys.stderr, name)
        return attribute


def counted(count: Callable[[int], None]) -> TextIO:
    """Stderr, whose rows are counted."""
    stream: object = CountedStream(count)
    return stream  # type: ignore[return-value]


MUST_CHOOSE = frozenset({AnswerKind.CHOICE, AnswerKind.CONFIRM})
"""What is answered by a choice alone; elsewhere what is typed is an answer, too."""

_YES_OR_NO = (Choice(value="yes", title=_("yes")), Choice(value="no", title=_("no")))


def choices_of(question: Question) -> tuple[Choice, ...]:
    """What can be chosen; empty where the answer is typed."""
    return _YES_OR_NO if question.kind is AnswerKind.CONFIRM else question.choices


class Menu:
    """Lines, one of which may be pointed at.

    Args:
        choices: All lines.
        takes_typed: Whether what is typed is a line of its own.
    """

    def __init__(self, choices: Sequence[Choice], *, takes_typed: bool = False) -> None:
        self._all = tuple(choices)
        self._takes_typed = takes_typed
        self.shown = self._all
        self.pointed: int | None = None

    @property
    def choice(self) -> Choice | None:
        """The line that is pointed at."""
        return None if self.pointed is None else self.shown[self.pointed]

    def move(self, step: int) -> None:
        """Point at the next line, or with -1 at the one before; after the last comes the first."""
        if self.shown:
            before = (-1 if step > 0 else 0) if self.pointed is None else self.pointed
            self.pointed = (before + step) % len(self.shown)

    def keep(self, typed: str) -> None:
        """Keep the lines that have each typed word, and point at one of them.

        Where what is typed is an answer, too, that is a line that starts with it or else itself;
        elsewhere it is the line that was pointed at, or else the first.
        """
        pointed, text = self.choice, typed.strip()
        words = text.casefold().split()
        self.shown = tuple(choice for choice in self._all if _has(choice, words))
        if self._takes_typed and text:
            self.shown = _with_typed(self.shown, text)
            pointed = next(choice for choice in self.shown if _starts(choice, text.casefold()))
        self.point_at(None if pointed is None else pointed.value)

    def point_at(self, value: str | None) -> None:
        """Point at the line of this answer, else at the first if there is one."""
        values = [choice.value for choice in self.shown]
        first = 0 if values else None
        self.pointed = values.index(value) if value in values else first


def _has(choice: Choice, words: Sequence[str]) -> bool:
    text = f"{_(choice.title)} {choice.value}".casefold()
    return all(word in text for word in words)


def _starts(choice: Choice, beginning: str) -> bool:
    return any(text.casefold().startswith(beginning) for text in (_(choice.title), choice.value))


def _with_typed(shown: tuple[Choice, ...], text: str) -> tuple[Choice, ...]:
    """The lines and what is typed, which comes first where it is one of them."""
    same = [choice for choice in shown if text in (choice.value, _(choice.title))]
    if same:
        return (same[0], *(choice for choice in shown if choice is not same[0]))
    return (*shown, Choice(value=text, title=text, detail=_("as typed")))


# Complete a path as shells do.


def complete(typed: str) -> tuple[str, tuple[Choice, ...]]:
    """What is typed, as far as only one path goes on; the paths, where there are several.

    Args:
        typed: The beginning of a path; of a hidden one only if it says so.
    """
    folder, beginning = os.path.split(typed)
    entries = _list(folder, beginning)
    names = [path for path, _name in entries]
    shared = os.path.commonprefix(names)  # noqa: RUF071 - characters are meant, not components
    longer = max(shared, typed, key=len)
    several = entries if len(entries) > 1 else []
    return longer, tuple(Choice(value=path, title=name) for path, name in several)


def as_answer(typed: str) -> str:
    """A typed path, without what only a shell understands, or only completion needs."""
    path = os.path.expanduser(typed) if typed.startswith("~") else typed  # noqa: PTH111 - a prefix
    return path.rstrip("/") or path


def _list(folder: str, beginning: str) -> list[tuple[str, str]]:
    """Paths as they would be typed, and their names; a folder ends with a slash."""
    try:
        entries = sorted(Path(as_answer(folder) or ".").iterdir())
    except OSError:
        return []
    names = [
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in entries
        if entry.name.startswith(beginning)
        and entry.name.isprintable()
        and (beginning or not entry.name.startswith("."))
    ]
    return [(os.path.join(folder, name), name) for name in names]  # noqa: PTH118 - keeps `./` and `~`
