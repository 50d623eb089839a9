"""What a person answered, in order, so that they can go back and change one thing."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from zerowiz.core.values import replace


class Answers(Struct, frozen=True, kw_only=True):
    """The answers of one conversation, by the keys of their questions.

    Example:
        >>> answers = Answers().with_answer("model", "7b").with_answer("goal", "own")
        >>> answers.back().given
        (('model', '7b'),)
        >>> answers.back().before["goal"]
        'own'
    """

    given: tuple[tuple[str, str], ...] = ()
    """The latest is the last: that is where going back leads."""
    before: Mapping[str, str] = {}
    """What was answered before it was taken back: the default when it is asked again."""

    @property
    def by_key(self) -> dict[str, str]:
        """The answers."""
        return dict(self.given)

    def with_answer(self, key: str, answer: str) -> "Answers":
        """With an answer, in the place of an earlier one to the same question."""
        given = {**self.by_key, key: answer}
        return replace(self, given=tuple(given.items()))

    def back(self) -> "Answers":
        """Without the latest answer, which is remembered."""
        *given, (key, answer) = self.given
        return replace(self, given=tuple(given), before={**self.before, key: answer})

    def only(self, keys: Collection[str]) -> "Answers":
        """Without what does not matter any more, which is remembered as well."""
        kept = tuple(each for each in self.given if each[0] in keys)
        return replace(self, given=kept, before={**self.before, **self.by_key})
