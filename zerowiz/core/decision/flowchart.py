"""Follow the flowchart: choose a strategy, and keep every answer and every verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache

from msgspec import Struct

from zerowiz.core.decision.evaluate import (
    StrategyEstimate,
    Verdict,
    evaluate_all,
    evaluate_with,
    is_hopeless,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.strategies import DDP, FLOWCHART_STRATEGIES, STRATEGIES, ZERO1, ZERO2, ZERO3
from zerowiz.core.strategy_types import Offload, OffloadChoice, Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import StateDtype
from zerowiz.errors import UsageError


class FlowchartQuestion(StrEnum):
    """The questions of the flowchart."""

    FITS_ONE_GPU = "fits_one_gpu"
    FITS_ZERO1 = "fits_zero1"
    FITS_ZERO2 = "fits_zero2"
    FAST_INTERCONNECT = "fast_interconnect"
    FITS_ZERO3 = "fits_zero3"
    IS_THE_SEQUENCE = "is_the_sequence"
    FITS_OFFLOAD = "fits_offload"
    LEANER_AND_FASTER = "leaner_and_faster"
    SURE_AND_AS_FAST = "sure_and_as_fast"
    NO_OFFLOAD_AS_FAST = "no_offload_as_fast"
    RIGHT_FOR_SCRIPT = "right_for_script"


class Reason(StrEnum):
    """Why the flowchart led where it did, or why another strategy was taken."""

    REPLICATED_FITS = "replicated_fits"
    SLOW_LINK_ZERO1 = "slow_link_zero1"
    MIDDLE_FITS = "middle_fits"
    FAST_LINK_ZERO3 = "fast_link_zero3"
    SLOW_ALLOWED = "slow_allowed"
    ONLY_OFFLOAD_FITS = "only_offload_fits"
    OFFLOAD_OVER_SLOW_ZERO3 = "offload_over_slow_zero3"
    SLOW_LINK_REFUSES_ZERO3 = "slow_link_refuses_zero3"
    ASKED_FOR = "asked_for"
    FORCED = "forced"
    TIGHT = "tight"
    UNCERTAIN = "uncertain"
    UNCERTAIN_PASSED_OVER = "uncertain_passed_over"
    SEQUENCE_TOO_LONG = "sequence_too_long"
    LEANER_AND_FASTER = "leaner_and_faster"
    SURE_AND_AS_FAST = "sure_and_as_fast"
    NO_OFFLOAD_AS_FAST = "no_offload_as_fast"
    RIGHT_FOR_SCRIPT = "right_for_script"
    NOTHING_FITS = "nothing_fits"
    BUDGET_UNKNOWN = "budget_unknown"
    FASTEST = "fastest"
    AS_GOOD_AS_FASTEST = "as_good_as_fastest"
    FASTER_NOT_WORTH = "faster_not_worth"
    LOSES_LEAST = "loses_least"
    SMALLEST = "smallest"


class Constraints(Struct, frozen=True, kw_only=True):
    """What the user asked of the decision."""

    stage: int | None = None
    offload: OffloadChoice | None = None
    """None: not set; an explicit `auto` also allows offload instead of a slow ZeRO-3."""
    allow_slow: bool = False
    force: bool = False
    wrong_stages: frozenset[int] = frozenset()
    """Those at which the script surely does not do what it is to do."""

    @property
    def pinned(self) -> bool:
        """Whether strategies were asked for: the flowchart is not followed then."""
        asked = self.offload in {OffloadChoice.OPTIMIZER, OffloadChoice.ALL}
        return self.stage is not None or asked

    @property
    def free(self) -> bool:
        """Whether every strategy may be chosen; without offload some are forbidden."""
        return not self.pinned and self.offload is not OffloadChoice.NONE


class Answer(Struct, frozen=True, kw_only=True):
    """One answered question, with the numbers that settled it."""

    question: FlowchartQuestion
    answer: bool
    strategy: str | None = None
    need_bytes: int | None = None
    have_bytes: int | None = None


@shows("job", "chosen.strategy.name", "chosen.verdict", "evaluated")
class Decision(Struct, frozen=True, kw_only=True):
    """The chosen strategy, or None, with every verdict and the answers that led to it."""

    job: Job
    constraints: Constraints
    evaluated: tuple[StrategyEstimate, ...]
    answers: tuple[Answer, ...]
    """Of the flowchart's questions, in the order in which they were asked."""
    reasons: tuple[Reason, ...]
    chosen: StrategyEstimate | None
    beaten: StrategyEstimate | None = None
    """Where the flowchart led before its last question found a better one."""
    faster: StrategyEstimate | None = None
    """Another one whose fastest step surely fits and is clearly faster, if with less room."""

    @property
    def allowed(self) -> tuple[StrategyEstimate, ...]:
        """The strategies that the constraints leave open, whether or not they fit."""
        strategies = considered(self.constraints)
        return tuple(estimate for estimate in self.evaluated if estimate.strategy in strategies)

    @property
    def closest(self) -> StrategyEstimate:
        """Of the strategies that may be chosen, the one that lacks least."""
        return min(self.allowed, key=lambda estimate: estimate.lacking_bytes)

    @property
    def otherwise(self) -> StrategyEstimate | None:
        """What the flowchart would choose instead of a strategy that was asked for."""
        if not self.constraints.pinned:
            return None
        asked = self.constraints
        unpinned = Constraints(allow_slow=asked.allow_slow, wrong_stages=asked.wrong_stages)
        chosen = follow_flowchart(self.evaluated, self.job, unpinned).chosen
        return None if chosen == self.chosen else chosen

    def of(self, strategy: Strategy) -> StrategyEstimate:
        """The verdict on one strategy."""
        return next(estimate for estimate in self.evaluated if estimate.strategy == strategy)


