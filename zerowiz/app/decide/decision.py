"""Decide; where nothing fits and a person is there, let them choose what to change."""

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.app.ask.person import Person
from zerowiz.app.machines.machine import find_machine, is_here, state_links
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import Request, make_request
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.decision.remedies import Change, Remedy, find_remedies, make_remedy
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import ScriptFacts, check_method
from zerowiz.core.search.cover import Evaluator, split_batch
from zerowiz.core.search.search import Search, search
from zerowiz.core.settings import Panel
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload import SETTINGS, Workload
from zerowiz.errors import NothingFitsError, UsageError, ZerowizError
from zerowiz.ui import choice, sentences


class Plan(Struct, frozen=True, kw_only=True):
    """What was decided, and the options that led there."""

    options: Options
    request: Request
    decision: Decision
    search: Search | None
    """None for a further attempt of a job, whose step is that of the first."""
    own_step: Workload
    """The step as it would be by itself."""
    remedies: tuple[Remedy, ...]
    in_script: Mapping[int, str]
    """What the script itself must change first for a remedy, by the remedy's index."""

    @property
    def strategy(self) -> Strategy | None:
        """The chosen strategy, if any."""
        chosen = self.decision.chosen
        return None if chosen is None else chosen.strategy


class _Followed(Struct, frozen=True, kw_only=True):
    """A decision, and what it was made of."""

    own: Workload
    """The step as it would be by itself."""
    request: Request
    found: Search
    decision: Decision


def _follow(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    read: ReadModel | None = None,
) -> tuple[Request, _Followed]:
    """The request as it was made first, and what was decided for it."""
    request = make_request(options, machine, facts, script_args, read)
    if facts is not None:
        check_method(facts, request.job.workload.method)
    found = _search(options, request)
    chosen = _with_step(options, request, found, facts, script_args)
    decision = found.decision
    if found.choice is None:
        decision = decide(chosen.job, chosen.constraints)
    _refuse_unsupported(options, chosen, decision)
    own = request.job.workload
    return request, _Followed(own=own, request=chosen, found=found, decision=decision)


def follow_options(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    read: ReadModel | None = None,
) -> tuple[Request, Decision]:
    """The decision with these options on this machine, without remedies.

    Args:
        options: What was said.
        machine: What the job runs on.
        facts: What the script shows; None without one.
        script_args: The words after the script.
        read: The model where it was read already.

    Raises:
        UsageError: The options contradict each other, the script or the machine, or DeepSpeed does
            not do what they ask for.
    """
    _, followed = _follow(options, machine, facts, script_args, read)
    return followed.request, followed.decision


def plan_options(
    options: Options, machine: Machine, facts: ScriptFacts | None, script_args: Sequence[str]
) -> Plan:
    """Decide with these options on this machine, and choose what nobody decided."""
    request, followed = _follow(options, machine, facts, script_args)
    chosen, found, decision = followed.request, followed.found, followed.decision
    own = followed.own
    remedies: list[Remedy] = []
    in_script: dict[int, str] = {}
    for remedy in (_restate(each, options) for each in find_remedies(decision)):
        best, edits = _try_remedy(options, remedy, request.job, facts, script_args)
        if best is None and not (edits and _IN_SCRIPT.issuperset(remedy.change)):
            continue
        if edits:
            in_script[len(remedies)] = "; ".join(edits)
        if best is None or best.strategy.name == remedy.strategy:
            remedies.append(remedy)
        else:
            # Core evaluated this machine with more GPUs, and the remedy names another one.
            remedies.append(make_remedy(decision, remedy.change, best))
    return Plan(
        options=options,
        request=chosen,
        decision=decision,
        search=found,
        own_step=own,
        remedies=tuple(remedies),
        in_script=in_script,
    )


def _search(options: Options, request: Request) -> Search:
    """What is taken of what is open."""

    def supports(strategy: Strategy) -> bool:
        try:
            _refuse_strategy(options, request, strategy)
        except UsageError:
            return False
        return True

    job, open_step = request.job, request.freedom
    return search(job, request.constraints, open_step, options.objective, supports)


