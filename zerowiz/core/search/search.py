"""Choose a strategy, and with it every setting that nobody decided."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import (
    Constraints,
    Decision,
    Reason,
    considered,
    follow_flowchart,
)
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.search.candidate import (
    SAME_FRACTION,
    Candidate,
    find_pareto,
    is_worth,
    sort_sure,
    take_fastest,
    take_smallest,
    without_needlessly_tight,
)
from zerowiz.core.search.cover import Covered, Evaluator, cover, cover_walks, is_settled, lean_out
from zerowiz.core.search.freedom import Freedom, Objective
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import Count, replace
from zerowiz.core.workload.workload import Workload

_CLEARLY_FRACTION = 0.1
"""By how much another strategy must be faster before a plan says so."""


class Search(Struct, frozen=True, kw_only=True):
    """What was chosen, and among what."""

    objective: Objective
    decision: Decision
    """On the job with the settings that were chosen."""
    choice: Candidate | None
    """None where nothing fits."""
    candidates: tuple[Candidate, ...]
    """Those that surely run, as far as they were evaluated, the fastest first."""
    evaluated: tuple[Candidate, ...]
    """Every one that was evaluated, whether it runs or not."""
    count: Count
    """How many candidates were covered."""
    clearly_faster: Candidate | None
    """The fastest, where it has another strategy than the flowchart, which was followed."""

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Of the candidates those that are fastest for their headroom, and the choice."""
        front = find_pareto(self.candidates)
        shown = (*front, self.choice) if front else ()
        return tuple(each for each in self.candidates if each in shown)


