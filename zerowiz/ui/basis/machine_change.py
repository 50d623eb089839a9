"""Say that a machine is not what it was when a job was planned, and what follows."""

from collections.abc import Callable, Mapping

from zerowiz.core.launch.machine_change import ChangedFact, MachineChange, MachineFact
from zerowiz.core.machine.types import Machine
from zerowiz.ui.basis.learning import global_batch
from zerowiz.ui.text.units import gib, on_device
from zerowiz.words import _, listing

_FACTS: Mapping[MachineFact, Callable[[ChangedFact], str]] = {
    MachineFact.NODES: lambda each: _("{before} -> {now} nodes", before=each.before, now=each.now),
    MachineFact.GPUS: lambda each: _(
        "{before} -> {now} GPUs per node", before=each.before, now=each.now
    ),
    MachineFact.KIND: lambda each: f"{each.before} -> {each.now}",
    MachineFact.FREE_MEMORY: lambda each: _(
        "{before} -> {now} free per GPU", before=gib(int(each.before)), now=gib(int(each.now))
    ),
}


def machine_change(change: MachineChange, machine: Machine) -> str:
    """All of it in one line: what has changed, then the batch and how to keep it.

    Args:
        change: What has changed.
        machine: That of today.
    """
    changed = _(
        "the machine has changed since `{path}`: {facts}",
        path=change.plan_path,
        facts=listing(on_device(_FACTS[each.fact](each), machine) for each in change.facts),
    )
    batch = change.global_batch
    return changed if batch is None else f"{changed}; {global_batch(batch)}"
