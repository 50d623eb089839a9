"""Join what is planned with what was found, for the checks to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerowiz.core.decision.evaluate import PlanInput, StrategyEstimate
from zerowiz.core.launch.doctor.found import Found
from zerowiz.core.launch.doctor.ops import Op
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload import Integration


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The job that is to start."""

    job: PlanInput
    evaluated: StrategyEstimate
    integration: Integration | None = None
    ops: tuple[Op, ...] = ()
    """What DeepSpeed compiles for it."""
    uses_peft: bool = False
    uses_bitsandbytes: bool = False

    @property
    def strategy(self) -> Strategy:
        """Its rung."""
        return self.evaluated.strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """A job, the machine that it starts on, and what is around it."""

    machine: Machine | None = None
    planned: Planned | None = None
    found: Found = field(default_factory=Found)
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the ranks will get."""

    @property
    def on_gpus(self) -> bool:
        """Whether the ranks train on GPUs."""
        return self.machine is not None and self.machine.accelerator is Accelerator.CUDA