def _stages_with(offload: Offload) -> str:
    """The stages that have a strategy with this offload."""
    *others, last = sorted(
        {str(strategy.stage) for strategy in STRATEGIES if strategy.offload is offload}
    )
    return f"stages {', '.join(others)} and {last}" if others else f"stage {last} alone"


def considered(constraints: Constraints) -> tuple[Strategy, ...]:
    """The strategies that these constraints leave open, the largest on a GPU first."""
    if constraints.free:
        return FLOWCHART_STRATEGIES
    offloads = {
        None: (Offload.NONE,) if constraints.stage is not None else tuple(Offload),
        OffloadChoice.NONE: (Offload.NONE,),
        OffloadChoice.OPTIMIZER: (Offload.OPTIMIZER,),
        OffloadChoice.ALL: (Offload.ALL,),
        OffloadChoice.AUTO: tuple(Offload),
    }[constraints.offload]
    strategies = tuple(
        strategy
        for offload in offloads
        for strategy in STRATEGIES
        if strategy.offload is offload and constraints.stage in (None, strategy.stage)
    )
    if not strategies:
        raise UsageError(
            (
                f"`$stage {constraints.stage}` cannot be combined with `$offload "
                f"{constraints.offload}`"
            ),
            (
                f"DeepSpeed offloads the optimizer at {_stages_with(Offload.OPTIMIZER)}, the "
                f"parameters at {_stages_with(Offload.ALL)}"
            ),
        )
    return strategies


def may_choose(job: Job, constraints: Constraints) -> tuple[StrategyRow, ...]:
    """The strategies that the flowchart's last question may lead to, in its order.

    One GPU has no link that would be slow.
    """
    no_offload = constraints.offload is OffloadChoice.NONE
    machine = job.machine
    takes_zero3 = machine.is_fast or machine.world_size == 1 or constraints.allow_slow
    return tuple(
        strategy
        for strategy in STRATEGIES
        if not (no_offload and strategy.offload is not Offload.NONE)
        and (takes_zero3 or strategy is not ZERO3)
    )


