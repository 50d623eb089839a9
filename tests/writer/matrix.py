"""Everything that a config is written for: strategies, ways to hand it over, number formats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.dsconfig.write import Handover, write_config
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.settings import Hyperparameters
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Precision, StateDtype
from zerowiz.errors import UsageError

FIELDS = frozenset({"micro_batch", "accumulation_steps", "precision"})
HANDOVERS: Mapping[str, Handover] = {
    "hf-settled": Handover(settled=FIELDS),
    "hf-unsettled": Handover(),
    "deepspeed-own-optimizer": Handover(integration=Integration.DEEPSPEED, settled=FIELDS),
    "deepspeed-no-optimizer": Handover(
        integration=Integration.DEEPSPEED,
        settled=FIELDS,
        script_has_optimizer=False,
        hyperparameters=Hyperparameters(lr=5e-5),
    ),
    "accelerate": Handover(integration=Integration.ACCELERATE, settled=FIELDS),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberFormat:
    """What a job computes and steps in."""

    precision: Precision
    torch_autocast: Precision | None = None
    states: StateDtype = StateDtype.FP32

    def of(self, job: Job) -> Job:
        """The same job in these formats."""
        step = replace(job.workload, precision=self.precision, torch_autocast=self.torch_autocast)
        return replace(job, workload=step, state_dtype=self.states)


FORMATS: Mapping[str, NumberFormat] = {
    "bf16": NumberFormat(precision=Precision.BF16),
    "fp16": NumberFormat(precision=Precision.FP16),
    "fp32": NumberFormat(precision=Precision.FP32),
    "bf16-states": NumberFormat(precision=Precision.BF16, states=StateDtype.BF16),
    "bf16-autocast": NumberFormat(precision=Precision.FP32, torch_autocast=Precision.BF16),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One config."""

    strategy: StrategyRow
    to: str
    """A key of HANDOVERS."""
    numbers: str
    """A key of FORMATS."""

    def __str__(self) -> str:
        """As a test is named."""
        return "-".join(self.values)

    @property
    def values(self) -> tuple[str, str, str]:
        """Of the three dimensions."""
        return self.strategy.name, self.to, self.numbers

    @property
    def pairs(self) -> frozenset[tuple[tuple[int, str], ...]]:
        """Every two of them."""
        return frozenset(combinations(enumerate(self.values), 2))

    @property
    def handover(self) -> Handover:
        """How the config reaches DeepSpeed."""
        return HANDOVERS[self.to]

    @property
    def format(self) -> NumberFormat:
        """What is computed in."""
        return FORMATS[self.numbers]

    def evaluated(self, job: Job) -> StrategyEstimate:
        """This strategy of a job in these formats."""
        return evaluate(self.format.of(job), self.strategy)

    def config(self, job: Job) -> dict[str, Any]:
        """What zerowiz writes for a job in these formats."""
        return write_config(self.format.of(job), self.evaluated(job), self.handover)


def is_written(case: Case, job: Job) -> bool:
    """Whether zerowiz writes this config, and does not refuse to."""
    try:
        refuse_unsupported(
            case.format.of(job),
            case.strategy,
            case.handover.integration,
            script_has_optimizer=case.handover.script_has_optimizer,
        )
    except UsageError:
        return False
    return True


def cases(job: Job) -> tuple[Case, ...]:
    """All that is written for a job."""
    every = product(STRATEGIES, HANDOVERS, FORMATS)
    asked = (Case(strategy=s, to=to, numbers=numbers) for s, to, numbers in every)
    return tuple(case for case in asked if is_written(case, job))


def pairwise(every: Sequence[Case]) -> Iterator[Case]:
    """As few of them as a greedy choice needs for every pair of values that occurs."""
    left = {pair for case in every for pair in case.pairs}
    while left:
        case = max(every, key=lambda each: len(left & each.pairs))
        left -= case.pairs
        yield case
