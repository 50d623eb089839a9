"""Decide what options lead to, and join that with its config into the files that a run writes."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from zerowiz import __version__
from zerowiz.app.machines.machine import complete, find_machine, is_here, state_links
from zerowiz.app.options import Options, as_words, with_plain
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.resolved_job import ResolvedJob, config_file, find_basis, resolve_job
from zerowiz.core import shell
from zerowiz.core.command_words import spell_change
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, may_run
from zerowiz.core.decision.flowchart import Decision, Reason, decide
from zerowiz.core.decision.job import (
    bf16_emulated,
)
from zerowiz.core.decision.open_settings import Evaluator, Limit, Search, search, split_batch
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.dsconfig.merge import (
    LEARNED_BY,
    REPLACED,
    KeyEdit,
    Merged,
    RemovedKey,
    removed_keys,
    with_edits,
)
from zerowiz.core.dsconfig.write import render_config, write_config
from zerowiz.core.launch.provenance import (
    LIBRARIES,
    BatchChange,
    MachineChange,
    PlannedFile,
    Provenance,
    change_batch,
    compare_machines,
    plan_path,
    read_earlier_plan,
    render_plan,
    without_identities,
)
from zerowiz.core.launch.secrets import hide_secret_values
from zerowiz.core.machine.job_gpus import choose_gpus
from zerowiz.core.machine.names import encode_machine, read_phrase
from zerowiz.core.machine.types import Accelerator, Machine, pick_gpus
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.model.from_name import parse_size
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.script.arguments import SettingsCopy, render_values
from zerowiz.core.script.facts import RESUME, Convention
from zerowiz.core.script.settings import (
    ScriptRun,
    can_be_given,
    check_method,
    facts_of,
    settings_of,
)
from zerowiz.core.settings import Change, Origin, SettingValue
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace, shows
from zerowiz.core.workload import SETTINGS, Integration, Loss, Method, Workload
from zerowiz.errors import LostEdit, NothingFitsError, UsageError, ZerowizError
from zerowiz.probe.files import (
    hash_uuids,
    read_gpu_table,
    read_known_models,
    read_named,
    read_version,
)
from zerowiz.probe.model.hf import model_of
from zerowiz.probe.output_folder import (
    EditedConfig,
    find_persons_configs,
    read_edits,
    read_plan_files,
)
from zerowiz.translation import _, in_english
from zerowiz.ui import sentences
from zerowiz.ui.text import on_device

if TYPE_CHECKING:
    from zerowiz.core.decision.remedies import Attempt, Remedy


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
    remedies: "tuple[Remedy, ...]" = ()
    """The cheapest first; then those that only a change of the script makes."""

    @property
    def strategy(self) -> Strategy | None:
        """The chosen strategy, if any."""
        chosen = self.decision.chosen
        return None if chosen is None else chosen.strategy


def decide_job(resolved: ResolvedJob) -> Plan:
    """The plan of a job that is resolved, without remedies.

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
    chosen, decision = resolved.with_step(step), searched.decision
    if searched.choice is None:
        decision = decide(chosen.job, chosen.constraints)
    if decision.chosen is not None:
        # A config is written only where DeepSpeed trains what was asked for.
        refuse_strategy(chosen, decision.chosen.strategy)
    return Plan(
        options=resolved.options,
        script=resolved.script,
        resolved=chosen,
        decision=decision,
        search=searched,
        own_step=resolved.job.workload,
    )


def choose_open(resolved: ResolvedJob, strategies: Sequence[StrategyRow] = STRATEGIES) -> Search:
    """What is taken of what is open, with one of these strategies."""
    job, open_step = resolved.job, resolved.freedom
    objective, supported = resolved.options.objective, partial(supports, resolved)
    return search(job, resolved.constraints, open_step, objective, supported, strategies)


def supports(resolved: ResolvedJob, strategy: Strategy) -> bool:
    """Whether DeepSpeed trains what was asked for with this strategy."""
    try:
        refuse_strategy(resolved, strategy)
    except UsageError:
        return False
    return True


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
    ("sequence_parallel", None): _("add `position_ids` to each batch"),
}


