"""Resolve a script's bindings to settings, with the words that it is started with."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct, field

from zerowiz.core.script.facts import Binding, ScriptFacts
from zerowiz.core.script.options import (
    SWITCHES,
    Given,
    Option,
    Reads,
    Scalar,
    Takes,
    write_words,
)
from zerowiz.core.script.said import read_said
from zerowiz.errors import UsageError
from zerowiz.words import _

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


class Setting(Struct, Generic[T], frozen=True, kw_only=True):
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


class Bindings:
    """Resolves the bindings of a script that is started with certain words.

    Args:
        facts: What the script shows.
        script_args: The words after the script.
    """

    def __init__(self, facts: ScriptFacts, script_args: tuple[str, ...]) -> None:
        self.facts = facts
        self.said = read_said(facts, script_args)
        unread = facts.settings_file is None
        self.all_hidden = unread and facts.parser.takes_file(script_args)
        self.defaults_hidden = unread and facts.parser.config_flag in script_args

    def setting(self, binding: Binding) -> Setting[Scalar] | None:
        """The setting that a binding has in this run; None where it is not known."""
        if not binding.unless and not binding.when:
            return self._value(binding)
        found = self.condition(binding)
        return None if found is None else cast(found, found.value)

    def _value(self, binding: Binding) -> Setting[Scalar] | None:
        if binding.flag is not None:
            return self._from_option(binding, binding.flag)
        return None if binding.value is None else self._from_code(binding)

    def may_hold(self, binding: Binding) -> bool:
        """Whether something is done in this run, or may be: by an option that is on, or always."""
        if binding.flag is None:
            return True
        found = self.setting(binding)
        if found is not None:
            return bool(found.value)
        given = self.said.get(self.facts.parser.find(binding.flag)[0].dest)
        return self.all_hidden or (given is not None and not given.is_null)

    def condition(self, binding: Binding) -> Setting[bool] | None:
        """Whether a condition of the script holds in this run; None where that is not known."""
        decider = self._value(binding)
        if decider is None:
            return None
        holds = decider.value in binding.when if binding.when else bool(decider.value)
        change = decider.change
        if binding.flag is None:
            change = _("edit {path} line {line}", path=self.facts.text_path, line=binding.line)
        elif "{value}" in change and isinstance(decider.value, bool):
            change = change.replace("{value}", str(not decider.value))
        elif "{value}" in change:
            change = _(
                "choose another `{flag}` after {path}", flag=binding.flag, path=self.facts.path
            )
        return Setting(
            value=holds is not binding.unless,
            source=decider.source,
            change=change,
            state=decider.state,
        )

    def words_for(self, binding: Binding, value: object) -> Words | None:
        """The words after the script that give a binding's setting this value.

        None where no word can, or one is there already.
        """
        if binding.unless or binding.when:
            return self.words_where(binding, holds=bool(value))
        return self._words(binding, value)

    def _words(self, binding: Binding, value: object) -> Words | None:
        option = self._open_option(binding)
        return None if option is None else write_words(self.facts.parser, option, value)

    def words_where(self, binding: Binding, *, holds: bool) -> Words | None:
        """The words after the script with which a condition holds, or does not; None as above."""
        now = self.condition(binding)
        if now is not None and now.value is holds:
            return ()
        wanted = holds is not binding.unless
        if not binding.when:
            return self._words(binding, wanted)
        return self._words(binding, binding.when[0]) if wanted else None

    def _open_option(self, binding: Binding) -> Option | None:
        """The option that decides a binding's setting, where no word names it yet."""
        if binding.flag is None or self.all_hidden or self.defaults_hidden:
            return None
        option = self.facts.parser.find(binding.flag)[0]
        return None if option.dest in self.said else option

    def _from_code(self, binding: Binding) -> Setting[Scalar]:
        where = _("in {path} line {line}", path=self.facts.text_path, line=binding.line)
        source = f"`{binding.code}` " + where
        if binding.default_of is not None:
            source = _("the default of {default_of}", default_of=binding.default_of)
        change = _("edit {path} line {line}", path=self.facts.text_path, line=binding.line)
        if binding.keyword is not None:
            quote = '"' if isinstance(binding.value, str) else ""
            change = _(
                "set `{keyword}={quote}{{value}}{quote}` {where}",
                keyword=binding.keyword,
                quote=quote,
                where=where,
            )
        return Setting(
            value=binding.value,
            source=source,
            change=change,
            state=State.FIXED if binding.default_of is None else State.OPEN,
        )

    def _from_option(self, binding: Binding, flag: str) -> Setting[Scalar] | None:
        option = self.facts.parser.find(flag)[0]
        given = self.said.get(option.dest)
        if given and given.fault is not None:
            raise UsageError(given.fault)
        value = given.value if given else None if self.defaults_hidden else binding.value
        if self.all_hidden or value is None:
            return None
        source = _(
            "the default of `{flag}` in {path} line {line}",
            flag=flag,
            path=self.facts.text_path,
            line=binding.line,
        )
        if binding.line is None:
            source = _("the default of `{flag}`", flag=flag)
        if given:
            source = f"`{given.words}` " + given.where
        elif binding.default_of is not None:
            source = _("the default of {default_of}", default_of=binding.default_of)
        return Setting(
            value=value,
            source=source,
            change=self._change(option, given, value=value),
            state=State.OPEN if given is None else State.SAID,
        )

    def _change(self, option: Option, given: Given | None, *, value: Scalar) -> str:
        """How to switch the option, or give it another value."""
        if given and given.in_file:
            wanted = json.dumps(not value) if isinstance(value, bool) else "{value}"
            return _(
                "set `{words}` to {wanted} {where}",
                words=given.words,
                wanted=wanted,
                where=given.where,
            )
        after = _("after {path}", path=self.facts.path)
        if option.reads is Reads.NONEMPTY and option.takes is Takes.VALUE:
            word = "''" if value else "1"
            return _("put `{flag} {word}` {after}", flag=option.flag, word=word, after=after)
        if option.takes is Takes.WORDS:
            return _("name others with `{flag}` {after}", flag=option.flag, after=after)
        if option.takes not in SWITCHES:
            return _("put `{flag} {{value}}` {after}", flag=option.flag, after=after)
        for other in self.facts.parser.of(option.dest):
            if SWITCHES.get(other.takes, value) != value:
                return _("put `{flag}` {after}", flag=other.flag, after=after)
        return (
            _("remove `{words}` {after}", words=given.words, after=after)
            if given
            else _("edit {path}", path=self.facts.text_path)
        )