def search(
    job: PlanInput,
    constraints: Constraints,
    freedom: Freedom,
    objective: Objective = Objective.FLOWCHART,
    supports: Callable[[Strategy], bool] = lambda _: True,
    *,
    compares: bool = True,
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
        compares: Whether what else there is matters. Without it the same is chosen, in less than
            half of the time, and nothing is said of what is faster, nor of what does not run.
    """
    by_flowchart = objective is Objective.FLOWCHART
    varied = replace(freedom, attention=(), losses=()) if by_flowchart else freedom
    # The flowchart looks at the kernels of the job alone.
    walks_alone = not compares and not (varied.attention or varied.losses)
    cover_by_walks = partial(_cover_walks, job, constraints, varied)
    if by_flowchart and walks_alone:
        covered = cover_by_walks()
    else:
        covered = cover(job, STRATEGIES, varied, only_running=walks_alone)
    names = {each.name for each in _allowed(constraints) if supports(each)}
    allowed = [each for each in covered.candidates if each.strategy.name in names]
    # Who asks for the fastest comes near the limit of memory where that is worth it.
    fastest = objective is Objective.FASTEST
    candidates = allowed if fastest else without_needlessly_tight(allowed)
    if objective is Objective.SMALLEST:
        candidates = [lean_out(job, each) for each in candidates]
    ranks = job.machine.world_size
    taken = None if by_flowchart else _take(objective, candidates, ranks)
    if taken is None and walks_alone and not by_flowchart:
        covered = cover_by_walks()
    not_tight = without_needlessly_tight(covered.candidates)
    walks = _walk_each(job, constraints, covered.walks, not_tight)
    choice = taken or _take_for(walks, not_tight, ranks)
    decision = _decide(job, constraints, covered, choice.workload if choice else job.workload)
    sure = sort_sure(candidates)
    if taken is not None:
        decision = _taken(decision, taken, _reason(objective, taken, sure))
    elif choice is not None and decision.chosen != choice.evaluated:
        recomputes = choice.workload.gradient_checkpointing
        walk = next(w for w in walks if w.job.workload.gradient_checkpointing is recomputes)
        walk = _decide(job, constraints, covered, walk.job.workload)
        decision = _kept(decision, choice, walk)
    has_rivals = compares and taken is None and constraints.free
    faster = take_fastest(candidates, ranks) if has_rivals else None
    return Search(
        objective=Objective.FLOWCHART if taken is None else objective,
        decision=decision,
        choice=choice,
        candidates=sure,
        evaluated=_each_once((*covered.candidates, *candidates, *((choice,) if choice else ()))),
        count=covered.count,
        clearly_faster=faster if _is_clearly_faster(faster, choice) else None,
    )


def _cover_walks(job: PlanInput, constraints: Constraints, freedom: Freedom) -> Covered:
    def choose(walk: Sequence[Candidate]) -> StrategyEstimate | None:
        return _walk(job, constraints, walk).chosen

    return cover_walks(job, STRATEGIES, freedom, choose, is_forced=constraints.force)


def _each_once(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Of those with one strategy and one workload the last."""
    return tuple({(each.workload, each.strategy.name): each for each in candidates}.values())


def _allowed(constraints: Constraints) -> Sequence[Strategy]:
    """The flowchart leaves out what is rarely the best; a search may find that it is."""
    return STRATEGIES if constraints.free else considered(constraints)


def _take(objective: Objective, candidates: Sequence[Candidate], ranks: int) -> Candidate | None:
    """None where nothing surely runs, or no time is predicted that could be compared."""
    if objective is Objective.SMALLEST:
        return take_smallest(candidates)
    taken = take_fastest(candidates, ranks)
    return None if taken is None or taken.seconds is None else taken


def _walk(job: PlanInput, constraints: Constraints, one_each: Sequence[Candidate]) -> Decision:
    """The flowchart, followed with one workload for these strategies; others do not fit."""
    workload = one_each[0].workload
    evaluated = [each.evaluated for each in one_each]
    return follow_flowchart(evaluated, replace(job, workload=workload), constraints)


def _walk_each(
    job: PlanInput,
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
            elif walk.chosen and not _is_sure(known.chosen):
                walks[recomputes] = walk
    return list(walks.values())


def _is_slower(walk: Decision, known: Decision, candidates: Sequence[Candidate]) -> bool:
    """Whether it leads to a slower step than another, which surely runs; False if not predicted.

    The other may be the job as it is, or be split otherwise, as it would be if it were taken.
    """
    if known.chosen is None or known.chosen.step_time is None or not known.chosen.is_sure:
        return False
    ranks = known.job.machine.world_size
    taken, other = (_take_for([each], candidates, ranks) for each in (walk, known))
    if taken is None or taken.seconds is None or other is None or other.seconds is None:
        return False
    as_it_is_seconds = known.chosen.step_time.expected_seconds
    return taken.seconds > max(as_it_is_seconds * (1 + SAME_FRACTION), other.seconds)


def _is_sure(chosen: StrategyEstimate | None) -> bool:
    return chosen is not None and chosen.is_sure


def _take_for(
    walks: Sequence[Decision], candidates: Sequence[Candidate], ranks: int
) -> Candidate | None:
    """The fastest split of the strategy that the flowchart takes, with checkpointing or without."""
    chosen = {
        walk.job.workload.gradient_checkpointing: walk.chosen for walk in walks if walk.chosen
    }
    kernels = {(walk.job.workload.attention, walk.job.workload.loss) for walk in walks}
    mine = [
        each
        for each in candidates
        if (each.workload.attention, each.workload.loss) in kernels
        and (by_walk := chosen.get(each.workload.gradient_checkpointing)) is not None
        and by_walk.strategy.name == each.strategy.name
    ]
    unsure = [
        Candidate(workload=walk.job.workload, evaluated=walk.chosen)
        for walk in walks
        if walk.chosen is not None
    ]
    return take_fastest(mine, ranks) or next(iter(unsure), None)


def _decide(
    job: PlanInput, constraints: Constraints, covered: Covered, workload: Workload
) -> Decision:
    """The flowchart with every strategy, and these settings."""
    known = {each.strategy.name: each for each in covered.candidates if each.workload == workload}
    evaluator = Evaluator(replace(job, workload=workload))
    return _walk(
        job,
        constraints,
        [known.get(s.name) or evaluator.candidate(workload, s) for s in STRATEGIES],
    )


def _reason(objective: Objective, taken: Candidate, sure: Sequence[Candidate]) -> Reason:
    """Why it was taken, among those that surely run, the fastest first."""
    if objective is Objective.SMALLEST:
        return Reason.SMALLEST
    fastest, *_ = sure
    taken_seconds, least_seconds = taken.seconds or 0, fastest.seconds or 0
    if taken_seconds <= least_seconds:
        return Reason.FASTEST
    nearly = taken_seconds <= least_seconds * (1 + SAME_FRACTION)
    return Reason.AS_GOOD_AS_FASTEST if nearly else Reason.FASTER_NOT_WORTH


def _taken(decision: Decision, taken: Candidate, reason: Reason) -> Decision:
    """The decision for what a search took, whatever the flowchart says of it."""
    reasons = [reason]
    if taken.evaluated.verdict is Verdict.TIGHT:
        reasons.append(Reason.TIGHT)
    evaluated = tuple(
        taken.evaluated if each.strategy.name == taken.strategy.name else each
        for each in decision.evaluated
    )
    return replace(decision, reasons=tuple(reasons), evaluated=evaluated, chosen=taken.evaluated)


def _kept(decision: Decision, choice: Candidate, walk: Decision) -> Decision:
    """The decision for the flowchart's strategy where a larger micro-batch would change it."""
    return replace(decision, chosen=choice.evaluated, answers=walk.answers, reasons=walk.reasons)


def _is_clearly_faster(faster: Candidate | None, choice: Candidate | None) -> bool:
    if faster is None or choice is None or faster.strategy.name == choice.strategy.name:
        return False
    return is_worth(faster, choice, _CLEARLY_FRACTION)
