"""Choose a strategy, and with it every setting that nobody decided."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, product

from msgspec import Struct

from zerowiz.core.decision.evaluate import (
    StrategyEstimate,
    Verdict,
    evaluate,
    evaluate_with,
    may_run,
    seconds_on_slow_host,
)
from zerowiz.core.decision.flowchart import (
    CLEARLY_FRACTION,
    SAME_FRACTION,
    Constraints,
    Decision,
    FlowchartQuestion,
    Reason,
    considered,
    find_better,
    follow_flowchart,
    follow_questions,
    may_choose,
    seconds_of,
    take_better,
)
from zerowiz.core.decision.job import Job, Objective, OpenSettings, shared_by
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.structs import Count, replace, shows
from zerowiz.core.workload import Workload
from zerowiz.errors import UsageError

# One way to run a job, and which of several is taken.


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
    slow_host_seconds: float | None = None
    """What a step takes on a slow host, where nobody read how fast it is."""

    @property
    def strategy(self) -> StrategyRow:
        """The strategy."""
        return self.evaluated.strategy

    @property
    def seconds(self) -> float | None:
        """The expected time of a step; None where it is not predicted."""
        return seconds_of(self.evaluated)

    @property
    def headroom_bytes(self) -> int:
        """Left on the tightest GPU; 0 where that is not known."""
        return self.evaluated.headroom_bytes or 0


ROOM_FRACTION = 0.03
"""How much slower another split of the batch may be for its headroom.

With SAME_FRACTION, the choices of docs/accuracy.md took 3.2 % longer than the best, not 2.2 %.
"""


def worst_losses(candidates: Sequence[Candidate]) -> list[float]:
    """How many times as long as the fastest each takes, on the host where that is most.

    A host that nobody read may be any that was measured.
    """
    hosts: list[list[float]] = [[candidate.seconds or 0 for candidate in candidates]]
    if all(candidate.slow_host_seconds for candidate in candidates):
        hosts.append([candidate.slow_host_seconds or 0 for candidate in candidates])
    of_each = ([seconds / min(host) for seconds in host] for host in hosts)
    return [max(losses) for losses in zip(*of_each, strict=True)]


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    """The one that loses least; of those as fast, the simplest, and of its splits the roomiest.

    Without a prediction it is the one with the fewest micro-steps: each of them reads the weights
    again and starts every kernel, and above stage 1 it communicates too.
    """
    if any(candidate.seconds is None for candidate in candidates):
        return min(candidates, key=lambda candidate: candidate.workload.accumulation_steps)
    timed = list(zip(worst_losses(candidates), candidates, strict=True))
    least = min(loss for loss, _ in timed)
    same = [(loss, each) for loss, each in timed if loss <= least * (1 + SAME_FRACTION)]
    # The table has those without offload first, then the lower stages.
    simplest = min((candidate.strategy for _, candidate in same), key=STRATEGIES.index)
    mine = [(loss, candidate) for loss, candidate in same if candidate.strategy == simplest]
    least = min(loss for loss, _ in mine)
    roomy = (candidate for loss, candidate in mine if loss <= least * (1 + ROOM_FRACTION))
    return max(roomy, key=lambda candidate: candidate.headroom_bytes)


def is_worth(faster: Candidate, than: Candidate, fraction: float) -> bool:
    """Whether a step is predicted to be faster by this fraction at least."""
    if faster.seconds is None or than.seconds is None:
        return False
    loss, loss_of_other = worst_losses((faster, than))
    return loss * (1 + fraction) <= loss_of_other


def without_needlessly_tight(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those near the limit of memory whose strategy has another way to run."""
    fit = {e.strategy.name for e in candidates if e.evaluated.verdict is Verdict.FITS}
    return [
        candidate
        for candidate in candidates
        if candidate.evaluated.verdict is not Verdict.TIGHT or candidate.strategy.name not in fit
    ]


