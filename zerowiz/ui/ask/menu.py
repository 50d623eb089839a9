"""The lines that a person can point at, and those that what they type leaves."""

from collections.abc import Sequence

from zerowiz.core.decision.questions import AnswerKind, Choice, Question
from zerowiz.words import _

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
        self.shown = tuple(each for each in self._all if _has(each, words))
        if self._takes_typed and text:
            self.shown = _with_typed(self.shown, text)
            pointed = next(each for each in self.shown if _starts(each, text.casefold()))
        self.point_at(None if pointed is None else pointed.value)

    def point_at(self, value: str | None) -> None:
        """Point at the line of this answer, else at the first if there is one."""
        values = [choice.value for choice in self.shown]
        first = 0 if values else None
        self.pointed = values.index(value) if value in values else first


def _has(choice: Choice, words: Sequence[str]) -> bool:
    text = f"{choice.title} {choice.value}".casefold()
    return all(word in text for word in words)


def _starts(choice: Choice, beginning: str) -> bool:
    return any(text.casefold().startswith(beginning) for text in (choice.title, choice.value))


def _with_typed(shown: tuple[Choice, ...], text: str) -> tuple[Choice, ...]:
    """The lines and what is typed, which comes first where it is one of them."""
    same = [each for each in shown if text in (each.value, each.title)]
    if same:
        return (same[0], *(each for each in shown if each is not same[0]))
    return (*shown, Choice(value=text, title=text, detail=_("as typed")))
