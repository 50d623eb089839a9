"""Write words as a person can paste them into a shell, and read what they typed as it does."""

import shlex
from collections.abc import Iterable

from zerowiz.errors import UsageError

# Write words as a person can paste them into a shell, whatever letters are in them.


def quote(word: object) -> str:
    r"""A word, or a value that is one as text (a path, a number), as bash, zsh and ksh read it.

    A line break, an escape sequence, or a byte that is no UTF-8 is neither shown by a terminal nor
    taken back by it: such a letter stands as its bytes.

    Example:
        >>> quote("my run.py"), quote("caf" + chr(0xDCE9))
        ("'my run.py'", "$'caf\\xe9'")
    """
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escape, text))}'"


def join(words: Iterable[object]) -> str:
    """A command of these words."""
    return " ".join(map(quote, words))


def split(text: str) -> list[str]:
    """The words of a line.

    Raises:
        UsageError: A quote in it has no end.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"not words of a shell ({str(error).lower()}): `{text}`",
            "type them as in a shell, each quote closed: `--name 'my data'`",
        ) from None


def _escape(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode(errors="surrogateescape"))
