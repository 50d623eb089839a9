"""Count and fill the columns of a terminal: a character of Japanese takes two."""

from zerowiz.words import N_, _


def cells(text: str) -> int:
    """How many columns the text takes.

    Example:
        >>> cells("GPU"), cells("メモリ")
        (3, 6)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """The text and spaces behind it, up to so many columns."""
    return text + " " * (columns - cells(text))


def pad_left(text: str, columns: int) -> str:
    """Spaces up to so many columns, and the text."""
    return " " * (columns - cells(text)) + text


def centre(text: str, columns: int) -> str:
    """The text in the middle of so many columns, as `str.center` places it."""
    room = max(0, columns - cells(text))
    return " " * (room // 2) + text + " " * (room - room // 2)


# What begins a line of a plan, a search, a run, a measurement and a machine.
_LABELS = (
    *(N_("Machine"), N_("Model"), N_("Step"), N_("Script"), N_("Unseen"), N_("Chosen"), N_("Peak")),
    *(N_("Time"), N_("Host"), N_("Trainer"), N_("vLLM"), N_("Buffers"), N_("Search"), N_("Why")),
    *(N_("Run"), N_("Verdict"), N_("Bus"), N_("Python")),
)
LABEL_COLUMNS = max(cells(_(label)) for label in _LABELS) + 2
"""Of a label with the space behind it."""


def labelled(label: str, words: str) -> str:
    """A line that begins with a label, so that the words of all such lines stand in one column.

    Args:
        label: In the person's language.
        words: Behind it.
    """
    return pad(label, LABEL_COLUMNS) + words
