"""Predict how long an optimizer step takes, term by term."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.speed.communication import wire_bytes_per_step
from zerowiz.core.speed.rates import GpuRates


class TermKind(StrEnum):
    """What takes the time; other programs read these names."""

    MATRIX_PRODUCTS = "matrix_products"
    COMMUNICATION = "communication"


class Term(Struct, frozen=True, kw_only=True):
    """One part of a step."""

    kind: TermKind
    exposed_seconds: float
    """What the step is longer by: less than it takes where something else runs beside it."""
    formula: str


class StepTime(Struct, frozen=True, kw_only=True):
    """How long one optimizer step takes, and what of it is made."""

    terms: tuple[Term, ...]
    expected_seconds: float
    low_seconds: float
    high_seconds: float
    tokens: int
    """Of one optimizer step, over all ranks."""

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.expected_seconds


def predict_step_time(
    model: Model, rank: RankSizes, machine: Machine, rates: GpuRates | None
) -> StepTime | None:
    """How long a step of this rank takes; None where the rates of its GPU are not known.

    Args:
        model: What is trained.
        rank: The strategy, its buffers and its workload.
        machine: The links and the host.
        rates: Of each GPU.
    """
    workload = rank.workload
    flop_per_s = None if rates is None else rates.flop_per_s(workload.precision)
    if flop_per_s is None:
        return None
    tokens = workload.tokens * workload.accumulation_steps
    passes = 8 if workload.gradient_checkpointing else 6
    products = Term(
        kind=TermKind.MATRIX_PRODUCTS,
        exposed_seconds=passes * model.params * tokens / (flop_per_s / 2),
        formula="6 N t",
    )
    link_bytes_per_s = machine.interconnect.bytes_per_s or 16_000_000_000
    sent = Term(
        kind=TermKind.COMMUNICATION,
        exposed_seconds=wire_bytes_per_step(rank) / link_bytes_per_s,
        formula="sent bytes / link",
    )
    seconds = products.exposed_seconds + sent.exposed_seconds
    return StepTime(
        terms=(products, sent),
        expected_seconds=seconds,
        low_seconds=seconds / 2,
        high_seconds=seconds * 2,
        tokens=tokens * machine.world_size,
    )
