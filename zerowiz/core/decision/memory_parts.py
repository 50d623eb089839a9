"""Group what a rank holds into the few parts that people tell memory by."""

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.allocator import margin, outside_bytes
from zerowiz.core.memory.ledger import PART_OF, MemoryPart, Moment, Phase
from zerowiz.core.workload.choices import Accounting


class Outside(Struct, frozen=True, kw_only=True):
    """What a job takes of a device beside its tensors."""

    context_bytes: int
    """CUDA, NCCL and libraries."""
    slack_bytes: int
    """What torch's allocator cannot use."""
    vllm_bytes: int


def outside(job: PlanInput, evaluated: StrategyEstimate) -> Outside:
    """What a strategy takes beside its tensors; the rule of thumb knows tensors alone."""
    if job.accounting is Accounting.TEXTBOOK:
        return Outside(context_bytes=0, slack_bytes=0, vllm_bytes=0)
    peak_bytes = evaluated.estimate.peak_bytes
    near = margin(expandable_segments=job.expandable_segments)
    context_bytes = outside_bytes(job.machine, evaluated.buffers)
    slack_bytes = int(near.slack_fraction * peak_bytes)
    return Outside(
        context_bytes=context_bytes,
        slack_bytes=slack_bytes,
        vllm_bytes=evaluated.device_bytes - peak_bytes - slack_bytes - context_bytes,
    )


def group(moment: Moment) -> dict[MemoryPart, int]:
    """Bytes of each part in a moment; parts without any are left out."""
    sizes: dict[MemoryPart, int] = dict.fromkeys(MemoryPart, 0)
    for each in moment:
        sizes[PART_OF[each.kind]] += each.size_bytes
    return {part: size_bytes for part, size_bytes in sizes.items() if size_bytes}


def parts_by_phase(
    job: PlanInput, evaluated: StrategyEstimate
) -> dict[Phase, dict[MemoryPart, int]]:
    """Bytes of each part at the peak of each phase, what torch does not count included."""
    beside = outside(job, evaluated)
    always = {
        MemoryPart.CONTEXT: beside.context_bytes + beside.slack_bytes,
        MemoryPart.VLLM: beside.vllm_bytes,
    }
    constant = {part: size_bytes for part, size_bytes in always.items() if size_bytes}
    return {
        phase: {**group(moment), **constant} for phase, moment in evaluated.estimate.peaks().items()
    }


def parts(job: PlanInput, evaluated: StrategyEstimate) -> dict[MemoryPart, int]:
    """Bytes of each part where the device is fullest; their sum is `device_bytes`."""
    return parts_by_phase(job, evaluated)[evaluated.estimate.peak_phase]
