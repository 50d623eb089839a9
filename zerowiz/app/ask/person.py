"""Somebody who can be asked."""

from collections.abc import Callable, Sequence
from typing import Protocol

from zerowiz.core.decision.questions import Question


class Person(Protocol):
    """Answers questions at a terminal (`ui/ask.py`)."""

    def ask(self, question: Question, check: Callable[[str], object] | None = None) -> str:
        """An answer that `check` takes."""

    def choose(self, text: str, choices: Sequence[str]) -> int:
        """The index of one of the choices."""

    def confirm(self, text: str, *, default: bool = True) -> bool:
        """A yes or no."""
