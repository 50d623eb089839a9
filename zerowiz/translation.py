"""Texts for people, in their language: English stands in the code, the others in `data/locale`.

The language is chosen once, when the first text is made. Errors, findings, help and what programs
read (JSON, configs, job scripts, records) are English in every language. What a screen shows is
looked up where it is drawn: `core` marks its texts with `N_`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

_FOLDER = os.path.join(os.path.dirname(__file__), "data", "locale")  # noqa: PTH118, PTH120 - pathlib takes longer to load than all of this
LANGUAGES = ("en", *sorted(os.listdir(_FOLDER)))  # noqa: PTH208 - as above
"""What can be set; the first is that of the code, and needs no catalog."""
LANGUAGE_VARIABLE = "ZEROWIZ_LANG"
# As gettext asks them; the first that is set counts.
_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


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

    language: str | None = None
    """None until one is chosen."""
    look_up: Callable[[str], str] | None = None

    def choose(self, language: str) -> None:
        self.language = language
        self.look_up = None if language == LANGUAGES[0] else _read_catalog(language)


_CATALOG = _Catalog()


def _read_catalog(language: str) -> Callable[[str], str]:
    from gettext import translation  # noqa: PLC0415 - English needs none

    return translation("zerowiz", _FOLDER, [language], fallback=True).gettext


def speak(language: str) -> None:
    """Choose the language of what is said from now on; texts that were made stay as they are."""
    _CATALOG.choose(language)


def language() -> str:
    """The chosen one of LANGUAGES."""
    if _CATALOG.language is None:
        _CATALOG.choose(wanted_language(os.environ))
    return _CATALOG.language or LANGUAGES[0]


def _(message: str, /, **values: object) -> str:
    """The text in the person's language, with the values in it; in English if nobody translated it.

    Args:
        message: In English, with a name in braces for each value; without values it is taken as it
            stands, braces and all.
        values: By their names; they are formatted as `str.format` does it.

    Example:
        >>> _("{strategy} needs {size:.1f} GiB", strategy="ZeRO-2", size=12.34)
        'ZeRO-2 needs 12.3 GiB'
    """
    language()
    look_up = _CATALOG.look_up
    # gettext has its own header under the empty text.
    text = look_up(message) if look_up and message else message
    return text.format(**values) if values else text


def N_(message: str, /) -> str:  # noqa: N802 - gettext's own name
    """Mark a text of the catalog that is looked up where it is shown: `_(row.title)`."""
    return message


def listing(parts: Iterable[str]) -> str:
    """The parts as a language lists them: `a, b` in English."""
    return _(", ").join(parts)


@contextmanager
def in_english() -> Iterator[None]:
    """Make texts for what programs read.

    Example:
        >>> with in_english():
        ...     _("GPU table")
        'GPU table'
    """
    before = language()
    speak(LANGUAGES[0])
    try:
        yield
    finally:
        speak(before)
