"""A stream that counts the rows written between two questions, so that going back erases them."""

import sys
from collections.abc import Callable, Iterable
from typing import TextIO


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
