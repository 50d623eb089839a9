"""Write texts and lists of a help page; click counts letters, and some are two columns wide."""

from collections.abc import Sequence
from typing import Any

from zerowiz.ui.text.cells import cells, pad
from zerowiz.ui.text.fold import fill_wide
from zerowiz.words import N_

# Rule: what click and typer say of their own options.
_OF_TYPER = (
    N_("Show this message and exit."),
    N_("Install completion for the current shell."),
    N_("Show completion for the current shell, to copy it or customize the installation."),
)
# A longer name has its description below it.
_WIDEST_NAME_COLUMNS = 30


def write_text(formatter: Any, text: str) -> None:  # noqa: ANN401 - typer's own or click's, by typer's release
    """A paragraph."""
    if cells(text) == len(text):
        formatter.write_text(text)
        return
    indent = " " * formatter.current_indent
    formatter.write("\n".join(fill_wide(text, formatter.width, indent, indent)) + "\n")


def write_rows(formatter: Any, rows: Sequence[tuple[str, str]]) -> None:  # noqa: ANN401 - as above
    """Names, and what they mean in a column beside them."""
    if all(cells(text) == len(text) for row in rows for text in row):
        formatter.write_dl(rows)
        return
    indent = " " * formatter.current_indent
    room = min(_WIDEST_NAME_COLUMNS, max(cells(name) for name, _ in rows)) + 2
    hang = indent + " " * room
    for name, text in rows:
        lines = fill_wide(text, formatter.width, hang, hang)
        fits = cells(name) <= room - 2
        first = lines[0].removeprefix(hang) if lines else ""
        head = indent + (pad(name, room) + first if fits else name)
        formatter.write("\n".join([head.rstrip(), *lines[fits:]]) + "\n")
