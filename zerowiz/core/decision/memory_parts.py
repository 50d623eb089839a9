"""Group what a rank holds into the few parts that people tell memory by."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.allocator import margin, outside_bytes
from zerowiz.core.memory.ledger import AllocationKind, Moment, Phase
from zerowiz.core.workload import Accounting


class MemoryPart(StrEnum):
    """What memory is for; the order is that of a bar."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    BUFFERS = "buffers"
    CONTEXT = "context"
    """What torch does not count: CUDA, NCCL, and what its allocator cannot use."""
    VLLM = "vLLM"


KINDS: Mapping[MemoryPart, frozenset[AllocationKind]] = {
    MemoryPart.WEIGHTS: frozenset(
        {
            AllocationKind.PARAMETERS,
            AllocationKind.PARAMETERS_SHARDED,
            AllocationKind.FROZEN_PARAMETERS,
            AllocationKind.FROZEN_PARAMETERS_SHARDED,
            AllocationKind.SECONDARY_PARAMETERS,
            AllocationKind.GATHERED_PARAMETERS,
            AllocationKind.PARAMETERS_IN_FLIGHT,
            AllocationKind.SMALL_ADAPTERS,
            AllocationKind.HALF_WEIGHTS,
            AllocationKind.REFERENCE,
            AllocationKind.REFERENCE_SHARDED,
            AllocationKind.REFERENCE_GATHERED,
            AllocationKind.DEQUANTIZED_LAYER,
            AllocationKind.UNTIED_HEAD,
            AllocationKind.UNTIED_HEAD_SHARDED,
            AllocationKind.NEW_ADAPTERS,
            AllocationKind.LARGEST_MODULE,
            AllocationKind.LARGEST_TENSOR,
            AllocationKind.LARGEST_TENSOR_SHARD,
        }
    ),
    MemoryPart.GRADIENTS: frozenset(
        {
            AllocationKind.GRADIENTS,
            AllocationKind.GRADIENTS_SHARDED,
            AllocationKind.SHARE_GRADIENTS,
            AllocationKind.ACCUMULATED_GRADIENTS,
            AllocationKind.HEAD_GRADIENT,
            AllocationKind.EMBEDDING_GRADIENT,
            AllocationKind.GRADIENT_IN_FLIGHT,
            AllocationKind.ZERO_GRADIENTS,
            AllocationKind.FP32_GRADIENTS,
            AllocationKind.FLAT_GRADIENTS,
            AllocationKind.MASTER_GRADIENTS,
            AllocationKind.SUB_GROUP_GRADIENTS,
            AllocationKind.SEPARATE_GRADIENTS,
            AllocationKind.GRADIENT_ALONE,
        }
    ),
    MemoryPart.OPTIMIZER: frozenset(
        {
            AllocationKind.OPTIMIZER,
            AllocationKind.MASTER_WEIGHTS,
            AllocationKind.OPTIMIZER_STATES,
            AllocationKind.OPTIMIZER_TEMPORARIES,
            AllocationKind.LAST_SUB_GROUP,
        }
    ),
    MemoryPart.ACTIVATIONS: frozenset(
        {
            AllocationKind.ACTIVATIONS,
            AllocationKind.ONE_BLOCK,
            AllocationKind.KV_CACHE,
            AllocationKind.KV_GROWTH,
            AllocationKind.PROMPTS,
        }
    ),
    MemoryPart.LOGITS: frozenset(
        {
            AllocationKind.LOSS_SAVED,
            AllocationKind.LOSS_LOGITS,
            AllocationKind.LOSS_GRADIENTS,
            AllocationKind.SAMPLING,
            AllocationKind.SCORING,
        }
    ),
    MemoryPart.BUFFERS: frozenset(
        {
            AllocationKind.REDUCE_BUCKET,
            AllocationKind.ALL_REDUCE_BUCKET,
            AllocationKind.REDUCE_SCATTER_COPY,
            AllocationKind.FLATTENING_COPY,
            AllocationKind.OFFLOAD_STAGING,
            AllocationKind.SLICE_IN_DOUBLE,
            AllocationKind.CUBLAS_WORKSPACE,
            AllocationKind.CUBLAS_WORKSPACES,
        }
    ),
}
"""What stands on a GPU, by its part; each kind has one."""

_PART_OF: Mapping[AllocationKind, MemoryPart] = {
    kind: part for part, kinds in KINDS.items() for kind in kinds
}


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
        sizes[_PART_OF[each.kind]] += each.size_bytes
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
