"""`zerowiz machine`: what the probe sees here."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.machines.machine import complete, find_machine, with_hostfile
from zerowiz.app.machines.nodes import DEADLINE_S, read_fleet
from zerowiz.app.options import Options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.codec import encode
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.machine.merge import Fleet
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.machine_json import encode_machine
from zerowiz.core.values import replace
from zerowiz.emit.files import write_file
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.machine_file import DESCRIPTION
from zerowiz.probe.recording.recording import Recorder
from zerowiz.ui import outliers, show
from zerowiz.ui.machine import machine as show_machine


def machine(
    spec: Annotated[
        str | None, typer.Option("--machine", help="Recorded file, or a spec: 4xA100-40GB")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="NVML indices to use: 0,2,3; a MIG slice: 0:1")
    ] = None,
    accelerator: Annotated[
        Accelerator | None, typer.Option("--accelerator", help="What DeepSpeed runs on")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Equal nodes")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="GPUs, or CPU ranks")
    ] = None,
    interconnect: Annotated[
        str | None,
        typer.Option("--interconnect", help="What cannot be measured: nvlink,infiniband:400Gb/s"),
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option("--hostfile", help="Ask all its nodes: one `host slots=N` a line")
    ] = None,
    deadline: Annotated[
        int, typer.Option("--deadline", min=1, max=3600, help="Seconds that the nodes have")
    ] = DEADLINE_S,
    disk: Annotated[
        Path | None, typer.Option("--disk", help="A folder that offload would use")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write a file that --machine reads")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout")] = False,
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
        output_dir=disk,
    )
    asks_nodes = hostfile is not None and spec is None
    fleet = _read_fleet(options, deadline) if asks_nodes else None
    if fleet is None:
        seen = _read_and_save(options, os.environ, save, force=force)
    else:
        seen = fleet.machine
        if save is not None:
            write_file(PlannedFile(path=str(save), text=_describe(seen, None)), force=force)
    if as_json:
        sys.stdout.write(_describe(seen, fleet))
    else:
        show_machine(seen, sys.stdout)
    for note in (*seen.notes, *_fleet_notes(fleet)):
        show.note(note, sys.stderr)
    if fleet is not None:
        _refuse_lack(fleet)


def _fleet_notes(fleet: Fleet | None) -> tuple[str, ...]:
    return () if fleet is None else tuple(outliers.notes(fleet))


def _read_fleet(options: Options, deadline_s: int) -> Fleet:
    """The nodes that answered, with the machine as a plan takes it."""
    options = with_hostfile(options)
    fleet = read_fleet(options, os.environ, deadline_s=deadline_s)
    seen, ranks = fleet.machine, options.gpus_per_node
    if ranks is not None and ranks < len(seen.gpus):
        seen = with_gpus(seen, ranks)
    return replace(fleet, machine=complete(seen, replace(options, nodes=seen.nodes)))


def _refuse_lack(fleet: Fleet) -> None:
    """A job needs every node of its hostfile, with all its slots."""
    silent, asked = len(fleet.failures), fleet.machine.nodes + len(fleet.failures)
    if silent or fleet.short:
        what = f"{silent} of {asked} nodes did not answer" if silent else "not every slot has a GPU"
        raise PreflightError(
            what,
            *(f"`{failure.host}`: {failure.why}" for failure in fleet.failures),
            *map(outliers.outlier, fleet.short),
        )


def _describe(seen: Machine, fleet: Fleet | None) -> str:
    content: dict[str, object] = {
        "schema_version": DESCRIPTION,
        "machine": encode_machine(seen),
    }
    if fleet is not None:
        content["oddities"] = encode(fleet.outliers)
        content["failures"] = encode(fleet.failures)
        content["short"] = encode(fleet.short)
        content["notes"] = encode(fleet.notes)
    return json.dumps(content, indent=2) + "\n"


def _read_and_save(
    options: Options, environ: Mapping[str, str], path: Path | None, *, force: bool
) -> Machine:
    """The machine; saved as a recording when it is this one, else as a description."""
    if options.output_dir is not None and not options.output_dir.is_dir():
        raise UsageError(f"`--disk {options.output_dir}` is no folder")
    on_cpu = Accelerator.CPU in (options.accelerator, environ.get("DS_ACCELERATOR"))
    if path is None:
        return find_machine(options, environ)
    if not path.parent.is_dir():
        raise UsageError(
            f"`{path}` cannot be saved: there is no folder `{path.parent}`",
            f"`mkdir -p {shlex.quote(str(path.parent))}`",
        )
    if on_cpu or options.machine is not None:
        seen = find_machine(options, environ)
        write_file(PlannedFile(path=str(path), text=_describe(seen, None)), force=force)
        return seen
    recorder = Recorder(environ, options.output_dir or Path())
    try:
        seen = find_machine(options, environ, recorder.world)
    except PreflightError as error:
        # What NVML refused is what a bug report needs.
        _save(recorder, path, force=force)
        read = f"what was read up to there is in `{path}`"
        raise PreflightError(error.message, *error.hints, read) from None
    _save(recorder, path, force=force)
    left = {
        "--gpus": options.gpus,
        "--nodes": options.nodes,
        "--interconnect": options.interconnect,
    }
    again = " ".join(f"{flag} {value}" for flag, value in left.items() if value is not None)
    # A recording is what the machine answered, not what was made of it.
    return seen.with_notes(f"`{path}` holds the machine without `{again}`") if again else seen


def _save(recorder: Recorder, path: Path, *, force: bool) -> None:
    write_file(PlannedFile(path=str(path), text=recorder.write(__version__)), force=force)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="machine", cls=PlainCommand)(machine)
