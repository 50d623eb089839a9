"""Find the rung that a job goes on with after it ran out of memory: the same walk, knowing more."""

from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.oom_history import RanOut
from zerowiz.core.memory.ledger import MemoryKind
from zerowiz.core.outcome.verdict import Cause
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace


def remember(decision: Decision, strategy: Strategy, memory: MemoryKind, day: str) -> RanOut | None:
    """What a run of this strategy showed; None where nobody knows how much room it had.

    Args:
        decision: The one that it was started by.
        strategy: What it ran with.
        memory: Which memory was too small.
        day: As 2026-11-22.
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
    """Walk the chart once more: what died and what needs as much does not fit any more.

    A stage that was asked for was where to begin; the same step and batch go on one rung up.
    """
    job = replace(decision.job, ran_out=(*decision.job.ran_out, seen))
    constraints = replace(decision.constraints, stage=None, force=False)
    return decide(job, constraints)


# Which end shows which memory to be too small; every other end is no matter of the rung.
_MEMORY = {Cause.CUDA_OOM: MemoryKind.GPU, Cause.HOST_OOM: MemoryKind.HOST}


def memory_of(cause: Cause) -> MemoryKind | None:
    """The memory that a job ended for want of, if it did."""
    return _MEMORY.get(cause)
