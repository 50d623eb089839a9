"""Decide which strategy a job continues with after it ran out of memory.

It is the same decision as before, with one more fact: what ran out of memory does not fit.
"""

from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.oom_history import RanOut
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.outcome.verdict import Cause
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace


def remember(decision: Decision, strategy: Strategy, memory: MemoryKind, day: str) -> RanOut | None:
    """The fact that a run ran out of memory; None where the size of that memory is not known.

    Args:
        decision: The decision that the run was started by.
        strategy: The strategy that it ran with.
        memory: The memory that was too small.
        day: Such as 2026-11-22.
    """
    job = decision.job
    on_gpu = memory is MemoryKind.GPU
    room_bytes = job.gpu_budget_bytes if on_gpu else job.machine.host.available_bytes
    if room_bytes is None:
        return None
    return RanOut(
        job_key=job.key,
        strategy=strategy.name,
        memory=memory,
        micro_batch=job.workload.micro_batch,
        sequence_tokens=job.workload.sequence_tokens,
        budget_bytes=room_bytes,
        seen_on=day,
    )


def decide_again(decision: Decision, seen: RanOut) -> Decision:
    """Decide again: the strategy that ran out of memory, and those that need as much, do not fit.

    The step and the batch stay the same. A stage that a person asked for was the one to begin with,
    so it constrains the new decision no longer.
    """
    job = replace(decision.job, ran_out=(*decision.job.ran_out, seen))
    constraints = replace(decision.constraints, stage=None, force=False)
    return decide(job, constraints)


# The memory that was too small, by the cause of an end; another strategy helps for no other cause.
_MEMORY = {Cause.CUDA_OOM: MemoryKind.GPU, Cause.HOST_OOM: MemoryKind.HOST}


def memory_of(cause: Cause) -> MemoryKind | None:
    """The memory that a job ran out of; None where it ended for another reason."""
    return _MEMORY.get(cause)