def take_fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The fastest of those that surely run; None where none does.

    To recompute activations must be worth it, or needed, and to come near the limit of memory must
    be clearly faster.
    """
    sure = [candidate for candidate in candidates if candidate.evaluated.is_sure]
    best: Candidate | None = None
    worth = ((Verdict.FITS, SAME_FRACTION), (Verdict.TIGHT, CLEARLY_FRACTION))
    for (verdict, fraction), recomputes in product(worth, (False, True)):
        group = [
            candidate
            for candidate in sure
            if candidate.evaluated.verdict is verdict
            and candidate.workload.gradient_checkpointing is recomputes
            and (best is None or is_worth(candidate, best, fraction))
        ]
        best = _fastest(group) if group else best
    return best


def find_pareto(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that no faster one has as much headroom as; none where time is not predicted.

    Args:
        candidates: The fastest first; of those as fast the one with the most headroom.
    """
    front: list[Candidate] = []
    for candidate in candidates:
        if candidate.seconds is None:
            continue
        if not front or candidate.headroom_bytes > front[-1].headroom_bytes:
            front.append(candidate)
    return tuple(front)


# Cover the ways in which strategies can run a job, without evaluating each of them.

_SLOWER_FRACTION = 0.1
"""Smaller micro-batches than the largest are followed until they are slower by so much."""


class SearchResult(Struct, frozen=True, kw_only=True):
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


def list_variants(job: Job, freedom: OpenSettings) -> Iterator[Job]:
    """The job with each choice of what is open besides the split of the batch."""
    w = job.workload
    choices = product(
        dict.fromkeys((w.gradient_checkpointing, *freedom.checkpointing)),
        dict.fromkeys((w.attention, *freedom.attention)),
        dict.fromkeys((w.loss, *freedom.losses)),
        (w.sequence_parallel, *freedom.shared),
    )
    for recompute, attention, loss, shared in choices:
        varied = replace(
            shared_by(w, shared), gradient_checkpointing=recompute, attention=attention, loss=loss
        )
        try:
            yield replace(job, workload=varied)
        except UsageError:
            # A loss that is not counted for this model.
            continue


class Evaluator:
    """Evaluates a job with other workloads, each once."""

    def __init__(self, job: Job, strategies: Sequence[StrategyRow] = STRATEGIES) -> None:
        self.job, self.strategies = job, strategies
        self._made: dict[tuple[Workload, str], Candidate] = {}

    def candidate(self, workload: Workload, strategy: StrategyRow) -> Candidate:
        """A strategy with one workload."""
        key = (workload, strategy.name)
        if key not in self._made:
            job = replace(self.job, workload=workload)
            evaluated = evaluate(job, strategy)
            slow = seconds_on_slow_host(job, evaluated) if evaluated.runs else None
            self._made[key] = Candidate(
                workload=workload, evaluated=evaluated, slow_host_seconds=slow
            )
        return self._made[key]

    def splits(self, steps: Sequence[Workload], strategy: StrategyRow) -> Iterator[Candidate]:
        """Of these splits of a batch those that may be taken: the smallest, and the fast that fit.

        One micro-step alone accumulates nothing and stands by itself: it may run where the smallest
        micro-batch does not, as ZeRO-1 then keeps no gradients between steps.
        """
        least, *others = steps
        smallest = self.candidate(least, strategy)
        yield smallest
        if not others:
            return
        *accumulating, whole = others
        runs = smallest.evaluated.is_sure
        fast: list[Candidate] = []
        if runs or may_run(replace(self.job, workload=whole), strategy):
            candidate = self.candidate(whole, strategy)
            fast += [candidate] if candidate.evaluated.verdict is Verdict.FITS else []
            yield candidate
        if not runs:
            return
        for step in reversed(accumulating):
            if not may_run(replace(self.job, workload=step), strategy):
                continue
            candidate = self.candidate(step, strategy)
            if not candidate.evaluated.is_sure:
                continue
            yield candidate
            if candidate.evaluated.verdict is Verdict.FITS:
                fast.append(candidate)
            if fast and _is_slow(candidate, fast):
                return


def _is_slow(candidate: Candidate, fast: Sequence[Candidate]) -> bool:
    """Whether those with smaller micro-batches, which are slower, need not be looked at."""
    seconds = [rival.seconds for rival in fast if rival.seconds is not None]
    return candidate.seconds is None or candidate.seconds > min(seconds) * (1 + _SLOWER_FRACTION)


