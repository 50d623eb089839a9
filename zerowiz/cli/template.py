"""`zerowiz template`: a training script that works, to start from."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from zerowiz.app.template import copy_template
from zerowiz.cli.usage import PlainCommand
from zerowiz.core import shell
from zerowiz.core.decision.questions import TEMPLATES, Template, template_of
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.workload import MODEL_FOLDER, Loop
from zerowiz.translation import _


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
        _list_templates(sys.stdout)
        return
    chosen = template_of(loop)
    _show_copy(chosen, folder, copy_template(chosen, folder), sys.stdout)


def _list_templates(stream: TextIO) -> None:
    """The templates, and how one is copied."""
    for template in TEMPLATES:
        is_default = _(" (default)") if template is TEMPLATES[0] else ""
        stream.write(
            f"--loop {template.loop}{is_default}: {template.script}\n    {template.about}\n"
        )
    stream.write(_("\nto copy one: zerowiz template DIR\n"))


def _show_copy(
    template: Template, folder: Path, added: Sequence[PlannedFile], stream: TextIO
) -> None:
    """What lies in the folder now, and the command that trains it.

    Args:
        template: The template.
        folder: Where it lies.
        added: The files that were not there before.
        stream: Where it is shown.
    """
    if added:
        stream.writelines(_("wrote {path}\n", path=file.path) for file in added)
    else:
        stream.write(_("all of it is in {folder} already\n", folder=folder))
    enter = "" if folder == Path() else f"cd {shell.quote(folder)} && "
    rest = f"--model {MODEL_FOLDER} {template.script}"
    stream.write(_("\nnext: {enter}zerowiz launch {rest}\n", enter=enter, rest=rest))
    stream.write(
        _(
            "on a machine without a GPU: {enter}zerowiz launch --accelerator cpu {rest}\n",
            enter=enter,
            rest=rest,
        )
    )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="template", cls=PlainCommand)(template)
