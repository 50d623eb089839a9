"""How long a run takes on one machine, and what it costs, with each strategy that fits."""

from msgspec import Struct

from zerowiz.core.catalog.prices import PriceList
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.speed.run_cost import PredictedRun, RunLength, predict_run
from zerowiz.core.values import shows


@shows("evaluated.strategy.name", "run.expected_hours", "run.cost.expected_cost")
class StrategyRun(Struct, frozen=True, kw_only=True):
    """The run of one strategy."""

    evaluated: StrategyEstimate
    run: PredictedRun | None
    """None where no time is known."""


@shows("tokens", "chosen", "price_per_hour", "strategies")
class PlannedRun(Struct, frozen=True, kw_only=True):
    """The run on one machine, with each strategy that fits."""

    tokens: int
    """Over all epochs."""
    price_per_hour: float | None
    """Of the whole machine; None where nobody said."""
    currency: str
    chosen: str | None
    """The strategy that was chosen."""
    strategies: tuple[StrategyRun, ...]
    why_untimed: str | None = None
    """Why the chosen strategy has no run."""


def plan_run(
    decision: Decision, length: RunLength, prices: PriceList, instance: str | None
) -> PlannedRun:
    """The run of each strategy that fits.

    Args:
        decision: What was decided on the machine.
        length: Of the run.
        prices: What a person said of prices.
        instance: The name of the instance that its nodes are, if they are one.
    """
    tokens = length.tokens(decision.job.workload.sequence_tokens)
    per_hour = prices.per_hour(decision.job.machine, instance)
    chosen = decision.chosen
    return PlannedRun(
        tokens=tokens,
        price_per_hour=per_hour,
        currency=prices.currency,
        chosen=None if chosen is None else chosen.strategy.name,
        why_untimed=None if chosen is None or chosen.step_time else decision.job.why_untimed,
        strategies=tuple(
            StrategyRun(evaluated=each, run=run_of(each, tokens, per_hour))
            for each in decision.evaluated
            if each.runs or each is chosen
        ),
    )


def run_of(
    evaluated: StrategyEstimate, tokens: int, price_per_hour: float | None
) -> PredictedRun | None:
    """The run of one strategy; None where no time is known."""
    step_time = evaluated.step_time
    return None if step_time is None else predict_run(step_time, tokens, price_per_hour)
