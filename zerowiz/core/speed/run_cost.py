"""Predict how long a whole run takes, and what it costs.

A run is optimizer steps alone: what starts it, evaluates and saves is no part of it. A step time
has an interval, and the steps of one run are long or short together, so the run's interval is that
of a step times their count.
"""

import math

from msgspec import Struct

from zerowiz.core.speed.terms import StepTime

_SECONDS_PER_HOUR = 3600


class RunLength(Struct, frozen=True, kw_only=True):
    """How much is trained on; the data is said in tokens or in sequences."""

    data_tokens: int | None = None
    data_sequences: int | None = None
    """Each is as long as those of the step, as padding takes the same time."""
    epochs: float = 1

    def tokens(self, sequence_tokens: int) -> int:
        """Of the whole run."""
        data_tokens = self.data_tokens
        if data_tokens is None:
            data_tokens = (self.data_sequences or 0) * sequence_tokens
        return math.ceil(data_tokens * self.epochs)


class RunCost(Struct, frozen=True, kw_only=True):
    """In the currency of the price."""

    expected_cost: float
    low_cost: float
    high_cost: float


class PredictedRun(Struct, frozen=True, kw_only=True):
    """A training run of one strategy."""

    tokens: int
    steps: int
    """Optimizer steps; the last one may be a part of one."""
    expected_hours: float
    low_hours: float
    high_hours: float
    price_per_hour: float | None
    """Of all GPUs of the job together; None where nobody said."""

    @property
    def cost(self) -> RunCost | None:
        """None where no price is known."""
        price = self.price_per_hour
        if price is None:
            return None
        return RunCost(
            expected_cost=price * self.expected_hours,
            low_cost=price * self.low_hours,
            high_cost=price * self.high_hours,
        )


def predict_run(step_time: StepTime, tokens: int, price_per_hour: float | None) -> PredictedRun:
    """How long this many tokens take, and what that costs.

    Args:
        step_time: Of one optimizer step.
        tokens: Of the whole run, over all epochs.
        price_per_hour: Of all GPUs of the job together; None where it is not known.
    """
    steps = math.ceil(tokens / step_time.tokens)
    return PredictedRun(
        tokens=tokens,
        steps=steps,
        expected_hours=steps * step_time.expected_seconds / _SECONDS_PER_HOUR,
        low_hours=steps * step_time.low_seconds / _SECONDS_PER_HOUR,
        high_hours=steps * step_time.high_seconds / _SECONDS_PER_HOUR,
        price_per_hour=price_per_hour,
    )
