"""The ladder: what each strategy divides among the ranks, and what it moves to the host."""

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """A model state that ZeRO can shard or offload (Rajbhandari et al. 2020, section 3)."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"


class Offload(StrEnum):
    """What lives in host memory, in the words of `--offload`."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One rung: a row, read by the estimator, the walk and the config writer."""

    name: str
    stage: int
    config_name: str
    """The file that its config is written to."""
    sharded: frozenset[Part] = frozenset()
    offload: Offload = Offload.NONE

    def spares(self, other: "Strategy") -> bool:
        """Whether it divides or moves something that the other keeps on every GPU."""
        moves = _MOVED.index(self.offload) > _MOVED.index(other.offload)
        return moves or not self.sharded <= other.sharded


_MOVED = (Offload.NONE, Offload.OPTIMIZER, Offload.ALL)

_O, _OG = frozenset({Part.OPTIMIZER}), frozenset({Part.OPTIMIZER, Part.GRADIENTS})
_ALL = frozenset(Part)

# Rule: what a strategy divides or moves is said here and nowhere else. Each rung keeps fewer model
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

# Weighed only when `--stage 3 --offload optimizer` asks for it by name.
ZERO3_OFFLOAD_OPTIMIZER = Strategy(
    name="zero3-offload-optimizer",
    stage=3,
    config_name="ds_config_zero3_offload_optimizer.json",
    sharded=_ALL,
    offload=Offload.OPTIMIZER,
)
STRATEGIES = (*FLOWCHART_STRATEGIES, ZERO3_OFFLOAD_OPTIMIZER)