def lean_out(job: Job, candidate: Candidate) -> Candidate:
    """The same with the smallest communication buffers, where it surely runs with less so."""
    variant = replace(job, workload=candidate.workload)
    *_, leanest = variant.buffers(candidate.strategy)
    if candidate.evaluated.buffers == leanest:
        return candidate
    evaluated = evaluate_with(variant, candidate.strategy, leanest)
    if not evaluated.is_sure or evaluated.device_bytes >= candidate.evaluated.device_bytes:
        return candidate
    return replace(candidate, evaluated=evaluated)


def cover(evaluator: Evaluator, freedom: OpenSettings) -> SearchResult:
    """The candidates among the evaluator's strategies that a search may take.

    A split of the batch that holds more than one that does not fit is not evaluated, nor one that
    is slower than others that fit; they count as covered.

    Args:
        evaluator: Of the job that is planned.
        freedom: What is open.
    """
    candidates: dict[tuple[Workload, str], Candidate] = {}
    walks: list[tuple[Candidate, ...]] = []
    count, w, strategies = 0, evaluator.job.workload, evaluator.strategies
    for variant in list_variants(evaluator.job, freedom):
        full = variant.workload
        steps = split_batch(full) if freedom.split else (full,)
        of_each = [list(evaluator.splits(steps, strategy)) for strategy in strategies]
        count += len(steps) * sum(len(variant.buffers(strategy)) for strategy in strategies)
        candidates |= {(e.workload, e.strategy.name): e for e in chain.from_iterable(of_each)}
        if (full.attention, full.loss, full.sequence_parallel) != (
            *(w.attention, w.loss),
            w.sequence_parallel,
        ):
            continue
        for workload in dict.fromkeys((full, steps[0])):
            walk = [evaluator.candidate(workload, strategy) for strategy in strategies]
            candidates |= {(e.workload, e.strategy.name): e for e in walk}
            walks.append(tuple(walk))
    return SearchResult(candidates=tuple(candidates.values()), walks=tuple(walks), count=count)


def is_settled(chosen: StrategyEstimate | None) -> bool:
    """Whether a flowchart leads to what surely runs, in the memory of the GPUs alone."""
    return chosen is not None and chosen.is_sure and chosen.strategy.offload is Offload.NONE


