"""A person who presses Enter at each question."""

from collections.abc import Callable, Sequence

from zerowiz.core.decision.questions import Back, Question

# A conversation of more questions goes in a circle.
_MOST = 20


class Counting:
    """Takes the default of each question, or what is said here, and keeps what was asked."""

    def __init__(self, **said: str) -> None:
        self.said = {"model": "1b", **said}
        self.asked: list[Question] = []
        self.told: list[str] = []

    def ask(
        self,
        question: Question,
        *,
        check: Callable[[str], object] | None = None,
        consequence: Callable[[str], str] | None = None,
        can_go_back: bool = True,
    ) -> str | Back:
        del consequence, can_go_back
        self.asked.append(question)
        assert len(self.asked) <= _MOST, [each.text for each in self.asked]
        answer = self.said.get(question.key, question.default)
        assert answer is not None
        assert question.problem(answer) is None
        if check is not None:
            check(answer)
        return answer

    def tell(self, lines: Sequence[str]) -> None:
        self.told += lines
