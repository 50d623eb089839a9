"""Read a setting off the script's bindings, seen through the words after it."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

from zerowiz.core.script.facts import Binding, ScriptFacts
from zerowiz.core.script.options import SWITCHES, Given, Option, Reads, Scalar, Takes, read_words

S = TypeVar("S")
T = TypeVar("T")


class Setting(Struct, Generic[T], frozen=True, kw_only=True):
    """One setting of the run that the script, or a word after it, decides."""

    value: T
    said_by: str
    change: str
    """How to make it another value; `{value}`, where it stands, is that value."""
    by_default: bool = False
    """Nobody chose it."""
    spellings: Mapping[T, str] = field(default_factory=dict)
    """The script's words for values that have another name here."""

    def change_to(self, value: T) -> str:
        """How to make it this value."""
        return self.change.replace("{value}", self.spellings.get(value, str(value)))


class Bindings:
    """The script's bindings, seen through the words after it."""

    def __init__(self, facts: ScriptFacts, script_args: tuple[str, ...]) -> None:
        self.facts = facts
        self.file_words = read_words(facts.parser, facts.args_file_words)
        self.script_words = read_words(facts.parser, script_args)
        self.all_hidden = facts.parser.takes_file(script_args)
        self.defaults_hidden = facts.parser.config_flag in script_args

    def setting(self, binding: Binding) -> Setting[Scalar] | None:
        """What one binding comes to, or None when it does not decide."""
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        return None if binding.value is None else self._from_code(binding)

    def condition(self, binding: Binding) -> Setting[bool] | None:
        """Whether a condition of the script's holds, or None when that is not known."""
        said = self.setting(binding)
        if said is None:
            return None
        holds = said.value in binding.when if binding.when else bool(said.value)
        value = holds is not binding.unless
        change = said.change
        if binding.flag is None:
            change = f"edit {self.facts.path} line {binding.line}"
        elif "{value}" in change and isinstance(said.value, bool):
            change = change.replace("{value}", str(not said.value))
        elif "{value}" in change:
            change = f"choose another `{binding.flag}` after {self.facts.path}"
        return Setting(value=value, said_by=said.said_by, change=change, by_default=said.by_default)

    def _from_code(self, binding: Binding) -> Setting[Scalar]:
        where = f"in {self.facts.path} line {binding.line}"
        said_by = f"`{binding.code}` {where}"
        if binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        change = f"edit {self.facts.path} line {binding.line}"
        if binding.keyword is not None:
            quote = '"' if isinstance(binding.value, str) else ""
            change = f"set `{binding.keyword}={quote}{{value}}{quote}` {where}"
        return Setting(
            value=binding.value,
            said_by=said_by,
            change=change,
            by_default=binding.default_of is not None,
        )

    def _from_option(self, binding: Binding, flag: str) -> Setting[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        by_word, by_file = (
            words.get(option.dest) for words in (self.script_words, self.file_words)
        )
        given = by_word or by_file
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        said_by = f"the default of `{flag}` in {self.facts.path} line {binding.line}"
        if given:
            where = "after the script" if by_word else f"in {self.facts.args_file}"
            said_by = f"`{given.words}` {where}"
        elif binding.default_of is not None:
            said_by = f"the default of {binding.default_of}"
        return Setting(
            value=value,
            said_by=said_by,
            change=self._change(option, given, value=value),
            by_default=given is None,
        )

    def _change(self, option: Option, given: Given | None, *, value: Scalar) -> str:
        """How to turn the option round, or give it another value."""
        after = f"after {self.facts.path}"
        if option.reads is Reads.NONEMPTY and option.takes is Takes.VALUE:
            word = "''" if value else "1"
            return f"put `{option.flag} {word}` {after}"
        if option.takes is Takes.WORDS:
            return f"name others with `{option.flag}` {after}"
        if option.takes not in SWITCHES:
            return f"put `{option.flag} {{value}}` {after}"
        for other in self.facts.parser.of(option.dest):
            if SWITCHES.get(other.takes, value) != value:
                return f"put `{other.flag}` {after}"
        return f"drop `{given.words}` {after}" if given else f"edit {self.facts.path}"


def cast(said: Setting[S], value: T, spellings: Mapping[T, str] | None = None) -> Setting[T]:
    """The same said of a value of another type."""
    return Setting(
        value=value,
        said_by=said.said_by,
        change=said.change,
        by_default=said.by_default,
        spellings=spellings or {},
    )


def as_count(said: Setting[Scalar] | None) -> Setting[int] | None:
    """A whole number from 1 on."""
    if said is None or isinstance(said.value, bool) or not isinstance(said.value, int):
        return None
    return cast(said, said.value) if said.value > 0 else None


def as_truth(said: Setting[Scalar] | None) -> Setting[bool] | None:
    """Yes or no."""
    return cast(said, said.value) if said is not None and isinstance(said.value, bool) else None


def either(*said: Setting[Scalar] | None) -> Setting[bool] | None:
    """The first that is on, else the first that is known."""
    known = [truth for truth in map(as_truth, said) if truth is not None]
    return next((truth for truth in known if truth.value), known[0] if known else None)


def as_text(said: Setting[Scalar] | None) -> Setting[str] | None:
    """A name."""
    return cast(said, said.value) if said is not None and isinstance(said.value, str) else None


def as_named(said: Setting[Scalar] | None, names: Mapping[Scalar, T]) -> Setting[T] | None:
    """A value that has another name here; the table's first name for it is the one to write."""
    if said is None or said.value not in names:
        return None
    spellings = {ours: str(theirs) for theirs, ours in reversed([*names.items()])}
    return cast(said, names[said.value], spellings)
