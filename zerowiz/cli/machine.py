"""`zerowiz machine`: what the probe sees here."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.cli.machines import find_machine
from zerowiz.cli.options import Options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.codec import encode_machine
from zerowiz.core.launch import PlannedFile
from zerowiz.core.machine import Accelerator
from zerowiz.emit.files import write_file
from zerowiz.probe.machine_file import SCHEMA_VERSION
from zerowiz.ui import show


def machine(
    spec: Annotated[
        str | None, typer.Option("--machine", help="Recorded file, or a spec: 4xA100-40GB")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="NVML indices to use")] = None,
    accelerator: Annotated[
        Accelerator | None, typer.Option("--accelerator", help="What DeepSpeed runs on")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="GPUs, or CPU ranks")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write a file that --machine reads")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file")] = False,
) -> None:
    """Show the GPUs, the link between them and the host"""
    options = Options(machine=spec, gpus=gpus, accelerator=accelerator, gpus_per_node=gpus_per_node)
    seen = find_machine(options, os.environ)
    content = {"schema_version": SCHEMA_VERSION, "machine": encode_machine(seen)}
    text = json.dumps(content, indent=2) + "\n"
    if save is not None:
        write_file(PlannedFile(path=str(save), text=text), force=force)
    if as_json:
        sys.stdout.write(text)
    else:
        show.machine(seen, sys.stdout)
    for note in seen.notes:
        show.note(note, sys.stderr)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="machine", cls=PlainCommand)(machine)
