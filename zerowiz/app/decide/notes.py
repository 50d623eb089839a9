"""Note what a plan rests on, what was chosen, and what changes what the model learns."""

from collections.abc import Iterator
from pathlib import Path

from zerowiz.app.decide.batch_change import change_by_options
from zerowiz.app.decide.decision import Plan
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.basis import find_basis
from zerowiz.app.resolve.request import config_file
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.flowchart import decide
from zerowiz.core.decision.precision import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.dsconfig.write import own_values, write_config
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.search.cover import Evaluator
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.ui import choice
from zerowiz.ui.basis import learning, notes


def note_settled(plan: Plan, reporter: Reporter) -> None:
    """Note what was chosen, and the words that are added after the script, before all else."""
    if plan.strategy is None:
        return
    for note in _choice_notes(plan):
        reporter.note(note)
    if plan.request.settled:
        reporter.note(notes.settled(plan.request.settled, plan.request.copied))
    if (changed := change_by_options(plan)) is not None:
        reporter.note(learning.batch_by_options(*changed))
    for note in _own_values(plan, plan.strategy):
        reporter.note(note)


def _own_values(plan: Plan, strategy: Strategy) -> Iterator[str]:
    """What the config that is written decides by itself, and the configs that could do so."""
    facts, request = plan.facts, plan.request
    reaches = facts is None or (facts.obstacle is None and facts.convention is not Convention.NONE)
    if plan.options.config is not None or not reaches:
        return
    config = write_config(request.job, plan.decision.of(strategy), request.handover)
    by_script = () if facts is None else [use.keys[-1] for use in facts.config_keys if use.sets]
    optimizer, values = own_values(config, by_script)
    if not values:
        return
    path = config_file(plan.options, strategy)
    yield learning.own_values(path, optimizer, values)
    if facts is not None and (unused := _unused_configs(facts, path)):
        yield learning.unused_configs(unused)


def _unused_configs(facts: ScriptFacts, used: str) -> list[str]:
    """The configs that a person has beside the script, but for the one that is used."""
    from zerowiz.probe.launch.plan_files import find_persons_configs  # noqa: PLC0415 - seldom needed

    found = find_persons_configs(Path(facts.text_path).parent)
    return [str(path) for path in found if path.absolute() != Path(used).absolute()]


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


def note_emulation(plan: Plan, reporter: Reporter) -> None:
    """Warn of a bf16 that the CPU would emulate, where no doctor's finding will say it."""
    job = plan.request.job
    if emulates_bf16(job.machine, job.workload):
        reporter.note(BF16_IS_EMULATED)