_ROWS = {row.name: row for row in STRATEGIES}


_Find = Callable[[str], StrategyEstimate | None]
"""The verdict on a strategy, by its name; None where it is not worth a number: it does not fit."""
_Timed = Callable[[StrategyEstimate], StrategyEstimate]
"""The same with the time of a step, where it was not asked for."""


# Rule: with less of it for tokens, nobody would think of the sequence.
_LONG_FRACTION = 0.1
SAME_FRACTION = 0.05
"""Steps that are faster by no more are the same; then the simplest is taken.

Recomputing activations must be faster by more.
"""
CLEARLY_FRACTION = 0.1
"""By how much a step must be faster to be clearly so, or slower to be no longer as fast.

Coming near the limit of memory must be clearly faster: there, steps took 0.7 to 1.6 times as long
as they would with room (tests/measured/regret), and 14 of 24 were more than 5 % slower
(core/memory/buffers.py).
"""


def seconds_of(evaluated: StrategyEstimate) -> float | None:
    """The expected time of a step; None where it is not predicted."""
    return None if evaluated.step_time is None else evaluated.step_time.expected_seconds


def _takes_at_most(one: StrategyEstimate, other: StrategyEstimate, factor: float) -> bool:
    """Whether a step takes no longer than so many times another; no where a time is unknown."""
    seconds, other_seconds = seconds_of(one), seconds_of(other)
    return seconds is not None and other_seconds is not None and seconds <= other_seconds * factor


def _may_replace(other: Strategy, own: Strategy) -> bool:
    """Offload is no better answer for what needs none."""
    return other.offload is Offload.NONE or own.offload is not Offload.NONE


def dominates(rival: StrategyEstimate, own: StrategyEstimate) -> bool:
    """Whether a strategy surely fits, with less memory, and is clearly faster than another.

    Where no time is predicted, none does.
    """
    return (
        rival.verdict is Verdict.FITS
        and _may_replace(rival.strategy, own.strategy)
        and rival.device_bytes < own.device_bytes
        and _takes_at_most(rival, own, 1 / (1 + CLEARLY_FRACTION))
    )


def find_better(
    own: StrategyEstimate,
    in_order: Sequence[StrategyEstimate],
    rivals: Sequence[StrategyEstimate],
    wrong_stages: frozenset[int] = frozenset(),
) -> tuple[FlowchartQuestion, StrategyEstimate] | None:
    """The last question of the flowchart: what is better than where it led, and in which way.

    A stage at which the script is wrong gives way to the first that surely fits.

    Args:
        own: Where it led.
        in_order: One estimate of each strategy that may be chosen, in the flowchart's order.
        rivals: All that are compared; of a strategy there may be several, with other settings.
        wrong_stages: The stages at which the script is wrong.
    """
    in_order, rivals = (
        [other for other in others if other.strategy.stage not in wrong_stages]
        for others in (in_order, rivals)
    )

    def is_beaten(evaluated: StrategyEstimate) -> bool:
        return any(dominates(rival, evaluated) for rival in rivals)

    sure = [
        other
        for other in in_order
        if other.verdict is Verdict.FITS and _may_replace(other.strategy, own.strategy)
    ]

    if own.strategy.stage in wrong_stages:
        return (FlowchartQuestion.RIGHT_FOR_SCRIPT, sure[0]) if sure else None

    def first(others: Iterable[StrategyEstimate], factor: float) -> StrategyEstimate | None:
        as_fast = (other for other in others if _takes_at_most(other, own, factor))
        return next((other for other in as_fast if not is_beaten(other)), None)

    if own.strategy.offload is not Offload.NONE:
        plain = [other for other in sure if other.strategy.offload is Offload.NONE]
        better = first(plain, 1 + SAME_FRACTION)
        if better is not None:
            return FlowchartQuestion.NO_OFFLOAD_AS_FAST, better
    if is_beaten(own):
        better, question = first(sure, 1.0), FlowchartQuestion.LEANER_AND_FASTER
    elif own.verdict is not Verdict.FITS:
        better = first(sure, 1 + CLEARLY_FRACTION)
        question = FlowchartQuestion.SURE_AND_AS_FAST
    else:
        return None
    return None if better is None else (question, better)


