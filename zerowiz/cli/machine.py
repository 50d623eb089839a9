"""`zerowiz machine`: what the probe sees here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.app.machines.hostfile_nodes import DEADLINE_S
from zerowiz.app.machines.see import see_machine
from zerowiz.app.options import Options
from zerowiz.cli.completion import complete_machine
from zerowiz.cli.usage import write_json
from zerowiz.core.machine.types import Accelerator
from zerowiz.errors import PreflightError
from zerowiz.ui import machine as machine_text
from zerowiz.ui.reporter import TerminalReporter


def machine(
    spec: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="<machine>",
            help="Saved file, spec (8xH100) or instance (p5.48xlarge)",
            autocompletion=complete_machine,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="<list>", help="NVML indices to use: 0,2,3; a MIG slice: 0:1"
        ),
    ] = None,
    accelerator: Annotated[
        Accelerator | None, typer.Option("--accelerator", help="Accelerator that DeepSpeed uses")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Number of nodes, all alike")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="GPUs (or CPU ranks) per node")
    ] = None,
    interconnect: Annotated[
        str | None,
        typer.Option(
            "--interconnect",
            metavar="<links>",
            help="Links that zerowiz cannot detect: nvlink,infiniband:400Gb/s",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option("--hostfile", help="Read all nodes of this file: one `host slots=N` per line"),
    ] = None,
    probe_timeout: Annotated[
        int | None,
        typer.Option(
            "--probe-timeout",
            min=1,
            max=3600,
            help="Time limit for each call of the NVIDIA driver",
        ),
    ] = None,
    deadline: Annotated[
        int,
        typer.Option(
            "--deadline",
            min=1,
            max=3600,
            metavar="<seconds>",
            help="Time limit for each node to answer",
        ),
    ] = DEADLINE_S,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save the machine to a file for --machine")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file")] = False,
) -> None:
    """Show the GPUs, the links between them, the host, the network and the scheduler"""
    options = Options(
        machine=spec,
        gpus=gpus,
        accelerator=accelerator,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        interconnect=interconnect,
        hostfile=hostfile,
        probe_timeout=probe_timeout,
        force=force,
    )
    reporter = TerminalReporter(with_waits=not as_json)
    try:
        seen = see_machine(options, save, reporter, deadline_s=deadline)
    except PreflightError:
        if spec is None and hostfile is None and not as_json:
            machine_text.show_names(sys.stdout)
        raise
    if as_json:
        write_json(seen.describe())
    else:
        machine_text.machine(seen.machine, sys.stdout)
    for note in seen.notes:
        reporter.note(note)
    seen.require_all_nodes()
