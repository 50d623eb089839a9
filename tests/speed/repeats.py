"""How far a setting is from itself: the spread that no prediction can be nearer than."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from speed.samples import Sample

# What makes two runs the same setting, of what a row says.
_SETTING = (
    *("model", "gpu", "gpus", "kind", "stage", "offload", "zero_optimization", "bf16"),
    *("optimizer", "precision", "torch_autocast", "micro_batch", "sequence_tokens"),
    *("accumulation_steps", "gradient_checkpointing", "attention", "loss", "packing"),
    *("lora_rank", "lora_target_modules", "quantized", "memory_cap_bytes", "nccl_p2p"),
)


class Repeated(NamedTuple):
    """A setting that was timed more than once."""

    ids: tuple[str, ...]
    seconds: tuple[float, ...]
    free_running: bool

    @property
    def spread_fraction(self) -> float:
        """The longest over the shortest, less 1."""
        return max(self.seconds) / min(self.seconds) - 1


def find_repeats(samples: Iterable[Sample]) -> list[Repeated]:
    """The settings that were timed more than once, in the order of the first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        values = [sample.free_running, *(sample.row.get(name) for name in _SETTING)]
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(sample)
    return [
        Repeated(
            ids=tuple(each.id for each in group),
            seconds=tuple(each.measured_seconds for each in group),
            free_running=group[0].free_running,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def describe_repeats(repeats: Sequence[Repeated]) -> str:
    """How many there are, and how far they lie apart."""
    if not repeats:
        return "No setting was timed twice."
    spreads = [each.spread_fraction for each in repeats]
    return (
        f"Settings that were timed more than once: {len(repeats)}. Their times differ by"
        f" {statistics.median(spreads):.1%} in the median, by {max(spreads):.1%} at most."
    )
