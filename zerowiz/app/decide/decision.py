"""Decide; where nothing fits and a person is there, let them choose what to change."""

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.app.machines.machine import complete, find_machine, is_here, state_links
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.basis import find_basis
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import Request, make_request
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision, decide, find_way
from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.machine.types import Machine
from zerowiz.core.model.from_size import parse_size
from zerowiz.core.remedies.remedy import Change, Remedy, make_remedy, worth_offering
from zerowiz.core.script import Convention, ScriptFacts, check_method, settle
from zerowiz.core.search.cover import Evaluator, split_batch
from zerowiz.core.search.freedom import Freedom, Objective
from zerowiz.core.search.search import Search, search
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload import SETTINGS, Integration, Loss, Workload
from zerowiz.errors import NothingFitsError, UsageError, ZerowizError
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.model.hf import model_of
from zerowiz.probe.model.known_models import read_known_models
from zerowiz.probe.model.libraries import read_version
from zerowiz.ui import choice, sentences
from zerowiz.ui import remedies as remedies_text


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
    reporter: Reporter = SILENT,
) -> tuple[Request, _Followed]:
    """The request as it was made first, and what was decided for it."""
    request = make_request(options, machine, facts, script_args, read, reporter)
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
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    reporter: Reporter = SILENT,
) -> Plan:
    """Decide with these options on this machine, and choose what nobody decided."""
    request, followed = _follow(options, machine, facts, script_args, reporter=reporter)
    chosen, found, decision = followed.request, followed.found, followed.decision
    finding = _Finding(options, request, facts, script_args)
    return Plan(
        options=options,
        facts=facts,
        script_args=tuple(script_args),
        request=chosen,
        decision=decision,
        search=found,
        own_step=followed.own,
        remedies=finding.find(decision),
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


# What the config that zerowiz writes decides where the script says nothing of it.
_BY_CONFIG = frozenset(
    {"micro_batch", "accumulation_steps", "precision", "torch_autocast", "optimizer"}
)


# What a script has to do for a setting that it neither shows nor takes.
_EDITS: Mapping[tuple[str, object], str] = {
    ("loss", "liger"): "let liger-kernel compute the loss",
    ("loss", "chunked"): "compute the loss in chunks",
    ("attention", "sdpa"): 'load the model with `attn_implementation="sdpa"`',
}


class _Finding:
    """Finds what would help a plan, each as it would be if it were typed."""

    def __init__(
        self,
        options: Options,
        request: Request,
        facts: ScriptFacts | None,
        script_args: Sequence[str],
    ) -> None:
        self.options = options
        self.request = request
        self.facts = facts
        self.script_args = script_args
        self.settings = None if facts is None else settle(facts, tuple(script_args))

    def find(self, decision: Decision) -> tuple[Remedy, ...]:
        """The remedies that can be taken, then those that only a change of the script makes."""
        if decision.chosen is not None and decision.chosen.verdict is Verdict.FITS:
            return ()
        from zerowiz.core.remedies.find import RemedyScope, find_edits, find_remedies  # noqa: PLC0415 - takes long to load

        scope = RemedyScope(
            takes=self._reaches,
            gpus=read_gpu_table(),
            models=read_known_models,
            complete=self._complete,
        )
        found = (self._checked(each, decision) for each in find_remedies(decision, scope))
        takeable = worth_offering(each for each in found if each is not None)
        if self.facts is None:
            return takeable
        edits = (replace(e, edit=self._edit(e)) for e in find_edits(decision, scope))
        return (*takeable, *edits)

    def _reaches(self, change: Change) -> bool:
        """Whether the ranks get each value that a change gives a setting of theirs."""
        if self.settings is None:
            return True
        typed = with_plain(self.options, change)
        return all(self._takes(name, getattr(typed, name)) for name in change)

    def _takes(self, name: str, value: object) -> bool:
        settings, facts = self.settings, self.facts
        if settings is None or facts is None or name == "optimizer_state_dtype":
            return True
        if name == "model":
            # A script that is planned for a size can as well be planned for another one.
            by_size = parse_size(self.options.model or "") is not None
            is_size = parse_size(str(value)) is not None
            return by_size if is_size else settings.is_open(name, value)
        if name not in SETTINGS:
            return True
        if name == "loss" and value is Loss.LIGER and not self._has_liger():
            return False
        silent = getattr(settings, name, None) is None and name not in settings.unseen
        by_config = name in _BY_CONFIG and facts.convention is not Convention.NONE
        return settings.is_open(name, value) or (silent and by_config)

    def _has_liger(self) -> bool:
        """Whether Liger is installed, where that can be seen."""
        return not is_here(self.request.job.machine) or read_version("liger_kernel") is not None

    def _complete(self, machine: Machine) -> Machine:
        """A machine of the table with what the options say of it, its links aside."""
        said = replace(self.options, nodes=None, interconnect=None)
        return complete(machine, said)

    def _checked(self, remedy: Remedy, decision: Decision) -> Remedy | None:
        """The remedy with what it leads to when it is typed; None where it leads nowhere."""
        change = self._restated(remedy.change)
        if is_here(self.request.job.machine) and "host_memory" in change:
            # Nobody can type memory that this host does not have.
            return remedy
        try:
            request = self._request(change)
            chosen = self._lead(request)
            if chosen is None or not chosen.runs:
                return None
            _refuse_strategy(self.options, request, chosen.strategy)
        except ZerowizError:
            return None
        return make_remedy(decision, change, chosen)

    def _restated(self, change: Change) -> Change:
        """The change with what was said of other links before, and with all nodes that it needs."""
        said = self.options.interconnect
        text = change.get("interconnect")
        if "machine" in change:
            nodes = {} if self.options.nodes is None else {"nodes": _nodes_of(change["machine"])}
            return {**change, **nodes}
        if text is None or said is None:
            return change
        return {**change, "interconnect": f"{said},{text}"}

    def _lead(self, request: Request) -> StrategyEstimate | None:
        """The strategy that is chosen for a request."""
        if request.freedom == Freedom() and self.options.objective is Objective.FLOWCHART:
            return find_way(request.job, request.constraints)[0]
        return _search(self.options, request).decision.chosen

    def _edit(self, remedy: Remedy) -> str:
        """What to change in the script for it."""
        path = "" if self.facts is None else self.facts.path
        return "; ".join(
            self._edit_of(name, value, path)
            for name, value in remedy.change.items()
            if not self._reaches({name: value})
        )

    def _edit_of(self, name: str, value: int | str | bool, path: str) -> str:
        """What to change in the script for one setting."""
        trains_adapters = self.facts is not None and self.facts.trains_adapters
        by_call = self.request.handover.integration is not Integration.HF
        if name == "method" and not trains_adapters:
            return f"wrap the model with peft in `{path}`"
        if name == "gradient_checkpointing" and by_call:
            return f"call `model.gradient_checkpointing_enable()` in `{path}`"
        if name == "model":
            return f"load `{value}` in `{path}`"
        try:
            self._request({name: value})
        except ZerowizError as error:
            return error.hints[0] if error.hints else error.message
        return _EDITS.get((name, value), f"train as `${name} {value}` says") + f" in `{path}`"

    def _request(self, change: Change) -> Request:
        """The job with a change typed.

        The machine and the model are those of the job, which were read once, unless the change
        names another.
        """
        job, facts = self.request.job, self.facts
        changed = with_plain(self.options, change)
        machine = machine_of(changed, change, job.machine)
        model = job.model
        if "model" in change:
            known = (row for row in read_known_models() if row.id == change["model"])
            row = next(known, None)
            model = model_of(str(change["model"]), None) if row is None else row.build()
        request = make_request(changed, machine, facts, self.script_args, ReadModel(model=model))
        if facts is not None:
            check_method(facts, request.job.workload.method)
        return request


def _nodes_of(spec: object) -> int:
    """The nodes of a spec such as `4x8xH100`."""
    nodes, *several = str(spec).split("x", 2)
    return int(nodes) if len(several) > 1 and several[0].isdecimal() else 1


def machine_of(changed: Options, change: Change, machine: Machine) -> Machine:
    """The machine that was read once, with other links or another one where the change says so."""
    if "machine" in change:
        return find_machine(changed, os.environ)
    if "host_memory" in change:
        machine = complete(machine, Options(host_memory=changed.host_memory))
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
    for note in find_basis(plan.request, plan.options.model, plan.options.config):
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
        own = None if plan.options.config is None else str(plan.options.config)
        hints = [remedies_text.hint(each) for each in plan.remedies]
        hints = hints or [remedies_text.none_found(own)]
        raise NoStrategyError(plan, sentences.nothing_fits(plan.decision), *hints)
    return plan.strategy
