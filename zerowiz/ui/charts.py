"""The colours of the page, its tables, and the values that its sliders exchange."""

import re
from collections.abc import Container, Iterable, Mapping

from zerowiz.core.command_words import spell
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.memory.allocations import MemoryPart
from zerowiz.translation import _
from zerowiz.ui.pictures import ANSWER_COLOURS, VERDICT_COLOURS
from zerowiz.ui.text import Colour, escape

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "card": "#f5f7f9",
    "text": "#1a1d21",
    "dim": "#565d66",
    "line": "#c9ced6",
    "link": "#0b5cad",
    "good": "#17693b",
    "doubt": "#8f2a84",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "page": "#14181d",
    "card": "#1d232a",
    "text": "#e6e9ee",
    "dim": "#a3abb6",
    "line": "#434b56",
    "link": "#7fb8ff",
    "good": "#6fd08c",
    "doubt": "#e79be0",
    "bad": "#ff8d85",
}

PARTS: Mapping[MemoryPart, str] = {
    MemoryPart.WEIGHTS: "#4c86d8",
    MemoryPart.GRADIENTS: "#1f9aa8",
    MemoryPart.OPTIMIZER: "#b06fd0",
    MemoryPart.ACTIVATIONS: "#3d9a4a",
    MemoryPart.LOGITS: "#c07c1a",
    MemoryPart.BUFFERS: "#858b94",
    MemoryPart.CONTEXT: "#a27b5c",
    MemoryPart.VLLM: "#dd5f5f",
}
"""Seen on a light and on a dark page; a black letter in each can be read."""

_CLASSES: Mapping[Colour, str] = {
    Colour.GOOD: "good",
    Colour.DOUBT: "doubt",
    Colour.BAD: "bad",
}
VERDICTS: Mapping[Verdict, str] = {
    verdict: _CLASSES[colour] for verdict, colour in VERDICT_COLOURS.items()
}
ANSWERS: Mapping[str, str] = {answer: _CLASSES[colour] for answer, colour in ANSWER_COLOURS.items()}


def style_rules() -> str:
    """The colours as CSS variables: by the system's theme, by the page's own, and on paper."""
    light, dark = _variables(LIGHT), _variables(DARK)
    parts = "".join(
        f".{part.name.lower()}{{fill:{colour};background:{colour}}}"
        for part, colour in PARTS.items()
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
        f"{parts}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


# Write HTML whose values can be exchanged: every plan fills the same slots.


class Slots:
    """Collects the values that differ from plan to plan, in the order of their places.

    The page's script puts the values of another plan into the same places; it computes nothing.

    Args:
        exchanged: Whether the HTML says which value stands where.
    """

    def __init__(self, *, exchanged: bool = True) -> None:
        self.values: list[str] = []
        self._exchanged = exchanged

    def text(self, tag: str, value: str, attributes: str = "", **changing: str) -> str:
        """An element whose text may change, and attributes that may.

        The script exchanges text alone, so what is typed is no element, and has no marks either.

        Args:
            tag: Its name.
            value: Its text now.
            attributes: Those that stay, as HTML.
            **changing: The others; `kind` is the class.
        """
        value = value.replace("`", "")
        place = self._keep(value)
        fixed = f" {attributes}" if attributes else ""
        mark = f' data-t="{place}"' if self._exchanged else ""
        return f"<{tag}{fixed}{self._changing(changing)}{mark}>{escape(value)}</{tag}>"

    def shape(self, tag: str, attributes: str = "", **changing: str) -> str:
        """An element without text."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}/>"

    def opened(self, tag: str, attributes: str = "", **changing: str) -> str:
        """The start of an element that has others in it."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}>"

    def _changing(self, attributes: dict[str, str]) -> str:
        if not attributes:
            return ""
        named = {"class" if name == "kind" else name: value for name, value in attributes.items()}
        places = " ".join(f"{name}:{self._keep(value)}" for name, value in named.items())
        words = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
        return f'{words} data-a="{places}"' if self._exchanged else words

    def _keep(self, value: str) -> int:
        self.values.append(value)
        return len(self.values) - 1


# Write the blocks that stand in many places of a page.


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
        f'<th scope="col"{" class=more" if heading in more else ""}>{escape(_(heading))}</th>'
        for heading in head
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
