"""The JSON of a run: it changes only on purpose."""

from zerowiz.core.catalog.planned_run import PlannedRun
from zerowiz.core.codec import encode
from zerowiz.core.speed.run_cost import PredictedRun


def encode_times(run: PredictedRun | None) -> dict[str, object]:
    """How long a run takes and what it costs; null where that is not known."""
    if run is None:
        return dict.fromkeys(("steps", "hours", "hours_interval", "cost", "cost_interval"))
    cost = run.cost
    return {
        "steps": run.steps,
        "hours": run.expected_hours,
        "hours_interval": {
            "low_hours": run.low_hours,
            "expected_hours": run.expected_hours,
            "high_hours": run.high_hours,
        },
        "cost": None if cost is None else cost.expected_cost,
        "cost_interval": None if cost is None else encode(cost),
    }


def encode_run(planned: PlannedRun) -> dict[str, object]:
    """The `run` of `plan --json`; costs are in the currency of the price."""
    return {
        "tokens": planned.tokens,
        "price_per_hour": planned.price_per_hour,
        "currency": planned.currency or None,
        "strategies": [
            {"name": each.evaluated.strategy.name, **encode_times(each.run)}
            for each in planned.strategies
        ],
    }