def cast(setting: Setting[S], value: T, spellings: Mapping[T, Scalar] | None = None) -> Setting[T]:
    """The setting with a value of another type."""
    return Setting(
        value=value,
        source=setting.source,
        change=setting.change,
        state=setting.state,
        spellings=spellings or {},
    )


def as_count(setting: Setting[Scalar] | None) -> Setting[int] | None:
    """The setting, where its value is a whole number from 1 on."""
    if setting is None or isinstance(setting.value, bool) or not isinstance(setting.value, int):
        return None
    return cast(setting, setting.value) if setting.value > 0 else None


def as_number(setting: Setting[Scalar] | None) -> Setting[float] | None:
    """The setting, where its value is a number."""
    if setting is None or isinstance(setting.value, bool | str | None):
        return None
    return cast(setting, float(setting.value))


def as_truth(setting: Setting[Scalar] | None) -> Setting[bool] | None:
    """The setting, where its value is a boolean."""
    if setting is None or not isinstance(setting.value, bool):
        return None
    return cast(setting, setting.value)


def either(*settings: Setting[Scalar] | None) -> Setting[bool] | None:
    """The first setting that is on, else the first that is known."""
    known = [truth for truth in map(as_truth, settings) if truth is not None]
    return next((truth for truth in known if truth.value), known[0] if known else None)


def as_text(setting: Setting[Scalar] | None) -> Setting[str] | None:
    """The setting, where its value is a text; an empty one names nothing."""
    if setting is None or not isinstance(setting.value, str) or not setting.value:
        return None
    return cast(setting, setting.value)


def as_named(setting: Setting[Scalar] | None, names: Mapping[Scalar, T]) -> Setting[T] | None:
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
