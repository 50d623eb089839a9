"""Compute what would make a strategy fit: every remedy is a change that was evaluated again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision, OffloadChoice, Reason, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.types import Accelerator, widen
from zerowiz.core.model.from_size import model_from_size
from zerowiz.core.model.types import ModelSource
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace
from zerowiz.core.workload import Accounting, Method, Precision, StateDtype
from zerowiz.errors import UsageError

Change = Mapping[str, int | str | bool]
Attempted = tuple[Change, PlanInput, Constraints]
Attempt = Callable[[PlanInput, Constraints], Iterator[Attempted]]


class Remedy(Struct, frozen=True, kw_only=True):
    """A change of options, the strategy it leads to, and what it frees on each GPU."""

    change: Change
    strategy: str
    verdict: Verdict
    """Of that strategy."""
    frees_bytes: int


# NVIDIA's reference designs for H100 have one NDR adapter, 400 Gb/s, for each GPU; one is enough to
# count as fast.
_INFINIBAND = "infiniband:400Gb/s"
_INFINIBAND_BYTES_PER_S = 50_000_000_000


def _network(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    """The statement that a network of which nothing is known is InfiniBand."""
    machine = job.machine
    if machine.nodes == 1 or machine.network.kind is not NetworkKind.UNKNOWN:
        return
    if machine.network.nics:
        return
    network = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=_INFINIBAND_BYTES_PER_S)
    changed = replace(job, machine=replace(machine, network=network))
    yield {"interconnect": _INFINIBAND}, changed, constraints


def _bf16(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.precision is Precision.FP32 and job.machine.takes_bf16:
        workload = replace(job.workload, precision=Precision.BF16)
        yield {"precision": "bf16"}, replace(job, workload=workload), constraints


def _checkpointing(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if not job.workload.gradient_checkpointing:
        workload = replace(job.workload, gradient_checkpointing=True)
        yield {"gradient_checkpointing": True}, replace(job, workload=workload), constraints


def _bf16_states(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.precision is Precision.BF16 and job.state_dtype is not StateDtype.BF16:
        yield (
            {"optimizer_state_dtype": "bf16"},
            replace(job, state_dtype=StateDtype.BF16),
            constraints,
        )


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _micro_batch(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    """A part of the micro-batch at a time, in as many more micro-steps: the same global batch."""
    batch, steps = job.workload.micro_batch, job.workload.accumulation_steps
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            change = {"micro_batch": batch // parts, "accumulation_steps": steps * parts}
            workload = replace(
                job.workload, micro_batch=batch // parts, accumulation_steps=steps * parts
            )
            yield change, replace(job, workload=workload), constraints


def _sequence(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    for tokens in _halves(job.workload.sequence_tokens, 256):
        workload = replace(job.workload, sequence_tokens=tokens)
        yield {"sequence_tokens": tokens}, replace(job, workload=workload), constraints


def _lean(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    """Checkpointing and bf16 states together, then with ever smaller micro-batches."""
    change: Change = {}
    for remedy in (_checkpointing, _bf16_states):
        for more, leaner, _ in remedy(job, constraints):
            change, job = {**change, **more}, leaner
    if len(change) > 1:
        yield change, job, constraints
    if change:
        for more, smaller, _ in _micro_batch(job, constraints):
            yield {**change, **more}, smaller, constraints


def _offload(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if constraints.offload is not OffloadChoice.AUTO:
        yield {"offload": "auto"}, job, replace(constraints, offload=OffloadChoice.AUTO)


def _allow_slow(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if not constraints.allow_slow:
        yield {"allow_slow": True}, job, replace(constraints, allow_slow=True)


# What nodes are built with.
_GPUS_OF_A_NODE = (2, 4, 8)


def _more_gpus(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    machine = job.machine
    if machine.nodes > 1 or machine.accelerator is Accelerator.CPU:
        return
    for count in _GPUS_OF_A_NODE:
        if count > len(machine.gpus):
            wider = replace(job, machine=widen(machine, count))
            name = machine.gpus[-1].name.removeprefix("NVIDIA ")
            yield {"machine": f"{count}x{name}"}, wider, constraints


def _adapters(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    if job.workload.method is not Method.FULL or job.accounting is Accounting.TEXTBOOK:
        return
    for method in (Method.LORA, Method.QLORA):
        adapted = replace(job, workload=replace(job.workload, method=method))
        yield {"method": method.value}, adapted, constraints
        for more, leaner, _ in _checkpointing(adapted, constraints):
            yield {"method": method.value, **more}, leaner, constraints


# Sizes that people train, from the largest.
_SIZES = ("70b", "32b", "14b", "7b", "3b", "1.5b", "1b", "500m", "100m")
_SIZE_PARAMS = (70e9, 32e9, 14e9, 7e9, 3e9, 1.5e9, 1e9, 5e8, 1e8)


def _smaller_model(job: PlanInput, constraints: Constraints) -> Iterator[Attempted]:
    for name, params in zip(_SIZES, _SIZE_PARAMS, strict=True):
        if params < job.model.params:
            model = model_from_size(name, int(params))
            yield {"model": name}, replace(job, model=model), constraints


# The cheapest first: what is only to be said, what costs time, then what costs the batch, then
# hardware, then the model.
REMEDIES: tuple[Attempt, ...] = (
    _network,
    _bf16,
    _checkpointing,
    _bf16_states,
    _lean,
    _micro_batch,
    _sequence,
    _more_gpus,
    _offload,
    _allow_slow,
    _adapters,
    _smaller_model,
)

# These leave the machine, the model and what of it is trained as they are.
_SAME_RUN = tuple(r for r in REMEDIES if r not in {_more_gpus, _adapters, _smaller_model})
_LEANER = (_bf16, _checkpointing, _bf16_states, _lean, _micro_batch, _sequence)
_PAST_SLOW_LINK = (_network, _offload, _allow_slow)


def make_remedy(decision: Decision, change: Change, chosen: StrategyEstimate) -> Remedy:
    """The change that leads from a decision to this strategy.

    Compared with the same strategy before, so that another one does not count as freed memory.
    """
    is_real = decision.job.accounting is Accounting.REAL
    before = decision.of(chosen.strategy) if is_real else decision.closest
    return Remedy(
        change=change,
        strategy=chosen.strategy.name,
        verdict=chosen.verdict,
        frees_bytes=max(0, before.device_bytes - chosen.device_bytes),
    )


def _together(first: Attempted, second: Attempt) -> Iterator[Attempted]:
    change, job, constraints = first
    for more, changed, allowed in second(job, constraints):
        yield {**change, **more}, changed, allowed


class _Search:
    """The remedies of a decision, and what nothing but a slow link refused."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.slow: list[Attempted] = []

    def fits(self, attempted: Attempted) -> StrategyEstimate | None:
        """The strategy that an attempt leads to; it is remembered where only its link is slow."""
        _, job, constraints = attempted
        try:
            made = decide(job, constraints)
        except UsageError:
            return None
        if made.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
            self.slow.append(attempted)
        return made.chosen if made.chosen and made.chosen.runs else None

    def first(self, attempts: Iterable[Attempted]) -> Iterator[Remedy]:
        """The first attempt after which something surely runs, if there is one.

        Where nothing fits, one that is uncertain is better than none. A size stays a size whatever
        is changed, so its doubt is no reason to look further.
        """
        refused = self.decision.chosen is None
        uncertain: list[Remedy] = []
        for attempted in attempts:
            if chosen := self.fits(attempted):
                change, job, _ = attempted
                remedy = make_remedy(self.decision, change, chosen)
                if chosen.is_sure or (refused and job.model.source is ModelSource.SIZE):
                    yield remedy
                    return
                uncertain.append(remedy)
        yield from uncertain[:1] if refused else ()

    def pairs(self) -> Iterator[Remedy]:
        """Two changes at once, where none is enough alone; more only where no two are."""
        found = list(self.past_slow_link())
        yield from found or (*self.squeezed(), *self.past_slow_link())

    def past_slow_link(self) -> Iterator[Remedy]:
        """What was refused for its link alone, with what gets it past the link."""
        refused, self.slow = self.slow, []
        for second in _PAST_SLOW_LINK:
            yield from self.first(
                attempted for first in refused for attempted in _together(first, second)
            )

    def squeezed(self) -> Iterator[Remedy]:
        for second in (_micro_batch, _sequence):
            yield from self.first(self.after_leanest(second))

    def after_leanest(self, second: Attempt) -> Iterator[Attempted]:
        """A change after the most of each leaner one, where the most of it is enough."""
        job, constraints = self.decision.job, self.decision.constraints
        for leaner in _LEANER:
            for most in list(leaner(job, constraints))[-1:]:
                attempts = list(_together(most, second))
                before = len(self.slow)
                if attempts and (self.fits(attempts[-1]) or len(self.slow) > before):
                    yield from attempts


