"""Define the ledger of one rank: every byte belongs to an allocation, every total is their sum."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from zerowiz.translation import N_


class Phase(StrEnum):
    """When an allocation is held; a rank's peak is the largest of the phases."""

    MODEL = N_("model")
    INIT = N_("init")
    GENERATE = N_("generate")
    """Of trainers that sample what they train on: before the micro-steps of an optimizer step."""
    FORWARD = N_("forward")
    BACKWARD = N_("backward")
    STEP = N_("step")
    EVALUATE = N_("evaluate")
    """Of runs that evaluate: a pass without gradients, between optimizer steps or after them."""


class MemoryKind(StrEnum):
    """Which memory an allocation lies in, or which one was too small."""

    GPU = N_("gpu")
    HOST = N_("host")


class AllocationKind(StrEnum):
    """What an allocation is for; other programs read these names as `part`."""

    # Parameters and their gradients.
    PARAMETERS = N_("parameters")
    PARAMETERS_SHARDED = N_("parameters, sharded")
    FROZEN_PARAMETERS = N_("frozen parameters")
    FROZEN_PARAMETERS_SHARDED = N_("frozen parameters, sharded")
    SECONDARY_PARAMETERS = N_("secondary parameters")
    GATHERED_PARAMETERS = N_("gathered parameters")
    PARAMETERS_IN_FLIGHT = N_("parameters on their way")
    SMALL_ADAPTERS = N_("small adapters, whole")
    HALF_WEIGHTS = N_("weights in 16 bits")
    REFERENCE = N_("reference model")
    REFERENCE_SHARDED = N_("reference model, sharded")
    REFERENCE_GATHERED = N_("reference model, gathered")
    DEQUANTIZED_LAYER = N_("layer out of 4 bits")
    GRADIENTS = N_("gradients")
    GRADIENTS_SHARDED = N_("gradients, sharded")
    SHARE_GRADIENTS = N_("gradients of the share")
    ACCUMULATED_GRADIENTS = N_("accumulated gradients")
    HEAD_GRADIENT = N_("head gradient")
    EMBEDDING_GRADIENT = N_("embedding gradient")
    GRADIENT_IN_FLIGHT = N_("gradient in flight")
    # The optimizer, and what it steps with.
    OPTIMIZER = N_("optimizer")
    MASTER_WEIGHTS = N_("master weights")
    OPTIMIZER_STATES = N_("optimizer states")
    ZERO_GRADIENTS = N_("zero gradients")
    FP32_GRADIENTS = N_("fp32 gradients")
    FLAT_GRADIENTS = N_("flat gradients")
    MASTER_GRADIENTS = N_("gradients in the master's format")
    OPTIMIZER_TEMPORARIES = N_("optimizer temporaries")
    SUB_GROUP_GRADIENTS = N_("sub-group gradients")
    LAST_SUB_GROUP = N_("last sub-group")
    # Forward and backward.
    ACTIVATIONS = N_("activations")
    ONE_BLOCK = N_("one block")
    LOSS_SAVED = N_("loss, saved")
    LOSS_LOGITS = N_("loss, logits")
    LOSS_GRADIENTS = N_("loss, gradients")
    # Evaluation.
    EVALUATED_BLOCK = N_("one block, evaluated")
    EVALUATED_LOGITS = N_("logits, evaluated")
    # Generation.
    KV_CACHE = N_("keys and values")
    KV_GROWTH = N_("keys of a layer, as they grow")
    PROMPTS = N_("prompts in one block")
    SAMPLING = N_("logits, sampling")
    SCORING = N_("log-probabilities")
    # Buffers of DeepSpeed and of the libraries.
    REDUCE_BUCKET = N_("reduce bucket")
    SEPARATE_GRADIENTS = N_("separate gradients")
    ALL_REDUCE_BUCKET = N_("all-reduce bucket")
    REDUCE_SCATTER_COPY = N_("reduce-scatter copy")
    FLATTENING_COPY = N_("flattening copy")
    SHARE_COPY = N_("copy of the share")
    OFFLOAD_STAGING = N_("offload staging")
    GRADIENT_ALONE = N_("gradient alone")
    SLICE_IN_DOUBLE = N_("slice in double")
    CUBLAS_WORKSPACE = N_("cuBLAS workspace")
    CUBLAS_WORKSPACES = N_("cuBLAS workspaces")
    # While the model is built and sharded.
    UNTIED_HEAD = N_("head before tying")
    UNTIED_HEAD_SHARDED = N_("head before tying, sharded")
    NEW_ADAPTERS = N_("adapters in fp32")
    LARGEST_MODULE = N_("largest module")
    LARGEST_TENSOR = N_("largest tensor")
    LARGEST_TENSOR_SHARD = N_("its shard")
    # Host memory.
    MASTER_WEIGHTS_PINNED = N_("master weights, pinned")
    FP32_GRADIENTS_PINNED = N_("fp32 gradients, pinned")
    GRADIENTS_PINNED = N_("gradients, pinned")
    ACCUMULATED_GRADIENTS_PINNED = N_("accumulated gradients, pinned")
    PARAMETER_STAGING_PINNED = N_("parameter staging, pinned")
    GRADIENT_STAGING_PINNED = N_("gradient staging, pinned")
    REFERENCE_PINNED = N_("reference model, pinned")
    PARAMETERS_PINNED = N_("parameters, pinned")
    PARAMETERS_AS_BUILT_PINNED = N_("parameters as built, pinned")
    SWAP_BUFFERS_LOCKED = N_("swap buffers, locked")
    PARAMETERS_IN_FLIGHT_LOCKED = N_("parameters on their way, locked")
    STEPPED_PARAMETERS_LOCKED = N_("stepped parameters, locked")
    SMALL_PARAMETERS = N_("small parameters")
    PROCESSES = N_("interpreters, libraries and kernels")
    LOADER_WORKERS = N_("data loader workers")
    MODEL_BUILT = N_("model as it is built")
    SHARES_MOVED = N_("shares of the weights, moved through the host")
    WEIGHTS_COLLECTED = N_("weights collected to be saved")
    STORAGE_WRITTEN = N_("largest storage that is written")


class MemoryPart(StrEnum):
    """What memory is for; the order is that of a bar."""

    WEIGHTS = N_("weights")
    GRADIENTS = N_("gradients")
    OPTIMIZER = N_("optimizer")
    ACTIVATIONS = N_("activations")
    LOGITS = N_("logits")
    BUFFERS = N_("buffers")
    CONTEXT = N_("context")
    """What torch does not count: CUDA, NCCL, and what its allocator cannot use."""
    VLLM = N_("vLLM")


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
            AllocationKind.EVALUATED_BLOCK,
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
            AllocationKind.EVALUATED_LOGITS,
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
            AllocationKind.SHARE_COPY,
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


_SIZE = attrgetter("size_bytes")


def moment_bytes(moment: Iterable[Allocation]) -> int:
    """The sum of a moment."""
    return sum(map(_SIZE, moment))
