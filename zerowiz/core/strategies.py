"""List the strategies: one row for each, which is all that zerowiz knows of it.

A row names its formulas, which are in `memory/`; its template is `templates/<config_name>`.
"""

from zerowiz.core.memory.buffers import (
    GATHERING_BUFFERS,
    GATHERING_OFFLOAD_BUFFERS,
    LEAN_BUFFERS,
    OVERLAPPED_BUFFERS,
    REDUCING_BUFFERS,
    REDUCING_OFFLOAD_BUFFERS,
)
from zerowiz.core.memory.host import nothing_on_host, zero2_host_allocations, zero3_host_allocations
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.memory.zero012 import (
    ddp_lasting,
    ddp_moments,
    divided_lasting,
    zero1_moments,
    zero2_moments,
    zero2_offload_lasting,
    zero2_offload_moments,
)
from zerowiz.core.memory.zero3 import zero3_lasting, zero3_moments
from zerowiz.core.strategy_types import Offload, Part, RingPasses, ZeroKey
from zerowiz.translation import N_

_REDUCING_KEYS = (
    ZeroKey.CONTIGUOUS_GRADIENTS,
    ZeroKey.OVERLAP_COMM,
    ZeroKey.REDUCE_BUCKET_SIZE,
)
_GATHERING_KEYS = (
    ZeroKey.OVERLAP_COMM,
    ZeroKey.REDUCE_BUCKET_SIZE,
    ZeroKey.SUB_GROUP_SIZE,
    ZeroKey.PREFETCH_BUCKET_SIZE,
    ZeroKey.PERSISTENCE_THRESHOLD,
    ZeroKey.MAX_LIVE_PARAMETERS,
    ZeroKey.MAX_REUSE_DISTANCE,
    ZeroKey.GATHER_ON_SAVE,
    ZeroKey.HPZ_PARTITION_SIZE,
    ZeroKey.QUANTIZED_WEIGHTS,
    ZeroKey.LEAF_MODULE,
)

# Sources, of DeepSpeed 0.19.8, of how often a strategy goes around the ring:
# runtime/engine.py, allreduce_gradients: which stages wait for the boundary;
# runtime/zero/stage_1_and_2.py, average_tensor: an all-reduce, whatever `reduce_scatter` says;
# the same file, step: the updated weights are gathered; stage3.py, __avg_scatter_grads.
# What is offloaded crosses PCIe, not the wire.
_ZERO2_RING = RingPasses(per_step=1, per_micro_step=2)
_ZERO3_RING = RingPasses(per_step=0, per_micro_step=1, gathers_weights=True)

