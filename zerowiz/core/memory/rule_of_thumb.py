"""Predict by the rule of thumb, to check the tool against what people have read.

Weights and gradients in the model's precision, two Adam moments in the same precision, a flat
4 GB of activations, no master weights, no buffers, no transients; a sharded part is divided by
the number of GPUs. docs/concepts/rule-of-thumb.md says where DeepSpeed allocates something else.

Symbols: N parameters, d ranks.
"""

from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.ledger import Allocation, AllocationKind, Phase
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload, Part
from zerowiz.core.workload.choices import StateDtype

# The usual 7B example: "4 GB activations"; GB = 1e9 bytes.
_ACTIVATIONS = Allocation(AllocationKind.ACTIVATIONS, 4_000_000_000, "4 GB")
_KINDS = {
    Part.PARAMETERS: AllocationKind.PARAMETERS,
    Part.GRADIENTS: AllocationKind.GRADIENTS,
    Part.OPTIMIZER: AllocationKind.OPTIMIZER,
}
_ON_HOST = {
    Offload.NONE: frozenset[Part](),
    Offload.OPTIMIZER: frozenset({Part.OPTIMIZER}),
    Offload.ALL: frozenset({Part.OPTIMIZER, Part.PARAMETERS}),
}


def rule_of_thumb_estimate(
    model: Model, rank: RankSizes, state_dtype: StateDtype | None = None
) -> Estimate:
    """What one rank holds by the rule of thumb.

    Args:
        model: Only its parameter count matters.
        rank: Only its strategy, its precision and the number of ranks matter.
        state_dtype: Of each Adam moment; None takes the model's precision.
    """
    moment_bytes = {None: rank.weight_bytes, StateDtype.BF16: 2, StateDtype.FP32: 4}[state_dtype]
    sizes_bytes = {
        Part.PARAMETERS: rank.weight_bytes,
        Part.GRADIENTS: rank.weight_bytes,
        Part.OPTIMIZER: 2 * moment_bytes,
    }
    held = {}
    for part, size_bytes in sizes_bytes.items():
        whole_bytes, formula = size_bytes * model.params, f"{size_bytes} N"
        sharded = part in rank.strategy.sharded
        held[part] = Allocation(
            _KINDS[part],
            whole_bytes // rank.ranks if sharded else whole_bytes,
            f"{formula} / d" if sharded else formula,
        )
    on_host = _ON_HOST[rank.strategy.offload]
    on_gpu = (*(held[part] for part in held if part not in on_host), _ACTIVATIONS)
    return Estimate(
        model=model,
        rank=rank,
        moments={Phase.STEP: (on_gpu,)},
        host={Phase.STEP: (tuple(held[part] for part in held if part in on_host),)},
    )
