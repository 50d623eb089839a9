"""Read the machine that a person asks to see, and keep it in a file."""

import json
import os
from pathlib import Path

from msgspec import Struct

from zerowiz.app.machines.hostfile_nodes import read_fleet
from zerowiz.app.machines.machine import complete, find_machine, with_hostfile
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.launch.provenance import PlannedFile, without_identities
from zerowiz.core.machine.merge import Fleet
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.types import Machine, with_gpus
from zerowiz.core.structs import encode, replace
from zerowiz.emit.files import write_file
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.files import hash_uuids
from zerowiz.probe.machine.machine_file import DESCRIPTION


class SeenMachine(Struct, frozen=True, kw_only=True):
    """A machine, and the nodes that it was made of, where a hostfile names them."""

    machine: Machine
    fleet: Fleet | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is remarkable about it."""
        nodes = () if self.fleet is None else tuple(note.words for note in self.fleet.notes)
        return (*self.machine.notes, *nodes)

    def describe(self) -> dict[str, object]:
        """What `--json` has; without a fleet, `--machine` reads it."""
        content: dict[str, object] = {
            "schema_version": DESCRIPTION,
            "machine": encode_machine(self.machine),
        }
        if self.fleet is not None:
            content["failures"] = encode(self.fleet.failures)
            content["short"] = encode(self.fleet.short)
            content["notes"] = encode(self.fleet.notes)
        return content

    def require_all_nodes(self) -> None:
        """See that every node answered, with all its slots: a job needs them.

        Raises:
            PreflightError: One did not.
        """
        fleet = self.fleet
        if fleet is None or not (fleet.failures or fleet.short):
            return
        silent, asked = len(fleet.failures), fleet.machine.nodes + len(fleet.failures)
        what = f"{silent} of {asked} nodes did not answer" if silent else "some slots have no GPU"
        raise PreflightError(
            what,
            *(f"`{failure.host}`: {failure.why}" for failure in fleet.failures),
            *(short.words for short in fleet.short),
        )


def see_machine(
    options: Options, save: Path | None, reporter: Reporter, *, deadline_s: int
) -> SeenMachine:
    """The machine that the options mean, saved where that was asked for.

    Args:
        options: What was said.
        save: The file that gets it.
        reporter: Hears how many nodes of a hostfile have answered, and which GPU is waited for.
        deadline_s: For the nodes of a hostfile.

    Raises:
        ZerowizError: It cannot be read, or not be saved.
    """
    if save is not None and not save.parent.is_dir():
        raise UsageError(
            f"`{save}` cannot be saved: folder `{save.parent}` does not exist",
            f"`mkdir -p {shell.quote(save.parent)}`",
        )
    if options.hostfile is None or options.machine is not None:
        seen = SeenMachine(machine=find_machine(options, os.environ, reporter=reporter))
    else:
        fleet = _read_fleet(options.hostfile, options, reporter, deadline_s)
        seen = SeenMachine(machine=fleet.machine, fleet=fleet)
    if save is not None:
        save_machine(seen.machine, save, force=options.force)
    return seen


def _read_fleet(hostfile: Path, options: Options, reporter: Reporter, deadline_s: int) -> Fleet:
    """The nodes that answered, with the machine as a plan takes it."""
    options = with_hostfile(options)
    fleet = read_fleet(hostfile, options, os.environ, reporter, deadline_s=deadline_s)
    seen, ranks = fleet.machine, options.gpus_per_node
    if ranks is not None and ranks < len(seen.gpus):
        seen = with_gpus(seen, ranks)
    return replace(fleet, machine=complete(seen, replace(options, nodes=seen.nodes)))


def save_machine(machine: Machine, path: Path, *, force: bool) -> None:
    """Write a machine for `--machine`, without UUIDs; what its GPUs run stays.

    Raises:
        HandEditedError: The file is there, and nobody forces it.
    """
    hashed = without_identities(machine, hash_uuids)
    pairs = zip(hashed.gpus, machine.gpus, strict=True)
    gpus = tuple(replace(gpu, processes=seen.processes) for gpu, seen in pairs)
    content = SeenMachine(machine=replace(hashed, gpus=gpus)).describe()
    text = json.dumps(content, indent=2) + "\n"
    elsewhere = "choose another file with `--save FILE`"
    write_file(PlannedFile(path=str(path), text=text, elsewhere=elsewhere), force=force)
