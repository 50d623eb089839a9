"""The option that says what a code of `check` or `doctor` means, and what to do about it."""

import sys
from typing import Annotated

import typer

from zerowiz.errors import page_of
from zerowiz.words import _


def _show_explanation(code: str | None) -> None:
    if code is None:
        return
    from zerowiz.probe.error_page import read_explanation  # noqa: PLC0415 - most runs explain none

    sys.stdout.write(f"{read_explanation(code)}\n{page_of(code)}\n")
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="<code>",
        callback=_show_explanation,
        is_eager=True,
        help=_("Show an example of a code, such as ZW101 or PF402, and the way out"),
    ),
]
