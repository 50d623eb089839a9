"""Choose which ways to run a job are worth measuring."""

from math import inf

from zerowiz.app.decide.decision import Plan
from zerowiz.app.reporter import Reporter
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.search.candidate import Candidate
from zerowiz.core.strategy import Strategy
from zerowiz.errors import UsageError
from zerowiz.words import _


def find_candidates(plan: Plan, reporter: Reporter) -> list[Candidate]:
    """The fastest way to run each strategy that fits: the chosen one first, then the fastest.

    Args:
        plan: What was decided.
        reporter: Hears which strategy is left out, and why.
    """
    workload, chosen = plan.request.job.workload, plan.decision.chosen
    ways: dict[str, Candidate] = {}
    if chosen is not None:
        ways[chosen.strategy.name] = Candidate(workload=workload, evaluated=chosen)
    for found in () if plan.search is None else plan.search.candidates:
        ways.setdefault(found.strategy.name, found)
    for each in plan.decision.allowed:
        if each.runs:
            one = Candidate(workload=workload, evaluated=each)
            ways.setdefault(each.strategy.name, one)

    def order(way: Candidate) -> tuple[bool, float]:
        # A deadline cuts off what comes last.
        return way.evaluated is not chosen, inf if way.seconds is None else way.seconds

    named = sorted(ways.values(), key=order)
    return [way for way in named if _is_supported(way.strategy, plan, reporter)]


def name_candidate(candidate: Candidate, plan: Plan) -> str:
    """Its strategy, and what of its step is not as in the plan: `zero2-mb4-ckpt`."""
    step, planned = candidate.workload, plan.request.job.workload
    if step == planned:
        return candidate.strategy.name
    recomputes = "-ckpt" if step.gradient_checkpointing else ""
    return f"{candidate.strategy.name}-mb{step.micro_batch}{recomputes}"


def _is_supported(strategy: Strategy, plan: Plan, reporter: Reporter) -> bool:
    """Whether DeepSpeed trains this job under the strategy; else it is said why not."""
    request = plan.request
    handover = request.handover
    try:
        refuse_unsupported(
            request.job,
            strategy,
            handover.integration,
            script_has_optimizer=handover.script_has_optimizer,
        )
    except UsageError as error:
        reporter.event(
            _("{strategy} is left out: {message}", strategy=strategy.name, message=error.message)
        )
        return False
    return True
