"""Show how long a run takes and what it costs, with each strategy that fits."""

from typing import TextIO

from zerowiz.core.catalog.planned_run import PlannedRun, StrategyRun
from zerowiz.core.speed.run_cost import PredictedRun
from zerowiz.ui.text.cells import LABEL_COLUMNS, labelled
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import count, hours, money
from zerowiz.words import N_, _

_UNKNOWN = "-"
_LEGEND = _(
    "times are for optimizer steps only, without startup, evaluation and saving; brackets show"
    " the bounds of the prediction"
)


def run(planned: PlannedRun, stream: TextIO) -> None:
    """The run of the chosen strategy in a line, then a table of all that fit.

    There is no table where no time is known.
    """
    say(stream, "", labelled(_("Run"), _what(planned)), hang=LABEL_COLUMNS)
    if not any(each.run for each in planned.strategies):
        return
    stream.write("\n")
    priced = planned.price_per_hour is not None
    costs = (N_("cost"), N_("(cost)")) if priced else ()
    headings = ("strategy", N_("steps"), N_("time"), N_("(time)"), *costs)
    rows = [_row(each, planned.currency, priced=priced) for each in planned.strategies]
    show_rows(stream, headings, rows, ("(cost)", "(time)", "steps"))
    say(stream, "", _LEGEND)


def _what(planned: PlannedRun) -> str:
    """What is trained on, and how long the chosen strategy takes for it."""
    trained = _("{tokens} tokens", tokens=count(planned.tokens))
    if planned.price_per_hour is not None:
        price = money(planned.price_per_hour, planned.currency)
        trained += _(", at {price} an hour for the whole machine", price=price)
    runs = {each.evaluated.strategy.name: each.run for each in planned.strategies}
    chosen = runs.get(planned.chosen or "")
    if chosen is None:
        why = (
            ""
            if planned.why_untimed is None
            else _(", as {why_untimed}", why_untimed=planned.why_untimed)
        )
        return _("{trained}: no step time is predicted{why}", trained=trained, why=why)
    cost = chosen.cost
    costs = "" if cost is None else f", {money(cost.expected_cost, planned.currency)}"
    return _(
        "{trained}: {chosen} takes {expected_hours}{costs}",
        trained=trained,
        chosen=planned.chosen,
        expected_hours=hours(chosen.expected_hours),
        costs=costs,
    )


def _row(each: StrategyRun, currency: str, *, priced: bool) -> tuple[str, ...]:
    name, found = each.evaluated.strategy.name, each.run
    if found is None:
        return (name, *[_UNKNOWN] * (5 if priced else 3))
    return (name, f"{found.steps:,}", *_time(found), *(_cost(found, currency) if priced else ()))


def _time(found: PredictedRun) -> tuple[str, str]:
    bounds = _(
        "({low_hours} to {high_hours})",
        low_hours=hours(found.low_hours),
        high_hours=hours(found.high_hours),
    )
    return hours(found.expected_hours), bounds


def _cost(found: PredictedRun, currency: str) -> tuple[str, str]:
    cost = found.cost
    if cost is None:
        return _UNKNOWN, _UNKNOWN
    bounds = _(
        "({low_cost} to {high_cost})",
        low_cost=money(cost.low_cost, currency),
        high_cost=money(cost.high_cost, currency),
    )
    return money(cost.expected_cost, currency), bounds