_UNSAID = frozenset({Origin.DEFAULT, Origin.DETECTED, Origin.CHOSEN})


class RemedyFinder:
    """Finds what would help a plan, each as it would be if it were typed."""

    def __init__(self, resolved: ResolvedJob) -> None:
        self.resolved = resolved
        self.options, self.script = resolved.options, resolved.script

    def find(self, decision: Decision) -> "tuple[Remedy, ...]":
        """The remedies that can be taken, then those that only a change of the script makes.

        One that changes the evaluation alone is the first. Those that cost anything of what
        somebody said stand last.
        """
        if decision.chosen is not None and decision.chosen.verdict is Verdict.FITS:
            return ()
        from zerowiz.core.decision.remedies import (  # noqa: PLC0415 - as above
            RemedyScope,
            find_edits,
            find_remedies,
            keeps_the_step,
            takes_back,
        )

        kept = frozenset(self._kept())
        scope = RemedyScope(
            takes=self._reaches,
            gpus=read_gpu_table(),
            models=read_known_models,
            complete=self._complete,
            typed=self._typed,
            supports=partial(supports, self.resolved),
            kept=kept,
        )
        takeable = tuple(map(self._with_batch, find_remedies(decision, scope)))
        if self.script is None:
            return takeable
        found = (replace(e, change=self._restated(e.change)) for e in find_edits(decision, scope))
        edits = [replace(e, edit=self._edit(e)) for e in found]
        return tuple(
            sorted(
                (*takeable, *edits),
                key=lambda remedy: (not keeps_the_step(remedy), takes_back(remedy, kept)),
            )
        )

    def _kept(self) -> Iterator[str]:
        """The settings that somebody said, in options, a config or the script."""
        for value in self.resolved.values:
            if value.value is not None and value.origin not in _UNSAID:
                yield value.name
        yield from (name for name, value in structs.asdict(self.options).items() if value)

    def _with_batch(self, remedy: "Remedy") -> "Remedy":
        """The remedy with the script's global batch on its GPUs, where no option states one."""
        if self.script is None or self.options.global_batch is not None:
            return remedy
        job, changed = self.resolved.job, with_plain(self.options, remedy.change)
        moved = replace(job, machine=machine_of(changed, remedy.change, job.machine))
        is_kept = moved.global_batch == job.global_batch
        return remedy if is_kept else replace(remedy, global_batch=moved.global_batch)

    def _reaches(self, change: Change) -> bool:
        """Whether the ranks get each value that a change gives a setting of theirs."""
        typed = with_plain(self.options, change)
        return all(self._takes(name, getattr(typed, name)) for name in change)

    def _takes(self, name: str, value: object) -> bool:
        script = self.script
        if script is None or name not in {"model", *SETTINGS} - {"optimizer_state_dtype"}:
            return True
        if name == "model":
            # A script that is planned for a size can as well be planned for another one.
            by_size = parse_size(self.options.model or "") is not None
            is_size = parse_size(str(value)) is not None
            return by_size if is_size else script.settings.is_open(name, value)
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
            return change, decide(attempt.job, attempt.constraints).chosen
        try:
            resolved = self.request(change)
            job, is_open = resolved.job, resolved.freedom.names
            may_fit = [row for row in STRATEGIES if is_open or may_run(job, row)]
            chosen = choose_open(resolved, may_fit).decision.chosen if may_fit else None
            if chosen is not None:
                refuse_strategy(resolved, chosen.strategy)
        except ZerowizError:
            return change, None
        return change, chosen

    def _restated(self, change: Change) -> Change:
        """The change with what was said of other links before, and with all nodes that it needs.

        The split of a global batch that stays is not typed: zerowiz finds it again.
        """
        if self.resolved.freedom.split and "sequence_parallel" in change:
            change = {n: value for n, value in change.items() if n != "accumulation_steps"}
        interconnect = self.options.interconnect
        text = change.get("interconnect")
        if "machine" in change:
            nodes = read_phrase(str(change["machine"])).nodes or 1
            return change if self.options.nodes is None else {**change, "nodes": nodes}
        if text is None or interconnect is None:
            return change
        return {**change, "interconnect": f"{interconnect},{text}"}

    def _edit(self, remedy: "Remedy") -> str:
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
        line = None if facts is None else facts.model.line
        loads = f"`{path}`" if facts is None or line is None else facts.where(line)
        by_call = self.resolved.handover.integration is not Integration.HF
        if name == "method" and not trains_adapters:
            return _("wrap the model with peft in `{path}`", path=path)
        if name == "gradient_checkpointing" and by_call:
            return _("call `model.gradient_checkpointing_enable()` in `{path}`", path=path)
        if name == "model" or value == Method.QLORA:
            what = f"`{value}`" if name == "model" else _("with {code}", code=_IN_4_BITS)
            return _("load {what} in {where}", what=what, where=loads)
        try:
            self.request({name: value})
        except ZerowizError as error:
            return error.hints[0] if error.hints else error.message
        edit = _EDITS.get((name, value)) or _EDITS.get((name, None))
        if name == "eval_batch":
            by = settings_of(self.script).evaluated_by
            said = _("keep the script from evaluating ({by})", by=by)
        elif edit is None:
            said = _(
                "train as `${name} {value}` says in `{path}`", name=name, value=value, path=path
            )
        else:
            said = _("{edit} in `{path}`", edit=edit, path=path)
        return said

    def request(self, change: Change) -> ResolvedJob:
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


