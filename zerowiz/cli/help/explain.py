"""The option that says what a code of `check` or `doctor` means, and what to do about it."""

import sys
from typing import Annotated

import typer

from zerowiz.errors import HAS_SITE, page_of
from zerowiz.words import _


def _show_explanation(code: str | None) -> None:
    if code is None:
        return
    from zerowiz.probe.error_page import ALL, read_explanation  # noqa: PLC0415 - most runs explain none

    address = f"\n{page_of(code)}\n" if HAS_SITE and code.lower() != ALL else ""
    sys.stdout.write(f"{read_explanation(code)}{address}")
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="<code>",
        callback=_show_explanation,
        is_eager=True,
        help=_("Show an example of a code (ZW101, PF402, exit-4) and the way out; all lists them"),
    ),
]
