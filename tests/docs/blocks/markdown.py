"""Tables, links and code as markdown."""

import re
from collections.abc import Iterable, Sequence

_ADDRESS = re.compile(r"https?://[^\s,;)]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The rows below their head; a bar in a cell does not end it."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def sources(texts: Iterable[str]) -> str:
    """A numbered link to each address that stands in the texts, once."""
    found = dict.fromkeys(address for text in texts for address in _ADDRESS.findall(text))
    return " ".join(f"[{number}]({address})" for number, address in enumerate(found, 1))


def code(text: str, language: str) -> str:
    """Lines of code, without what is empty below them."""
    return f"```{language}\n{text.rstrip()}\n```"
