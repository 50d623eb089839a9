"""Say which defaults a plan rests on."""

from collections.abc import Iterator

from zerowiz.core.decision.plan_input import PlanInput, longest_tokens
from zerowiz.core.decision.precision import why_no_bf16
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.settings import SettingRow
from zerowiz.core.workload.choices import Method
from zerowiz.core.workload.workload import SETTINGS, Workload
from zerowiz.words import _


def defaults_used(
    job: PlanInput, said: frozenset[str], settings: ScriptSettings
) -> tuple[str, ...]:
    """What nobody decided and the plan rests on, one clause each.

    Args:
        job: What the plan is for.
        said: The settings that somebody decided.
        settings: What the script shows, and what it decides without showing it.
    """
    always = {name: row for name, row in SETTINGS.items() if row.assumed_always}
    unseen = {n: row for n, row in SETTINGS.items() if n in settings.unseen and n not in always}
    ignored = (
        _("that `{code}` in line {line} has no effect", code=b.code, line=b.line)
        for b in settings.uncounted
    )
    return (*_clauses(always, job, said), *_clauses(unseen, job, said), *ignored)


def _clauses(rows: dict[str, SettingRow], job: PlanInput, said: frozenset[str]) -> Iterator[str]:
    shown = job.workload.settings()
    if job.model.architecture.reads_images:
        # The size of its images decides it.
        said |= {"sequence_tokens"}
    # What completions take has a default of its own.
    step = job.workload
    capped = not step.trainer.generates and step.sequence_tokens < Workload().sequence_tokens
    positions = (
        _(", its positions") if longest_tokens(job.model) is None else _(", its learned positions")
    )
    reasons = {
        "precision": why_no_bf16(job.machine, job.workload),
        "sequence_tokens": positions if capped else "",
    }
    adapts = job.workload.method is not Method.FULL
    instead = {"method": _("adapters beside frozen 16-bit weights")} if adapts else {}
    for name, row in rows.items():
        assumed = instead.get(name, row.assumed)
        if assumed is not None and name not in said and shown[name] is not None:
            why = reasons.get(name, "")
            yield f"{assumed.format(value=shown[name])}{why} (`${name}`)"
