"""Plan a job: the decision with its remedies, and the error without one."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.app.decide.find_remedies import RemedyFinder
from zerowiz.app.decide.follow import follow_options
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.request import Request
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.search.search import Search
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import shows
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import NothingFitsError
from zerowiz.ui import remedies as remedies_text
from zerowiz.ui.sentences import decisions


@shows("decision", "remedies")
class Plan(Struct, frozen=True, kw_only=True):
    """What was decided, and the options that led there."""

    options: Options
    facts: ScriptFacts | None
    """What the script shows; None without one."""
    script_args: tuple[str, ...]
    request: Request
    decision: Decision
    search: Search | None
    """None for a further attempt of a job, whose step is that of the first."""
    own_step: Workload
    """The step as it would be by itself."""
    remedies: tuple[Remedy, ...]
    """The cheapest first; then those that only a change of the script makes."""

    @property
    def strategy(self) -> Strategy | None:
        """The chosen strategy, if any."""
        chosen = self.decision.chosen
        return None if chosen is None else chosen.strategy


def plan_options(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    reporter: Reporter = SILENT,
) -> Plan:
    """Decide with these options on this machine, and choose what nobody decided."""
    followed = follow_options(
        options, machine, facts, script_args, reporter=reporter, compares=True
    )
    finder = RemedyFinder(options, followed.first, facts, script_args)
    return Plan(
        options=options,
        facts=facts,
        script_args=tuple(script_args),
        request=followed.request,
        decision=followed.decision,
        search=followed.search,
        own_step=followed.first.job.workload,
        remedies=finder.find(followed.decision),
    )


class NoStrategyError(NothingFitsError):
    """No strategy fits; its plan says how much each one lacks."""

    def __init__(self, plan: Plan, message: str, *hints: str) -> None:
        super().__init__(message, *hints)
        self.plan = plan


def require_strategy(plan: Plan) -> Strategy:
    """The chosen strategy.

    Raises:
        NoStrategyError: There is none; with the closest one, and the remedies as hints.
    """
    if plan.strategy is None:
        options = plan.options
        own = None if options.config is None else str(options.config)
        only_cpu = options.accelerator is Accelerator.CPU
        hints = [remedies_text.hint(each) for each in plan.remedies]
        hints = hints or [remedies_text.none_found(own, only_cpu=only_cpu)]
        raise NoStrategyError(plan, decisions.nothing_fits(plan.decision), *hints)
    return plan.strategy
