"""Take from a text of others what would steer the terminal, or the page, that shows it."""


def plain(text: str) -> str:
    """The text with `?` for each character that is not printed: escapes, bells, turns of direction.

    Example: `NVIDIA ?[2J` of a GPU's name with the sequence that clears a screen.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def escape(text: str) -> str:
    r"""The text as a page or a drawing holds it: no markup, and nothing that is not printed.

    Example:
        >>> escape("H200 \x1b[2J <b>")
        'H200 ?[2J &lt;b&gt;'
    """
    from html import escape as escape_markup  # noqa: PLC0415 - 2 ms that only a page needs

    return escape_markup("\n".join(map(plain, text.split("\n"))))
