"""Define the ledger of one rank: every byte belongs to an allocation, every total is their sum."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """When an allocation is held; a rank's peak is the largest of the phases."""

    MODEL = "model"
    INIT = "init"
    GENERATE = "generate"
    """Of trainers that sample what they train on: before the micro-steps of an optimizer step."""
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class MemoryKind(StrEnum):
    """Which memory an allocation lies in, or which one was too small."""

    GPU = "gpu"
    HOST = "host"


class AllocationKind(StrEnum):
    """What an allocation is for; other programs read these names as `part`."""

    # Parameters and their gradients.
    PARAMETERS = "parameters"
    PARAMETERS_SHARDED = "parameters, sharded"
    FROZEN_PARAMETERS = "frozen parameters"
    FROZEN_PARAMETERS_SHARDED = "frozen parameters, sharded"
    SECONDARY_PARAMETERS = "secondary parameters"
    GATHERED_PARAMETERS = "gathered parameters"
    PARAMETERS_IN_FLIGHT = "parameters on their way"
    SMALL_ADAPTERS = "small adapters, whole"
    HALF_WEIGHTS = "weights in 16 bits"
    REFERENCE = "reference model"
    REFERENCE_SHARDED = "reference model, sharded"
    REFERENCE_GATHERED = "reference model, gathered"
    DEQUANTIZED_LAYER = "layer out of 4 bits"
    GRADIENTS = "gradients"
    GRADIENTS_SHARDED = "gradients, sharded"
    SHARE_GRADIENTS = "gradients of the share"
    ACCUMULATED_GRADIENTS = "accumulated gradients"
    HEAD_GRADIENT = "head gradient"
    EMBEDDING_GRADIENT = "embedding gradient"
    GRADIENT_IN_FLIGHT = "gradient in flight"
    # The optimizer, and what it steps with.
    OPTIMIZER = "optimizer"
    MASTER_WEIGHTS = "master weights"
    OPTIMIZER_STATES = "optimizer states"
    ZERO_GRADIENTS = "zero gradients"
    FP32_GRADIENTS = "fp32 gradients"
    FLAT_GRADIENTS = "flat gradients"
    MASTER_GRADIENTS = "gradients in the master's format"
    OPTIMIZER_TEMPORARIES = "optimizer temporaries"
    SUB_GROUP_GRADIENTS = "sub-group gradients"
    LAST_SUB_GROUP = "last sub-group"
    # Forward and backward.
    ACTIVATIONS = "activations"
    ONE_BLOCK = "one block"
    LOSS_SAVED = "loss, saved"
    LOSS_LOGITS = "loss, logits"
    LOSS_GRADIENTS = "loss, gradients"
    # Generation.
    KV_CACHE = "keys and values"
    KV_GROWTH = "keys of a layer, as they grow"
    PROMPTS = "prompts in one block"
    SAMPLING = "logits, sampling"
    SCORING = "log-probabilities"
    # Buffers of DeepSpeed and of the libraries.
    REDUCE_BUCKET = "reduce bucket"
    SEPARATE_GRADIENTS = "separate gradients"
    ALL_REDUCE_BUCKET = "all-reduce bucket"
    REDUCE_SCATTER_COPY = "reduce-scatter copy"
    FLATTENING_COPY = "flattening copy"
    OFFLOAD_STAGING = "offload staging"
    GRADIENT_ALONE = "gradient alone"
    SLICE_IN_DOUBLE = "slice in double"
    CUBLAS_WORKSPACE = "cuBLAS workspace"
    CUBLAS_WORKSPACES = "cuBLAS workspaces"
    # While the model is built and sharded.
    UNTIED_HEAD = "head before tying"
    UNTIED_HEAD_SHARDED = "head before tying, sharded"
    NEW_ADAPTERS = "adapters in fp32"
    LARGEST_MODULE = "largest module"
    LARGEST_TENSOR = "largest tensor"
    LARGEST_TENSOR_SHARD = "its shard"
    # Host memory.
    MASTER_WEIGHTS_PINNED = "master weights, pinned"
    FP32_GRADIENTS_PINNED = "fp32 gradients, pinned"
    GRADIENTS_PINNED = "gradients, pinned"
    ACCUMULATED_GRADIENTS_PINNED = "accumulated gradients, pinned"
    PARAMETER_STAGING_PINNED = "parameter staging, pinned"
    GRADIENT_STAGING_PINNED = "gradient staging, pinned"
    REFERENCE_PINNED = "reference model, pinned"
    PARAMETERS_PINNED = "parameters, pinned"
    PARAMETERS_AS_BUILT_PINNED = "parameters as built, pinned"
    SWAP_BUFFERS_LOCKED = "swap buffers, locked"
    PARAMETERS_IN_FLIGHT_LOCKED = "parameters on their way, locked"
    STEPPED_PARAMETERS_LOCKED = "stepped parameters, locked"
    SMALL_PARAMETERS = "small parameters"
    PROCESSES = "interpreters, libraries and kernels"
    LOADER_WORKERS = "data loader workers"
    MODEL_BUILT = "model as it is built"
    SHARES_MOVED = "shares of the weights, moved through the host"
    WEIGHTS_COLLECTED = "weights collected to be saved"
    STORAGE_WRITTEN = "largest storage that is written"


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

PART_OF: Mapping[AllocationKind, MemoryPart] = {
    kind: part for part, kinds in KINDS.items() for kind in kinds
}
"""The part of each kind."""


class Allocation(NamedTuple):
    """What one rank holds for one purpose at one time."""

    kind: AllocationKind
    size_bytes: int
    formula: str
    """In the symbols of `rank_sizes.py` and docs/concepts/memory.md: N, P, w, V, t, h …"""


Moment = tuple[Allocation, ...]
"""Everything that is alive at one time."""
Moments = Mapping[Phase, Sequence[Moment]]
"""Those that compete for the peak of each phase."""


def moment_bytes(moment: Iterable[Allocation]) -> int:
    """The sum of a moment."""
    return sum([allocation.size_bytes for allocation in moment])
