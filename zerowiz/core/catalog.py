"""The machines of the tables that a job fits, in which order, and what training costs on each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import MachineCandidate, MachineKind, PriceList
from zerowiz.core.model.types import Model
from zerowiz.core.plan_json import SCHEMA_VERSION, encode_step_time
from zerowiz.core.structs import Count, shows
from zerowiz.core.workload import Workload

# Find the machines of the tables that a job fits, and put them in order.
#
# Each kind is tried from small to large. What decides most is memory, and the same strategies
# hold as much on any GPU where as many ranks share the job: so where nothing fits, nothing fits a
# smaller GPU either, and that one is not tried.

Decide = Callable[[MachineCandidate], Decision | None]
"""What the flowchart says of a machine; None where the job cannot be asked of it."""

_COMPARED_TOKENS, _SECONDS_PER_HOUR = 10**9, 3600
# Of each GPU: the fewest that fit, and as many again, to see what more of them are worth.
_SIZES_OF_A_GPU = 2


@shows(
    "candidate.name",
    "chosen.strategy.name",
    "chosen.verdict",
    "price_per_hour",
    "cost",
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

    @property
    def cost(self) -> float | None:
        """Dollars for a billion tokens of optimizer steps; None without a price or a step time."""
        time = self.chosen.step_time
        if self.price_per_hour is None or time is None:
            return None
        return self.price_per_hour * _COMPARED_TOKENS / time.tokens_per_s / _SECONDS_PER_HOUR

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
    kinds_without: Count
    """How many GPUs of the table are too small in every size that was tried."""
    kinds_unasked: int
    """How many others have no size that fits, and one or more that the job has no plan for."""
    kinds: int
    """How many GPUs were tried."""
    unlisted_prices: tuple[str, ...] = ()
    """The names of the prices that are for no machine that fits."""
    why_unasked: str | None = None
    """The first reason why the job has no plan for a machine."""


class _Trial:
    """What is known of the machines that were tried."""

    def __init__(self, decide: Decide, table: Sequence[GpuModel], prices: PriceList) -> None:
        self.decide, self.table, self.prices = decide, table, prices
        self.too_small: set[tuple[int, bool]] = set()
        """As many GPUs, with bf16 or without, of which larger ones were too small."""
        self.unasked: set[str] = set()
        """The GPUs of machines that the job cannot be asked of."""

    def fitting(self, kind: MachineKind) -> Iterator[Offer]:
        """The sizes of a kind that the job fits, the smallest first."""
        for size in kind.sizes:
            candidate = kind.build(size, self.table)
            many = (size.world_size, candidate.machine.takes_bf16)
            if kind.instance is None and many in self.too_small:
                continue
            decision = self.decide(candidate)
            if decision is None:
                self.unasked.add(kind.gpu.name)
                continue
            if not any(estimate.runs for estimate in decision.evaluated):
                self.too_small.add(many)
            chosen = decision.chosen
            if chosen is not None and chosen.runs:
                yield Offer(
                    candidate=candidate,
                    machine=decision.job.machine,
                    workload=decision.job.workload,
                    chosen=chosen,
                    price_per_hour=self.prices.per_hour(candidate.machine, candidate.instance),
                )


def find_offers(
    kinds: Iterable[MachineKind],
    table: Sequence[GpuModel],
    decide: Decide,
    prices: PriceList,
) -> Offers:
    """The machines that the job fits, the cheapest first; without prices, the fewest GPUs first.

    An instance is there where it has a price of its own, or adds something: a host whose memory is
    known, where its GPUs alone do not fit, or a known network, where one node is not enough.

    Args:
        kinds: What is tried; GPUs before instances, the largest GPUs first.
        table: The GPUs, by which machines are built.
        decide: What the flowchart says of a machine.
        prices: What a person said of prices.
    """
    trial = _Trial(decide, table, prices)
    offers: list[Offer] = []
    fewest: dict[str, int] = {}
    too_small = unasked = 0
    gpu_kinds = [kind for kind in kinds if kind.instance is None]
    for kind in gpu_kinds:
        fitting = list(islice(trial.fitting(kind), _SIZES_OF_A_GPU))
        if not fitting and kind.gpu.name in trial.unasked:
            unasked += 1
        elif not fitting:
            too_small += 1
        else:
            fewest[kind.gpu.name] = fitting[0].candidate.size.world_size
        offers += fitting
    for kind in kinds:
        instance = kind.instance
        if instance is None:
            continue
        covered = fewest.get(kind.gpu.name, instance.gpus + 1) <= instance.gpus
        if not covered or prices.names(instance.name):
            offers += islice(trial.fitting(kind), 1)
    return Offers(
        offers=tuple(sorted(offers, key=_order)),
        kinds_without=too_small,
        kinds_unasked=unasked,
        unlisted_prices=tuple(
            price.name
            for price in prices.prices
            if price.name
            and not any(price.is_for(o.candidate.machine, o.candidate.instance) for o in offers)
        ),
        kinds=len(gpu_kinds),
    )


def _order(offer: Offer) -> tuple[bool, float, int, float, str]:
    """By cost; of equal or unknown cost by GPUs, then by speed."""
    cost, step_time = offer.cost, offer.chosen.step_time
    speed = 0.0 if step_time is None else step_time.tokens_per_s
    return (
        cost is None,
        cost or 0.0,
        offer.candidate.size.world_size,
        -speed,
        offer.candidate.name,
    )


# The JSON of the machines that a job fits: it changes only on purpose.


def _encode_offer(offer: Offer) -> dict[str, object]:
    candidate, chosen = offer.candidate, offer.chosen
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
        "cost": offer.cost,
    }


def encode_offers(
    offers: Offers, model: Model, prices: PriceList, *, version: str
) -> dict[str, object]:
    """One JSON object, whose `machines` are in the order of the table."""
    return {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": version,
        "model": {"name": model.name, "params": model.params, "source": model.source.value},
        "currency": prices.currency,
        "machines": [_encode_offer(offer) for offer in offers.offers],
        "gpus_tried": offers.kinds,
        "gpus_that_do_not_fit": offers.kinds_without,
        "gpus_without_a_plan": offers.kinds_unasked,
        "prices_without_a_machine": list(offers.unlisted_prices),
    }
