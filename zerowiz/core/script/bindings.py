"""Where a script's values come from: the code, an option, a field, a config built in code."""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from zerowiz.core.script.arguments import (
    LOCAL_RANK_FLAG,
    SWITCHES,
    Given,
    Option,
    Reads,
    Scalar,
    Takes,
    missing_arguments,
    read_words,
    write_words,
)
from zerowiz.core.script.facts import ScriptFacts, ValueSource
from zerowiz.core.script.settings_file import read_values
from zerowiz.errors import UsageError

# Join what a person says to a script: in the words after it, and in the files that it reads.


def read_said(facts: ScriptFacts, script_args: tuple[str, ...]) -> Mapping[str, Given]:
    """The options that somebody gave a value, by their `dest`; what takes precedence counts.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script.
    """
    file, words = facts.settings_file, read_words(facts.parser, script_args)
    values = {} if file is None else read_values(facts.parser, file)
    # Of TrlParser they become defaults (trl 1.16, scripts/utils.py, parse_args_and_config).
    return {**values, **words}


def unsaid_arguments(facts: ScriptFacts, script_args: tuple[str, ...]) -> tuple[Option, ...]:
    """What the script's parser requires, and nobody says.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script, with those that zerowiz adds.
    """
    parser = facts.parser
    reads_file = parser.takes_file(script_args) or parser.config_flag in script_args
    if facts.settings_file is not None or reads_file:
        return ()
    # zerowiz and DeepSpeed's launcher add these themselves.
    added = {"--deepspeed", "--deepspeed_config", LOCAL_RANK_FLAG, facts.own_flag}
    return tuple(
        missing_argument
        for missing_argument in missing_arguments(parser, script_args)
        if added.isdisjoint(missing_argument.flags)
    )


S = TypeVar("S")
T = TypeVar("T")

Words = tuple[str, ...]
"""Words after the script."""


class State(StrEnum):
    """Who decides a setting of the script."""

    SAID = "said"
    """A word after the script, or a file of words that is handed to it."""
    FIXED = "fixed"
    """A value in the script's code."""
    OPEN = "open"
    """Nobody: it is a parser's default, or a library's."""


class ScriptValue(Struct, Generic[T], frozen=True, kw_only=True):
    """One setting of the run, which the script or a word after it decides."""

    value: T
    source: str
    """What decides it, for messages."""
    change: str
    """How to give it another value, for messages; `{value}` in it stands for that value."""
    state: State
    spellings: Mapping[T, Scalar] = field(default_factory=dict)
    """The script's names for values that have another name here."""

    def change_to(self, value: T) -> str:
        """How to give it this value."""
        return self.change.replace("{value}", str(self.spellings.get(value, value)))


# Of the type that the setting has; only its row knows it.
SettledValue: TypeAlias = ScriptValue[Any]  # type: ignore[explicit-any]


RESUME = "--resume"
"""The switch by which a script of the templates resumes from its newest checkpoint."""