def _with_step(
    options: Options,
    request: Request,
    found: Search,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
) -> Request:
    """The request with the step that was chosen, as if it had been said.

    Where nothing fits it is the least that the job can have, so that no remedy asks for it.
    """
    job, before = request.job, request.job.workload
    step = _least(request) if found.choice is None else found.choice.workload
    if step == before:
        return request
    names = [name for name in _CHOSEN if getattr(step, name) != getattr(before, name)]
    said = replace(options, **{name: getattr(step, name) for name in names})
    read = ReadModel(model=job.model, traced=job.traced, notes=request.traced)
    made = make_request(said, job.machine, facts, script_args, read)
    return replace(made, job=replace(job, workload=step), freedom=request.freedom)


# What a search may choose, by its names in options and in the step.
_CHOSEN = ("micro_batch", "accumulation_steps", "gradient_checkpointing", "attention", "loss")


def _least(request: Request) -> Workload:
    step = request.job.workload
    smallest = split_batch(step)[0] if request.freedom.split else step
    recomputes = step.gradient_checkpointing or True in request.freedom.checkpointing
    return replace(smallest, gradient_checkpointing=recomputes)


def _restate(remedy: Remedy, options: Options) -> Remedy:
    """The remedy with what was said of other links before."""
    text = remedy.change.get("interconnect")
    if text is None or options.interconnect is None:
        return remedy
    return replace(
        remedy, change={**remedy.change, "interconnect": f"{options.interconnect},{text}"}
    )


def _refuse_unsupported(options: Options, request: Request, decision: Decision) -> None:
    """A config is written only where DeepSpeed trains what was asked for."""
    if decision.chosen is not None:
        _refuse_strategy(options, request, decision.chosen.strategy)


def _refuse_strategy(options: Options, request: Request, strategy: Strategy) -> None:
    """Raise where DeepSpeed does not train what was asked for with this strategy."""
    if options.config is not None:
        return
    handover, job = request.handover, request.job
    if request.constraints.stage is None and strategy.stage == 0:
        # Where all fits one GPU the states stay in fp32: the flowchart chose stage 0, no person.
        job = replace(job, state_dtype=None)
    refuse_unsupported(
        job,
        strategy,
        handover.integration,
        script_has_optimizer=handover.script_has_optimizer,
    )


# What a line of the script, or a word after it, can change; another model or method cannot.
_IN_SCRIPT = frozenset(name for name, row in SETTINGS.items() if row.panel is Panel.JOB)


def _try_remedy(
    options: Options,
    remedy: Remedy,
    job: PlanInput,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
) -> tuple[StrategyEstimate | None, list[str]]:
    """What a remedy leads to when it is typed, and what the script must change for it first."""
    try:
        request = _with_remedy(options, remedy.change, job, facts, script_args)
    except ZerowizError:
        edits = []
        for name, value in remedy.change.items():
            try:
                _with_remedy(options, {name: value}, job, facts, script_args)
            except ZerowizError as error:
                edits.append(error.hints[0] if error.hints else error.message)
        return None, edits
    decision = _search(options, request).decision
    try:
        _refuse_unsupported(options, request, decision)
    except ZerowizError:
        return None, []
    return (decision.chosen if decision.chosen and decision.chosen.runs else None), []


def _with_remedy(
    options: Options,
    change: Change,
    job: PlanInput,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
) -> Request:
    """The job with a change typed.

    The machine and the model are those of the job, which were read once, unless the change names
    another.
    """
    changed = with_plain(options, change)
    machine = _machine_of(changed, change, job.machine)
    read = None if "model" in change else ReadModel(model=job.model)
    request = make_request(changed, machine, facts, script_args, read)
    if facts is not None:
        check_method(facts, request.job.workload.method)
    return request


def _machine_of(changed: Options, change: Change, machine: Machine) -> Machine:
    """The machine that was read once, with other links or another one where the change says so."""
    if "machine" in change:
        return find_machine(changed, os.environ)
    return state_links(machine, changed.interconnect) if "interconnect" in change else machine


