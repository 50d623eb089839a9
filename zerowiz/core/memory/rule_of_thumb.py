"""The arithmetic as it is usually told, to check the tool against what people have read.

Weights and gradients in the model's precision, two Adam moments in the same precision, a flat
4 GB of activations, no master weights, no buffers, no transients; a sharded part is divided by
the number of GPUs. `docs/concepts/textbook.md` says where it parts from what DeepSpeed allocates.
"""

from zerowiz.core.memory.ledger import Estimate, Line, Phase, Where
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload, Part, Strategy
from zerowiz.core.workload import StateDtype, Workload

# The told 7B example: "4 GB activations"; GB = 1e9 bytes.
_ACTIVATION_BYTES = 4_000_000_000


def rule_of_thumb_estimate(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: Strategy,
    state_dtype: StateDtype | None = None,
) -> Estimate:
    """What one rank is told to hold.

    Args:
        model: Only its parameter count matters.
        workload: Only its precision matters.
        ranks: GPUs that a sharded part is divided by.
        strategy: What is sharded, what is offloaded.
        state_dtype: Of each Adam moment; the model's precision when nobody said.
    """
    w = workload.precision.size_bytes
    moment_bytes = {None: w, StateDtype.BF16: 2, StateDtype.FP32: 4}[state_dtype]
    bytes_per_param = {Part.PARAMETERS: w, Part.GRADIENTS: w, Part.OPTIMIZER: 2 * moment_bytes}
    offloaded = {
        Offload.NONE: frozenset[Part](),
        Offload.OPTIMIZER: frozenset({Part.OPTIMIZER}),
        Offload.ALL: frozenset({Part.OPTIMIZER, Part.PARAMETERS}),
    }[strategy.offload]
    lines = [
        Line(
            part=part.value,
            phase=Phase.STEP,
            size_bytes=size * model.params // (ranks if part in strategy.sharded else 1),
            formula=f"{size} N" + (" / d" if part in strategy.sharded else ""),
            where=Where.HOST if part in offloaded else Where.GPU,
        )
        for part, size in bytes_per_param.items()
    ]
    lines.append(
        Line(part="activations", phase=Phase.STEP, size_bytes=_ACTIVATION_BYTES, formula="4 GB")
    )
    return Estimate(strategy=strategy, lines=tuple(lines))
