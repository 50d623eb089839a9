"""Learn from a run that ran out of memory, so that no later plan repeats it.

What ran out with so much memory needs more than that, and so does every strategy that is predicted
to need as much, and every larger step of the same job.
"""

import json

from msgspec import Struct, structs

from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.model.types import Architecture, Model
from zerowiz.core.values import Count, replace
from zerowiz.core.workload.choices import StateDtype
from zerowiz.core.workload.workload import Workload

# What is free on a device differs by some hundred MB from one run to the next.
_SAME_ROOM = 1.05


class RanOut(Struct, frozen=True, kw_only=True):
    """A run that ran out of memory."""

    job_key: str
    strategy: str
    memory: MemoryKind
    """Which memory was too small."""
    micro_batch: Count
    sequence_tokens: Count
    budget_bytes: Count
    """What a rank could take of its device then; of the node, where the host was too small."""
    seen_on: str
    """The day, as 2026-11-22."""

    def rules_out(self, workload: Workload, budget_bytes: int | None) -> bool:
        """Whether a step like this one, with this room, would end the same way."""
        as_large = (
            workload.micro_batch >= self.micro_batch
            and workload.sequence_tokens >= self.sequence_tokens
        )
        return as_large and (budget_bytes or 0) <= self.budget_bytes * _SAME_ROOM


def job_key(
    machine: Machine, model: Model, workload: Workload, state_dtype: StateDtype | None
) -> str:
    """A hash of everything that decides what a rank holds, except the size of its step."""
    import hashlib  # noqa: PLC0415 - it takes long to load, and most plans need no key

    step = replace(workload, micro_batch=1, sequence_tokens=1, accumulation_steps=1)
    held = {
        "gpus": sorted((gpu.name, gpu.total_bytes) for gpu in machine.gpus),
        "nodes": machine.nodes,
        "model": [model.params, model.name, _fields(model.architecture)],
        "step": _fields(step),
        "states": str(state_dtype),
    }
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()[:32]


def _fields(value: Architecture | Workload) -> dict[str, str]:
    """Each field as text; a set in one order, which Python changes from run to run."""
    texts: dict[str, str] = {}
    for field in structs.fields(value):
        held = getattr(value, field.name)
        texts[field.name] = str(sorted(held) if isinstance(held, frozenset) else held)
    return texts


class History(Struct, frozen=True, kw_only=True):
    """The runs of one job that ran out of memory: of each strategy the latest."""

    ran_out: tuple[RanOut, ...] = ()

    def plus(self, seen: RanOut) -> "History":
        """The history with one more run in it."""
        others = (one for one in self.ran_out if one.strategy != seen.strategy)
        return History(ran_out=(*others, seen))