# Which wrapper DeepSpeed takes: engine.py, _configure_optimizer.
DDP = StrategyRow(
    name="ddp",
    words="DDP",
    short_words="DDP",
    stage=0,
    config_name="ds_config_zero0.json",
    sharded=frozenset(),
    offload=Offload.NONE,
    zero_keys=(),
    buffer_sizes=LEAN_BUFFERS,
    ring=RingPasses(per_step=2, per_micro_step=0),
    measured=True,
    lasting=ddp_lasting,
    moments=ddp_moments,
    host_allocations=nothing_on_host,
)
ZERO1 = StrategyRow(
    name="zero1",
    words="ZeRO-1",
    short_words="ZeRO-1",
    stage=1,
    config_name="ds_config_zero1.json",
    sharded=frozenset({Part.OPTIMIZER}),
    offload=Offload.NONE,
    zero_keys=_REDUCING_KEYS,
    buffer_sizes=OVERLAPPED_BUFFERS,
    ring=RingPasses(per_step=3, per_micro_step=0),
    measured=True,
    lasting=divided_lasting,
    moments=zero1_moments,
    host_allocations=nothing_on_host,
)
ZERO2 = StrategyRow(
    name="zero2",
    words="ZeRO-2",
    short_words="ZeRO-2",
    stage=2,
    config_name="ds_config_zero2.json",
    sharded=frozenset({Part.OPTIMIZER, Part.GRADIENTS}),
    offload=Offload.NONE,
    zero_keys=_REDUCING_KEYS,
    buffer_sizes=REDUCING_BUFFERS,
    ring=_ZERO2_RING,
    measured=True,
    lasting=divided_lasting,
    moments=zero2_moments,
    host_allocations=nothing_on_host,
)
ZERO3 = StrategyRow(
    name="zero3",
    words="ZeRO-3",
    short_words="ZeRO-3",
    stage=3,
    config_name="ds_config_zero3.json",
    sharded=frozenset(Part),
    offload=Offload.NONE,
    zero_keys=_GATHERING_KEYS,
    buffer_sizes=GATHERING_BUFFERS,
    ring=_ZERO3_RING,
    measured=True,
    lasting=zero3_lasting,
    moments=zero3_moments,
    host_allocations=nothing_on_host,
)
ZERO2_OFFLOAD = StrategyRow(
    name="zero2-offload",
    words=N_("ZeRO-2 with the optimizer offloaded"),
    short_words=N_("ZeRO-2 offload"),
    stage=2,
    config_name="ds_config_zero2_offload.json",
    sharded=frozenset({Part.OPTIMIZER, Part.GRADIENTS}),
    offload=Offload.OPTIMIZER,
    zero_keys=_REDUCING_KEYS,
    buffer_sizes=REDUCING_OFFLOAD_BUFFERS,
    ring=_ZERO2_RING,
    measured=True,
    lasting=zero2_offload_lasting,
    moments=zero2_offload_moments,
    host_allocations=zero2_host_allocations,
)
ZERO3_OFFLOAD = StrategyRow(
    name="zero3-offload",
    words=N_("ZeRO-3 with everything offloaded"),
    short_words=N_("ZeRO-3 offload"),
    stage=3,
    config_name="ds_config_zero3_offload.json",
    sharded=frozenset(Part),
    offload=Offload.ALL,
    zero_keys=_GATHERING_KEYS,
    buffer_sizes=GATHERING_OFFLOAD_BUFFERS,
    ring=_ZERO3_RING,
    measured=True,
    lasting=zero3_lasting,
    moments=zero3_moments,
    host_allocations=zero3_host_allocations,
)
ZERO3_OFFLOAD_OPTIMIZER = StrategyRow(
    name="zero3-offload-optimizer",
    words=N_("ZeRO-3 with the optimizer offloaded"),
    short_words=N_("ZeRO-3 opt. offload"),
    stage=3,
    config_name="ds_config_zero3_offload_optimizer.json",
    sharded=frozenset(Part),
    offload=Offload.OPTIMIZER,
    zero_keys=_GATHERING_KEYS,
    buffer_sizes=GATHERING_OFFLOAD_BUFFERS,
    ring=_ZERO3_RING,
    measured=True,
    lasting=zero3_lasting,
    moments=zero3_moments,
    host_allocations=zero3_host_allocations,
)

# In this order the flowchart comes to them. Each keeps fewer model states on a GPU than the one
# before it; buffers and gathered layers can still make it larger.
FLOWCHART_STRATEGIES = (DDP, ZERO1, ZERO2, ZERO3, ZERO2_OFFLOAD, ZERO3_OFFLOAD)
# It asks of the others only whether one is better: on one GPU, steps with the optimizer alone
# offloaded at ZeRO-3 took 1.5 times as long as with all (tests/measured/regret).
STRATEGIES = (*FLOWCHART_STRATEGIES, ZERO3_OFFLOAD_OPTIMIZER)


def find_strategy(text: str) -> StrategyRow | None:
    """The strategy of a name as people type it: `zero2`, `ZeRO-2`, `zero3_offload`."""
    plain = _letters(text)
    return next((strategy for strategy in STRATEGIES if _letters(strategy.name) == plain), None)


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())