def plan_options(
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    reporter: Reporter = SILENT,
) -> Plan:
    """Decide with these options on this machine, and choose what nobody decided."""
    return plan_resolved(resolve_job(options, machine, script, reporter=reporter))


def plan_resolved(job: ResolvedJob) -> Plan:
    """The plan of a job that is resolved, with its remedies."""
    plan = decide_job(job)
    return replace(
        plan,
        remedies=RemedyFinder(job).find(plan.decision),
        resolved=replace(plan.resolved, learning=_with_edits(plan)),
    )


def _with_edits(plan: Plan) -> Mapping[str, SettingValue]:
    """How the model learns, with the edits that the config keeps."""
    said, strategy = plan.resolved.learning, plan.strategy
    if strategy is None or plan.options.own_config is not None or plan.resolved.lacks_lr:
        return said
    planned = plan_config(plan, strategy)
    edits = {LEARNED_BY.get(edit.key): edit for edit in planned.merged.kept if edit.value}
    return {
        name: SettingValue(
            name=name, value=edits[name].value, origin=Origin.CONFIG, source=planned.path
        )
        if name in edits
        else value
        for name, value in said.items()
    }


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
        from zerowiz.ui import remedies as remedies_text  # noqa: PLC0415 - few jobs fit nowhere

        options = plan.options
        config = None if options.own_config is None else str(options.own_config)
        only_cpu = options.accelerator is Accelerator.CPU
        hints = [remedies_text.hint(remedy) for remedy in plan.remedies]
        hints = hints or [remedies_text.none_found(config, only_cpu=only_cpu)]
        raise NoStrategyError(plan, sentences.nothing_fits(plan.decision), *hints)
    return plan.strategy


# Find a global batch that is not what it was, with a way to keep it that was tried.

_PARTS_OF_BATCH = {"micro_batch": "micro-batch", "accumulation_steps": "accumulation"}
_OF_BATCH = (*_PARTS_OF_BATCH, "sequence_parallel")
_OWN = frozenset({Origin.SCRIPT, Origin.CONFIG})


