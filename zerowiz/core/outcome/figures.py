"""What was predicted of an attempt's memory and steps, and what its ranks measured."""

from enum import StrEnum

from msgspec import Struct


class CountedMemory(StrEnum):
    """Which memory of a rank is counted."""

    ALLOCATED = "allocated"
    """Of torch's allocator on the GPU: `torch.cuda.max_memory_allocated`."""
    RESIDENT = "resident"
    """Of the process on the host, Python and its libraries included: the CPU accelerator."""


class PredictedFigures(Struct, frozen=True, kw_only=True):
    """What a plan says of one rank."""

    memory: CountedMemory
    peak_bytes: int
    step_seconds: float | None = None
    low_step_seconds: float | None = None
    high_step_seconds: float | None = None


class MeasuredFigures(Struct, frozen=True, kw_only=True):
    """What the ranks of one attempt measured of themselves."""

    ranks: int
    """How many reported; with a folder on each node, those of this node."""
    peak_bytes: int | None
    """Of the rank that held most."""
    step_seconds: float | None
    """Of the slowest rank, once steps take equally long; None after too few."""


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """How far a prediction is off, signed, as a fraction of what was measured."""
    if predicted is None or not measured:
        return None
    return predicted / measured - 1
