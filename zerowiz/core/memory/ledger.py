"""The ledger of one rank: every byte a line, every total a sum that can be opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zerowiz.core.strategy import Strategy


class Phase(StrEnum):
    """When a line is held; a rank's peak is the largest of the phases."""

    MODEL = "model"
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class Where(StrEnum):
    """Whose memory a line is held in."""

    GPU = "gpu"
    HOST = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One thing one rank holds in one phase."""

    part: str
    phase: Phase
    size_bytes: int
    formula: str
    """In the letters of docs/concepts/memory.md: N, P, w, V, t, h …"""
    where: Where = Where.GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What one rank holds under a strategy.

    The peak is that of the steady state: no run of tests/measured had a larger first iteration.
    """

    strategy: Strategy
    lines: tuple[Line, ...]
    first_lines: tuple[Line, ...] = ()
    """Forward, backward and step of the first iteration; none in told arithmetic."""

    def phase_bytes(self, where: Where = Where.GPU) -> Mapping[Phase, int]:
        """Bytes held at the peak of each phase."""
        held = [line for line in self.lines if line.where is where]
        return {p: sum(line.size_bytes for line in held if line.phase is p) for p in Phase}

    @property
    def first_iteration_bytes(self) -> Mapping[Phase, int]:
        """Bytes held on the GPU at the peak of each phase of the first iteration."""
        phases = dict.fromkeys((line.phase for line in self.first_lines), 0)
        for line in self.first_lines:
            phases[line.phase] += line.size_bytes
        return phases

    @property
    def peak_phase(self) -> Phase:
        """The phase that decides whether the rank lives."""
        phases = self.phase_bytes()
        return max(phases, key=lambda phase: phases[phase])

    @property
    def peak_bytes(self) -> int:
        """Predicts `torch.cuda.max_memory_allocated` of a rank in steady state."""
        return max(self.phase_bytes().values())

    @property
    def host_peak_bytes(self) -> int:
        """Host memory of one rank beyond its interpreter."""
        return max(self.phase_bytes(Where.HOST).values())
