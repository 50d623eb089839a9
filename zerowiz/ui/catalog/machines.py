"""Show the machines of the tables that a job fits."""

from collections.abc import Iterator
from typing import TextIO

from zerowiz.core.catalog.offers import Offer, Offers
from zerowiz.core.catalog.prices import PriceList
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.ui import sentences
from zerowiz.ui.text.table import grid, has_room, print_table, say
from zerowiz.ui.text.units import bare_gib, count, hours, money, seconds

_UNKNOWN = "-"
# A table that is looked over, not searched.
_MOST_ROWS = 30


def machines(found: Offers, job: PlanInput, prices: PriceList, stream: TextIO) -> None:
    """A row for each machine, the best first, and what was left out."""
    say(stream, f"Model    {sentences.model(job.model)}", "")
    if found.offers:
        _table(found, prices, stream)
        stream.write("\n")
    say(stream, *_legend(found, prices))


def _table(found: Offers, prices: PriceList, stream: TextIO) -> None:
    wide, timed = has_room(stream), any(offer.run for offer in found.offers)
    split = _splits(found)
    priced = any(offer.price_per_hour is not None for offer in found.offers)
    headings = (
        *("machine", "strategy", "verdict", "peak", "room"),
        *(("batch",) if split else ()),
        "step",
        *(("(step)",) if wide else ()),
        "tokens/s",
        *(("time",) if timed else ()),
        *(("cost",) if priced else ()),
    )
    table = grid(stream, *headings)
    for offer in found.offers[:_MOST_ROWS]:
        table.add_row(
            *_machine(offer),
            *((_batch(offer),) if split else ()),
            *_speed(offer, wide=wide),
            *((_time(offer),) if timed else ()),
            *((_cost(offer, prices.currency),) if priced else ()),
        )
    print_table(table, stream)


def _machine(offer: Offer) -> tuple[str, ...]:
    chosen = offer.chosen
    return (
        offer.candidate.name + ("*" if offer.assumes_network else ""),
        chosen.strategy.name,
        sentences.verdict(chosen),
        bare_gib(chosen.estimate.peak_bytes),
        bare_gib(chosen.headroom_bytes),
    )


def _splits(found: Offers) -> bool:
    """Whether a global batch makes the step of a GPU differ between the machines."""
    return len({_batch(offer) for offer in found.offers}) > 1


def _batch(offer: Offer) -> str:
    """Sequences that a GPU trains at a time, and how often in a step."""
    return f"{offer.workload.micro_batch} x {offer.workload.accumulation_steps}"


def _speed(offer: Offer, *, wide: bool) -> tuple[str, ...]:
    time = offer.chosen.step_time
    if time is None:
        return (_UNKNOWN,) * (3 if wide else 2)
    bounds = f"({seconds(time.low_seconds)} to {seconds(time.high_seconds)})"
    interval = (bounds,) if wide else ()
    return (seconds(time.expected_seconds), *interval, f"{time.tokens_per_s:,.0f}")


def _time(offer: Offer) -> str:
    return _UNKNOWN if offer.run is None else hours(offer.run.expected_hours)


def _cost(offer: Offer, currency: str) -> str:
    cost = None if offer.run is None else offer.run.cost
    return _UNKNOWN if cost is None else money(cost.expected_cost, currency)


def _legend(found: Offers, prices: PriceList) -> Iterator[str]:
    offers = found.offers
    if offers:
        order = "fewest GPUs first, of as many the fastest first"
        if prices.prices:
            order = f"cheapest first, then those without a price, {order}"
        yield (
            f"Machines as `$machine` takes them, {order}; of each GPU the fewest that fit and twice"
            " as many. Peak and room are GiB of each GPU; step is seconds of one optimizer step;"
            " tokens/s is of all GPUs together."
        )
    if _splits(found):
        yield "Batch is the sequences that a GPU trains at a time, and how often in a step."
    tokens = {offer.run.tokens for offer in offers if offer.run is not None}
    if tokens:
        yield f"Time and cost are of {count(max(tokens))} tokens, in optimizer steps alone."
    if any(offer.assumes_network for offer in offers):
        yield (
            "* with InfiniBand between nodes, which is assumed: an adapter for each GPU, 400 Gb/s"
            " on PCIe 5, 200 Gb/s on PCIe 4, 100 Gb/s on PCIe 3. `$interconnect` says what it is."
        )
    if len(offers) > _MOST_ROWS:
        yield f"{len(offers) - _MOST_ROWS} more machines fit: `$as_json` lists them all."
    if found.kinds_without:
        without = f"{found.kinds_without} of the {found.kinds} GPUs of the table"
        yield f"{without} do not fit it in any number that was tried."