def change_by_options(plan: Plan) -> tuple[Change, BatchChange] | None:
    """The options that change the global batch which script or base have by themselves, and how.

    None where they change nothing, where nobody sees what these would have, and where a
    global batch was asked for.
    """
    options, step, resolved = plan.options, plan.own_step, plan.resolved
    values = {name: getattr(options, name) for name in _OF_BATCH}
    values = {name: value for name, value in values.items() if value is not None}
    if plan.script is None or not values or options.global_batch is not None:
        return None
    machine = resolved.job.machine
    silent = replace(options, micro_batch=None, accumulation_steps=None, sequence_parallel=None)
    try:
        own = resolved.with_change(silent, machine, resolved.read)
    except UsageError:
        return None
    said = {value.name for value in own.values if value.origin in _OWN}
    unsaid: dict[str, Any] = {
        name: getattr(step, name) for name in _PARTS_OF_BATCH if name not in said
    }
    before = replace(own.job, workload=replace(own.job.workload, **unsaid)).global_batch
    batch = change_batch(before, step, machine)
    return None if batch is None else (values, with_way_to_keep(plan, batch))


def _difference_of_config(plan: Plan) -> str | None:
    """That a config says another batch than the script, and which of them the plan has."""
    options, step, settings = plan.options, plan.own_step, settings_of(plan.script)
    if any(getattr(options, name) is not None for name in (*_PARTS_OF_BATCH, "global_batch")):
        return None
    job = replace(plan.resolved.job, workload=step)
    of_config = plan.resolved.config.batch(step.replicas(job.machine.world_size))
    both = zip(_PARTS_OF_BATCH, of_config, map(settings.values.get, _PARTS_OF_BATCH), strict=True)
    differ = {n: (c, s) for n, c, s in both if c is not None and s is not None and s.value != c}
    if not differ:
        facts, drawn = facts_of(plan.script), of_config[0]
        sees = facts is None or facts.micro_batch.from_config or "micro_batch" in settings.values
        unseen = (
            f"zerowiz cannot see what the script draws, and takes micro-batch {drawn} of"
            f" `{options.config}`"
        )
        return None if sees or not drawn else unseen
    other: dict[str, Any] = {
        n: c if getattr(step, n) == s.value else s.value for n, (c, s) in differ.items()
    }
    instead = replace(job, workload=replace(step, **other)).global_batch
    said = ", ".join(
        f"{_PARTS_OF_BATCH[name]} {there} there, {script.value} by {script.source}"
        for name, (there, script) in differ.items()
    )
    other_batch = "" if instead == job.global_batch else f", not {instead}"
    return on_device(
        f"`{options.config}` and the script differ ({said}): the plan takes {step.micro_batch} x"
        f" {step.accumulation_steps} of each GPU, and the global batch is"
        f" {job.global_batch}{other_batch}",
        job.machine,
    )


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
    """Note what was chosen, and the words that are added after the script, before all else.

    What becomes of the global batch is noted where nothing fits as well.
    """
    for note in _choice_notes(plan):
        reporter.note(note)
    if plan.resolved.settled and plan.strategy is not None:
        file = None if plan.script is None else plan.script.facts.settings_file
        is_copied = file is not None and file.is_whole
        where = f"to a copy of `{file.path}`" if file and is_copied else "after the script"
        words = shell.join(word for value in plan.resolved.settled for word in value.words)
        reporter.note(f"zerowiz adds {where}: `{words}`")
    if (changed := change_by_options(plan)) is not None:
        options, batch = changed
        reporter.note(f"`{spell_change(options)}`: {batch.words}")
    if (differs := _difference_of_config(plan)) is not None:
        reporter.note(differs)
    if plan.strategy is not None and (unused := _unused_configs(plan, plan.strategy)):
        reporter.note(unused)


def _unused_configs(plan: Plan, strategy: Strategy) -> str | None:
    """That a person has configs for the script, where the plan uses none, and how to use one."""
    facts, options = facts_of(plan.script), plan.options
    if facts is None or options.config is not None or facts.convention is Convention.NONE:
        return None
    # Path.resolve() raises no OSError on a loop before Python 3.13.
    used = os.path.realpath(config_file(options, strategy))
    paths = [str(path) for path in find_persons_configs(facts) if os.path.realpath(path) != used]
    named = ", ".join(f"`{path}`" for path in paths)
    file, are = (shell.quote(paths[0]), "is") if len(paths) == 1 else ("FILE", "are")
    unused = (
        f"{named} {are} not used: `$config {file} $stage auto` takes it as the base, and keeps all"
        f" but ZeRO and the batch; `$config {file}` alone runs it unchanged"
    )
    return unused if paths else None