class Search(Struct, frozen=True, kw_only=True):
    """What was chosen, and among what."""

    objective: Objective
    decision: Decision
    """On the job with the settings that were chosen."""
    choice: Candidate | None
    """None where nothing fits."""
    candidates: tuple[Candidate, ...]
    """Those that surely run, as far as they were evaluated, the fastest first."""
    count: Count
    """How many candidates were covered."""
    clearly_faster: Candidate | None
    """The fastest, where it has another strategy than the flowchart, which was followed."""

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Of the candidates those that are fastest for their headroom, and the choice."""
        front = find_pareto(self.candidates)
        shown = (*front, self.choice) if front else ()
        return tuple(candidate for candidate in self.candidates if candidate in shown)


def search(
    job: Job,
    constraints: Constraints,
    freedom: OpenSettings,
    objective: Objective = Objective.FLOWCHART,
    supports: Callable[[Strategy], bool] = lambda _: True,
    strategies: Sequence[StrategyRow] = STRATEGIES,
) -> Search:
    """Choose a strategy and the open settings, by the flowchart or by what is predicted.

    The flowchart is followed with the job as it is, or with the smallest micro-batch where nothing
    surely runs then, or not without offload; its strategy gets the fastest split of the batch. It
    also chooses where no time can be predicted, and where nothing surely runs.

    Args:
        job: What is planned. Its micro-batch times its accumulation steps is kept.
        constraints: What was asked of the decision.
        freedom: What is open.
        objective: What the choice is to be.
        supports: Whether DeepSpeed trains the job as it was asked with a strategy.
        strategies: Those that are evaluated; the others do not fit.
    """
    by_flowchart = objective is Objective.FLOWCHART
    if by_flowchart and freedom.shared:
        # The fewest that share, as the exchange costs time; none where that does not help.
        closed, searches = replace(freedom, shared=()), []
        for ranks in (job.workload.sequence_parallel, *freedom.shared):
            shared = replace(job, workload=shared_by(job.workload, ranks))
            searches.append(search(shared, constraints, closed, objective, supports, strategies))
            chosen = searches[-1].decision.chosen
            if is_settled(chosen) and chosen is not None and chosen.verdict is Verdict.FITS:
                return searches[-1]
        return next((s for s in searches if is_settled(s.decision.chosen)), searches[0])
    varied = replace(freedom, attention=(), losses=()) if by_flowchart else freedom
    evaluator = Evaluator(job, strategies)
    covered = cover(evaluator, varied)
    # The flowchart leaves out what is rarely the best; a search may find that it is.
    looked_at = STRATEGIES if constraints.free else considered(constraints)
    names = {row.name for row in strategies if row in looked_at and supports(row)}
    allowed = [candidate for candidate in covered.candidates if candidate.strategy.name in names]
    # Who asks for the fastest comes near the limit of memory where that is worth it.
    fastest = objective is Objective.FASTEST
    candidates = allowed if fastest else without_needlessly_tight(allowed)
    if objective is Objective.SMALLEST:
        candidates = [lean_out(job, candidate) for candidate in candidates]
    best = None if by_flowchart else _take(objective, candidates)
    # Those that surely run, the fastest first; the largest micro-batch where none is timed.
    sure = tuple(
        sorted(
            (candidate for candidate in candidates if candidate.evaluated.is_sure),
            key=lambda candidate: (
                candidate.seconds or 0,
                -candidate.headroom_bytes
                if candidate.seconds
                else candidate.workload.accumulation_steps,
            ),
        )
    )
    if best is None:
        choice, decision = _by_flowchart(evaluator, constraints, covered, names)
    else:
        choice, decision = best, _decide(evaluator, constraints, best.workload)
        decision = _taken(decision, best, _reason(objective, best, sure))
    has_rivals = best is None and constraints.free
    faster = take_fastest(candidates) if has_rivals else None
    if not _is_clearly_faster(faster, choice):
        faster = None
    return Search(
        objective=Objective.FLOWCHART if best is None else objective,
        decision=replace(decision, faster=None if faster is None else faster.evaluated),
        choice=choice,
        candidates=sure,
        count=covered.count,
        clearly_faster=faster,
    )


def _by_flowchart(
    evaluator: Evaluator, constraints: Constraints, covered: SearchResult, names: Collection[str]
) -> tuple[Candidate | None, Decision]:
    """What the flowchart leads to, in its fastest split, unless its last question finds better."""
    job = evaluator.job
    not_tight = without_needlessly_tight(covered.candidates)
    walks = _walk_each(job, constraints, covered.walks, not_tight)
    led = _take_for(walks, not_tight)
    if led is None:
        return None, _decide(evaluator, constraints, job.workload)
    found = None
    if not constraints.pinned:
        allowed = [s for s in may_choose(job, constraints) if s.name in names]
        found = _find_better(evaluator, led, allowed, not_tight, constraints.wrong_stages)
    choice = led if found is None else found[1]
    decision = _decide(evaluator, constraints, choice.workload)
    if decision.chosen == choice.evaluated:
        return choice, decision
    recomputes = led.workload.gradient_checkpointing
    walk = next(w for w in walks if w.job.workload.gradient_checkpointing is recomputes)
    # It is for the flowchart's strategy, where a larger micro-batch would change it.
    decision = replace(walk, job=decision.job, evaluated=decision.evaluated, chosen=led.evaluated)
    return choice, decision if found is None else take_better(decision, found[0], choice.evaluated)


def _find_better(
    evaluator: Evaluator,
    led: Candidate,
    allowed: Sequence[StrategyRow],
    candidates: Sequence[Candidate],
    wrong_stages: frozenset[int],
) -> tuple[FlowchartQuestion, Candidate] | None:
    """What the flowchart's last question finds, each strategy in its fastest split."""
    of_each = ([c for c in candidates if c.strategy == strategy] for strategy in allowed)
    in_order = [taken for mine in of_each if (taken := take_fastest(mine)) is not None]
    # A cover leaves out splits that are slower than others of the same strategy.
    workloads = dict.fromkeys(candidate.workload for candidate in (led, *in_order))
    beside = (evaluator.candidate(w, s) for w in workloads for s in allowed)
    rivals = [c.evaluated for c in (*candidates, *beside) if c.strategy in allowed]
    ordered = [each.evaluated for each in in_order]
    found = find_better(led.evaluated, ordered, rivals, wrong_stages)
    if found is None:
        return None
    question, better = found
    return question, next(each for each in in_order if each.evaluated is better)


