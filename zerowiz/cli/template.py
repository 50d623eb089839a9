"""`zerowiz template`: a training script that works, to start from."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.app.template import copy_template
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.decision.questions import TEMPLATES, template_of
from zerowiz.core.workload import Loop
from zerowiz.translation import _
from zerowiz.ui import files


def template(
    folder: Annotated[
        Path | None,
        typer.Argument(help=_("Folder to copy it into; without one, zerowiz lists the templates")),
    ] = None,
    loop: Annotated[
        Loop, typer.Option("--loop", help=_("Training loop: the Trainer, or a plain loop"))
    ] = TEMPLATES[0].loop,
) -> None:
    """Copy a training script that works into a folder, to start from"""
    if folder is None:
        files.listed(sys.stdout)
        return
    chosen = template_of(loop)
    files.copied(chosen, folder, copy_template(chosen, folder), sys.stdout)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="template", cls=PlainCommand)(template)
