"""Compare the machine of an earlier plan with that of today, and say what becomes of the batch."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.codec import parse_json
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource
from zerowiz.core.machine_json import decode_machine
from zerowiz.core.plan_json import SCHEMA_VERSION
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError

# Free memory differs a little from one start to the next: contexts, a desktop, the driver.
_NOTABLE_LOSS = 0.1


class MachineFact(StrEnum):
    """What of a machine is compared."""

    NODES = "nodes"
    GPUS = "gpus_per_node"
    KIND = "gpu_names"
    FREE_MEMORY = "free_bytes"
    """The least of a GPU."""


class ChangedFact(Struct, frozen=True, kw_only=True):
    """A fact that is not what it was."""

    fact: MachineFact
    before: int | str
    now: int | str


class BatchChange(Struct, frozen=True, kw_only=True):
    """A global batch that is not what it was, or not what the script would have by itself."""

    before: int
    now: int
    accumulation_steps: int | None = None
    """What keeps it; None where no whole number does, or nothing would fit."""
    by_script: bool = False
    """Whether only the script, or a config of the person's, can say so."""


class MachineChange(Struct, frozen=True, kw_only=True):
    """What has changed since an earlier plan of the same script."""

    plan_path: str
    """The file of the earlier plan."""
    facts: tuple[ChangedFact, ...]
    """At least one."""
    global_batch: BatchChange | None = None

    @property
    def has_other_ranks(self) -> bool:
        """Whether there are more or fewer GPUs or nodes."""
        return bool({MachineFact.NODES, MachineFact.GPUS} & {each.fact for each in self.facts})


class EarlierPlan(Struct, frozen=True, kw_only=True):
    """What a plan file says of the job that it was made for."""

    path: str
    machine: Machine
    global_batch: int


def read_earlier_plan(path: str, content: bytes, script: str | None) -> EarlierPlan | None:
    """The plan in a plan file; None where it is not one of this script.

    Args:
        path: Of the file.
        content: Its bytes, which anybody may have edited.
        script: As it is named in the command; None for a config without a script.
    """
    try:
        found = parse_json(content)
    except ValueError:
        return None
    match found:
        case {
            "schema_version": int(version),
            "machine": machine,
            "workload": {"global_batch": int(batch)},
            "reproduce": {"argv": list(argv)},
        } if version == SCHEMA_VERSION and (script or "--no-script") in argv and batch > 0:
            try:
                return EarlierPlan(path=path, machine=decode_machine(machine), global_batch=batch)
            except UsageError:
                return None
        case _:
            return None


def compare_machines(before: Machine, now: Machine) -> tuple[ChangedFact, ...]:
    """What has changed; free memory counts where a tenth of it or more is gone.

    Example:
        8 GPUs and now 4 of them: one fact, `gpus_per_node`, from 8 to 4.
    """
    return tuple(_compare(before, now))


def _compare(before: Machine, now: Machine) -> Iterator[ChangedFact]:
    counts = (
        (MachineFact.NODES, before.nodes, now.nodes),
        (MachineFact.GPUS, len(before.gpus), len(now.gpus)),
    )
    for fact, was, count in counts:
        if was != count:
            yield ChangedFact(fact=fact, before=was, now=count)
    if _names(before) != _names(now) and _are_of_other_kinds(before, now):
        yield ChangedFact(fact=MachineFact.KIND, before=_names(before), now=_names(now))
    was_free, is_free = before.free_bytes, now.free_bytes
    # Ranks on the CPU share what is free of the host: they have less where they are more.
    on_gpus = Accelerator.CPU not in {before.accelerator, now.accelerator}
    if on_gpus and was_free and is_free is not None and is_free < was_free * (1 - _NOTABLE_LOSS):
        yield ChangedFact(fact=MachineFact.FREE_MEMORY, before=was_free, now=is_free)


def _are_of_other_kinds(before: Machine, now: Machine) -> bool:
    """Whether GPUs of other names are others: a spec has names of the table, a driver its own."""
    by_spec = {machine.source is MachineSource.SPEC for machine in (before, now)}
    if len(by_spec) == 1:
        return True
    sizes = [min((gpu.total_bytes or 0) for gpu in each.gpus) for each in (before, now)]
    least, most = sorted(sizes)
    kinds = [{gpu.compute_capability for gpu in each.gpus} for each in (before, now)]
    return kinds[0] != kinds[1] or least < most * (1 - _NOTABLE_LOSS)


def _names(machine: Machine) -> str:
    return " + ".join(sorted({gpu.name for gpu in machine.gpus}))


def compare_batches(earlier: EarlierPlan, step: Workload, machine: Machine) -> BatchChange | None:
    """What becomes of the global batch where the number of ranks has changed; None if nothing does.

    Args:
        earlier: The plan of before.
        step: That of today.
        machine: That of today.
    """
    if machine.world_size == earlier.machine.world_size:
        return None
    return change_batch(earlier.global_batch, step, machine)


def change_batch(before: int, step: Workload, machine: Machine) -> BatchChange | None:
    """The change from a global batch to that of a step; None if there is none.

    Example:
        128 sequences, and now 1 x 8 on each of 4 GPUs: to 32, and 32 micro-steps would keep it.
    """
    ranks = machine.world_size
    now = step.micro_batch * step.accumulation_steps * ranks
    if now == before:
        return None
    steps, rest = divmod(before, step.micro_batch * ranks)
    return BatchChange(before=before, now=now, accumulation_steps=None if rest else steps)


def encode_machine_change(change: MachineChange) -> dict[str, object]:
    """As JSON values; names and sizes as in `machine`, a batch in samples of all ranks."""
    batch = change.global_batch
    return {
        "plan_path": change.plan_path,
        "facts": [
            {"fact": each.fact.value, "before": each.before, "now": each.now}
            for each in change.facts
        ],
        "global_batch": None
        if batch is None
        else {
            "before": batch.before,
            "now": batch.now,
            "keep_with_accumulation_steps": batch.accumulation_steps,
        },
    }