def _take(objective: Objective, candidates: Sequence[Candidate]) -> Candidate | None:
    """None where nothing surely runs, or no time is predicted that could be compared."""
    if objective is Objective.SMALLEST:
        sure = [candidate for candidate in candidates if candidate.evaluated.is_sure]
        return min(
            sure,
            key=lambda candidate: (candidate.evaluated.device_bytes, candidate.seconds or 0),
            default=None,
        )
    fastest = take_fastest(candidates)
    return None if fastest is None or fastest.seconds is None else fastest


def _walk(job: Job, constraints: Constraints, one_each: Sequence[Candidate]) -> Decision:
    """The flowchart, followed with one workload for these strategies; others do not fit.

    Its last question is left for the splits that are taken.
    """
    workload = one_each[0].workload
    evaluated = [candidate.evaluated for candidate in one_each]
    return follow_questions(evaluated, replace(job, workload=workload), constraints)


def _walk_each(
    job: Job,
    constraints: Constraints,
    walks_of: Iterable[Sequence[Candidate]],
    candidates: Sequence[Candidate],
) -> list[Decision]:
    """One walk with checkpointing, one without: the first that leads to what surely runs.

    Offload is for what no GPU can hold: it has to be needed for the smallest micro-batch as well,
    unless every step without it would be slower.
    """
    walks: dict[bool, Decision] = {}
    for one_each in walks_of:
        recomputes = one_each[0].workload.gradient_checkpointing
        known = walks.get(recomputes)
        if known is None:
            walks[recomputes] = _walk(job, constraints, one_each)
        elif not is_settled(known.chosen):
            walk = _walk(job, constraints, one_each)
            if is_settled(walk.chosen):
                is_slower = _is_slower(walk, known, candidates)
                walks[recomputes] = known if is_slower else walk
            elif walk.chosen and not (known.chosen and known.chosen.is_sure):
                walks[recomputes] = walk
    return list(walks.values())


def _is_slower(walk: Decision, known: Decision, candidates: Sequence[Candidate]) -> bool:
    """Whether it leads to a slower step than another, which surely runs; False if not predicted.

    The other may be the job as it is, or be split otherwise, as it would be if it were taken.
    """
    if known.chosen is None or known.chosen.step_time is None or not known.chosen.is_sure:
        return False
    new, old = (_take_for([decision], candidates) for decision in (walk, known))
    if new is None or new.seconds is None or old is None or old.seconds is None:
        return False
    as_it_is_seconds = known.chosen.step_time.expected_seconds
    return new.seconds > max(as_it_is_seconds * (1 + SAME_FRACTION), old.seconds)


def _take_for(walks: Sequence[Decision], candidates: Sequence[Candidate]) -> Candidate | None:
    """The fastest split of the strategy that the flowchart takes, with checkpointing or without."""
    chosen = {
        walk.job.workload.gradient_checkpointing: walk.chosen for walk in walks if walk.chosen
    }
    kernels = {(walk.job.workload.attention, walk.job.workload.loss) for walk in walks}
    mine = [
        candidate
        for candidate in candidates
        if (candidate.workload.attention, candidate.workload.loss) in kernels
        and (by_walk := chosen.get(candidate.workload.gradient_checkpointing)) is not None
        and by_walk.strategy.name == candidate.strategy.name
    ]
    unsure = [
        Candidate(workload=walk.job.workload, evaluated=walk.chosen)
        for walk in walks
        if walk.chosen is not None
    ]
    return take_fastest(mine) or next(iter(unsure), None)


def _decide(evaluator: Evaluator, constraints: Constraints, workload: Workload) -> Decision:
    """The flowchart with these settings."""
    rows = evaluator.strategies
    evaluated = [evaluator.candidate(workload, strategy).evaluated for strategy in rows]
    return follow_flowchart(evaluated, replace(evaluator.job, workload=workload), constraints)


