"""Decide; where nothing fits and a person is there, let them choose what to change."""

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.app.ask.person import Person
from zerowiz.app.machines.machine import find_machine, is_here, state_links
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import Request, make_request
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.decision.remedies import Change, Remedy, find_remedies, make_remedy
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.machine.types import Machine
from zerowiz.core.model.types import Model
from zerowiz.core.script import ScriptFacts, check_method
from zerowiz.core.settings import Panel
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload import SETTINGS
from zerowiz.errors import NothingFitsError, ZerowizError
from zerowiz.ui import sentences


class Plan(Struct, frozen=True, kw_only=True):
    """What was decided, and the options that led there."""

    options: Options
    request: Request
    decision: Decision
    remedies: tuple[Remedy, ...]
    in_script: Mapping[int, str]
    """What the script itself must change first for a remedy, by the remedy's index."""

    @property
    def strategy(self) -> Strategy | None:
        """The chosen strategy, if any."""
        chosen = self.decision.chosen
        return None if chosen is None else chosen.strategy


def follow_options(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    model: Model | None = None,
) -> tuple[Request, Decision]:
    """The decision with these options on this machine, without remedies.

    Args:
        options: What was said.
        machine: What the job runs on.
        facts: What the script shows; None without one.
        script_args: The words after the script.
        model: The model where it was read already.

    Raises:
        UsageError: The options contradict each other, the script or the machine, or DeepSpeed does
            not do what they ask for.
    """
    request = make_request(options, machine, facts, script_args, model)
    if facts is not None:
        check_method(facts, request.job.workload.method)
    decision = decide(request.job, request.constraints)
    _refuse_unsupported(options, request, decision)
    return request, decision


def plan_options(
    options: Options, machine: Machine, facts: ScriptFacts | None, script_args: Sequence[str]
) -> Plan:
    """Decide with these options on this machine."""
    request, decision = follow_options(options, machine, facts, script_args)
    remedies: list[Remedy] = []
    in_script: dict[int, str] = {}
    for remedy in (_restate(each, options) for each in find_remedies(decision)):
        chosen, edits = _try_remedy(options, remedy, request.job, facts, script_args)
        if chosen is None and not (edits and _IN_SCRIPT.issuperset(remedy.change)):
            continue
        if edits:
            in_script[len(remedies)] = "; ".join(edits)
        if chosen is None or chosen.strategy.name == remedy.strategy:
            remedies.append(remedy)
        else:
            # Core evaluated this machine with more GPUs, and the remedy names another one.
            remedies.append(make_remedy(decision, remedy.change, chosen))
    return Plan(
        options=options,
        request=request,
        decision=decision,
        remedies=tuple(remedies),
        in_script=in_script,
    )


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
    if decision.chosen is None or options.config is not None:
        return
    handover, job = request.handover, request.job
    if request.constraints.stage is None and decision.chosen.strategy.stage == 0:
        # Where all fits one GPU the states stay in fp32: the flowchart chose stage 0, no person.
        job = replace(job, state_dtype=None)
    refuse_unsupported(
        job,
        decision.chosen.strategy,
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
    decision = decide(request.job, request.constraints)
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
    """Note the words that are added after the script, before anything is done."""
    if plan.request.settled:
        reporter.note(sentences.settled(plan.request.settled, plan.request.copied))


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
        choices = [*map(sentences.change, remedies), "nothing, stop here"]
        index = person.choose("Change what?", choices)
        if index == len(remedies):
            break
        remedy = remedies.pop(index)
        edits = plan.in_script.get(plan.remedies.index(remedy))
        try:
            changed = with_plain(plan.options, remedy.change)
            machine = _machine_of(changed, remedy.change, machine)
            plan = plan_options(changed, machine, facts, script_args)
        except ZerowizError as error:
            # Mostly that the script itself settles it; then only the script can change it.
            for line in (error.message, *([edits] if edits else error.hints[:1])):
                reporter.event(line)
            continue
        reporter.decision(plan.decision, plan.remedies)
        remedies = _choosable(plan)
    note_settled(plan, reporter)
    return plan
