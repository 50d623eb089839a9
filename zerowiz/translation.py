"""Texts for people, in their language: English stands in the code, the others in `data/locale`.

The language is chosen once, when the first text is made. What programs read (JSON, configs, job
scripts, records) is English in every language: `english` gives that of a value.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Self

LANGUAGES = ("en", "ja")
"""What can be set; the first is that of the code, and needs no catalog."""
LANGUAGE_VARIABLE = "ZEROWIZ_LANG"
# As gettext asks them; the first that is set counts.
_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


class Message(str):
    """A text in the person's language, which keeps what it is in English."""

    __slots__ = ("english",)
    english: str

    def __new__(cls, shown: str, english: str) -> Self:
        """Both of one text."""
        made = super().__new__(cls, shown)
        made.english = english
        return made

    def __add__(self, other: str) -> "Message":
        """Both texts, one behind the other."""
        return Message(str(self) + other, self.english + _english(other))

    def __radd__(self, other: str) -> "Message":
        """As `+`, behind a text that is the same in every language."""
        return Message(other + str(self), other + self.english)

    def format(self, *_: object, **values: object) -> "Message":
        """Both texts, with the values in them by their names."""
        in_english = {name: english(value) for name, value in values.items()}
        return Message(fill(self, values), self.english.format(**in_english))

    def __reduce__(self) -> tuple[type["Message"], tuple[str, str]]:
        """To copy it whole."""
        return Message, (str(self), self.english)


def english(value: object) -> object:
    """The value with each text in it as it is in English: what a program may read.

    Example:
        >>> english({"why": Message("メモリ不足", "too little memory"), "gpus": [8]})
        {'why': 'too little memory', 'gpus': [8]}
    """
    match value:
        case Message():
            return value.english
        case dict():
            return {key: english(each) for key, each in value.items()}
        case list():
            return [english(each) for each in value]
        case tuple():
            return tuple(map(english, value))
        case _:
            return value


def _english(text: str) -> str:
    return text.english if isinstance(text, Message) else text


def joined(between: str, parts: Iterable[str]) -> str:
    """As `between.join(parts)`, for what programs read in English."""
    texts = list(parts)
    if not any(isinstance(each, Message) for each in (between, *texts)):
        return between.join(texts)
    whole = ""
    for index, each in enumerate(texts):
        whole = _set_behind(_set_behind(whole, between if index else ""), each)
    return Message(whole, _english(between).join(map(_english, texts)))


def listing(parts: Iterable[str]) -> str:
    """The parts as a language lists them: `a, b` in English."""
    return joined(_(", "), parts)


def edited(text: str, edit: Callable[[str], str]) -> str:
    """The text as `edit` changes it, in both languages."""
    if isinstance(text, Message):
        return Message(edit(str(text)), edit(text.english))
    return edit(text)


def wanted_language(environ: Mapping[str, str]) -> str:
    """The first of LANGUAGES where the environment names none of them.

    Example:
        >>> wanted_language({"LANG": "ja_JP.UTF-8"}), wanted_language({"LC_ALL": "C"})
        ('ja', 'en')
        >>> wanted_language({"ZEROWIZ_LANG": "en", "LANG": "ja_JP.UTF-8"})
        'en'
    """
    said = environ.get(LANGUAGE_VARIABLE)
    if said:
        return said if said in LANGUAGES else LANGUAGES[0]
    named = next((environ[name] for name in _VARIABLES if environ.get(name)), "")
    # `ja_JP.UTF-8`, `ja:en`, `ja`
    words = (each.partition(".")[0].partition("_")[0] for each in named.split(":"))
    return next((word for word in words if word in LANGUAGES), LANGUAGES[0])


def unknown_language(environ: Mapping[str, str]) -> str | None:
    """What the variable says where zerowiz does not speak it."""
    said = environ.get(LANGUAGE_VARIABLE)
    return said if said and said not in LANGUAGES else None


class _Catalog:
    """The texts of the chosen language; `look_up` is None where they need no look."""

    def __init__(self) -> None:
        self.is_chosen = False
        self.language = LANGUAGES[0]
        self.look_up: Callable[[str], str] | None = None

    def choose(self, language: str) -> None:
        self.is_chosen = True
        self.language = language
        self.look_up = None if language == LANGUAGES[0] else _read_catalog(language)


_CATALOG = _Catalog()


def _read_catalog(language: str) -> Callable[[str], str]:
    from gettext import translation  # noqa: PLC0415 - English needs none

    folder = os.path.join(os.path.dirname(__file__), "data", "locale")  # noqa: PTH118, PTH120 - pathlib takes longer to load than all of this
    return translation("zerowiz", folder, [language], fallback=True).gettext


def speak(language: str) -> None:
    """Choose the language of what is said from now on; texts that were made stay as they are."""
    _CATALOG.choose(language)


def language() -> str:
    """The chosen one of LANGUAGES."""
    return _CATALOG.language


def _(message: str, /, **values: object) -> str:
    """The text in the person's language, with the values in it.

    Args:
        message: In English, with a name in braces for each value; without values it is taken as it
            stands, braces and all.
        values: By their names; they are formatted as `str.format` does it.

    Example:
        >>> _("{strategy} needs {size:.1f} GiB", strategy="ZeRO-2", size=12.34)
        'ZeRO-2 needs 12.3 GiB'
    """
    if not _CATALOG.is_chosen:
        _CATALOG.choose(wanted_language(os.environ))
    look_up = _CATALOG.look_up
    if look_up is None:
        return message.format(**values) if values else message
    text = Message(look_up(message) if message else message, message)
    return text.format(**values) if values else text


def fill(shown: str, values: Mapping[str, object]) -> str:
    """As `str.format`, without the room for a Latin value where the value is Japanese."""
    from string import Formatter  # noqa: PLC0415 - English needs none

    text = ""
    for literal, name, spec, conversion in Formatter().parse(shown):
        text = _set_behind(text, literal)
        if name is not None:
            how = f"!{conversion}" * bool(conversion) + f":{spec}" * bool(spec)
            text = _set_behind(text, f"{{{name}{how}}}".format(**values))
    return text


def _set_behind(text: str, more: str) -> str:
    first = more.removeprefix(" ")
    if not (_is_japanese(text.removesuffix(" ")[-1:]) and _is_japanese(first[:1])):
        return text + more
    room = len(text) - len(text.removesuffix(" ")) + len(more) - len(first)
    return text.removesuffix(" ") + first if room == 1 else text + more


def _is_japanese(letter: str) -> bool:
    return "\u3001" <= letter <= "\u30ff" or "\u4e00" <= letter <= "\u9fff"


def N_(message: str, /) -> str:  # noqa: N802 - gettext's own name
    """Mark a text of the catalog that is looked up where it is shown: `_(row.title)`."""
    return message
