"""What was predicted of an attempt's memory and steps, and what its ranks measured."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.values import replace


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
    outside_bytes: int | None = None
    """Of a process: the part of the peak that Python and its libraries are assumed to take."""
    step_seconds: float | None = None
    low_step_seconds: float | None = None
    high_step_seconds: float | None = None
    accumulation_steps: int | None = None
    """Micro-batches of a planned step; None in a record of an older version."""
    one_micro_batch_seconds: float | None = None
    """Of a step with a single micro-batch; the rest grows with their number."""

    def with_outside(self, measured_bytes: int | None) -> "PredictedFigures":
        """The prediction with what Python and its libraries really took; as it is if unknown."""
        if measured_bytes is None or self.outside_bytes is None:
            return self
        peak_bytes = self.peak_bytes - self.outside_bytes + measured_bytes
        return replace(self, peak_bytes=peak_bytes, outside_bytes=measured_bytes)

    def of_micro_batches(self, count: int | None) -> "PredictedFigures":
        """The prediction for a step of fewer micro-batches; as it is where none are missing."""
        planned, one, whole = (
            self.accumulation_steps,
            self.one_micro_batch_seconds,
            self.step_seconds,
        )
        if not count or planned is None or one is None or not whole or count >= planned:
            return self
        seconds = one + (whole - one) * (count - 1) / (planned - 1)
        low, high = (
            None if bound is None else bound * seconds / whole
            for bound in (self.low_step_seconds, self.high_step_seconds)
        )
        return replace(self, step_seconds=seconds, low_step_seconds=low, high_step_seconds=high)


class MeasuredFigures(Struct, frozen=True, kw_only=True):
    """What the ranks of one attempt measured of themselves."""

    ranks: int
    """How many reported; with a folder on each node, those of this node."""
    peak_bytes: int | None
    """Of the rank that held most."""
    step_seconds: float | None
    """Of the slowest rank, once steps take equally long; None after too few."""
    outside_bytes: int | None = None
    """Of the process of that rank, when its engine was built: all but the model. None on GPUs."""
    micro_batches: int | None = None
    """Of those steps; None where nobody counted them."""


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """How far a prediction is off, signed, as a fraction of what was measured."""
    if predicted is None or not measured:
        return None
    return predicted / measured - 1
