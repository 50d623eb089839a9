"""What a step takes its time for, part by part."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.values import shows


class TermKind(StrEnum):
    """What takes the time; other programs read these names."""

    MATRIX_PRODUCTS = "matrix_products"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    """Norms, activations, rotations, sums and the loss: they wait for the GPU's memory."""
    HOST = "host"
    """Python and kernel launches, as far as the GPU waits for them."""
    HOOKS = "hooks"
    """Those of stage 3 around every module, as far as the GPU waits for them."""
    GATHERING = "gathering"
    """Weights that come from other ranks, as far as the GPU waits for them."""
    REDUCTION = "reduction"
    """Gradients that go to other ranks, as far as the GPU waits for them."""
    OPTIMIZER = "optimizer"
    CPU_OPTIMIZER = "cpu_optimizer"
    PCIE = "pcie"
    """Between GPU and host memory."""
    ALLOCATOR = "allocator"
    """Flushes and retries where memory is nearly full."""


class Term(Struct, frozen=True, kw_only=True):
    """One part of a step."""

    kind: TermKind
    exposed_seconds: float
    """What the step is longer by: less than it takes where something else runs beside it."""
    formula: str


@shows("expected_seconds", "low_seconds", "high_seconds", "tokens_per_s", "measured_steps")
class StepTime(Struct, frozen=True, kw_only=True):
    """How long one optimizer step takes, and what of it is made."""

    terms: tuple[Term, ...]
    expected_seconds: float
    """The sum of the terms."""
    low_seconds: float
    high_seconds: float
    tokens: int
    """Of one optimizer step, over all ranks."""
    measured_steps: int = 0
    """How many settings that were measured on this machine have scaled the terms."""

    @property
    def calibrated(self) -> bool:
        """Whether measured times have scaled it."""
        return self.measured_steps > 0

    @property
    def roomy_seconds(self) -> float:
        """What it would take with enough memory: the allocator then flushes nothing."""
        flushes = (t.exposed_seconds for t in self.terms if t.kind is TermKind.ALLOCATOR)
        return self.expected_seconds - sum(flushes)

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.expected_seconds
