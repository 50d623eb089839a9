"""Tell the way through the flowchart: each answer, and where the other one leads."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import (
    Answer,
    Constraints,
    Decision,
    FlowchartQuestion,
    OffloadChoice,
    Reason,
    considered,
)
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.strategies import FLOWCHART_STRATEGIES, ZERO1, ZERO2, ZERO3
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.workload.choices import StateDtype


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
    {Reason.FASTEST, Reason.AS_GOOD_AS_FASTEST, Reason.FASTER_NOT_WORTH, Reason.SMALLEST}
)


def find_path(decision: Decision) -> FlowchartPath:
    """The steps of a decision, in the order in which they were asked."""
    by_name = {each.strategy.name: each for each in decision.evaluated}
    order = [each.name for each in _order(decision.job, decision.constraints)]
    steps = []
    for answer in decision.answers:
        about = None if answer.strategy is None else by_name[answer.strategy]
        name = _other(answer, order)
        other = None if name is None else by_name[name]
        steps.append(FlowchartStep(answer=answer, about=about, other=other))
    last = decision.answers[-1]
    by_flowchart = by_name[last.strategy] if last.answer and last.strategy else None
    predicted = bool(_BY_PREDICTION.intersection(decision.reasons))
    return FlowchartPath(steps=tuple(steps), end=by_flowchart if predicted else decision.chosen)


def _other(answer: Answer, order: Sequence[str]) -> str | None:
    """The strategy that the other answer leads to."""
    if answer.question is FlowchartQuestion.FAST_INTERCONNECT:
        return None if answer.answer else ZERO3.name
    if not answer.answer:
        return answer.strategy
    later = order[order.index(answer.strategy) + 1 :] if answer.strategy in order else ()
    return next(iter(later), None)


def _order(job: PlanInput, constraints: Constraints) -> tuple[Strategy, ...]:
    """The strategies that the flowchart asks of for a job, one after the other."""
    if constraints.pinned:
        return considered(constraints)
    skipped = {ZERO1} if job.machine.is_fast else set()
    if job.machine.world_size == 1:
        skipped = {ZERO1, ZERO3} if job.state_dtype is StateDtype.BF16 else {ZERO1, ZERO2, ZERO3}
    offloads = constraints.offload is not OffloadChoice.NONE
    return tuple(
        each
        for each in FLOWCHART_STRATEGIES
        if each not in skipped and (offloads or each.offload is Offload.NONE)
    )
