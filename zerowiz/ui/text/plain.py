"""Take from a text of others what would steer the terminal, or the page, that shows it."""

import re

# Colours and bold (ECMA-48, SGR): they steer nothing, and would stay as `?[31m`.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def plain(text: str) -> str:
    """The text with `?` for each character that is not printed: escapes, bells, turns of direction.

    Example: `NVIDIA ?[2J` of a GPU's name with the sequence that clears a screen.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def plain_log(text: str) -> str:
    r"""The lines of a log without their colours, and without what would steer a terminal.

    Example:
        >>> plain_log("\x1b[31merror\x1b[0m: no\nroom\x1b[2J")
        'error: no\nroom?[2J'
    """
    return "\n".join(plain(line.expandtabs()) for line in _COLOUR.sub("", text).split("\n"))


def escape(text: str) -> str:
    r"""The text as a page or a drawing holds it: no markup, and nothing that is not printed.

    Example:
        >>> escape("H200 \x1b[2J <b>")
        'H200 ?[2J &lt;b&gt;'
    """
    from html import escape as escape_markup  # noqa: PLC0415 - 2 ms that only a page needs

    return escape_markup("\n".join(map(plain, text.split("\n"))))
