"""Cover the ways in which strategies can run a job, without evaluating each of them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product

from msgspec import Struct

from zerowiz.core.decision.evaluate import (
    StrategyEstimate,
    Verdict,
    evaluate,
    evaluate_all,
    evaluate_with,
)
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.search.freedom import Freedom
from zerowiz.core.values import Count, replace
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError

_SLOWER_FRACTION = 0.1
"""Smaller micro-batches than the largest are followed until they are slower by so much."""


class Covered(Struct, frozen=True, kw_only=True):
    """What was evaluated, and of how many ways to run a job that tells."""

    candidates: tuple[Candidate, ...]
    walks: tuple[tuple[Candidate, ...], ...]
    """Every strategy with one workload: the job's own, then the one with the smallest micro-batch;
    then both with checkpointing otherwise, where that is open."""
    count: Count
    """Strategy, split of the batch, checkpointing, kernels and buffers, each combination once."""


def split_batch(workload: Workload) -> tuple[Workload, ...]:
    """The workload with each micro-batch that makes up the same global batch, the smallest first.

    Example:
        >>> steps = split_batch(Workload(micro_batch=2, accumulation_steps=3))
        >>> [(each.micro_batch, each.accumulation_steps) for each in steps]
        [(1, 6), (2, 3), (3, 2), (6, 1)]
    """
    sequences = workload.micro_batch * workload.accumulation_steps
    below = [n for n in range(1, int(sequences**0.5) + 1) if sequences % n == 0]
    sizes = sorted({*below, *(sequences // n for n in below)})
    return tuple(
        replace(workload, micro_batch=size, accumulation_steps=sequences // size) for size in sizes
    )


def list_variants(job: PlanInput, freedom: Freedom) -> Iterator[PlanInput]:
    """The job with each choice of what is open besides the split of the batch."""
    w = job.workload
    choices = product(
        dict.fromkeys((w.gradient_checkpointing, *freedom.checkpointing)),
        dict.fromkeys((w.attention, *freedom.attention)),
        dict.fromkeys((w.loss, *freedom.losses)),
    )
    for recompute, attention, loss in choices:
        varied = replace(w, gradient_checkpointing=recompute, attention=attention, loss=loss)
        try:
            yield replace(job, workload=varied)
        except UsageError:
            # A loss that is not counted for this model.
            continue


class Evaluator:
    """Evaluates the workloads of one job; what ran out of memory before counts for each."""

    def __init__(self, job: PlanInput) -> None:
        self.job = job
        self.known: dict[Workload, tuple[StrategyEstimate, ...]] = {}

    def candidate(self, workload: Workload, strategy: StrategyRow) -> Candidate:
        """A strategy with one workload."""
        job = replace(self.job, workload=workload)
        if not self.job.ran_out:
            return Candidate(workload=workload, evaluated=evaluate(job, strategy))
        if workload not in self.known:
            self.known[workload] = evaluate_all(job)
        evaluated = next(e for e in self.known[workload] if e.strategy.name == strategy.name)
        return Candidate(workload=workload, evaluated=evaluated)

    def splits(self, steps: Sequence[Workload], strategy: StrategyRow) -> Iterator[Candidate]:
        """Of these splits of a batch those that may be taken: the smallest, and the fast that fit.

        Memory rises with the micro-batch where micro-steps accumulate, so the largest that surely
        runs is bisected. One micro-step alone accumulates nothing and stands by itself.
        """
        least, *others = [partial(self.candidate, workload, strategy) for workload in steps]
        smallest = least()
        yield smallest
        if not others or not smallest.evaluated.is_sure:
            return
        *accumulating, whole = others
        found = whole()
        fast = [found] if found.evaluated.verdict is Verdict.FITS else []
        yield found
        fitting = _Bisected(accumulating)
        for index in reversed(range(fitting.count)):
            found = fitting.at(index)
            yield found
            if found.evaluated.verdict is Verdict.FITS:
                fast.append(found)
            if fast and _is_slow(found, fast):
                return


def _is_slow(found: Candidate, fast: Sequence[Candidate]) -> bool:
    """Whether those with smaller micro-batches, which are slower, need not be looked at."""
    seconds = [each.seconds for each in fast if each.seconds is not None]
    return found.seconds is None or found.seconds > min(seconds) * (1 + _SLOWER_FRACTION)


class _Bisected:
    """Of candidates that hold more and more, those that surely run."""

    def __init__(self, candidates: Sequence[Callable[[], Candidate]]) -> None:
        self._make = candidates
        self._known: dict[int, Candidate] = {}
        places = range(len(candidates))
        # The largest often fits.
        if places and not self._fails(places[-1]):
            self.count = len(places)
        else:
            self.count = bisect_left(places[:-1], x=True, key=self._fails)

    def _fails(self, index: int) -> bool:
        return not self.at(index).evaluated.is_sure

    def at(self, index: int) -> Candidate:
        if index not in self._known:
            self._known[index] = self._make[index]()
        return self._known[index]


def lean_out(job: PlanInput, candidate: Candidate) -> Candidate:
    """The same with the smallest communication buffers, where it surely runs with less so."""
    own = replace(job, workload=candidate.workload)
    *_, leanest = own.buffers(candidate.strategy)
    if candidate.evaluated.buffers == leanest or job.ran_out:
        return candidate
    evaluated = evaluate_with(own, candidate.strategy, leanest)
    if not evaluated.is_sure or evaluated.device_bytes >= candidate.evaluated.device_bytes:
        return candidate
    return replace(candidate, evaluated=evaluated)


def cover(job: PlanInput, strategies: Sequence[StrategyRow], freedom: Freedom) -> Covered:
    """The candidates among these strategies that a search may take.

    A split of the batch that holds more than one that does not fit is not evaluated, nor one that
    is slower than others that fit; they count as covered.
    """
    found: dict[tuple[Workload, str], Candidate] = {}
    walks: list[tuple[Candidate, ...]] = []
    count, w = 0, job.workload
    for variant in list_variants(job, freedom):
        evaluator, own = Evaluator(variant), variant.workload
        steps = split_batch(own) if freedom.split else (own,)
        of_each = [list(evaluator.splits(steps, strategy)) for strategy in strategies]
        count += len(steps) * sum(len(variant.buffers(strategy)) for strategy in strategies)
        found |= {(e.workload, e.strategy.name): e for e in chain.from_iterable(of_each)}
        if (own.attention, own.loss) != (w.attention, w.loss):
            continue
        for workload in dict.fromkeys((own, steps[0])):
            walk = [
                found.get((workload, s.name)) or evaluator.candidate(workload, s)
                for s in strategies
            ]
            found |= {(e.workload, e.strategy.name): e for e in walk}
            walks.append(tuple(walk))
    return Covered(candidates=tuple(found.values()), walks=tuple(walks), count=count)
