"""What a person answered, in order, so that they can go back and change one thing."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from zerowiz.core.settings import Change
from zerowiz.core.values import replace

# What an answer decides besides the setting of its own name.
_BATCH = ("micro_batch", "accumulation_steps", "global_batch")
_DECIDES: Mapping[str, tuple[str, ...]] = {
    "goal": _BATCH,
    "micro_batch": _BATCH,
    "global_batch": ("accumulation_steps",),
}


class Answers(Struct, frozen=True, kw_only=True):
    """The answers of one conversation, by the keys of their questions.

    Example:
        >>> answers = Answers().with_answer("model", "7b").with_answer("goal", "own")
        >>> answers.back().given
        (('model', '7b'),)
        >>> answers.back().before["goal"]
        'own'
        >>> remedied = answers.taking({"precision": "bf16", "sequence_tokens": 1024})
        >>> remedied.with_answer("sequence_tokens", "512").settings
        {'precision': 'bf16'}
    """

    given: tuple[tuple[str, str], ...] = ()
    """The latest is the last: that is where going back leads."""
    before: Mapping[str, str] = {}
    """What was answered before it was taken back: the default when it is asked again."""
    taken: tuple[Change, ...] = ()
    """The remedies that were taken, in order; each holds until an answer says otherwise."""

    @property
    def by_key(self) -> dict[str, str]:
        """The answers."""
        return dict(self.given)

    @property
    def settings(self) -> dict[str, int | str | bool]:
        """What the remedies set."""
        return {name: value for change in self.taken for name, value in change.items()}

    def with_answer(self, key: str, answer: str) -> "Answers":
        """With an answer, in the place of an earlier one to the same question, and of a remedy."""
        given = {**self.by_key, key: answer}
        decided = {key, *_DECIDES.get(key, ())}
        kept = ({k: v for k, v in each.items() if k not in decided} for each in self.taken)
        return replace(self, given=tuple(given.items()), taken=tuple(each for each in kept if each))

    def taking(self, *changes: Change) -> "Answers":
        """With remedies that were taken after these."""
        return replace(self, taken=(*self.taken, *changes))

    def without_taken(self, index: int) -> "Answers":
        """Without one of the remedies."""
        return replace(self, taken=(*self.taken[:index], *self.taken[index + 1 :]))

    def back(self) -> "Answers":
        """Without the latest answer, which is remembered."""
        *given, (key, answer) = self.given
        return replace(self, given=tuple(given), before={**self.before, key: answer})

    def only(self, keys: Collection[str]) -> "Answers":
        """Without what does not matter any more, which is remembered as well."""
        kept = tuple(each for each in self.given if each[0] in keys)
        return replace(self, given=kept, before={**self.before, **self.by_key})
