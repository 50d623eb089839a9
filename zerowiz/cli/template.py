"""`zerowiz template`: a training script that works, to start from."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.core import shell
from zerowiz.core.decision.questions import TEMPLATES, template_of
from zerowiz.core.workload import MODEL_FOLDER, Loop
from zerowiz.emit.files import add_files
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import read_template

_NEW_WEIGHTS = (
    "It trains new weights of the model that you name, on the small text of corpus.txt.\n"
    "For a real job, change `build_model`, and what reads the text."
)


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
            help="GPUs that share each sequence (Ulysses)",
        ),
    ] = 1,
) -> None:
    """Copy a training script that works into a folder, to start from"""
    if folder is None:
        for each in TEMPLATES:
            is_default = " (default)" if each is TEMPLATES[0] else ""
            sys.stdout.write(f"--loop {each.loop}{is_default}: {each.script}\n    {each.about}\n")
        sys.stdout.write("\nto copy one: zerowiz template DIR\n")
        return
    if folder.exists() and not folder.is_dir():
        raise ZerowizError(f"`{folder}` is not a folder", "name a folder, new or empty")
    script = template_of(loop).script
    added = add_files(read_template(script, folder))
    if added:
        sys.stdout.writelines(f"wrote {file.path}\n" for file in added)
    else:
        sys.stdout.write(f"all of it is in {folder} already\n")
    sys.stdout.write(f"\n{_NEW_WEIGHTS}\n")
    enter = "" if folder == Path() else f"cd {shell.quote(folder)} && "
    words = "" if shared == 1 else f"--sequence-parallel {shared} "
    rest = f"--model {MODEL_FOLDER} {words}{script}"
    sys.stdout.write(f"\nnext: {enter}zerowiz launch {rest}\n")
    sys.stdout.write(
        f"on a machine without a GPU: {enter}zerowiz launch --accelerator cpu {rest}\n"
    )