class _Flowchart:
    """The answers so far: each question is asked once, in order, and recorded."""

    def __init__(
        self, find: _Find, job: Job, constraints: Constraints, timed: _Timed = lambda e: e
    ) -> None:
        self.find = find
        self.timed = timed
        self.order = _order(job, constraints)
        self.may_take = self.order if constraints.pinned else may_choose(job, constraints)
        self.is_pinned = constraints.pinned
        self.answers: list[Answer] = []

    def fitting(self, question: FlowchartQuestion, strategy: Strategy) -> StrategyEstimate | None:
        """The strategy, if it fits."""
        evaluated = self.find(strategy.name)
        if evaluated is None:
            self.answers.append(Answer(question=question, answer=False, strategy=strategy.name))
            return None
        passed_over = evaluated.verdict is Verdict.UNCERTAIN and self._gives_way(evaluated)
        fits = evaluated.runs and not passed_over
        room_bytes = evaluated.headroom_bytes
        on_host = not evaluated.runs and room_bytes is not None and room_bytes >= 0
        on_gpu_bytes = evaluated.high_device_bytes if passed_over else evaluated.device_bytes
        self.answers.append(
            Answer(
                question=question,
                answer=fits,
                strategy=strategy.name,
                need_bytes=evaluated.host.running_bytes if on_host else on_gpu_bytes,
                have_bytes=evaluated.host_budget_bytes if on_host else evaluated.budget_bytes,
            )
        )
        return evaluated if fits else None

    def _gives_way(self, own: StrategyEstimate) -> bool:
        """Whether what is uncertain counts as no: a later strategy surely runs, about as fast.

        It gives way to offload where it offloads itself, may not be taken, or was asked for.
        """
        later = self.order[self.order.index(own.strategy) + 1 :]
        to_any = self.is_pinned or own.strategy not in self.may_take
        others = (
            self.find(strategy.name)
            for strategy in later
            if strategy in self.may_take and (to_any or _may_replace(strategy, own.strategy))
        )
        sure = (other for other in others if other is not None and other.is_sure)
        own = self.timed(own)
        if to_any or seconds_of(own) is None:
            return any(True for _ in sure)
        factor = 1 + CLEARLY_FRACTION
        return any(_takes_at_most(self.timed(other), own, factor) for other in sure)

    def ask_of_sequence(self, strategy: Strategy) -> None:
        """Record whether a strategy would fit without what grows with the tokens of a GPU.

        Less of that is the answer before offload: recomputing, a cheaper loss, then GPUs that share
        each sequence. What of it is open was tried; the others are for a person to take.
        """
        evaluated = self.find(strategy.name)
        if evaluated is None or evaluated.budget_bytes is None or evaluated.interval is None:
            return
        need_bytes = evaluated.device_bytes - evaluated.estimate.of_tokens_bytes
        have_bytes = evaluated.budget_bytes
        most_bytes = max(have_bytes, (1 - _LONG_FRACTION) * evaluated.device_bytes)
        if have_bytes < evaluated.device_bytes and need_bytes <= most_bytes:
            answer = Answer(
                question=FlowchartQuestion.IS_THE_SEQUENCE,
                answer=need_bytes <= have_bytes,
                need_bytes=need_bytes,
                have_bytes=have_bytes,
            )
            self.answers.append(answer)

    @property
    def passed_over(self) -> bool:
        """Whether an uncertain strategy was asked of, and counted as no."""
        asked = [self.find(a.strategy) for a in self.answers if a.strategy and not a.answer]
        return any(e is not None and e.verdict is Verdict.UNCERTAIN for e in asked)

    def first_offload(self) -> StrategyEstimate | None:
        strategies = [s for s in FLOWCHART_STRATEGIES if s.offload is not Offload.NONE]
        estimates = (self.fitting(FlowchartQuestion.FITS_OFFLOAD, s) for s in strategies)
        return next(filter(None, estimates), None)


