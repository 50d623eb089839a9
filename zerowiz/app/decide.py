"""Decide what options lead to: choose what is open, and follow the flowchart."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from zerowiz.app.machines.machine import complete, find_machine, is_here, state_links
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.resolved_job import ResolvedJob, config_file, find_basis, resolve_job
from zerowiz.app.resolve.workload import shared_by_script
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision, choose_only, decide
from zerowiz.core.decision.job import (
    Objective,
    OpenSettings,
    bf16_emulated,
)
from zerowiz.core.decision.open_settings import Evaluator, Search, search, split_batch
from zerowiz.core.decision.remedy_table import Remedy
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.launch.provenance import BatchChange, change_batch
from zerowiz.core.machine.job_gpus import choose_gpus
from zerowiz.core.machine.types import Accelerator, Machine, pick_gpus
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.model.from_name import parse_size
from zerowiz.core.script.facts import Convention
from zerowiz.core.script.settings import (
    ScriptRun,
    can_be_given,
    check_method,
    facts_of,
    settings_of,
)
from zerowiz.core.settings import Change, Origin
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import SETTINGS, Integration, Loss, Method, Workload
from zerowiz.errors import NothingFitsError, UsageError, ZerowizError
from zerowiz.probe.model.hf import model_of
from zerowiz.probe.output_folder import find_persons_configs
from zerowiz.probe.package_data import read_gpu_table, read_known_models, read_version
from zerowiz.translation import _
from zerowiz.ui import assumptions, choice, sentences
from zerowiz.ui import remedies as remedies_text

if TYPE_CHECKING:
    from zerowiz.core.decision.remedies import Attempt


class DecidedJob(Struct, frozen=True, kw_only=True):
    """A decision, and what it was made of."""

    first: ResolvedJob
    """With the step as it would be by itself."""
    resolved: ResolvedJob
    """With the step that was chosen."""
    search: Search
    decision: Decision


def decide_job(resolved: ResolvedJob) -> DecidedJob:
    """The decision on a job that is resolved, without remedies.

    Args:
        resolved: The job, with the step as it would be by itself.

    Raises:
        UsageError: DeepSpeed does not do what was asked for, or the script does not train so.
    """
    if resolved.script is not None:
        check_method(resolved.script.facts, resolved.job.workload.method)
    searched = choose_open(resolved)
    # Where nothing fits it is the least that the job can have, so that no remedy asks for it.
    step = _least(resolved) if searched.choice is None else searched.choice.workload
    chosen = resolved.with_step(step)
    decision = searched.decision
    if searched.choice is None:
        decision = decide(chosen.job, chosen.constraints)
    if decision.chosen is not None:
        # A config is written only where DeepSpeed trains what was asked for.
        refuse_strategy(chosen, decision.chosen.strategy)
    return DecidedJob(first=resolved, resolved=chosen, search=searched, decision=decision)


def choose_open(resolved: ResolvedJob) -> Search:
    """What is taken of what is open."""

    def supports(strategy: Strategy) -> bool:
        try:
            refuse_strategy(resolved, strategy)
        except UsageError:
            return False
        return True

    job, open_step = resolved.job, resolved.freedom
    objective = resolved.options.objective
    return search(job, resolved.constraints, open_step, objective, supports)


def _least(resolved: ResolvedJob) -> Workload:
    step = resolved.job.workload
    smallest = split_batch(step)[0] if resolved.freedom.split else step
    recomputes = step.gradient_checkpointing or True in resolved.freedom.checkpointing
    return replace(smallest, gradient_checkpointing=recomputes)


def refuse_strategy(resolved: ResolvedJob, strategy: Strategy) -> None:
    """Raise where DeepSpeed does not train what was asked for with this strategy."""
    if resolved.options.own_config is not None:
        return
    handover, job = resolved.handover, resolved.job
    if resolved.constraints.stage is None and strategy.stage == 0:
        # Where all fits one GPU the states stay in fp32: the flowchart chose stage 0, no person.
        job = replace(job, state_dtype=None)
    refuse_unsupported(
        job,
        strategy,
        handover.integration,
        script_has_optimizer=handover.script_has_optimizer,
    )


# Find what would help a plan, each change as it would be if it were typed.

_IN_4_BITS = "a `quantization_config` of `BitsAndBytesConfig(load_in_4bit=True)`"
# What a script has to do for a setting that it neither shows nor takes.
_EDITS: Mapping[tuple[str, object], str] = {
    **{("loss", loss.value): _(row.edit) for loss, row in LOSS_ROWS.items() if row.edit},
    ("attention", "sdpa"): _('load the model with `attn_implementation="sdpa"`'),
}


_UNSAID = frozenset({Origin.DEFAULT, Origin.DETECTED, Origin.CHOSEN})


class RemedyFinder:
    """Finds what would help a plan, each as it would be if it were typed."""

    def __init__(self, resolved: ResolvedJob) -> None:
        self.resolved = resolved
        self.options, self.script = resolved.options, resolved.script

    def find(self, decision: Decision) -> tuple[Remedy, ...]:
        """The remedies that can be taken, then those that only a change of the script makes."""
        if decision.chosen is not None and decision.chosen.verdict is Verdict.FITS:
            return ()
        from zerowiz.core.decision.remedies import (  # noqa: PLC0415 - as above
            RemedyScope,
            find_edits,
            find_remedies,
        )

        scope = RemedyScope(
            takes=self._reaches,
            gpus=read_gpu_table(),
            models=read_known_models,
            complete=self._complete,
            typed=self._typed,
            kept=frozenset(self._kept()),
        )
        takeable = tuple(map(self._with_batch, find_remedies(decision, scope)))
        if self.script is None:
            return takeable
        edits = (replace(e, edit=self._edit(e)) for e in find_edits(decision, scope))
        return (*takeable, *edits)

    def _kept(self) -> Iterator[str]:
        """The settings that somebody said, in options, a config or the script."""
        for value in self.resolved.values:
            if value.value is not None and value.origin not in _UNSAID:
                yield value.name
        yield from (name for name, value in structs.asdict(self.options).items() if value)

    def _with_batch(self, remedy: Remedy) -> Remedy:
        """The remedy with the script's global batch on its GPUs, where no option states one."""
        if self.script is None or self.options.global_batch is not None:
            return remedy
        job, changed = self.resolved.job, with_plain(self.options, remedy.change)
        moved = replace(job, machine=machine_of(changed, remedy.change, job.machine))
        is_kept = moved.global_batch == job.global_batch
        return remedy if is_kept else replace(remedy, global_batch=moved.global_batch)

    def _reaches(self, change: Change) -> bool:
        """Whether the ranks get each value that a change gives a setting of theirs."""
        if self.script is None:
            return True
        typed = with_plain(self.options, change)
        return all(self._takes(name, getattr(typed, name)) for name in change)

    def _takes(self, name: str, value: object) -> bool:
        script = self.script
        if script is None or name == "optimizer_state_dtype":
            return True
        if name == "model":
            # A script that is planned for a size can as well be planned for another one.
            by_size = parse_size(self.options.model or "") is not None
            is_size = parse_size(str(value)) is not None
            return by_size if is_size else script.settings.is_open(name, value)
        if name not in SETTINGS:
            return True
        if name == "sequence_parallel" and not script.facts.gives_positions:
            return False
        if isinstance(value, Loss) and not self._has(LOSS_ROWS[value].package):
            return False
        return can_be_given(script, name, value)

    def _has(self, package: str | None) -> bool:
        """Whether a package is installed, where that can be seen."""
        elsewhere = not is_here(self.resolved.job.machine)
        return package is None or elsewhere or read_version(package) is not None

    def _complete(self, machine: Machine) -> Machine:
        """A machine of the table with what the options say of it, its links aside."""
        options = replace(self.options, nodes=None, interconnect=None)
        return complete(machine, options)

    def _typed(self, attempt: "Attempt") -> tuple[Change, StrategyEstimate | None]:
        """A change as it has to be typed, and what is chosen then; None where it leads nowhere."""
        change = self._restated(attempt.change)
        if is_here(self.resolved.job.machine) and "host_memory" in change:
            # Nobody can type memory that this host does not have.
            return change, choose_only(attempt.job, attempt.constraints)[0]
        try:
            resolved = self._request(change)
            chosen = self._lead(resolved)
            if chosen is not None:
                refuse_strategy(resolved, chosen.strategy)
        except ZerowizError:
            return change, None
        return change, chosen

    def _restated(self, change: Change) -> Change:
        """The change with what was said of other links before, and with all nodes that it needs."""
        interconnect = self.options.interconnect
        text = change.get("interconnect")
        if "machine" in change:
            nodes = {} if self.options.nodes is None else {"nodes": _nodes_of(change["machine"])}
            return {**change, **nodes}
        if text is None or interconnect is None:
            return change
        return {**change, "interconnect": f"{interconnect},{text}"}

    def _lead(self, resolved: ResolvedJob) -> StrategyEstimate | None:
        """The strategy that is chosen for a resolved."""
        if resolved.freedom == OpenSettings() and self.options.objective is Objective.FLOWCHART:
            return choose_only(resolved.job, resolved.constraints)[0]
        return choose_open(resolved).decision.chosen

    def _edit(self, remedy: Remedy) -> str:
        """What to change in the script for it."""
        path = "" if self.script is None else self.script.facts.text_path
        return "; ".join(
            (
                self._edit_of(name, value, path)
                for name, value in remedy.change.items()
                if not self._reaches({name: value})
            ),
        )

    def _edit_of(self, name: str, value: int | str | bool, path: str) -> str:
        """What to change in the script for one setting."""
        facts = facts_of(self.script)
        trains_adapters = facts is not None and facts.trains_adapters
        loads = f"`{path}`" if facts is None else facts.where(facts.model.line)
        by_call = self.resolved.handover.integration is not Integration.HF
        if name == "method" and not trains_adapters:
            return _("wrap the model with peft in `{path}`", path=path)
        if name == "gradient_checkpointing" and by_call:
            return _("call `model.gradient_checkpointing_enable()` in `{path}`", path=path)
        if name == "model" or value == Method.QLORA:
            what = f"`{value}`" if name == "model" else _("with {code}", code=_IN_4_BITS)
            return _("load {what} in {where}", what=what, where=loads)
        try:
            self._request({name: value})
        except ZerowizError as error:
            return error.hints[0] if error.hints else error.message
        edit = _EDITS.get((name, value))
        if edit is None:
            return _(
                "train as `${name} {value}` says in `{path}`", name=name, value=value, path=path
            )
        return _("{edit} in `{path}`", edit=edit, path=path)

    def _request(self, change: Change) -> ResolvedJob:
        """The job with a change typed.

        The machine and the model are those of the job, which were read once, unless the change
        names another.
        """
        job = self.resolved.job
        changed = with_plain(self.options, change)
        machine = machine_of(changed, change, job.machine)
        model, traced = job.model, job.traced
        if "model" in change:
            traced = None
            known = (row for row in read_known_models() if row.id == change["model"])
            row = next(known, None)
            model = model_of(str(change["model"]), None) if row is None else row.build()
        read = ReadModel(model=model, traced=traced)
        resolved = self.resolved.with_change(changed, machine, read)
        if self.script is not None:
            check_method(self.script.facts, resolved.job.workload.method)
        return resolved


