"""Define what a strategy is: what it shards, offloads and sends, and what its config holds.

The rows are in `strategies.py`, above the rooms whose formulas they name; functions are handed one.
"""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


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


class OffloadChoice(StrEnum):
    """The values of `--offload`."""

    AUTO = "auto"
    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"


class ZeroKey(StrEnum):
    """A key of `zero_optimization`, besides `stage` and what offload adds."""

    CONTIGUOUS_GRADIENTS = "contiguous_gradients"
    OVERLAP_COMM = "overlap_comm"
    REDUCE_BUCKET_SIZE = "reduce_bucket_size"
    SUB_GROUP_SIZE = "sub_group_size"
    PREFETCH_BUCKET_SIZE = "stage3_prefetch_bucket_size"
    PERSISTENCE_THRESHOLD = "stage3_param_persistence_threshold"
    MAX_LIVE_PARAMETERS = "stage3_max_live_parameters"
    MAX_REUSE_DISTANCE = "stage3_max_reuse_distance"
    GATHER_ON_SAVE = "stage3_gather_16bit_weights_on_model_save"
    HPZ_PARTITION_SIZE = "zero_hpz_partition_size"
    QUANTIZED_WEIGHTS = "zero_quantized_weights"
    LEAF_MODULE = "leaf_module"


class RingPasses(NamedTuple):
    """How often the trainable parameters, or their gradients, go around the ring."""

    per_step: int
    per_micro_step: int
    gathers_weights: bool = False
    """Whether every micro-step gathers the weights too."""


class BufferSizes(Struct, frozen=True, kw_only=True):
    """One choice of communication buffers; counts are elements."""

    least_bucket: int
    most_bucket: int
    overlap_comm: bool = False
    stage3_max_live_parameters: int | None = None
    """None takes DeepSpeed's own limit, as below."""
    sub_group_size: int | None = None


class Strategy(Struct, frozen=True, kw_only=True):
    """What is known of a strategy without its memory formulas (memory/rank_sizes.py has them).

    No field has a default: a row without one of them is a type error, and fails at import.
    """

    name: str
    words: str
    """What people read: `ZeRO-3 with the optimizer offloaded`."""
    short_words: str
    """The same where there is little room: `ZeRO-3 optimizer offload`."""
    stage: int
    config_name: str
    """The file that its config is written to, and its template."""
    sharded: frozenset[Part]
    offload: Offload
    zero_keys: tuple[ZeroKey, ...]
    """What its section of the config holds, in this order."""
    buffer_sizes: tuple[BufferSizes, ...]
    """Those to try, the fastest first, the leanest last."""
    ring: RingPasses
    measured: bool
    """Whether a run of tests/measured holds its formulas; the bounds of a prediction ask."""

    @property
    def shards_weights(self) -> bool:
        """Whether a rank holds a part of each weight, and gathers what it computes with."""
        return Part.PARAMETERS in self.sharded

    @property
    def cuts_shares(self) -> bool:
        """Whether the ranks' shares are cut from flat vectors; stage 3 divides each tensor."""
        return Part.OPTIMIZER in self.sharded and not self.shards_weights

    def shards_or_offloads_more_than(self, other: "Strategy") -> bool:
        """Whether it shards or offloads something that the other keeps on every GPU."""
        offloads_more = _OFFLOADED.index(self.offload) > _OFFLOADED.index(other.offload)
        return offloads_more or not self.sharded <= other.sharded


_OFFLOADED = (Offload.NONE, Offload.OPTIMIZER, Offload.ALL)
