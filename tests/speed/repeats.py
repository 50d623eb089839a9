"""How far a setting is from itself: the spread that no prediction can be nearer than."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from speed.samples import Sample

# What makes two runs the same setting, of what a row says.
SETTING = (
    *("model", "gpu", "gpus", "kind", "stage", "offload", "zero_optimization", "bf16"),
    *("optimizer", "precision", "torch_autocast", "micro_batch", "sequence_tokens"),
    *("accumulation_steps", "gradient_checkpointing", "attention", "loss", "packing"),
    *("lora_rank", "lora_target_modules", "quantized", "memory_cap_bytes", "nccl_p2p"),
)


class Repeated(NamedTuple):
    """A setting that was timed more than once."""

    ids: tuple[str, ...]
    files: tuple[str, ...]
    """Of each: the lease that it ran in."""
    seconds: tuple[float, ...]
    free_running: bool

    @property
    def spread_fraction(self) -> float:
        """The longest over the shortest, less 1."""
        return max(self.seconds) / min(self.seconds) - 1

    @property
    def errors_of_other_leases(self) -> list[float]:
        """Of each run, if the median of its runs in other leases were the prediction; fractions."""
        runs = list(zip(self.files, self.seconds, strict=True))
        return [
            abs(statistics.median(others) / seconds - 1)
            for file, seconds in runs
            if (others := [each for other, each in runs if other != file])
        ]

    @property
    def errors_of_same_lease(self) -> list[float]:
        """The same for the median of its other runs in its own lease."""
        runs = list(enumerate(zip(self.files, self.seconds, strict=True)))
        return [
            abs(statistics.median(others) / seconds - 1)
            for number, (file, seconds) in runs
            if (others := [took for n, (other, took) in runs if other == file and n != number])
        ]


def by_setting(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The runs of each setting, in the order of the first."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        values = [sample.free_running, *(sample.row.get(name) for name in SETTING)]
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(sample)
    return list(groups.values())


def find_repeats(samples: Iterable[Sample]) -> list[Repeated]:
    """The settings that were timed more than once, in the order of the first."""
    return [
        Repeated(
            ids=tuple(each.id for each in group),
            files=tuple(each.row["file"] for each in group),
            seconds=tuple(each.measured_seconds for each in group),
            free_running=group[0].free_running,
        )
        for group in by_setting(samples)
        if len(group) > 1
    ]


def quantile(values: Sequence[float], part: float) -> float:
    """By rank, of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]


def describe_repeats(repeats: Sequence[Repeated]) -> str:
    """How many there are, and how far they lie apart."""
    if not repeats:
        return "No setting was timed twice."
    spreads = [each.spread_fraction for each in repeats]
    said = (
        f"Settings that were timed more than once: {len(repeats)}. Their times differ by"
        f" {statistics.median(spreads):.1%} in the median, by {max(spreads):.1%} at most."
    )
    for lease, errors in (
        ("another", [error for each in repeats for error in each.errors_of_other_leases]),
        ("the same", [error for each in repeats for error in each.errors_of_same_lease]),
    ):
        if errors:
            said += (
                f" If a time from {lease} lease is the prediction, half of {len(errors)} predictions"
                f" are within {statistics.median(errors):.1%}, and nine in ten within"
                f" {quantile(errors, 0.9):.1%}."
            )
    return said