def _nodes_of(spec: object) -> int:
    """The nodes of a spec such as `4x8xH100`."""
    nodes, *several = str(spec).split("x", 2)
    return int(nodes) if len(several) > 1 and several[0].isdecimal() else 1


def machine_of(changed: Options, change: Change, machine: Machine) -> Machine:
    """The machine that was read once, with other links or another one where the change says so."""
    if "machine" in change:
        return find_machine(changed, os.environ)
    if "gpus" in change:
        machine = pick_gpus(machine, choose_gpus(machine.gpus, asked=str(change["gpus"])))
    if "host_memory" in change:
        machine = complete(machine, Options(host_memory=changed.host_memory))
    return state_links(machine, changed.interconnect) if "interconnect" in change else machine


# Plan a job: the decision with its remedies, and the error without one.


@shows("decision", "remedies")
class Plan(Struct, frozen=True, kw_only=True):
    """What was decided, and the options that led there."""

    options: Options
    script: ScriptRun | None
    """The script as it is run; None without one."""
    resolved: ResolvedJob
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
    script: ScriptRun | None,
    reporter: Reporter = SILENT,
) -> Plan:
    """Decide with these options on this machine, and choose what nobody decided."""
    return plan_resolved(resolve_job(options, machine, script, reporter=reporter))


