"""Write a plan as one page that opens offline, with sliders over plans that were worked out."""

import json
from collections.abc import Sequence

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.search.grid import Grid, GridCell, index_of
from zerowiz.ui.page import machine, plan
from zerowiz.ui.page.blocks import bullets, prose, section
from zerowiz.ui.page.colours import style_rules
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.remedies import hint
from zerowiz.ui.sentences import machines, models
from zerowiz.ui.text.plain import escape
from zerowiz.ui.text.units import gpus
from zerowiz.words import _, language


def write(
    decision: Decision,
    grid: Grid,
    remedies: Sequence[Remedy],
    notes: Sequence[str],
    *,
    style: str,
    script: str,
    version: str,
) -> str:
    """The page, whole.

    Args:
        decision: The plan.
        grid: The plans with other settings.
        remedies: What would help, where nothing fits.
        notes: What the plan rests on.
        style: Of `page.css`.
        script: Of `page.js`.
        version: Of zerowiz.
    """
    job = decision.job
    title = escape(_("{model} on {machine}", model=job.model.name, machine=gpus(job.machine)))
    slots = Slots()
    drawn = plan.body(grid.own, decision, slots)
    return "".join(
        (
            "<!doctype html>\n",
            f'<html lang="{language()}"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_('{title}: plan by zerowiz', title=title)}</title>",
            f"<style>{style_rules()}{style}</style></head><body>",
            f"<header><h1>{title}</h1>",
            '<button type="button" id="theme" aria-pressed="false" hidden>',
            f"{_('Dark')}</button></header>",
            f"<main>{_job(decision)}{_sliders(grid)}{drawn}",
            _links(decision),
            _list("remedies", _("What would help the plan"), [hint(each) for each in remedies]),
            _list("notes", _("What the plan assumes"), notes),
            f"</main><footer><p>{_planned_by(version)}</p></footer>",
            _data(grid, decision),
            f"<script>{script}</script></body></html>\n",
        )
    )


def _planned_by(version: str) -> str:
    return _(
        "Planned by zerowiz {version}. Memory and times are predicted; nothing was measured for"
        " this page.",
        version=escape(version),
    )


def _job(decision: Decision) -> str:
    job = decision.job
    step = job.workload
    words = _(
        "{model}. {precision}, {states} optimizer states, {method}, accumulation"
        " {accumulation_steps}, {checkpointing}.",
        model=models.model(job.model),
        precision=step.precision,
        states=job.state_format,
        method=models.method(step.method),
        accumulation_steps=step.accumulation_steps,
        checkpointing=_("with gradient checkpointing")
        if step.gradient_checkpointing
        else _("without gradient checkpointing"),
    )
    return f'<p class="dim">{escape(words)}</p>'


def _sliders(grid: Grid) -> str:
    batch, length = index_of(grid, grid.own)
    why = prose(grid.why_fewer)
    note = f'<p class="dim">{_("No other settings: {why}", why=why)}</p>' if why else ""
    return (
        f'<form id="sliders" hidden><fieldset><legend>{_("Other settings")}</legend>'
        + _slider("micro-batch", _("Micro-batch"), grid.micro_batch_stops, batch)
        + _slider("length", _("Tokens in a sequence"), grid.sequence_tokens, length)
        + f'<button type="reset">{_("Back to the plan")}</button>{note}</fieldset></form>'
        + f"<noscript><p>{_('The sliders for other settings need JavaScript.')}</p></noscript>"
    )


def _slider(name: str, label: str, stops: Sequence[int], at: int) -> str:
    disabled = " disabled" if len(stops) == 1 else ""
    return (
        f'<p class="slider"><label for="{name}">{label}</label>'
        f'<input type="range" id="{name}" min="0" max="{len(stops) - 1}" step="1" value="{at}"'
        f' data-stops="{" ".join(map(str, stops))}" aria-valuetext="{stops[at]}"{disabled}>'
        f'<output for="{name}" aria-hidden="true">{stops[at]}</output></p>'
    )


def _links(decision: Decision) -> str:
    found = decision.job.machine
    return section(
        "links", _("Links"), f"<p>{escape(machines.links(found))}</p>{machine.links(found)}"
    )


def _list(name: str, title: str, texts: Sequence[str]) -> str:
    return section(name, title, bullets(texts)) if texts else ""


def _data(grid: Grid, decision: Decision) -> str:
    """The values of each plan, in the order of the slots; each text stands once."""
    filled = [values_of(cell, decision) for cell in grid.cells]
    places: dict[str, int] = {}
    plans = [[places.setdefault(text, len(places)) for text in values] for values in filled]
    content = json.dumps({"texts": list(places), "plans": plans}, separators=(",", ":"))
    # Nothing in a text may end the element.
    inside = content.replace("<", "\\u003c")
    return f'<script type="application/json" id="plans">{inside}</script>'


def values_of(cell: GridCell, otherwise: Decision) -> list[str]:
    """What the slots hold for a plan.

    Args:
        cell: The plan.
        otherwise: What fills the slots where it has no decision.
    """
    slots = Slots()
    plan.body(cell, cell.decision or otherwise, slots)
    return slots.values