def _choice_notes(plan: Plan) -> Iterator[str]:
    """What was chosen of what is open, and what was not."""
    searched = plan.search
    if searched is None or searched.choice is None:
        return
    if searched.choice.workload != plan.own_step:
        from zerowiz.ui import choice  # noqa: PLC0415 - most plans keep their step

        job = plan.resolved.job
        before = Evaluator(job).candidate(plan.own_step, searched.choice.strategy)
        own_job, constraints = replace(job, workload=plan.own_step), plan.resolved.constraints
        can_keep = before.evaluated.runs or decide(own_job, constraints).chosen is not None
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


# Encode what was decided as the contract has it.


def encode_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    limits: Sequence[Limit] | None = None,
) -> dict[str, object]:
    """The contract's object of what was decided."""
    strategy, decision = plan.strategy, plan.decision
    with in_english():
        reasons = sentences.reasons(decision)
    return encode_decision(
        decision,
        plan.search,
        version=__version__,
        reasons=reasons,
        remedies=[remedy.encode() for remedy in plan.remedies],
        settled=plan.resolved.settled,
        config_path=None if strategy is None else config_file(plan.options, strategy),
        command=command,
        env=env,
        limits=limits,
    )


class PlannedConfig(Struct, frozen=True, kw_only=True):
    """The config of a plan, with a person's edits of what zerowiz wrote before."""

    path: str
    written: Mapping[str, object]
    """Without the edits."""
    merged: Merged
    edited: EditedConfig | None
    """Where the edits are."""

    @property
    def file(self) -> PlannedFile:
        """What is written."""
        there = None if self.edited is None else self.edited.content
        return PlannedFile(
            path=self.path,
            text=render_config(self.merged.values),
            takes_over=there,
            conflicts=() if there is None else tuple(self._conflicts()),
        )

    def _conflicts(self) -> Iterator[str]:
        for edit in self.merged.conflicts:
            there = "removed" if edit.is_removed else json.dumps(edit.value)
            yield f"`{edit.key}` is {there}, and the plan needs {self._planned(edit.key)}"

    def _planned(self, key: str) -> str:
        value: object = self.written
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return "none" if value is None else json.dumps(value)


def plan_config(plan: Plan, strategy: Strategy) -> PlannedConfig:
    """The config that zerowiz writes for a plan.

    Args:
        plan: What was decided.
        strategy: The one that the job runs with.
    """
    path, resolved = config_file(plan.options, strategy), plan.resolved
    script = None if plan.script is None else plan.script.facts.target
    written = write_config(resolved.job, plan.decision.of(strategy), resolved.handover)
    edited = read_edits(path, script)
    merged = Merged(values=written) if edited is None else with_edits(written, edited.edits)
    return PlannedConfig(path=path, written=written, merged=merged, edited=edited)


def note_choices(plan: Plan, reporter: Reporter, *, is_asked: bool = False) -> None:
    """Note what was chosen, and what the config keeps of a person's base and edits.

    How it differs is shown where that is asked for.

    Args:
        plan: What was decided.
        reporter: Hears of it.
        is_asked: Whether a person decides next whether it is written: they see what differs.

    Raises:
        ConfigMistakeError: DeepSpeed would not take it, and nobody forces it.
    """
    note_settled(plan, reporter)
    options, strategy = plan.options, plan.strategy
    if strategy is None or options.own_config is not None:
        return
    planned = plan_config(plan, strategy)
    base = plan.resolved.handover.base
    removed = () if base is None else removed_keys(base, planned.written)
    if base is not None:
        reporter.note(_built_on(planned.path, options.base, base, removed))
    if base is not None or planned.edited is not None:
        from zerowiz.app.resolve.own_config import lint_built_config  # noqa: PLC0415 - seldom needed

        machine, values = plan.resolved.job.machine, planned.merged.values
        lint_built_config(planned.path, values, options, machine, plan.script, reporter)
    if planned.edited is not None and planned.merged.kept:
        reporter.note(_keeps_edits(planned.path, planned.edited.path, planned.merged.kept))
    if options.show_removed:
        for key in removed:
            value = json.dumps(key.value)
            reporter.note(f"`{options.base}`: `{key.key}` {value} is left out: {key.why}")
    if options.diff or (is_asked and base is not None):
        _show_difference(plan, planned, reporter)