_Choice = tuple[StrategyEstimate | None, Reason]


def _sharded(flowchart: _Flowchart, machine: Machine, constraints: Constraints) -> _Choice:
    """The part of the flowchart below "does it fit replicated": several GPUs."""
    fast = machine.is_fast
    # ZeRO-1 reduces once per optimizer step, ZeRO-2 at every micro-step (speed/step_time.py).
    if not fast and (zero1 := flowchart.fitting(FlowchartQuestion.FITS_ZERO1, ZERO1)):
        return zero1, Reason.SLOW_LINK_ZERO1
    if zero2 := flowchart.fitting(FlowchartQuestion.FITS_ZERO2, ZERO2):
        return zero2, Reason.MIDDLE_FITS
    flowchart.answers.append(Answer(question=FlowchartQuestion.FAST_INTERCONNECT, answer=fast))
    if zero3 := flowchart.fitting(FlowchartQuestion.FITS_ZERO3, ZERO3):
        if fast or constraints.allow_slow:
            return zero3, Reason.FAST_LINK_ZERO3 if fast else Reason.SLOW_ALLOWED
        if constraints.offload is OffloadChoice.AUTO and (strategy := flowchart.first_offload()):
            return strategy, Reason.OFFLOAD_OVER_SLOW_ZERO3
        return None, Reason.SLOW_LINK_REFUSES_ZERO3
    flowchart.ask_of_sequence(ZERO3)
    return _offloaded(flowchart, constraints)


def _offloaded(flowchart: _Flowchart, constraints: Constraints) -> _Choice:
    strategy = None if constraints.offload is OffloadChoice.NONE else flowchart.first_offload()
    return strategy, Reason.ONLY_OFFLOAD_FITS if strategy else Reason.NOTHING_FITS


def _unpinned(flowchart: _Flowchart, job: Job, constraints: Constraints) -> _Choice:
    if ddp := flowchart.fitting(FlowchartQuestion.FITS_ONE_GPU, DDP):
        return ddp, Reason.REPLICATED_FITS
    if job.machine.world_size > 1:
        return _sharded(flowchart, job.machine, constraints)
    # One GPU: sharding divides nothing, so only offload is left, unless the states are asked for
    # in bf16, which DeepSpeed has at stages 1 to 3 alone.
    halved = job.state_dtype is StateDtype.BF16
    if halved and (zero2 := flowchart.fitting(FlowchartQuestion.FITS_ZERO2, ZERO2)):
        return zero2, Reason.MIDDLE_FITS
    return _offloaded(flowchart, constraints)


_QUESTION_OF_STAGE = {
    0: FlowchartQuestion.FITS_ONE_GPU,
    1: FlowchartQuestion.FITS_ZERO1,
    2: FlowchartQuestion.FITS_ZERO2,
    3: FlowchartQuestion.FITS_ZERO3,
}


def _asked_for(flowchart: _Flowchart, strategies: Sequence[Strategy]) -> _Choice:
    for strategy in strategies:
        plain = strategy.offload is Offload.NONE
        question = _QUESTION_OF_STAGE[strategy.stage] if plain else FlowchartQuestion.FITS_OFFLOAD
        if evaluated := flowchart.fitting(question, strategy):
            return evaluated, Reason.ASKED_FOR
    return None, Reason.NOTHING_FITS


