"""The machines of the tables that a job fits, in which order, and what a run costs on each.

A run is optimizer steps alone: what starts it, evaluates and saves is no part of it. A step time
has an interval, and the steps of one run are long or short together, so the run's interval is that
of a step times their count.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import MachineCandidate, MachineKind, Price, PriceList, Size
from zerowiz.core.model.types import Model
from zerowiz.core.plan_json import SCHEMA_VERSION, encode_step_time
from zerowiz.core.settings import Change
from zerowiz.core.speed.costs import PredictedRun, RunLength, predict_run
from zerowiz.core.structs import encode, shows
from zerowiz.core.workload import Workload

# How long a run takes on one machine, and what it costs, with each strategy that fits.


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
            StrategyRun(evaluated=estimate, run=run_of(estimate, tokens, per_hour))
            for estimate in decision.evaluated
            if estimate.runs or estimate is chosen
        ),
    )


def run_of(
    evaluated: StrategyEstimate, tokens: int, price_per_hour: float | None
) -> PredictedRun | None:
    """The run of one strategy; None where no time is known."""
    step_time = evaluated.step_time
    return None if step_time is None else predict_run(step_time, tokens, price_per_hour)


# Find the machines of the tables that a job fits, and put them in order.
#
# Each kind is tried from small to large. What decides most is memory, and the same strategies
# hold as much on any GPU where as many ranks share the job: so where nothing fits, nothing fits a
# smaller GPU either, and that one is not tried.

Decide = Callable[[MachineCandidate], Decision | None]
"""What the flowchart says of a machine; None where the job cannot be asked of it."""

# Of each GPU: the fewest that fit, and as many again, to see what more of them are worth.
_SIZES_OF_A_GPU = 2


@shows(
    "candidate.name",
    "chosen.strategy.name",
    "chosen.verdict",
    "price_per_hour",
    "run.expected_hours",
    "run.cost.expected_cost",
)
class Offer(Struct, frozen=True, kw_only=True):
    """A machine that the job fits."""

    candidate: MachineCandidate
    machine: Machine
    """With what the options say of it."""
    workload: Workload
    """The step that was planned there: a global batch is split by the number of GPUs."""
    chosen: StrategyEstimate
    price_per_hour: float | None
    """Of all its nodes; None where nobody said."""
    run: PredictedRun | None
    """None where no length was asked for, or no time is known."""

    @property
    def assumes_network(self) -> bool:
        """Whether the network between its nodes is a guess."""
        assumed = self.candidate.machine.network
        return self.candidate.assumes_network and self.machine.network == assumed


@shows("offers", "kinds", "kinds_without")
class Offers(Struct, frozen=True, kw_only=True):
    """Every machine that was found, and what was not."""

    offers: tuple[Offer, ...]
    """The best first."""
    too_small: tuple[MachineKind, ...]
    """The GPUs of the table that are too small in every size that was tried."""
    kinds_unasked: int
    """How many others have no size that fits, and one or more that the job has no plan for."""
    kinds: int
    """How many GPUs were tried."""
    unlisted_prices: tuple[str, ...] = ()
    """The names of the prices that are for no machine that fits."""
    why_unasked: str | None = None
    """The first reason why the job has no plan for a machine."""

    @property
    def kinds_without(self) -> int:
        """How many GPUs are too small."""
        return len(self.too_small)


class _TooSmall(Struct, frozen=True, kw_only=True):
    """What each rank and node have of a machine that no strategy fits."""

    world_size: int
    takes_bf16: bool
    total_bytes: int
    free_bytes: int
    host_bytes: int

    @staticmethod
    def of(machine: Machine) -> "_TooSmall":
        return _TooSmall(
            world_size=machine.world_size,
            takes_bf16=machine.takes_bf16,
            total_bytes=machine.total_bytes or 0,
            free_bytes=machine.free_bytes or 0,
            host_bytes=machine.host.available_bytes or 0,
        )

    def covers(self, other: "_TooSmall") -> bool:
        """Whether the other one has no more of anything."""
        if (self.world_size, self.takes_bf16) != (other.world_size, other.takes_bf16):
            return False
        return (
            other.total_bytes <= self.total_bytes
            and other.free_bytes <= self.free_bytes
            and other.host_bytes <= self.host_bytes
        )


_Fitting = tuple[MachineCandidate, Decision, StrategyEstimate]


class _Trial:
    """What is known of the machines that were tried."""

    def __init__(self, decide: Decide, table: Sequence[GpuModel]) -> None:
        self.decide = decide
        self.table = table
        self.too_small: list[_TooSmall] = []
        self.unasked: set[str] = set()
        """The GPUs of machines that the job cannot be asked of."""

    def fitting(self, kind: MachineKind, sizes: Sequence[Size]) -> Iterator[_Fitting]:
        """The sizes of a kind that the job fits, the smallest first."""
        for size in sizes:
            candidate = kind.build(size, self.table)
            seen = _TooSmall.of(candidate.machine)
            if any(limit.covers(seen) for limit in self.too_small):
                continue
            decision = self.decide(candidate)
            if decision is None:
                self.unasked.add(kind.gpu.name)
                continue
            if not any(estimate.runs for estimate in decision.evaluated):
                self.too_small.append(seen)
            chosen = decision.chosen
            if chosen is not None and chosen.runs:
                yield candidate, decision, chosen


def find_offers(
    kinds: Iterable[MachineKind],
    table: Sequence[GpuModel],
    decide: Decide,
    prices: PriceList,
    length: RunLength | None,
) -> Offers:
    """The machines that the job fits, the cheapest first; without prices, the fewest GPUs first.

    An instance is there where it has a price of its own, or adds something: a host whose memory is
    known, where its GPUs alone do not fit, or a known network, where one node is not enough. A
    number of GPUs in a node that has a price of its own is there too.

    Args:
        kinds: What is tried; GPUs before instances.
        table: The GPUs, by which machines are built.
        decide: What the flowchart says of a machine.
        prices: What a person said of prices.
        length: Of the run whose time and cost are asked for.
    """
    trial = _Trial(decide, table)
    offers: list[Offer] = []
    fewest: dict[str, int] = {}
    too_small: list[MachineKind] = []
    unasked = 0
    gpu_kinds = [kind for kind in kinds if kind.instance is None]
    for kind in gpu_kinds:
        fitting = list(islice(trial.fitting(kind, kind.sizes), _SIZES_OF_A_GPU))
        fitting += _priced(trial, kind, {candidate.name for candidate, _, _ in fitting})
        if not fitting and kind.gpu.name in trial.unasked:
            unasked += 1
        elif not fitting:
            too_small.append(kind)
        else:
            fewest[kind.gpu.name] = fitting[0][0].size.world_size
        offers += (_offer(*fit, prices, length) for fit in fitting)
    for kind in kinds:
        instance = kind.instance
        if instance is None:
            continue
        covered = fewest.get(kind.gpu.name, instance.gpus + 1) <= instance.gpus
        if not covered or prices.names(instance.name):
            fitting = list(islice(trial.fitting(kind, kind.sizes), 1))
            offers += (_offer(*fit, prices, length) for fit in fitting)
    return Offers(
        offers=tuple(sorted(offers, key=_order)),
        too_small=tuple(too_small),
        kinds_unasked=unasked,
        unlisted_prices=tuple(price.name for price in prices.prices if _is_unlisted(price, offers)),
        kinds=len(gpu_kinds),
    )


def count_fitting(kinds: Sequence[MachineKind], table: Sequence[GpuModel], decide: Decide) -> int:
    """How many of these kinds a job fits in some size."""
    trial = _Trial(decide, table)
    return sum(any(True for _ in trial.fitting(kind, kind.sizes)) for kind in kinds)


def _priced(trial: _Trial, kind: MachineKind, known: set[str]) -> Iterator[_Fitting]:
    """Of each number of GPUs that has a price, the fewest nodes that the job fits."""
    for gpus in sorted({size.gpus for size in kind.priced_sizes}):
        sizes = [size for size in kind.priced_sizes if size.gpus == gpus]
        fitting = islice(trial.fitting(kind, sizes), 1)
        yield from (fit for fit in fitting if fit[0].name not in known)


def _is_unlisted(price: Price, offers: Sequence[Offer]) -> bool:
    """Whether a price that has a name is for no machine that was found."""
    return bool(price.name) and not any(
        price.is_for(offer.candidate.machine, offer.candidate.instance) for offer in offers
    )


def _offer(
    candidate: MachineCandidate,
    decision: Decision,
    chosen: StrategyEstimate,
    prices: PriceList,
    length: RunLength | None,
) -> Offer:
    per_hour = prices.per_hour(candidate.machine, candidate.instance)
    tokens = None if length is None else length.tokens(decision.job.workload.sequence_tokens)
    return Offer(
        candidate=candidate,
        machine=decision.job.machine,
        workload=decision.job.workload,
        chosen=chosen,
        price_per_hour=per_hour,
        run=None if tokens is None else run_of(chosen, tokens, per_hour),
    )


def _order(offer: Offer) -> tuple[bool, float, int, float, str]:
    """By cost; of equal or unknown cost by GPUs, then by speed."""
    cost = None if offer.run is None else offer.run.cost
    step_time = offer.chosen.step_time
    speed = 0.0 if step_time is None else step_time.tokens_per_s
    return (
        cost is None,
        0.0 if cost is None else cost.expected_cost,
        offer.candidate.size.world_size,
        -speed,
        offer.candidate.name,
    )


# Find the changes of a job after which it fits more of the GPUs of the table.

# Those that cost least come first. A host of two terabytes is that of eight GPUs.
_CHANGES: tuple[Change, ...] = (
    {"gradient_checkpointing": True},
    {"host_memory": "2TB"},
    {"method": "lora"},
    {"gradient_checkpointing": True, "method": "lora"},
)


class WiderFit(Struct, frozen=True, kw_only=True):
    """A change of options, and how many of the GPUs that are too small the job then fits."""

    change: Change
    kinds: int


def find_wider_fits(
    offers: Offers,
    stated: Collection[str],
    table: Sequence[GpuModel],
    decide_with: Callable[[Change], Decide],
) -> Iterator[WiderFit]:
    """The changes after which the job fits GPUs that are too small; none where most are not.

    Args:
        offers: The machines that it fits as it is.
        stated: The options that a person gave; no change of one is offered.
        table: The GPUs, by which machines are built.
        decide_with: How the job is planned for a machine after a change.
    """
    if 2 * offers.kinds_without < offers.kinds:
        return
    most = 0
    for change in _CHANGES:
        if change.keys() & stated:
            continue
        kinds = count_fitting(offers.too_small, table, decide_with(change))
        # A combination is worth it where it does more than one change.
        if kinds > (most if len(change) > 1 else 0):
            yield WiderFit(change=change, kinds=kinds)
        most = max(most, kinds)


# The JSON of a run: it changes only on purpose.


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
            {"name": strategy.evaluated.strategy.name, **encode_times(strategy.run)}
            for strategy in planned.strategies
        ],
    }


# The JSON of the machines that a job fits: it changes only on purpose.


def _encode_offer(offer: Offer) -> dict[str, object]:
    candidate, chosen, run = offer.candidate, offer.chosen, offer.run
    network = offer.machine.network
    return {
        "machine": candidate.name,
        "gpu": offer.machine.gpus[0].name,
        "gpus_per_node": candidate.size.gpus,
        "nodes": candidate.size.nodes,
        "instance": candidate.instance,
        "network": {
            "kind": network.kind.value,
            "bytes_per_s": network.bytes_per_s,
            "assumed": offer.assumes_network,
        },
        "micro_batch": offer.workload.micro_batch,
        "accumulation_steps": offer.workload.accumulation_steps,
        "gradient_checkpointing": offer.workload.gradient_checkpointing,
        "precision": offer.workload.precision.value,
        "strategy": chosen.strategy.name,
        "verdict": chosen.verdict.value,
        "peak_bytes": chosen.estimate.peak_bytes,
        "device_bytes": chosen.device_bytes,
        "headroom_bytes": chosen.headroom_bytes,
        **encode_step_time(chosen.step_time),
        "price_per_hour": offer.price_per_hour,
        "run": None if run is None else {"tokens": run.tokens, **encode_times(run)},
    }


def encode_offers(
    offers: Offers, model: Model, prices: PriceList, *, version: str
) -> dict[str, object]:
    """One JSON object, whose `machines` are in the order of the table."""
    return {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": version,
        "model": {"name": model.name, "params": model.params, "source": model.source.value},
        "currency": prices.currency or None,
        "machines": [_encode_offer(offer) for offer in offers.offers],
        "gpus_tried": offers.kinds,
        "gpus_that_do_not_fit": offers.kinds_without,
        "gpus_without_a_plan": offers.kinds_unasked,
        "prices_without_a_machine": list(offers.unlisted_prices),
    }
