"""Write the blocks that stand in many places of a page."""

import re
from collections.abc import Container, Iterable

from zerowiz.core.flags import spell
from zerowiz.ui.text.plain import escape
from zerowiz.words import _


def section(name: str, title: str, content: str, opened: str | None = None) -> str:
    """A part of the page under its heading.

    Args:
        name: What ids are made of.
        title: Its heading.
        content: As HTML.
        opened: Its first tag, where that is another one.
    """
    start = opened or f'<section aria-labelledby="h-{name}">'
    return f'{start}<h2 id="h-{name}">{escape(title)}</h2>{content}</section>'


def table(caption: str, head: Iterable[str], rows: str, more: Container[str] = frozenset()) -> str:
    """A table that scrolls by itself where the page is narrow, also by keyboard.

    Args:
        caption: What it shows.
        head: The headings of its columns, in English: they are shown in the person's language.
        rows: As HTML.
        more: The headings of those that a narrow page leaves out; their cells say so, too.
    """
    cells = "".join(
        f'<th scope="col"{" class=more" if each in more else ""}>{escape(_(each))}</th>'
        for each in head
    )
    label = escape(caption)
    return (
        f'<p class="dim" aria-hidden="true">{label}</p>'
        f'<div class="wide" tabindex="0" role="group" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def prose(text: str) -> str:
    """A sentence, what is typed in it as code."""
    typed = re.sub(r"`([^`\s]{1,30})`", r'<code class="word">\1</code>', escape(spell(text)))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", typed)


def bullets(texts: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