# A verdict that counts as yes, and that a choice is named by.
_REMARKED: Mapping[Verdict, Reason] = {
    Verdict.TIGHT: Reason.TIGHT,
    Verdict.UNCERTAIN: Reason.UNCERTAIN,
}


def _choose(
    flowchart: _Flowchart, job: Job, constraints: Constraints
) -> tuple[StrategyEstimate | None, list[Reason]]:
    strategies = considered(constraints)
    if constraints.pinned:
        chosen, reason = _asked_for(flowchart, strategies)
    else:
        chosen, reason = _unpinned(flowchart, job, constraints)
    forced = constraints.pinned and constraints.force
    if forced and chosen is None:
        chosen, reason = flowchart.find(strategies[0].name), Reason.FORCED
    reasons = [reason]
    if flowchart.passed_over:
        reasons.append(Reason.UNCERTAIN_PASSED_OVER)
    if any(a.question is FlowchartQuestion.IS_THE_SEQUENCE and a.answer for a in flowchart.answers):
        reasons.append(Reason.SEQUENCE_TOO_LONG)
    if chosen and chosen.verdict in _REMARKED:
        reasons.append(_REMARKED[chosen.verdict])
    return chosen, reasons


def follow_questions(
    evaluated: Sequence[StrategyEstimate], job: Job, constraints: Constraints
) -> Decision:
    """Decide from verdicts that exist already, but for the last question of the flowchart.

    A strategy without a verdict does not fit.
    """
    by_name = {estimate.strategy.name: estimate for estimate in evaluated}
    flowchart = _Flowchart(by_name.get, job, constraints)
    chosen, reasons = _choose(flowchart, job, constraints)
    if job.gpu_budget_bytes is None:
        reasons.append(Reason.BUDGET_UNKNOWN)
    return Decision(
        job=job,
        constraints=constraints,
        evaluated=tuple(evaluated),
        answers=tuple(flowchart.answers),
        reasons=tuple(reasons),
        chosen=chosen,
    )


_BETTER: Mapping[FlowchartQuestion, Reason] = {
    FlowchartQuestion.LEANER_AND_FASTER: Reason.LEANER_AND_FASTER,
    FlowchartQuestion.SURE_AND_AS_FAST: Reason.SURE_AND_AS_FAST,
    FlowchartQuestion.NO_OFFLOAD_AS_FAST: Reason.NO_OFFLOAD_AS_FAST,
    FlowchartQuestion.RIGHT_FOR_SCRIPT: Reason.RIGHT_FOR_SCRIPT,
}


def take_better(
    decision: Decision, question: FlowchartQuestion, better: StrategyEstimate
) -> Decision:
    """The decision for what the last question of the flowchart found."""
    answer = Answer(
        question=question,
        answer=True,
        strategy=better.strategy.name,
        need_bytes=better.device_bytes,
        have_bytes=better.budget_bytes,
    )
    return replace(
        decision,
        answers=(*decision.answers, answer),
        reasons=(_BETTER[question],),
        chosen=better,
        beaten=decision.chosen,
    )


def follow_flowchart(
    evaluated: Sequence[StrategyEstimate], job: Job, constraints: Constraints
) -> Decision:
    """Decide from verdicts that exist already; a strategy without one does not fit."""
    decision = follow_questions(evaluated, job, constraints)
    if decision.chosen is None or constraints.pinned:
        return decision
    by_name = {estimate.strategy.name: estimate for estimate in evaluated}
    known = (by_name.get(strategy.name) for strategy in may_choose(job, constraints))
    others = [estimate for estimate in known if estimate is not None]
    better = find_better(decision.chosen, others, others, constraints.wrong_stages)
    return decision if better is None else take_better(decision, *better)


def decide(job: Job, constraints: Constraints) -> Decision:
    """Evaluate every strategy and follow the flowchart."""
    return follow_flowchart(evaluate_all(job), job, constraints)


