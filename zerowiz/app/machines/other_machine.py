"""Find a machine that is not the one this runs on: of a file, or of a spec."""

from pathlib import Path

from zerowiz.app.options import Options, refuse_gpus, with_count
from zerowiz.core.machine.job_gpus import select_gpus
from zerowiz.core.machine.names import find_model, named_instance, parse_machine
from zerowiz.core.machine.types import Machine, spell_network
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError
from zerowiz.probe.files import is_named_file, read_gpu_table, read_instances


def read_named(options: Options) -> Machine:
    """The machine of a file, a spec or an instance's name."""
    text, count = options.machine or "", options.gpus_per_node
    path = Path(text)
    if path.suffix != ".json" and not is_named_file(path):
        return select_gpus(_read_spec(text, options), {}, options.gpus)
    # A spec needs no recording, and no driver's functions to play it back to.
    from zerowiz.probe.machine.host import cpu_machine  # noqa: PLC0415 - see above
    from zerowiz.probe.machine.machine_file import read_machine_file  # noqa: PLC0415 - see above

    machine = read_machine_file(path, gpus=options.gpus)
    if machine.accelerator.row.on_host:
        refuse_gpus(options)
        ranks = count or len(machine.gpus)
        return replace(cpu_machine(ranks, machine.host), source=machine.source)
    return with_count(machine, options)


def note_network(machine: Machine, options: Options) -> Machine:
    """A spec of nodes that nobody knows the network of, with what the list of machines assumes.

    An instance has no note: the list assumes no network of it either.
    """
    if named_instance(options.machine or "", read_instances()) is not None:
        return machine
    # Most machines have one node.
    from zerowiz.core.machine_kinds import assume_network  # noqa: PLC0415 - see above

    gpu = find_model(machine.gpus[0].name, read_gpu_table())
    return machine.with_notes(
        "the network between the nodes is unknown and counts as slow; `$machine all` "
        f"assumes `$interconnect {spell_network(assume_network(gpu, len(machine.gpus)))}`"
    )


def _read_spec(text: str, options: Options) -> Machine:
    machine = parse_machine(
        text, read_gpu_table(), read_instances(), gpus_per_node=options.gpus_per_node
    )
    if options.nodes is not None and machine.nodes not in {1, options.nodes}:
        raise UsageError(
            (
                f"`$nodes {options.nodes}` conflicts with `$machine {text}`, which has "
                f"{machine.nodes}"
            ),
            f"remove `$nodes {options.nodes}`",
        )
    return machine