# What of a base is worth a word; all else that is there stays as well.
_LEARNING = ("optimizer", "scheduler", "gradient_clipping")


def kept_keys(values: Mapping[str, object]) -> list[str]:
    """The keys that stay of a base, those first that decide how the model learns."""
    kept = [key for key in values if key not in REPLACED]
    return [*dict.fromkeys(key for key in (*_LEARNING, *kept) if key in kept)]


def _built_on(
    path: str, base: Path | None, values: Mapping[str, object], removed: Sequence[RemovedKey]
) -> str:
    """What a config keeps of the one that it is built on, and what of that the plan cannot have."""
    kept = ", ".join(f"`{key}`" for key in kept_keys(values)) or "nothing else"
    lost = ", ".join(f"`{key.key}`" for key in removed if key.is_lost)
    without = f"; the plan cannot have {lost} (`$show_removed` says why)" if lost else ""
    return (
        f"`{path}` is built on `{base}`: zerowiz replaces ZeRO and the batch, and keeps"
        f" {kept}{without}"
    )


def _keeps_edits(path: str, edited: str, edits: Sequence[KeyEdit]) -> str:
    """Which edits of a written config the new one keeps."""
    # A text may be a secret.
    numbers = (json.dumps(e.value) if isinstance(e.value, int | float) else "" for e in edits)
    keys = ", ".join(f"`{e.key}` {n}".rstrip() for e, n in zip(edits, numbers, strict=True))
    of_another = "" if path == edited else f" of `{edited}`"
    return f"`{path}` keeps your edits{of_another}: {keys}"


def _show_difference(plan: Plan, planned: PlannedConfig, reporter: Reporter) -> None:
    """Show how a config differs from the base, or from the file that is there."""
    base, path, wanted = plan.resolved.handover.base, planned.path, planned.file.text
    if base is not None:
        there = render_config(base).encode()
        edit = LostEdit(path=str(plan.options.base), there=there, wanted=wanted, new_path=path)
    else:
        there = read_named(Path(path)) if Path(path).is_file() else b""
        edit = LostEdit(path=path, there=there, wanted=wanted)
    if edit.there != wanted.encode():
        reporter.losses([edit])


