"""One way to run a job, and which of several is taken."""

from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.values import shows
from zerowiz.core.workload.workload import Workload

SAME_FRACTION = 0.03
"""Steps that are faster by no more are the same; then the one with the most headroom is taken."""
WORTH_FRACTION = 0.05
"""By how much recomputing activations, or coming near the limit of memory, must be faster.

Near the limit 14 of 24 measured runs were more than 5 % slower (core/memory/allocator.py).
"""


@shows(
    "strategy.name",
    "workload.micro_batch",
    "workload.accumulation_steps",
    "workload.gradient_checkpointing",
    "evaluated.verdict",
    "seconds",
)
class Candidate(Struct, frozen=True, kw_only=True):
    """A strategy with one choice of all open settings, on the machine of a job."""

    workload: Workload
    evaluated: StrategyEstimate

    @property
    def strategy(self) -> StrategyRow:
        """The strategy."""
        return self.evaluated.strategy

    @property
    def seconds(self) -> float | None:
        """The expected time of a step; None where it is not predicted."""
        time = self.evaluated.step_time
        return None if time is None else time.expected_seconds

    @property
    def headroom_bytes(self) -> int:
        """Left on the tightest GPU; 0 where that is not known."""
        return self.evaluated.headroom_bytes or 0


def _fastest(candidates: Sequence[Candidate], ranks: int) -> Candidate:
    """The fastest; of those as fast, the one with the most headroom.

    One rank divides nothing, so there the simplest of the strategies that are as fast comes first.
    Without a prediction it is the one with the fewest micro-steps: each of them reads the weights
    again and starts every kernel, and above stage 1 it communicates too.
    """
    timed = [(each.seconds, each) for each in candidates if each.seconds is not None]
    if len(timed) < len(candidates):
        return min(candidates, key=lambda each: each.workload.accumulation_steps)
    least = min(seconds for seconds, _ in timed)
    same = [each for seconds, each in timed if seconds <= least * (1 + SAME_FRACTION)]
    if ranks == 1:
        simplest = min((each.strategy for each in same), key=STRATEGIES.index)
        same = [each for each in same if each.strategy == simplest]
    return max(same, key=lambda each: each.headroom_bytes)


def is_worth(faster: Candidate, than: Candidate, fraction: float = WORTH_FRACTION) -> bool:
    """Whether a step is predicted to be faster by this fraction at least."""
    if faster.seconds is None or than.seconds is None:
        return False
    return faster.seconds * (1 + fraction) <= than.seconds


def without_needlessly_tight(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those near the limit of memory whose strategy has another way to run."""
    fit = {e.strategy.name for e in candidates if e.evaluated.verdict is Verdict.FITS}
    return [
        each
        for each in candidates
        if each.evaluated.verdict is not Verdict.TIGHT or each.strategy.name not in fit
    ]


def take_fastest(candidates: Iterable[Candidate], ranks: int) -> Candidate | None:
    """The fastest of those that surely run; None where none does.

    To recompute activations, and to come near the limit of memory, must be worth it, or needed.

    Args:
        candidates: What may be taken.
        ranks: How many GPUs the job has.
    """
    sure = [each for each in candidates if each.evaluated.is_sure]
    taken: Candidate | None = None
    for verdict, recomputes in product((Verdict.FITS, Verdict.TIGHT), (False, True)):
        group = [
            each
            for each in sure
            if each.evaluated.verdict is verdict
            and each.workload.gradient_checkpointing is recomputes
            and (taken is None or is_worth(each, taken))
        ]
        taken = _fastest(group, ranks) if group else taken
    return taken


def take_smallest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one of those that surely run that takes least of a device; None where none does."""
    sure = [each for each in candidates if each.evaluated.is_sure]
    return min(
        sure, key=lambda each: (each.evaluated.device_bytes, each.seconds or 0), default=None
    )


def sort_sure(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that surely run, the fastest first; the largest micro-batch where none is timed."""
    sure = [each for each in candidates if each.evaluated.is_sure]
    return tuple(
        sorted(
            sure,
            key=lambda each: (
                each.seconds or 0,
                -each.headroom_bytes if each.seconds else each.workload.accumulation_steps,
            ),
        )
    )


def find_pareto(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that no faster one has as much headroom as; none where time is not predicted.

    Args:
        candidates: The fastest first; of those as fast the one with the most headroom.
    """
    front: list[Candidate] = []
    for each in candidates:
        if each.seconds is None:
            continue
        if not front or each.headroom_bytes > front[-1].headroom_bytes:
            front.append(each)
    return tuple(front)