def choose_leanest(job: Job, constraints: Constraints) -> StrategyEstimate | None:
    """What the flowchart comes to with the smallest communication buffers; None: nothing fits.

    Only what it asks of is evaluated, and nothing is known of its time: whether a strategy fits is
    as `decide` says it.

    Args:
        job: What is planned.
        constraints: What was asked of the decision.

    Raises:
        UsageError: No strategy has what the constraints ask for.
    """

    @cache
    def find(name: str) -> StrategyEstimate | None:
        row = _ROWS[name]
        # Whoever forces a strategy gets it whether it fits or not.
        if not constraints.force and is_hopeless(job, row):
            return None
        return evaluate_with(job, row, job.buffers(row)[-1], is_timed=False)

    def timed(untimed: StrategyEstimate) -> StrategyEstimate:
        return evaluate_with(job, untimed.strategy, untimed.buffers)

    return _choose(_Flowchart(find, job, constraints, timed), job, constraints)[0]


# Tell the way through the flowchart: each answer, and where the other one leads.


class FlowchartStep(Struct, frozen=True, kw_only=True):
    """A question as it was answered, and the branch that was not taken."""

    answer: Answer
    about: StrategyEstimate | None
    """The strategy that was asked of; None for the link."""
    other: StrategyEstimate | None
    """Where the other answer leads; None: to no strategy."""


class FlowchartPath(Struct, frozen=True, kw_only=True):
    """The way that was taken, and its end."""

    steps: tuple[FlowchartStep, ...]
    end: StrategyEstimate | None
    """Where the flowchart leads, whatever was chosen for its time or its size."""


_BY_PREDICTION = frozenset(
    {
        *(Reason.FASTEST, Reason.AS_GOOD_AS_FASTEST, Reason.FASTER_NOT_WORTH),
        *(Reason.LOSES_LEAST, Reason.SMALLEST),
    }
)


def find_path(decision: Decision) -> FlowchartPath:
    """The steps of a decision, in the order in which they were asked."""
    by_name = {estimate.strategy.name: estimate for estimate in decision.evaluated}
    order = [row.name for row in _order(decision.job, decision.constraints)]
    steps = []
    for answer in decision.answers:
        about = None if answer.strategy is None else by_name[answer.strategy]
        name = _other(answer, order)
        other = None if name is None else by_name[name]
        if answer.question in _BETTER:
            other = decision.beaten
        steps.append(FlowchartStep(answer=answer, about=about, other=other))
    last = decision.answers[-1]
    by_flowchart = by_name[last.strategy] if last.answer and last.strategy else None
    predicted = bool(_BY_PREDICTION.intersection(decision.reasons))
    return FlowchartPath(steps=tuple(steps), end=by_flowchart if predicted else decision.chosen)


def _other(answer: Answer, order: Sequence[str]) -> str | None:
    """The strategy that the other answer leads to."""
    if answer.question is FlowchartQuestion.FAST_INTERCONNECT:
        return None if answer.answer else ZERO3.name
    if answer.question is FlowchartQuestion.IS_THE_SEQUENCE:
        return None
    if not answer.answer:
        return answer.strategy
    later = order[order.index(answer.strategy) + 1 :] if answer.strategy in order else ()
    return next(iter(later), None)


def _order(job: Job, constraints: Constraints) -> tuple[Strategy, ...]:
    """The strategies that the flowchart asks of for a job, one after the other."""
    if constraints.pinned:
        return considered(constraints)
    skipped = {ZERO1} if job.machine.is_fast else set()
    if job.machine.world_size == 1:
        skipped = {ZERO1, ZERO3} if job.state_dtype is StateDtype.BF16 else {ZERO1, ZERO2, ZERO3}
    offloads = constraints.offload is not OffloadChoice.NONE
    return tuple(
        flowchart_strategy
        for flowchart_strategy in FLOWCHART_STRATEGIES
        if flowchart_strategy not in skipped
        and (offloads or flowchart_strategy.offload is Offload.NONE)
    )