def _roomier(decision: Decision, chosen: StrategyEstimate) -> Iterator[Remedy]:
    """The strategies below the chosen one that fit, without being tight or uncertain."""
    forbidden = decision.constraints.offload is OffloadChoice.NONE
    for each in decision.evaluated[decision.evaluated.index(chosen) + 1 :]:
        offloads = each.strategy.offload is not Offload.NONE
        if each.verdict is Verdict.FITS and not (forbidden and offloads):
            yield Remedy(
                change={"stage": str(each.strategy.stage), "offload": each.strategy.offload.value},
                strategy=each.strategy.name,
                verdict=each.verdict,
                frees_bytes=max(0, chosen.device_bytes - each.device_bytes),
            )


def find_remedies(decision: Decision) -> tuple[Remedy, ...]:
    """The changes that would lead to a strategy, the cheapest first; none where one fits well.

    A tight or uncertain choice is given the next strategy that fits. Where there is none, an
    uncertain one is given the changes after which something surely runs.
    """
    chosen = decision.chosen
    if decision.job.own_buffers is not None:
        # The user's own config sets all this itself; no option can be added to it.
        return ()
    if chosen is None:
        return _worth_more(tuple(_find_each(decision)))
    if chosen.verdict not in {Verdict.TIGHT, Verdict.UNCERTAIN}:
        return ()
    roomier = tuple(islice(_roomier(decision, chosen), 1))
    if roomier or chosen.verdict is Verdict.TIGHT or not _may_be_sure(chosen):
        return roomier
    return _worth_more(tuple(_find_each(decision)))


def _worth_more(found: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Without those that lead no further than a part of them does."""
    return tuple(
        each
        for each in found
        if not any(
            less.change.items() < each.change.items()
            and (less.strategy, less.verdict) == (each.strategy, each.verdict)
            and less.frees_bytes >= each.frees_bytes
            for less in found
        )
    )


def _may_be_sure(evaluated: StrategyEstimate) -> bool:
    """Whether less memory makes it sure: not where something is not counted."""
    return evaluated.interval is None or not evaluated.interval.uncounted


def _find_each(decision: Decision) -> Iterator[Remedy]:
    """The first of each remedy that fits; two at once where those of the same run do not."""
    search, job, constraints = _Search(decision), decision.job, decision.constraints
    found = {remedy: list(search.first(remedy(job, constraints))) for remedy in _SAME_RUN}
    pairs = [] if any(found.values()) else list(search.pairs())
    for remedy in REMEDIES:
        if remedy in found:
            yield from found[remedy]
            continue
        if remedy is _more_gpus:
            yield from pairs
        alone = list(search.first(remedy(job, constraints)))
        if remedy is _more_gpus and not (alone or pairs or any(found.values())):
            yield from search.first(search.after_leanest(remedy))
        yield from alone
