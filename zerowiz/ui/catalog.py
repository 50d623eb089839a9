"""Show the machines of the tables that a job fits, and what training costs on each."""

from collections.abc import Iterator
from typing import TextIO

from zerowiz.core.catalog import Offer, Offers
from zerowiz.core.decision.job import Job, Objective
from zerowiz.core.machine.types import spell_network
from zerowiz.core.machine_kinds import PriceList
from zerowiz.translation import N_, _, listing
from zerowiz.ui import sentences
from zerowiz.ui.choice import split_of
from zerowiz.ui.text import (
    LABEL_COLUMNS,
    bare_gib,
    labelled,
    money,
    rate_of,
    rate_unit,
    say,
    seconds,
    show_rows,
)

_UNKNOWN = "-"
# What can be seen of one machine's own plan leaves first.
_LEAVING = (
    N_("(step)"),
    N_("needs"),
    N_("headroom"),
    N_("ckpt"),
    N_("batch"),
    N_("step"),
    N_("strategy"),
    N_("verdict"),
)
# A table that is looked over, not searched.
_MOST_ROWS = 30


def machines(
    offered: Offers,
    job: Job,
    prices: PriceList,
    stream: TextIO,
    objective: Objective = Objective.FLOWCHART,
) -> None:
    """A row for each machine, the best first, and what was left out.

    Args:
        offered: The machines.
        job: The job on one of them.
        prices: What was said of prices.
        stream: Where to.
        objective: What chose the strategy of each machine.
    """
    say(stream, labelled(_("Model"), sentences.model(job.model)), hang=LABEL_COLUMNS)
    stream.write("\n")
    if offered.offers:
        _table(offered, stream)
        stream.write("\n")
    say(stream, *_legend(offered, job, prices, objective))


def _table(offered: Offers, stream: TextIO) -> None:
    split, mixed = _splits(offered), _mixes_checkpointing(offered)
    priced = any(offer.price_per_hour is not None for offer in offered.offers)
    headings = (
        *("machine", "strategy", "verdict", "needs", "headroom"),
        *(("batch",) if split else ()),
        *(("ckpt",) if mixed else ()),
        *("step", "(step)", _rate(offered)),
        *((N_("cost"),) if priced else ()),
    )
    rows = [
        (
            offer.candidate.name + ("*" if offer.assumes_network else ""),
            _(offer.chosen.strategy.short_words),
            sentences.verdict(offer.chosen),
            bare_gib(offer.chosen.device_bytes),
            bare_gib(offer.chosen.headroom_bytes),
            *((split_of(offer.workload),) if split else ()),
            *((_checkpointing(offer),) if mixed else ()),
            *_speed(offer),
            *((_UNKNOWN if offer.cost is None else money(offer.cost),) if priced else ()),
        )
        for offer in offered.offers[:_MOST_ROWS]
    ]
    show_rows(stream, headings, rows, _LEAVING)


def _splits(offered: Offers) -> bool:
    """Whether a global batch makes the step of a GPU differ between the machines."""
    return len({split_of(offer.workload) for offer in offered.offers}) > 1


def _mixes_checkpointing(offered: Offers) -> bool:
    """Whether gradient checkpointing was chosen for some of the machines alone."""
    return len({_checkpointing(offer) for offer in offered.offers}) > 1


def _checkpointing(offer: Offer) -> str:
    return _("yes") if offer.workload.gradient_checkpointing else _("no")


def _speed(offer: Offer) -> tuple[str, ...]:
    time = offer.chosen.step_time
    if time is None:
        return (_UNKNOWN,) * 3
    bounds = _(
        "({low_seconds} to {high_seconds})",
        low_seconds=seconds(time.low_seconds),
        high_seconds=seconds(time.high_seconds),
    )
    return (seconds(time.expected_seconds), bounds, rate_of(time))


