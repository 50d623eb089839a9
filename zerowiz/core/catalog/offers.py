"""Find the machines of the tables that a job fits, and put them in order.

Each kind is tried from small to large. What decides most is memory, and the same strategies hold as
much on any GPU where as many ranks share the job: so where nothing fits, nothing fits a smaller GPU
either, and that one is not tried.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from zerowiz.core.catalog.candidates import MachineCandidate, MachineKind, Size
from zerowiz.core.catalog.planned_run import run_of
from zerowiz.core.catalog.prices import Price, PriceList
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.names.gpus import GpuModel
from zerowiz.core.machine.types import Machine
from zerowiz.core.speed.run_cost import PredictedRun, RunLength
from zerowiz.core.values import shows
from zerowiz.core.workload.workload import Workload

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
            if any(one.covers(seen) for one in self.too_small):
                continue
            decision = self.decide(candidate)
            if decision is None:
                self.unasked.add(kind.gpu.name)
                continue
            if not any(one.runs for one in decision.evaluated):
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
    found: list[Offer] = []
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
        found += (_offer(*each, prices, length) for each in fitting)
    for kind in kinds:
        instance = kind.instance
        if instance is None:
            continue
        covered = fewest.get(kind.gpu.name, instance.gpus + 1) <= instance.gpus
        if not covered or prices.names(instance.name):
            fitting = list(islice(trial.fitting(kind, kind.sizes), 1))
            found += (_offer(*each, prices, length) for each in fitting)
    return Offers(
        offers=tuple(sorted(found, key=_order)),
        too_small=tuple(too_small),
        kinds_unasked=unasked,
        unlisted_prices=tuple(price.name for price in prices.prices if _is_unlisted(price, found)),
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
        yield from (each for each in fitting if each[0].name not in known)


def _is_unlisted(price: Price, found: Sequence[Offer]) -> bool:
    """Whether a price that has a name is for no machine that was found."""
    return bool(price.name) and not any(
        price.is_for(offer.candidate.machine, offer.candidate.instance) for offer in found
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