def with_plan(
    plan: Plan, planned: PlannedConfig, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """The config and its plan file, in the order in which they are written.

    The plan goes first: a config is what a run takes, so where writing ends in between, no new
    config lies there without its reasons, and the hash in the plan shows that it is of another.
    """
    job, config = plan.decision.job, planned.file
    machine = without_identities(
        job.machine, hash_uuids, names_hosts=plan.options.hostfile is not None
    )
    # `command` and `env` stay null: the port, PATH and folders of one start on one host would
    # differ each time, and `reproduce` makes them anew.
    content = {**encode_plan(plan), "machine": encode_machine(machine)}
    python = ".".join(map(str, sys.version_info[:3]))
    libraries = {name: read_version(name) for name in LIBRARIES}
    provenance = Provenance(
        config=config,
        written=planned.written,
        argv=tuple(reproducing_words(plan, script, script_args)),
        versions={"zerowiz": __version__, "python": python, **libraries},
    )
    text = render_plan(content, provenance)
    return PlannedFile(path=plan_path(config.path), text=text), config


def plan_copy(copy: SettingsCopy) -> PlannedFile:
    """The copy of a settings file, as it is written."""
    return PlannedFile(
        path=copy.path,
        text=render_values(copy.path, copy.values),
        copy_of=copy.of,
        shown=render_values(copy.path, hide_secret_values(copy.values)),
    )


def reproducing_words(plan: Plan, script: str | None, script_args: Sequence[str]) -> list[str]:
    """The command that writes the same files, asking nothing; run where this one was.

    Args:
        plan: What was decided.
        script: Its path; None where a config is written alone.
        script_args: The words after it.
    """
    forced = ["--force"] if Reason.FORCED in plan.decision.reasons else []
    # An answers file may say something else by then.
    options = replace(plan.options, isolated=True)
    tool, command, *words = next_words(options, script, script_args, plan.decision.job.machine)
    return [tool, command, "--yes", *forced, *words]


def next_words(
    options: Options, script: str | None, script_args: Sequence[str], machine: Machine
) -> list[str]:
    """The command that goes on after a plan: it starts the script here, or writes its files.

    Args:
        options: As they were typed, with what is added to them.
        script: Its path; empty where an answers file names it, None without a script.
        script_args: The words after it.
        machine: That of the plan.
    """
    # A launch starts where it is: what was planned for another machine, `init` writes.
    command = "launch" if script is not None and is_here(machine) else "init"
    ran = ("--no-script",) if script is None else (script, *script_args) if script else ()
    return ["zerowiz", command, *as_words(options), *ran]


# Find that this machine is not what it was when the same script was planned before.


def find_machine_change(plan: Plan) -> MachineChange | None:
    """What has changed on this machine since the plan file of an earlier run was written.

    None for a plan of another machine, or where there is no earlier plan of this script beside
    the config.

    Args:
        plan: Of today; nothing of it is written yet.
    """
    machine = plan.resolved.job.machine
    if not is_here(machine):
        return None
    script = None if plan.script is None else plan.script.facts.target
    # The plans of all strategies lie side by side.
    files = read_plan_files(config_file(plan.options, plan.strategy or STRATEGIES[0]))
    plans = (read_earlier_plan(path, content, script) for path, content in files)
    earlier = next((other for other in plans if other is not None), None)
    if earlier is None:
        return None
    facts = compare_machines(earlier.machine, machine)
    if not facts:
        return None
    # A batch that somebody stated is what it was, and so is one on as many ranks.
    is_kept = plan.options.global_batch is not None
    if is_kept or machine.world_size == earlier.machine.world_size:
        return MachineChange(plan_path=earlier.path, facts=facts)
    batch = change_batch(earlier.global_batch, plan.resolved.job.workload, machine)
    batch = None if batch is None else with_way_to_keep(plan, batch)
    return MachineChange(plan_path=earlier.path, facts=facts, global_batch=batch)


# Say that the machine has changed since the last plan of a job.

_FACTS = {"nodes": " nodes", "gpus_per_node": " GPUs per node", "gpu_names": ""}


def note_change(plan: Plan, reporter: Reporter) -> None:
    """Note what has changed, and how the batch is kept.

    Args:
        plan: Of today; nothing of it is written yet.
        reporter: Hears of the change.
    """
    change = find_machine_change(plan)
    if change is None:
        return
    facts = (f"{fact.before} -> {fact.now}{_FACTS[fact.fact]}" for fact in change.facts)
    changed = f"the machine has changed since `{change.plan_path}`: {', '.join(facts)}"
    batch = "" if change.global_batch is None else f"; {change.global_batch.words}"
    reporter.note(f"{on_device(changed, plan.resolved.job.machine)}{batch}")
    has_other_ranks = any(fact.fact != "gpu_names" for fact in change.facts)
    if plan.script is not None and has_other_ranks and plan.script.resumes:
        reporter.note(
            f"`{RESUME}` continues on any number of ranks; the random numbers and each rank's"
            " share of the data are new"
        )
