"""What is said of a template: which there are, what was copied, and how to run it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from zerowiz.core import shell
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.templates import MODEL_FOLDER, TEMPLATES, Template
from zerowiz.words import _


def listed(stream: TextIO) -> None:
    """The templates, and how one is copied."""
    for each in TEMPLATES:
        is_default = _(" (default)") if each is TEMPLATES[0] else ""
        stream.write(f"--loop {each.loop}{is_default}: {each.script}\n    {each.about}\n")
    stream.write(_("\nto copy one: zerowiz template DIR\n"))


def copied(template: Template, folder: Path, added: Sequence[PlannedFile], stream: TextIO) -> None:
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
