"""The option that says what a code of `check` or `doctor` means, and what to do about it."""

import sys
from typing import Annotated

import typer

from zerowiz.errors import page_of
from zerowiz.words import _


def _show_explanation(code: str | None) -> None:
    if code is None:
        return
    from zerowiz.probe.error_page import ALL, read_explanation  # noqa: PLC0415 - most runs explain none

    page = "" if code.lower() == ALL else f"\n{page_of(code)}\n"
    sys.stdout.write(read_explanation(code) + page)
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="<code>",
        callback=_show_explanation,
        is_eager=True,
        help=_("Show an example of a code (ZW101, PF402) and the way out; all lists the codes"),
    ),
]