def note_settled(plan: Plan, reporter: Reporter) -> None:
    """Note what was chosen, and the words that are added after the script, before all else."""
    if plan.strategy is None:
        return
    for note in _choice_notes(plan):
        reporter.note(note)
    if plan.request.settled:
        reporter.note(sentences.settled(plan.request.settled, plan.request.copied))


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


def note_basis(plan: Plan, reporter: Reporter) -> None:
    """Note what a result rests on."""
    request = plan.request
    assumed = (f"assumed {', '.join(request.assumed)}",) if request.assumed else ()
    keys = ", ".join(f"`{key}`" for key in request.uncounted)
    adam = request.unfused_adam
    unfused = (f"{adam}: {sentences.UNFUSED_ADAM}",) if adam else ()
    family = request.job.model.architecture.family
    eager = (sentences.falls_back(family, request.falls_back),) if request.falls_back else ()
    size = request.size_only
    stated = (sentences.size_only(plan.options.model, size),) if size else ()
    uncounted = (f"`{plan.options.config}`: {keys} not counted",) if keys else ()
    server = request.elsewhere
    learned = request.job.calibration
    calibrated = (sentences.calibrated(learned),) if learned else ()
    elsewhere = (f"{server}: {sentences.VLLM_ELSEWHERE}",) if server else ()
    for note in (
        *request.job.machine.notes,
        *request.traced,
        *calibrated,
        *stated,
        *assumed,
        *unfused,
        *eager,
        *uncounted,
        *request.not_counted,
        *elsewhere,
        *((request.cut_group,) if request.cut_group else ()),
    ):
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
        hints = [
            "; ".join(filter(None, (sentences.remedy(remedy), plan.in_script.get(index))))
            for index, remedy in enumerate(plan.remedies)
        ]
        raise NoStrategyError(plan, sentences.nothing_fits(plan.decision), *hints)
    return plan.strategy


def _choosable(plan: Plan) -> list[Remedy]:
    """The remedies that a person can choose; for a job on this machine, no other machine."""
    here = is_here(plan.request.job.machine)
    return [remedy for remedy in plan.remedies if not (here and "machine" in remedy.change)]


_STOP = Choice(value="stop", title="nothing, stop here")


def _ask_remedy(remedies: Sequence[Remedy]) -> Question:
    """Which of these a person takes, by its index."""
    listed = [
        Choice(value=str(index), title=sentences.change(remedy))
        for index, remedy in enumerate(remedies)
    ]
    choices = (*listed, _STOP)
    return Question(
        key="remedy", flag="$stage", text="Change what?", kind=AnswerKind.CHOICE, choices=choices
    )


def decide_with(
    person: Person | None,
    options: Options,
    machine: Machine,
    facts: ScriptFacts,
    script_args: Sequence[str],
    reporter: Reporter,
) -> Plan:
    """Decide, and as long as nothing fits offer the remedies to the person, if there is one."""
    plan = plan_options(options, machine, facts, script_args)
    note_basis(plan, reporter)
    reporter.script(facts)
    reporter.decision(plan.decision, plan.remedies)
    remedies = _choosable(plan)
    while person and plan.strategy is None and remedies:
        answer = person.ask(_ask_remedy(remedies))
        if isinstance(answer, Back) or answer == _STOP.value:
            break
        remedy = remedies.pop(int(answer))
        edits = plan.in_script.get(plan.remedies.index(remedy))
        try:
            changed = with_plain(plan.options, remedy.change)
            machine = _machine_of(changed, remedy.change, machine)
            plan = plan_options(changed, machine, facts, script_args)
        except ZerowizError as error:
            # Mostly that the script itself settles it; then only the script can change it.
            person.tell([error.message, *([edits] if edits else error.hints[:1])])
            continue
        reporter.decision(plan.decision, plan.remedies)
        remedies = _choosable(plan)
    note_settled(plan, reporter)
    return plan
