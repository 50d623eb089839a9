"""The table of strategies: a row for each, and the order in which they are tried."""

from zerowiz.core.strategy import Offload, Part, Strategy

_O, _OG = frozenset({Part.OPTIMIZER}), frozenset({Part.OPTIMIZER, Part.GRADIENTS})
_ALL = frozenset(Part)

# Rule: what a strategy shards or offloads is said here and nowhere else. Each keeps fewer model
# states on a GPU than the one before it; buffers and gathered layers can still make it larger.
DDP = Strategy(name="ddp", stage=0, config_name="ds_config_zero0.json")
ZERO1 = Strategy(name="zero1", stage=1, config_name="ds_config_zero1.json", sharded=_O)
ZERO2 = Strategy(name="zero2", stage=2, config_name="ds_config_zero2.json", sharded=_OG)
ZERO3 = Strategy(name="zero3", stage=3, config_name="ds_config_zero3.json", sharded=_ALL)
ZERO2_OFFLOAD = Strategy(
    name="zero2-offload",
    stage=2,
    config_name="ds_config_zero2_offload.json",
    sharded=_OG,
    offload=Offload.OPTIMIZER,
)
ZERO3_OFFLOAD = Strategy(
    name="zero3-offload",
    stage=3,
    config_name="ds_config_zero3_offload.json",
    sharded=_ALL,
    offload=Offload.ALL,
)
FLOWCHART_STRATEGIES = (DDP, ZERO1, ZERO2, ZERO3, ZERO2_OFFLOAD, ZERO3_OFFLOAD)

# Evaluated only when `--stage 3 --offload optimizer` asks for it by name.
ZERO3_OFFLOAD_OPTIMIZER = Strategy(
    name="zero3-offload-optimizer",
    stage=3,
    config_name="ds_config_zero3_offload_optimizer.json",
    sharded=_ALL,
    offload=Offload.OPTIMIZER,
)
STRATEGIES = (*FLOWCHART_STRATEGIES, ZERO3_OFFLOAD_OPTIMIZER)
