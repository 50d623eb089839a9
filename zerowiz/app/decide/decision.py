"""Plan a job: the decision with its remedies, what is noted of it, and the error without one."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.app.decide.find_remedies import RemedyFinder
from zerowiz.app.decide.follow import follow_options
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.basis import find_basis
from zerowiz.app.resolve.request import Request
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.script import ScriptFacts
from zerowiz.core.search.cover import Evaluator
from zerowiz.core.search.search import Search
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace, shows
from zerowiz.core.workload import Workload
from zerowiz.errors import NothingFitsError
from zerowiz.ui import choice
from zerowiz.ui import remedies as remedies_text
from zerowiz.ui.basis import notes
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


def note_settled(plan: Plan, reporter: Reporter) -> None:
    """Note what was chosen, and the words that are added after the script, before all else."""
    if plan.strategy is None:
        return
    for note in _choice_notes(plan):
        reporter.note(note)
    if plan.request.settled:
        reporter.note(notes.settled(plan.request.settled, plan.request.copied))


def _choice_notes(plan: Plan) -> Iterator[str]:
    """What was chosen of what is open, and what was not."""
    found = plan.search
    if found is None or found.choice is None:
        return
    if found.choice.workload != plan.own_step:
        job = plan.request.job
        before = Evaluator(job).candidate(plan.own_step, found.choice.strategy)
        can_keep = before.evaluated.verdict is not Verdict.DOES_NOT_FIT
        if not can_keep:
            kept = decide(replace(job, workload=plan.own_step), plan.request.constraints)
            can_keep = kept.chosen is not None
        by_script = plan.request.has_own_batch
        yield choice.chosen_step(before, found.choice, by_script=by_script, can_keep=can_keep)
    if found.clearly_faster is not None:
        yield choice.clearly_faster(found.clearly_faster, found.choice)


def note_basis(plan: Plan, reporter: Reporter, beside: Plan | None = None) -> None:
    """Note what a result rests on, but for what a plan beside it assumes as well."""
    known = () if beside is None else beside.request.assumed
    for note in find_basis(plan.request, plan.options.model, plan.options.config, known):
        reporter.note(note)


class NoStrategyError(NothingFitsError):
    """No strategy fits; its plan says how much each one lacks."""

    def __init__(self, plan: Plan, message: str, *hints: str) -> None:
        super().__init__(message, *hints)
        self.plan = plan


def note_emulation(plan: Plan, reporter: Reporter) -> None:
    """Warn of a bf16 that the CPU would emulate, where no doctor's finding will say it."""
    job = plan.request.job
    if emulates_bf16(job.machine, job.workload):
        reporter.note(BF16_IS_EMULATED)


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
