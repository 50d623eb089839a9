"""Define what a strategy shards among the ranks, and what it offloads to the host."""

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
    """A strategy, as the estimator, the flowchart and the config writer read it."""

    name: str
    stage: int
    config_name: str
    """The file that its config is written to."""
    sharded: frozenset[Part] = frozenset()
    offload: Offload = Offload.NONE

    def shards_or_offloads_more_than(self, other: "Strategy") -> bool:
        """Whether it shards or offloads something that the other keeps on every GPU."""
        moves = _MOVED.index(self.offload) > _MOVED.index(other.offload)
        return moves or not self.sharded <= other.sharded


_MOVED = (Offload.NONE, Offload.OPTIMIZER, Offload.ALL)
