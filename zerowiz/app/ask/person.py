"""Somebody who can be asked."""

from collections.abc import Callable, Sequence
from typing import Protocol

from zerowiz.core.decision.questions import Back, Question


class Person(Protocol):
    """Answers questions at a terminal (`ui/ask/`)."""

    def ask(
        self,
        question: Question,
        *,
        check: Callable[[str], object] | None = None,
        consequence: Callable[[str], str] | None = None,
        can_go_back: bool = True,
    ) -> str | Back:
        """An answer that the question and `check` take, or that the person goes back.

        Args:
            question: What to ask; an empty answer means its default.
            check: Raises a ZerowizError for an answer that the world does not bear out; the
                question is then asked again.
            consequence: One line of plain text, at most 80 columns, of what an answer leads to; it
                is shown while the answer is typed or the choice is highlighted. Empty where the
                answer cannot be taken yet. Never raises; called often.
            can_go_back: Whether Esc answers `Back.BACK`; the first question goes nowhere.

        Raises:
            InterruptedByUserError: Ctrl-C, or the end of the input.
        """

    def tell(self, lines: Sequence[str]) -> None:
        """Lines of plain text, on stderr."""


def confirms(person: Person, question: Question) -> bool:
    """Whether the person says yes to a question that cannot be left by going back."""
    return person.ask(question, can_go_back=False) == "yes"
