"""`zerowiz template`: a training script that works, to start from."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from zerowiz.core import shell
from zerowiz.core.decision.questions import TEMPLATES, template_of
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.workload import MODEL_FOLDER, Loop
from zerowiz.emit.files import add_files
from zerowiz.errors import ZerowizError
from zerowiz.probe.package_data import read_template


def template(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder to copy it into; without one, zerowiz lists the templates"),
    ] = None,
    loop: Annotated[
        Loop, typer.Option("--loop", help="Training loop: the Trainer, or a plain loop")
    ] = TEMPLATES[0].loop,
    shared: Annotated[
        int,
        typer.Option(
            "--sequence-parallel",
            min=1,
            help="GPUs that share each sequence (Ulysses), in the plain loop",
        ),
    ] = 1,
) -> None:
    """Copy a training script that works into a folder, to start from"""
    if folder is None:
        _list_templates(sys.stdout)
        return
    if folder.exists() and not folder.is_dir():
        raise ZerowizError(f"`{folder}` is not a folder", "name a folder, new or empty")
    chosen = template_of(loop if shared == 1 else Loop.ENGINE)
    words = chosen.script if shared == 1 else f"--sequence-parallel {shared} {chosen.script}"
    _show_copy(words, folder, add_files(read_template(chosen.script, folder)), sys.stdout)


def _list_templates(stream: TextIO) -> None:
    """The templates, and how one is copied."""
    for template in TEMPLATES:
        is_default = " (default)" if template is TEMPLATES[0] else ""
        stream.write(
            f"--loop {template.loop}{is_default}: {template.script}\n    {template.about}\n"
        )
    stream.write("\nto copy one: zerowiz template DIR\n")


def _show_copy(words: str, folder: Path, added: Sequence[PlannedFile], stream: TextIO) -> None:
    """What lies in the folder now, and the command that trains it.

    Args:
        words: The script of the template, after the options that it needs.
        folder: Where it lies.
        added: The files that were not there before.
        stream: Where it is shown.
    """
    if added:
        stream.writelines(f"wrote {file.path}\n" for file in added)
    else:
        stream.write(f"all of it is in {folder} already\n")
    enter = "" if folder == Path() else f"cd {shell.quote(folder)} && "
    rest = f"--model {MODEL_FOLDER} {words}"
    stream.write(f"\nnext: {enter}zerowiz launch {rest}\n")
    stream.write(f"on a machine without a GPU: {enter}zerowiz launch --accelerator cpu {rest}\n")