def _legend(
    offered: Offers,
    job: Job,
    prices: PriceList,
    objective: Objective,
) -> Iterator[str]:
    offers = offered.offers
    order = _("fewest GPUs first, then the fastest")
    if prices.prices:
        order = _("cheapest first, then those without a price ({order})", order=order)
    if offers:
        yield _(
            "Machines as `$machine` takes them, {order}; for each GPU, the fewest that fit "
            "and twice as many.",
            order=order,
        )
        yield _(
            "In the table, needs and headroom are GiB per GPU; step is seconds per optimizer step;"
            " {rate} is the total of all GPUs.",
            rate=_rate(offered),
        )
    if offers and not any(offer.chosen.step_time for offer in offers):
        yield _("zerowiz predicts no step time: {why_untimed}.", why_untimed=job.why_untimed)
    yield from _steps(offered)
    if len(offered.offers) > 1 and objective is Objective.FLOWCHART:
        yield _("The flowchart chose each strategy; `$objective fastest` chooses the fastest.")
    if prices.prices:
        yield _("Cost is for a billion tokens, optimizer steps only.")
    assuming = next((offer for offer in offers if offer.assumes_network), None)
    if assuming is not None:
        yield _(
            "* assumes InfiniBand between nodes: one adapter per GPU, 400 Gb/s on PCIe 5, 200"
            " Gb/s on PCIe 4, 100 Gb/s on PCIe 3. Set the real link with `$interconnect`. To plan"
            " for one of these machines alone, add its link: `$machine {machine} $interconnect"
            " {network}`.",
            machine=assuming.candidate.name,
            network=spell_network(assuming.machine.network),
        )
    if len(offers) > _MOST_ROWS:
        more = len(offers) - _MOST_ROWS
        yield (
            _("1 more machine fits: list them all with `$as_json`.")
            if more == 1
            else _("{offers} more machines fit: list them all with `$as_json`.", offers=more)
        )
    yield from _left_out(offered)


def _rate(offered: Offers) -> str:
    return rate_unit(offer.chosen.step_time for offer in offered.offers)


def _steps(offered: Offers) -> Iterator[str]:
    """What differs between the steps of the machines."""
    if _splits(offered):
        yield _("Batch is the micro-batch and the number of micro-steps.")
    if _mixes_checkpointing(offered):
        yield _("Ckpt shows whether the plan uses gradient checkpointing.")
    steps = {
        (offer.workload.micro_batch, offer.workload.accumulation_steps) for offer in offered.offers
    }
    if len(offered.offers) > 1 and steps == {(1, 1)}:
        yield _(
            "Each GPU trains on one sequence at a time. A larger `$micro_batch`, or one "
            "`$global_batch` for all machines, can change this order."
        )


def _left_out(offered: Offers) -> Iterator[str]:
    """What has no row, and why."""
    if offered.kinds_without:
        some, kinds = offered.kinds_without, offered.kinds
        of_them = (
            _("any of the {kinds} GPUs of the table", kinds=kinds)
            if some == kinds
            else _("{some} of the {kinds} GPUs of the table", some=some, kinds=kinds)
        )
        yield _(
            "The model does not fit {of_them} in any count that zerowiz tried.", of_them=of_them
        )
    if offered.kinds_unasked:
        why = "" if offered.why_unasked is None else f" ({offered.why_unasked})"
        also = _("a further ") if offered.kinds_without else ""
        yield _(
            "Not listed, {also}{kinds_unasked} of the {kinds} GPUs of the table: some "
            "counts of them cannot divide the batch that you set{why}, and smaller "
            "counts have too little memory.",
            also=also,
            kinds_unasked=offered.kinds_unasked,
            kinds=offered.kinds,
            why=why,
        )
    if offered.unlisted_prices:
        names = listing(f"`{name}`" for name in offered.unlisted_prices)
        yield _(
            "These have a price, but the job fits on none that zerowiz tried: {names}.", names=names
        )