def _reason(objective: Objective, choice: Candidate, sure: Sequence[Candidate]) -> Reason:
    """Why it was taken, among those that surely run, the fastest first."""
    if objective is Objective.SMALLEST:
        return Reason.SMALLEST
    fastest, *_ = sure
    taken_seconds, least_seconds = choice.seconds or 0, fastest.seconds or 0
    if taken_seconds <= least_seconds:
        return Reason.FASTEST
    if taken_seconds <= least_seconds * (1 + SAME_FRACTION):
        return Reason.AS_GOOD_AS_FASTEST
    # Both are as near the limit of memory, and recompute or do not.
    recomputes = (each.workload.gradient_checkpointing for each in (fastest, choice))
    return (
        Reason.LOSES_LEAST
        if fastest.evaluated.verdict is choice.evaluated.verdict and len({*recomputes}) == 1
        else Reason.FASTER_NOT_WORTH
    )


def _taken(decision: Decision, choice: Candidate, reason: Reason) -> Decision:
    """The decision for what a search took, whatever the flowchart says of it."""
    reasons = [reason]
    if choice.evaluated.verdict is Verdict.TIGHT:
        reasons.append(Reason.TIGHT)
    evaluated = tuple(
        choice.evaluated if estimate.strategy.name == choice.strategy.name else estimate
        for estimate in decision.evaluated
    )
    return replace(decision, reasons=tuple(reasons), evaluated=evaluated, chosen=choice.evaluated)


def _is_clearly_faster(faster: Candidate | None, choice: Candidate | None) -> bool:
    if faster is None or choice is None or faster.strategy.name == choice.strategy.name:
        return False
    seconds, own_seconds = faster.seconds, choice.seconds
    if seconds is None or own_seconds is None:
        return False
    # The note says how much on the host that the plan expects.
    return seconds * (1 + CLEARLY_FRACTION) <= own_seconds


# Find the largest step that surely runs: how large a micro-batch, how long a sequence.

# Beyond any job: what fits so much is not limited by memory.
_MOST_SEQUENCES = 2**16
_MOST_TOKENS = 2**27
# Kernels are made for sequences that are multiples of it.
_TOKENS = 128


class Limit(Struct, frozen=True, kw_only=True):
    """The largest steps of one strategy; 0 where not even the smallest surely runs."""

    strategy: StrategyRow
    gradient_checkpointing: bool
    micro_batch: int
    """With as many tokens a sequence as the job has."""
    sequence_tokens: int
    """With the micro-batch of the job; no more than the model has positions, where they bind."""
    by_positions: bool
    """Whether the model's positions end before memory does."""


def find_limits(job: Job) -> tuple[Limit, ...]:
    """The limits of every strategy, without and with checkpointing of activations."""
    return tuple(
        _limit(job, strategy, replace(job.workload, gradient_checkpointing=recomputes))
        for strategy in STRATEGIES
        for recomputes in (False, True)
    )


def _limit(job: Job, strategy: StrategyRow, step: Workload) -> Limit:

    def runs(workload: Workload) -> bool:
        return evaluate(replace(job, workload=workload), strategy).is_sure

    batch = _largest(lambda n: runs(replace(step, micro_batch=n)), _MOST_SEQUENCES)
    positions = _positions(job)
    unit = math.lcm(_TOKENS, step.sequence_parallel)
    tokens = unit * _largest(
        lambda n: runs(replace(step, sequence_tokens=n * unit)), positions // unit
    )
    return Limit(
        strategy=strategy,
        gradient_checkpointing=step.gradient_checkpointing,
        micro_batch=batch,
        sequence_tokens=tokens,
        by_positions=tokens > positions - unit,
    )


def _positions(job: Job) -> int:
    """No more tokens than the model was made for.

    The stand-in for a size has positions of its own. Where none are learned a job may go beyond.
    """
    longest = job.model.made_for_tokens
    if longest is None or job.workload.sequence_tokens > longest:
        return _MOST_TOKENS
    return longest


def _largest(runs: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that runs, where each smaller one does too; 0 if none does."""
    low, high = 0, 1
    while high <= most and runs(high):
        low, high = high, 2 * high
    between = range(low + 1, min(high, most + 1))
    return low + bisect_left(between, x=True, key=lambda count: not runs(count))