class Resolver:
    """Resolves the bindings of a script that is started with certain words.

    Args:
        facts: What the script shows.
        words: Those after the script.
    """

    def __init__(self, facts: ScriptFacts, words: Sequence[str] = ()) -> None:
        self.facts = facts
        self.words = tuple(words)
        unread = facts.settings_file is None
        self.all_hidden = unread and facts.parser.takes_file(self.words)
        self.defaults_hidden = unread and facts.parser.config_flag in self.words

    @cached_property
    def said(self) -> Mapping[str, Given]:
        """What somebody says, as `read_said` has it.

        Raises:
            UsageError: A settings file has a value of another type.
        """
        return read_said(self.facts, self.words)

    @property
    def resumes(self) -> bool:
        """Whether these words make the script resume from its newest portable checkpoint."""
        says = any(option.dest in self.said for option in self.facts.parser.find(RESUME))
        return says and self.facts.saves_portably

    def setting(self, binding: ValueSource) -> ScriptValue[Scalar] | None:
        """The setting that a binding has in this run; None where it is not known."""
        if not binding.unless and not binding.when:
            return self._value(binding)
        value = self.condition(binding)
        return None if value is None else cast(value, value.value)

    def _value(self, binding: ValueSource) -> ScriptValue[Scalar] | None:
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        return None if binding.value is None else self._from_code(binding)

    def may_hold(self, binding: ValueSource) -> bool:
        """Whether something is done in this run, or may be: by an option that is on, or always."""
        if binding.flag is None:
            return True
        value = self.setting(binding)
        if value is not None:
            return bool(value.value)
        given = self.said.get(self.facts.parser.find(binding.flag)[0].dest)
        return self.all_hidden or (given is not None and not given.is_null)

    def condition(self, binding: ValueSource) -> ScriptValue[bool] | None:
        """Whether a condition of the script holds in this run; None where that is not known."""
        decider = self._value(binding)
        if decider is None:
            return None
        holds = decider.value in binding.when if binding.when else bool(decider.value)
        change = decider.change
        if binding.flag is None:
            change = f"edit {self.facts.where(binding.line)}"
        elif "{value}" in change and isinstance(decider.value, bool):
            change = change.replace("{value}", str(not decider.value))
        elif "{value}" in change:
            change = f"choose another `{binding.flag}` after {self.facts.path}"
        return ScriptValue(
            value=holds is not binding.unless,
            source=decider.source,
            change=change,
            state=decider.state,
        )

    def holds(self, conditions: Iterable[ValueSource]) -> bool | None:
        """Whether the script comes to a place of these conditions; None where that is unknown."""
        settled = [self.condition(binding) for binding in conditions]
        if any(setting is not None and not setting.value for setting in settled):
            return False
        return None if None in settled else True

    def words_for(self, binding: ValueSource, value: object) -> Words | None:
        """The words after the script that give a binding's setting this value.

        None where no word can, or one is there already.
        """
        if binding.unless or binding.when:
            return self.words_where(binding, holds=bool(value))
        return self._words(binding, value)

    def _words(self, binding: ValueSource, value: object) -> Words | None:
        """By the option that decides the binding's setting, where no word names it yet."""
        if binding.flag is None or self.all_hidden or self.defaults_hidden:
            return None
        option = self.facts.parser.find(binding.flag)[0]
        return None if option.dest in self.said else write_words(self.facts.parser, option, value)

    def words_where(self, binding: ValueSource, *, holds: bool) -> Words | None:
        """The words after the script with which a condition holds, or does not; None as above."""
        now = self.condition(binding)
        if now is not None and now.value is holds:
            return ()
        wanted = holds is not binding.unless
        if not binding.when:
            return self._words(binding, wanted)
        return self._words(binding, binding.when[0]) if wanted else None

    def _from_code(self, binding: ValueSource) -> ScriptValue[Scalar]:
        where = f"in {self.facts.where(binding.line)}"
        source = f"`{binding.code}` " + where
        if binding.default_of is not None:
            source = f"the default of {binding.default_of}"
        change = f"edit {self.facts.where(binding.line)}"
        if binding.keyword is not None:
            quote = '"' if isinstance(binding.value, str) else ""
            change = f"set `{binding.keyword}={quote}{{value}}{quote}` {where}"
        return ScriptValue(
            value=binding.value,
            source=source,
            change=change,
            state=State.FIXED if binding.default_of is None else State.OPEN,
        )

    def _from_option(self, binding: ValueSource, flag: str) -> ScriptValue[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        given = self.said.get(option.dest)
        if given and given.fault is not None:
            raise UsageError(given.fault)
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        source = f"the default of `{flag}` in {self.facts.where(binding.line)}"
        if binding.line is None:
            source = f"the default of `{flag}`"
        if given:
            source = f"`{given.words}` " + given.where
        elif binding.default_of is not None:
            source = f"the default of {binding.default_of}"
        return ScriptValue(
            value=value,
            source=source,
            change=self._change(option, given, value=value),
            state=State.OPEN if given is None else State.SAID,
        )

    def _change(self, option: Option, given: Given | None, *, value: Scalar) -> str:
        """How to switch the option, or give it another value."""
        if given and given.in_file:
            wanted = json.dumps(not value) if isinstance(value, bool) else "{value}"
            return f"set `{given.words}` to {wanted} {given.where}"
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
        return f"remove `{given.words}` {after}" if given else f"edit {self.facts.text_path}"


def cast(
    setting: ScriptValue[S], value: T, spellings: Mapping[T, Scalar] | None = None
) -> ScriptValue[T]:
    """The setting with a value of another type."""
    return ScriptValue(
        value=value,
        source=setting.source,
        change=setting.change,
        state=setting.state,
        spellings=spellings or {},
    )


def as_count(setting: ScriptValue[Scalar] | None) -> ScriptValue[int] | None:
    """The setting, where its value is a whole number from 1 on."""
    if setting is None or isinstance(setting.value, bool) or not isinstance(setting.value, int):
        return None
    return cast(setting, setting.value) if setting.value > 0 else None


def as_number(setting: ScriptValue[Scalar] | None) -> ScriptValue[float] | None:
    """The setting, where its value is a number."""
    if setting is None or isinstance(setting.value, bool | str | None):
        return None
    return cast(setting, float(setting.value))


def as_truth(setting: ScriptValue[Scalar] | None) -> ScriptValue[bool] | None:
    """The setting, where its value is a boolean."""
    if setting is None or not isinstance(setting.value, bool):
        return None
    return cast(setting, setting.value)


def either(*settings: ScriptValue[Scalar] | None) -> ScriptValue[bool] | None:
    """The first setting that is on, else the first that is known."""
    known = [truth for truth in map(as_truth, settings) if truth is not None]
    return next((truth for truth in known if truth.value), known[0] if known else None)


def as_text(setting: ScriptValue[Scalar] | None) -> ScriptValue[str] | None:
    """The setting, where its value is a text; an empty one names nothing."""
    if setting is None or not isinstance(setting.value, str) or not setting.value:
        return None
    return cast(setting, setting.value)


def as_named(
    setting: ScriptValue[Scalar] | None, names: Mapping[Scalar, T]
) -> ScriptValue[T] | None:
    """The setting, where its value has another name here.

    Args:
        setting: The setting.
        names: Our value for each of the script's; the first of several is the one to write.
    """
    if setting is None or setting.value not in names:
        return None
    return cast(setting, names[setting.value], spell(names))


def spell(names: Mapping[Scalar, T]) -> dict[T, Scalar]:
    """The script's name for each of our values; the first of several."""
    return {ours: theirs for theirs, ours in reversed([*names.items()])}


# Settle the model config that a script makes in its code.


class OwnModel(Struct, frozen=True, kw_only=True):
    """A model of the script's own classes, counted as a GPT of the same sizes."""

    layers: int
    hidden_size: int
    vocab_size: int
    is_tied: bool = False
    """Whether the head is the embedding."""
    source: str
    """Where the sizes stand, for messages."""

    @property
    def name(self) -> str:
        """As `--model` takes it."""
        tied = "-tied" if self.is_tied else ""
        return f"gpt-{self.layers}x{self.hidden_size}-v{self.vocab_size}{tied}"


# That of GPT-2.
_VOCABULARY = 50257


def settle_own_model(run: Resolver) -> OwnModel | None:
    """The sizes of the script's own model in this run; None where they are not known."""
    seen = run.facts.own_sizes
    if seen is None:
        return None
    layers, width = (as_count(run.setting(binding)) for binding in (seen.layers, seen.hidden_size))
    vocabulary = as_count(run.setting(seen.vocab_size))
    if layers is None or width is None:
        return None
    vocabulary_source = "the vocabulary of GPT-2" if vocabulary is None else vocabulary.source
    return OwnModel(
        layers=layers.value,
        hidden_size=width.value,
        vocab_size=_VOCABULARY if vocabulary is None else vocabulary.value,
        is_tied=seen.is_tied,
        source=", ".join(dict.fromkeys((layers.source, width.source, vocabulary_source))),
    )
