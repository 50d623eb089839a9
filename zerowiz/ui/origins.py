"""Show where each setting of a plan comes from."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.flags import flags
from zerowiz.ui.text.table import show_rows
from zerowiz.words import _


def origins(found: Sequence[tuple[str, object, str]], stream: TextIO) -> None:
    """A table of the settings that have a value.

    Args:
        found: Of each setting its name, its value, and what decides it.
        stream: Where to.
    """
    rows = [(flags()[name], _words(value), _(by)) for name, value, by in found if value is not None]
    show_rows(stream, ("setting", "value", "from"), rows)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(value)
