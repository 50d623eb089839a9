"""Join the planned job with the facts about its host, for the preflight checks to read."""

from collections.abc import Mapping

from msgspec import Struct, field

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.launch.doctor.facts import PreflightFacts
from zerowiz.core.launch.doctor.ops import Op
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script.arguments import Release
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import Settled
from zerowiz.core.strategy import Strategy
from zerowiz.core.workload.choices import Integration


class PlannedJob(Struct, frozen=True, kw_only=True):
    """The job that is to start."""

    job: PlanInput
    evaluated: StrategyEstimate
    integration: Integration | None = None
    ops: tuple[Op, ...] = ()
    """What DeepSpeed compiles for it."""
    uses_peft: bool = False
    uses_bitsandbytes: bool = False
    script: ScriptFacts | None = None
    script_args: tuple[str, ...] = ()
    settled: tuple[Settled, ...] = ()
    """What zerowiz adds to these words."""
    transformers_version: Release | None = None
    """Of the one that is installed here; None for none."""
    config: Mapping[str, object] | None = None
    """What DeepSpeed reads."""
    escalates: bool = False
    """Whether it may start again with a strategy that needs less memory."""

    @property
    def strategy(self) -> Strategy:
        """The strategy that was decided."""
        return self.evaluated.strategy


class PreflightInput(Struct, frozen=True, kw_only=True):
    """A job, the machine that it starts on, and what is around it."""

    machine: Machine | None = None
    planned: PlannedJob | None = None
    facts: PreflightFacts = field(default_factory=PreflightFacts)
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the ranks will get."""

    @property
    def on_gpus(self) -> bool:
        """Whether the ranks train on GPUs."""
        return self.machine is not None and self.machine.accelerator is Accelerator.CUDA
