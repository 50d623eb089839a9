"""A change of options, what it leads to, and what it costs."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Constraints, Decision
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.flags import flags
from zerowiz.core.settings import Change
from zerowiz.core.strategy import Offload
from zerowiz.core.units import parse_host_memory
from zerowiz.core.workload.choices import Accounting


class Expense(StrEnum):
    """What a change costs besides time, the cheapest first; other programs read these names."""

    PRECISION = "precision"
    """Weights or optimizer states in fewer bits."""
    SEQUENCE = "sequence"
    """Shorter sequences than the data has."""
    METHOD = "method"
    """Adapters instead of all parameters."""
    BUDGET = "memory_budget"
    """More of each GPU than a person allowed."""
    HOST_MEMORY = "host_memory"
    GPUS = "gpus"
    """More GPUs, larger ones, or more nodes."""
    MODEL = "model"
    """Another model."""


# What is not here costs time alone.
_COSTS: Mapping[str, Expense] = {
    "precision": Expense.PRECISION,
    "optimizer_state_dtype": Expense.PRECISION,
    "sequence_tokens": Expense.SEQUENCE,
    "method": Expense.METHOD,
    "memory_budget": Expense.BUDGET,
    "host_memory": Expense.HOST_MEMORY,
    "machine": Expense.GPUS,
    "model": Expense.MODEL,
}
_BY_PRICE = tuple(Expense)


def costs_of(change: Change) -> frozenset[Expense]:
    """What a change costs besides time."""
    costs = {_COSTS[name] for name in change if name in _COSTS}
    # Adapters on weights in 4 bits are less exact than adapters alone.
    return frozenset(costs | ({Expense.PRECISION} if change.get("method") == "qlora" else set()))


class Attempt(Struct, frozen=True, kw_only=True):
    """A change, and the job and the constraints that it makes."""

    change: Change
    job: PlanInput
    constraints: Constraints

    def then(self, further: "Attempt") -> "Attempt":
        """This change, and one that was made of the job after it."""
        return Attempt(
            change={**self.change, **further.change},
            job=further.job,
            constraints=further.constraints,
        )


Lazy = Callable[[], Attempt | None]
"""An attempt that is made when it is asked for; None where the job cannot be so."""


class Remedy(Struct, frozen=True, kw_only=True):
    """A change of options, and the strategy that it leads to."""

    change: Change
    strategy: str
    verdict: Verdict
    """Of that strategy."""
    device_bytes: int
    """What it takes of each GPU."""
    budget_bytes: int | None
    frees_bytes: int
    """Of each GPU, compared with the same strategy before."""
    step_seconds: float | None = None
    """None where no time is predicted."""
    time_fraction: float | None = None
    """The time of a token, divided by what it would be with the job as it is if that did fit."""
    more_host_bytes: int | None = None
    """What must be added to the memory of each node; None where nobody knows what it has."""
    edit: str | None = None
    """What has to be changed in the script first; None where the options alone do it."""

    @property
    def costs(self) -> frozenset[Expense]:
        """What it costs besides time."""
        return costs_of(self.change)

    @property
    def sequence_tokens(self) -> int:
        """What is left of a sequence; 0 where they stay as long as they are."""
        return int(self.change.get("sequence_tokens", 0))

    @property
    def is_sure(self) -> bool:
        """Whether what it leads to runs, as far as anything was measured."""
        return self.verdict in {Verdict.FITS, Verdict.TIGHT}


def seconds_per_token(evaluated: StrategyEstimate) -> float | None:
    """Of the whole job; None where no time is predicted."""
    time = evaluated.step_time
    return None if time is None else time.expected_seconds / time.tokens


def own_seconds_per_token(decision: Decision) -> float | None:
    """Of the job as it is, with the fastest strategy that it could have if memory were no matter.

    What is offloaded, and what the allocator flushes, is left out: it is there for want of memory.
    """
    plain = [e for e in decision.allowed if e.strategy.offload is Offload.NONE]
    times = [each.step_time for each in plain or decision.allowed]
    known = [time.roomy_seconds / time.tokens for time in times if time is not None]
    return min(known) if len(known) == len(times) else None


def make_remedy(decision: Decision, change: Change, chosen: StrategyEstimate) -> Remedy:
    """The change that leads from a decision to this strategy.

    Compared with the same strategy before, so that another one does not count as freed memory.
    """
    is_real = decision.job.accounting is Accounting.REAL
    before = decision.of(chosen.strategy) if is_real else decision.closest
    own, now = own_seconds_per_token(decision), seconds_per_token(chosen)
    available_bytes = decision.job.machine.host.available_bytes
    more_host_bytes = None
    if "host_memory" in change and available_bytes is not None:
        more_host_bytes = max(0, (chosen.host_budget_bytes or 0) - available_bytes)
    return Remedy(
        change=change,
        strategy=chosen.strategy.name,
        verdict=chosen.verdict,
        device_bytes=chosen.device_bytes,
        budget_bytes=chosen.budget_bytes,
        frees_bytes=max(0, before.device_bytes - chosen.device_bytes),
        step_seconds=None if chosen.step_time is None else chosen.step_time.expected_seconds,
        time_fraction=None if own is None or now is None else now / own,
        more_host_bytes=more_host_bytes,
    )


_SAME_FRACTION = 0.02
"""Times that differ by no more are the same."""


def _keeps_the_step(remedy: Remedy) -> bool:
    """Whether it changes the evaluation alone: whatever is faster changes what is trained."""
    return remedy.change.keys() == {"eval_batch"}


def _is_dominated(one: Remedy, by: Remedy) -> bool:
    """Whether another remedy gives as much at no more cost.

    Nobody knows here what machines cost, nor whether a link is there that would have to be. Another
    loss takes a library, or a change of the script's code: a step without it stays beside it.
    """
    elsewhere = bool({"machine", "interconnect"} & by.change.keys())
    takes_code = "loss" in by.change and "loss" not in one.change
    if by.change != one.change and (elsewhere or takes_code or _keeps_the_step(one)):
        return False
    if not by.costs <= one.costs or (one.is_sure and not by.is_sure):
        return False
    if 0 < by.sequence_tokens < one.sequence_tokens:
        return False
    if by.change == one.change:
        return True
    fewer = by.change.items() < one.change.items()
    if one.time_fraction is None or by.time_fraction is None:
        return fewer and by.frees_bytes >= one.frees_bytes
    as_fast = by.time_fraction <= one.time_fraction * (1 + _SAME_FRACTION)
    same = by.costs == one.costs and one.time_fraction <= by.time_fraction * (1 + _SAME_FRACTION)
    # Of those that cost the same, the one that changes least, then the first, is kept.
    return as_fast and (not same or len(by.change) <= len(one.change))


def worth_offering(found: Iterable[Remedy]) -> tuple[Remedy, ...]:
    """Those that no other one dominates, the cheapest first: in quality and money, then in time.

    Args:
        found: In the order in which they stay where nothing tells their costs apart.
    """
    kept: list[Remedy] = []
    for each in found:
        if any(_is_dominated(each, by) for by in kept):
            continue
        kept = [one for one in kept if not _is_dominated(one, each)]
        kept.append(each)
    return tuple(sorted(kept, key=price_of))


# A run that takes so many times as long is paid for like other hardware; so is a host that is as
# large as those of eight GPUs (data/instances.json).
_SLOW_TIMES = 5
_LARGE_HOST_BYTES = 2 * 2**40


def price_of(remedy: Remedy) -> tuple[bool, bool, tuple[int, ...], bool, int, float]:
    """What remedies are sorted by: what they cost besides time, the dearest first, then time.

    Of shorter sequences the longest cost least.

    One that changes the evaluation alone is the first. A slow run, or a large host, stands behind
    other hardware; another model is always the last.
    """
    costs = {_BY_PRICE.index(cost) for cost in remedy.costs}
    is_slow = (remedy.time_fraction or 0.0) >= _SLOW_TIMES
    host = remedy.change.get("host_memory")
    is_large = host is not None and parse_host_memory(str(host)) >= _LARGE_HOST_BYTES
    if is_slow or is_large:
        costs.add(_BY_PRICE.index(Expense.GPUS))
    dearest = tuple(sorted(costs, reverse=True))
    by_time = remedy.time_fraction or 0.0
    later = not _keeps_the_step(remedy)
    cut = -remedy.sequence_tokens
    return later, Expense.MODEL in remedy.costs, dearest, is_slow or is_large, cut, by_time


def encode_remedy(remedy: Remedy) -> dict[str, object]:
    """As `plan --json` has it."""
    return {
        "change": {flags()[name]: value for name, value in remedy.change.items()},
        "strategy": remedy.strategy,
        "verdict": remedy.verdict.value,
        "frees_bytes": remedy.frees_bytes,
        "device_bytes": remedy.device_bytes,
        "budget_bytes": remedy.budget_bytes,
        "step_seconds": remedy.step_seconds,
        "time_fraction": remedy.time_fraction,
        "costs": sorted(cost.value for cost in remedy.costs),
        "more_host_bytes": remedy.more_host_bytes,
        "edit": remedy.edit,
    }
