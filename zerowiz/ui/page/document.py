"""Write a plan as one page that opens offline, with sliders over plans that were worked out."""

import json
from collections.abc import Sequence
from html import escape

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.grid import Grid, GridCell, index_of
from zerowiz.core.flags import spell
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.ui import sentences
from zerowiz.ui.page import machine, plan
from zerowiz.ui.page.blocks import bullets, section
from zerowiz.ui.page.colours import style_rules
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.remedies import hint
from zerowiz.ui.text.units import gpus


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
    title = escape(f"{job.model.name} on {gpus(job.machine)}")
    slots = Slots()
    body = plan.body(grid.own, decision, slots)
    return "".join(
        (
            "<!doctype html>\n",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}: plan by zerowiz</title>",
            f"<style>{style_rules()}{style}</style></head><body>",
            f"<header><h1>{title}</h1>",
            '<button type="button" id="theme" aria-pressed="false" hidden>Dark</button></header>',
            f"<main>{_job(decision)}{_sliders(grid)}{body}",
            _links(decision),
            _list("remedies", "What would help the plan", [hint(each) for each in remedies]),
            _list("notes", "What the plan rests on", notes),
            f"</main><footer><p>Planned by zerowiz {escape(version)}. Memory and times are",
            " predicted; nothing was measured for this page.</p></footer>",
            _data(grid, decision),
            f"<script>{script}</script></body></html>\n",
        )
    )


def _job(decision: Decision) -> str:
    job = decision.job
    step = job.workload
    checkpointing = "with" if step.gradient_checkpointing else "without"
    words = (
        f"{sentences.model(job.model)}. {step.precision}, {job.state_format} optimizer states,"
        f" {step.method}, accumulation {step.accumulation_steps}, {checkpointing} gradient"
        " checkpointing."
    )
    return f'<p class="dim">{escape(words)}</p>'


def _sliders(grid: Grid) -> str:
    batch, length = index_of(grid, grid.own)
    why = escape(spell(grid.why_fewer))
    note = f'<p class="dim">No other settings: {why}</p>' if why else ""
    return (
        '<form id="sliders" hidden><fieldset><legend>Other settings</legend>'
        + _slider("micro-batch", "Micro-batch", grid.micro_batch_stops, batch)
        + _slider("length", "Tokens in a sequence", grid.sequence_tokens, length)
        + f'<button type="reset">Back to the plan</button>{note}</fieldset></form>'
        + "<noscript><p>The sliders for other settings need JavaScript.</p></noscript>"
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
        "links", "Links", f"<p>{escape(sentences.links(found))}</p>{machine.links(found)}"
    )


def _list(name: str, title: str, texts: Sequence[str]) -> str:
    return section(name, title, bullets(map(spell, texts))) if texts else ""


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