def plan_resolved(job: ResolvedJob) -> Plan:
    """The plan of a job that is resolved."""
    options, script = job.options, job.script
    followed = decide_job(job)
    finder = RemedyFinder(followed.first)
    return Plan(
        options=options,
        script=script,
        resolved=followed.resolved,
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
        self.most_lines: int | None = None
        """How many lines of a terminal there are for it; None for as many as it takes."""


def require_strategy(plan: Plan) -> Strategy:
    """The chosen strategy.

    Raises:
        NoStrategyError: There is none; with the closest one, and the remedies as hints.
    """
    if plan.strategy is None:
        options = plan.options
        config = None if options.own_config is None else str(options.own_config)
        only_cpu = options.accelerator is Accelerator.CPU
        hints = [remedies_text.hint(remedy) for remedy in plan.remedies]
        hints = hints or [remedies_text.none_found(config, only_cpu=only_cpu)]
        raise NoStrategyError(plan, sentences.nothing_fits(plan.decision), *hints)
    return plan.strategy


# Find a global batch that is not what it was, with a way to keep it that was tried.

_OF_BATCH = ("micro_batch", "accumulation_steps", "sequence_parallel")


def change_by_options(plan: Plan) -> tuple[Change, BatchChange] | None:
    """The options that change the global batch which script or base have by themselves, and how.

    None where they change nothing, where nobody sees what these would have, and where a
    global batch was asked for.
    """
    options, step, machine = plan.options, plan.own_step, plan.resolved.job.machine
    values = {name: getattr(options, name) for name in _OF_BATCH}
    values = {name: value for name, value in values.items() if value is not None}
    if plan.script is None or not values or options.global_batch is not None:
        return None
    settings, config = plan.script.settings, plan.resolved.config
    shared = config.sequence_parallel or shared_by_script(settings)
    before = Workload(sequence_parallel=shared).replicas(machine.world_size)
    of_config = config.batch(before)
    for name, own in zip(_OF_BATCH, of_config, strict=False):
        setting = getattr(settings, name)
        before *= (own or getattr(step, name)) if setting is None else setting.value
    batch = change_batch(before, step, machine)
    return None if batch is None else (values, with_way_to_keep(plan, batch))


def with_way_to_keep(plan: Plan, batch: BatchChange) -> BatchChange:
    """The change, with micro-steps only where the job can have them and fits."""
    if batch.accumulation_steps is None:
        return batch
    resolved, job = plan.resolved, plan.resolved.job
    try:
        options = with_plain(plan.options, {"accumulation_steps": batch.accumulation_steps})
        decision = decide_job(resolved.with_change(options, job.machine, resolved.read)).decision
    except ZerowizError:
        return replace(batch, by_script=True)
    keeps = decision.chosen is not None and decision.job.global_batch == batch.before
    return batch if keeps else replace(batch, accumulation_steps=None)


# Note what a plan rests on, what was chosen, and what changes what the model learns.


def note_settled(plan: Plan, reporter: Reporter) -> None:
    """Note what was chosen, and the words that are added after the script, before all else."""
    if plan.strategy is None:
        return
    for note in _choice_notes(plan):
        reporter.note(note)
    if plan.resolved.settled:
        file = None if plan.script is None else plan.script.facts.settings_file
        copied = file.path if file is not None and file.is_whole else None
        reporter.note(assumptions.settled(plan.resolved.settled, copied))
    if (changed := change_by_options(plan)) is not None:
        reporter.note(assumptions.batch_by_options(*changed))
    if unused := _unused_configs(plan, plan.strategy):
        reporter.note(assumptions.unused_configs(unused))


def _unused_configs(plan: Plan, strategy: Strategy) -> list[str]:
    """The configs that a person has for the script, where the plan uses none of them."""
    facts, options = facts_of(plan.script), plan.options
    if facts is None or options.config is not None or facts.convention is Convention.NONE:
        return []
    # Path.resolve() raises no OSError on a loop before Python 3.13.
    used = os.path.realpath(config_file(options, strategy))
    return [str(path) for path in find_persons_configs(facts) if os.path.realpath(path) != used]


def _choice_notes(plan: Plan) -> Iterator[str]:
    """What was chosen of what is open, and what was not."""
    searched = plan.search
    if searched is None or searched.choice is None:
        return
    if searched.choice.workload != plan.own_step:
        job = plan.resolved.job
        before = Evaluator(job).candidate(plan.own_step, searched.choice.strategy)
        can_keep = before.evaluated.verdict is not Verdict.DOES_NOT_FIT
        if not can_keep:
            kept = decide(replace(job, workload=plan.own_step), plan.resolved.constraints)
            can_keep = kept.chosen is not None
        by_script = settings_of(plan.script).micro_batch is not None
        yield choice.chosen_step(before, searched.choice, by_script=by_script, can_keep=can_keep)


def note_basis(plan: Plan, reporter: Reporter, beside: Plan | None = None) -> None:
    """Note what a result rests on, but for what a plan beside it assumes as well."""
    known = () if beside is None else beside.resolved.assumed
    for note in find_basis(plan.resolved, known):
        reporter.note(note)


def note_emulation(plan: Plan, reporter: Reporter) -> None:
    """Warn of a bf16 that would be emulated, where no doctor's finding will say it."""
    job = plan.resolved.job
    if emulated := bf16_emulated(job.machine, job.workload):
        reporter.note(emulated)
