"""Cover the ways in which strategies can run a job, without evaluating each of them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product

from msgspec import Struct

from zerowiz.core.decision.evaluate import (
    StrategyEstimate,
    Verdict,
    evaluate,
    evaluate_all,
    evaluate_with,
    may_run,
)
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.search.freedom import Freedom
from zerowiz.core.strategy import Offload
from zerowiz.core.values import Count, replace
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError

_SLOWER_FRACTION = 0.1
"""Smaller micro-batches than the largest are followed until they are slower by so much."""


class Covered(Struct, frozen=True, kw_only=True):
    """What was evaluated, and of how many ways to run a job that tells."""

    candidates: tuple[Candidate, ...]
    walks: tuple[tuple[Candidate, ...], ...]
    """Strategies with one workload: the job's own, then the one with the smallest micro-batch; then
    both with checkpointing otherwise, where that is open. One that is left out does not fit."""
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
    """Evaluates the workloads of one job; what ran out of memory before counts for each.

    Args:
        job: What is planned.
        only_running: Whether splits that surely do not run are left out, and not evaluated.
    """

    def __init__(self, job: PlanInput, *, only_running: bool = False) -> None:
        self.job = job
        self._only_running = only_running
        self._known: dict[Workload, tuple[StrategyEstimate, ...]] = {}
        self._made: dict[tuple[Workload, str], Candidate] = {}

    def candidate(self, workload: Workload, strategy: StrategyRow) -> Candidate:
        """A strategy with one workload."""
        key = (workload, strategy.name)
        if key not in self._made:
            self._made[key] = self._make(workload, strategy)
        return self._made[key]

    def is_asked_of(self, workload: Workload, strategy: StrategyRow) -> bool:
        """Whether it is to be evaluated."""
        return not self._only_running or self.may_run(workload, strategy)

    def may_run(self, workload: Workload, strategy: StrategyRow) -> bool:
        """Whether the strategy may run with this workload, known sooner than how it does."""
        is_known = (workload, strategy.name) in self._made
        return is_known or may_run(replace(self.job, workload=workload), strategy)

    def _make(self, workload: Workload, strategy: StrategyRow) -> Candidate:
        job = replace(self.job, workload=workload)
        if not self.job.ran_out:
            return Candidate(workload=workload, evaluated=evaluate(job, strategy))
        if workload not in self._known:
            self._known[workload] = evaluate_all(job)
        evaluated = next(e for e in self._known[workload] if e.strategy.name == strategy.name)
        return Candidate(workload=workload, evaluated=evaluated)

    def splits(self, steps: Sequence[Workload], strategy: StrategyRow) -> Iterator[Candidate]:
        """Of these splits of a batch those that may be taken: the smallest, and the fast that fit.

        Memory rises with the micro-batch where micro-steps accumulate, so the largest that surely
        runs is bisected. One micro-step alone accumulates nothing and stands by itself: it may run
        where the smallest micro-batch does not, as ZeRO-1 then keeps no gradients between steps.
        """
        least, *others = steps
        smallest = self.candidate(least, strategy) if self.is_asked_of(least, strategy) else None
        if smallest is not None:
            yield smallest
        if not others:
            return
        *accumulating, whole = others
        runs = smallest is not None and smallest.evaluated.is_sure
        fast: list[Candidate] = []
        is_asked = self.is_asked_of if runs else self.may_run
        if is_asked(whole, strategy):
            found = self.candidate(whole, strategy)
            fast += [found] if found.evaluated.verdict is Verdict.FITS else []
            yield found
        if not runs:
            return
        fitting = _Bisected(self, accumulating, strategy)
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

    def __init__(
        self, evaluator: Evaluator, steps: Sequence[Workload], strategy: StrategyRow
    ) -> None:
        self._evaluator, self._steps, self._strategy = evaluator, steps, strategy
        places = range(len(steps))
        # The largest often fits.
        if places and not self._fails(places[-1]):
            self.count = len(places)
        else:
            self.count = bisect_left(places[:-1], x=True, key=self._fails)

    def _fails(self, index: int) -> bool:
        is_asked = self._evaluator.is_asked_of(self._steps[index], self._strategy)
        return not is_asked or not self.at(index).evaluated.is_sure

    def at(self, index: int) -> Candidate:
        return self._evaluator.candidate(self._steps[index], self._strategy)


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


def cover(
    job: PlanInput,
    strategies: Sequence[StrategyRow],
    freedom: Freedom,
    *,
    only_running: bool = False,
) -> Covered:
    """The candidates among these strategies that a search may take.

    A split of the batch that holds more than one that does not fit is not evaluated, nor one that
    is slower than others that fit; they count as covered.

    Args:
        job: What is planned.
        strategies: Those that are looked at.
        freedom: What is open.
        only_running: Whether what surely does not run is left out, and with it what the flowchart
            looks at.
    """
    found: dict[tuple[Workload, str], Candidate] = {}
    walks: list[tuple[Candidate, ...]] = []
    count, w = 0, job.workload
    for variant in list_variants(job, freedom):
        evaluator, own = Evaluator(variant, only_running=only_running), variant.workload
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
                if evaluator.is_asked_of(workload, s)
            ]
            found |= {(e.workload, e.strategy.name): e for e in walk}
            walks += [] if only_running else [tuple(walk)]
    return Covered(candidates=tuple(found.values()), walks=tuple(walks), count=count)


def cover_walks(
    job: PlanInput,
    strategies: Sequence[StrategyRow],
    freedom: Freedom,
    choose: Callable[[Sequence[Candidate]], StrategyEstimate | None],
    *,
    is_forced: bool,
) -> Covered:
    """What the flowchart looks at, and the splits of the batch of the strategies that it takes.

    That is less than half of what `cover` evaluates, and the same is chosen of it.

    Args:
        job: What is planned.
        strategies: Those of the flowchart.
        freedom: What is open besides the kernels.
        choose: What the flowchart takes of these strategies with one workload.
        is_forced: Whether it may take what does not fit; else that is left out of the walks.
    """
    walks_of: dict[Workload, list[tuple[Candidate, ...]]] = {}
    variants = [Evaluator(variant, only_running=True) for variant in list_variants(job, freedom)]
    steps_of = {
        each.job.workload: split_batch(each.job.workload) if freedom.split else (each.job.workload,)
        for each in variants
    }
    taken: dict[str, StrategyRow] = {}
    for evaluator in variants:
        own = evaluator.job.workload
        walks = walks_of.setdefault(own, [])
        for workload in dict.fromkeys((own, steps_of[own][0])):
            walk = tuple(
                evaluator.candidate(workload, each)
                for each in strategies
                if is_forced or evaluator.may_run(workload, each)
            )
            if not walk:
                continue
            walks.append(walk)
            chosen = choose(walk)
            if chosen is not None:
                taken |= {e.name: e for e in strategies if e.name == chosen.strategy.name}
            if is_settled(chosen):
                # The smallest micro-batch would lead to no other strategy.
                break
    found: list[Candidate] = []
    for evaluator in variants:
        own = evaluator.job.workload
        # In the order of `cover`: of those that are as good the first is taken.
        for strategy in taken.values():
            found += evaluator.splits(steps_of[own], strategy)
        found += chain.from_iterable(walks_of[own])
    candidates = {(each.workload, each.strategy.name): each for each in found}
    return Covered(
        candidates=tuple(candidates.values()),
        walks=tuple(chain.from_iterable(walks_of.values())),
        count=len(candidates),
    )


def is_settled(chosen: StrategyEstimate | None) -> bool:
    """Whether a flowchart leads to what surely runs, in the memory of the GPUs alone."""
    return chosen is not None and chosen.is_sure and chosen.strategy.offload is Offload.NONE
