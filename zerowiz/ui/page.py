"""Write the HTML page of a plan."""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence

from zerowiz.core.command_words import spell
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, parts
from zerowiz.core.decision.flowchart import Decision, FlowchartQuestion, FlowchartStep, find_path
from zerowiz.core.decision.open_settings import Grid, GridCell
from zerowiz.core.decision.remedies import Remedy
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.allocations import MemoryPart
from zerowiz.core.workload import Accounting
from zerowiz.translation import N_, _, language
from zerowiz.ui import remedies, sentences
from zerowiz.ui.pictures import (
    ANSWER_COLOURS,
    SIGNS,
    VERDICT_COLOURS,
    end_sizes,
    is_followed,
    other_branch,
    widest_bytes,
)
from zerowiz.ui.remedies import hint
from zerowiz.ui.text import (
    Colour,
    bare_gib,
    escape,
    gib,
    gpus,
    on_device,
    rate_of,
    rate_unit,
    seconds,
    size_of,
)

# The colours of the page, its tables, and the values that its sliders exchange.

LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "card": "#f5f7f9",
    "text": "#1a1d21",
    "dim": "#565d66",
    "line": "#c9ced6",
    "link": "#0b5cad",
    "good": "#17693b",
    "doubt": "#8f2a84",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "page": "#14181d",
    "card": "#1d232a",
    "text": "#e6e9ee",
    "dim": "#a3abb6",
    "line": "#434b56",
    "link": "#7fb8ff",
    "good": "#6fd08c",
    "doubt": "#e79be0",
    "bad": "#ff8d85",
}

PARTS: Mapping[MemoryPart, str] = {
    MemoryPart.WEIGHTS: "#4c86d8",
    MemoryPart.GRADIENTS: "#1f9aa8",
    MemoryPart.OPTIMIZER: "#b06fd0",
    MemoryPart.ACTIVATIONS: "#3d9a4a",
    MemoryPart.LOGITS: "#c07c1a",
    MemoryPart.BUFFERS: "#858b94",
    MemoryPart.CONTEXT: "#a27b5c",
    MemoryPart.VLLM: "#dd5f5f",
}
"""Seen on a light and on a dark page; a black letter in each can be read."""

_CLASSES: Mapping[Colour, str] = {
    Colour.GOOD: "good",
    Colour.DOUBT: "doubt",
    Colour.BAD: "bad",
}
VERDICTS: Mapping[Verdict, str] = {
    verdict: _CLASSES[colour] for verdict, colour in VERDICT_COLOURS.items()
}
ANSWERS: Mapping[str, str] = {answer: _CLASSES[colour] for answer, colour in ANSWER_COLOURS.items()}


def style_rules() -> str:
    """The colours as CSS variables: by the system's theme, by the page's own, and on paper."""
    light, dark = _variables(LIGHT), _variables(DARK)
    parts = "".join(
        f".{part.name.lower()}{{fill:{colour};background:{colour}}}"
        for part, colour in PARTS.items()
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}"
        f"{parts}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


# Write the blocks that stand in many places of a page.


def element(tag: str, text: str, attributes: str = "") -> str:
    """An element with a text, of which what is typed has no marks."""
    opened = f"{tag} {attributes}" if attributes else tag
    return f"<{opened}>{escape(text.replace('`', ''))}</{tag}>"


def section(name: str, title: str, content: str) -> str:
    """A part of the page under its heading.

    Args:
        name: What ids are made of.
        title: Its heading.
        content: As HTML.
    """
    start = f'<section id="s-{name}" aria-labelledby="h-{name}">'
    return f'{start}<h2 id="h-{name}">{escape(title)}</h2>{content}</section>'


def table(caption: str, head: Iterable[str], rows: str, more: Container[str] = frozenset()) -> str:
    """A table that scrolls by itself where the page is narrow, also by keyboard.

    Args:
        caption: What it shows.
        head: The headings of its columns, in English: they are shown in the person's language.
        rows: As HTML.
        more: The headings of those that a narrow page leaves out; their cells say so, too.
    """
    cells = "".join(
        f'<th scope="col"{" class=more" if heading in more else ""}>{escape(_(heading))}</th>'
        for heading in head
    )
    label = escape(caption)
    return (
        f'<p class="dim" aria-hidden="true">{label}</p>'
        f'<div class="wide" tabindex="0" role="group" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def prose(text: str) -> str:
    """A sentence, what is typed in it as code."""
    typed = re.sub(r"`([^`\s]{1,30})`", r'<code class="word">\1</code>', escape(spell(text)))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", typed)


def bullets(texts: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


# Write the flowchart of a plan.


def steps(decision: Decision) -> str:
    """Each question with its answer, the branch that was not taken, and where the path ends."""
    path = find_path(decision)
    asked = list(path.steps)
    items = "".join(_item(decision, step, is_last=step is asked[-1]) for step in asked)
    called, kind, numbers = _("none"), "bad", ""
    if path.end is not None:
        called, kind = _(path.end.strategy.short_words), VERDICTS[path.end.verdict]
        numbers = f": {end_sizes(decision, path.end)}"
    end = element("b", called, f'class="{kind}"') + element("span", numbers)
    return f'<ol class="path">{items}<li class="end">{end}</li></ol>'


def _item(decision: Decision, step: FlowchartStep, *, is_last: bool) -> str:
    machine, question = decision.job.machine, step.answer.question
    strategy = None if step.about is None else step.about.strategy
    asked = on_device(sentences.question(question, strategy), machine)
    answer = sentences.answered(decision, step.answer)
    is_link = question is FlowchartQuestion.FAST_INTERCONNECT
    link = f": {sentences.links(machine)}" if is_link else ""
    branch = ""
    if not is_followed(step, is_last=is_last):
        other = on_device(other_branch(decision, step), machine)
        branch = element("span", other, 'class="branch"')
    answered = element("b", answer, f'class="{ANSWERS.get(answer, "")}"')
    return f"<li>{element('span', asked)} {answered}{element('span', link)}{branch}</li>"


# Write a machine: its GPUs.


def summary(machine: Machine) -> str:
    """Its devices and links in one sentence."""
    return f"{gpus(machine)} ({sentences.source(machine)}); {sentences.links(machine)}"


def devices(machine: Machine) -> str:
    """A row for each."""
    rows = "".join(
        f'<tr><th scope="row">{escape(gpu.label)}</th><td class="words">{escape(gpu.name)}</td>'
        f"<td>{gib(gpu.total_bytes)}</td><td>{gib(gpu.free_bytes)}</td></tr>"
        for gpu in machine.gpus
    )
    title = on_device("GPU", machine)
    return table(
        on_device(_("The GPUs of a node"), machine), (title, "name", N_("memory"), "free"), rows
    )


# Draw what each GPU holds: a bar for each strategy against the budget, and the same as a table.

# A narrower part has no room for its letter, in per cent of the bar.
_LETTER_PERCENT = 4.0


class Scale:
    """How long a size is, in per cent of the widest bar."""

    def __init__(self, decision: Decision) -> None:
        totals = [evaluated.device_bytes for evaluated in decision.evaluated]
        self.most_bytes = widest_bytes(totals, decision.job.gpu_budget_bytes)

    def percent(self, size_bytes: int) -> float:
        """Never beyond the end."""
        return min(100.0, 100 * size_bytes / self.most_bytes)


def bars(decision: Decision) -> str:
    """A bar for each strategy; what each part is stands in the legend and in the table."""
    scale = Scale(decision)
    rows = "".join(_row(decision, evaluated, scale) for evaluated in decision.evaluated)
    return f'<div class="bars">{rows}</div>'


def _row(decision: Decision, evaluated: StrategyEstimate, scale: Scale) -> str:
    kind = "row chosen" if evaluated is decision.chosen else "row"
    needs = element("span", f"{bare_gib(evaluated.device_bytes)} GiB", 'class="number"')
    return (
        f'<div class="{kind}"><span class="name">{_(evaluated.strategy.short_words)}</span>'
        '<svg class="bar" width="100%" height="22" aria-hidden="true">'
        f"{bar(decision, evaluated, scale)}</svg>{needs}</div>"
    )


def bar(decision: Decision, evaluated: StrategyEstimate, scale: Scale) -> str:
    """The shapes of one bar."""
    sizes = parts(decision.job, evaluated)
    at = scale.percent(decision.job.gpu_budget_bytes or 0)
    drawn, end_bytes = "", 0
    for part in MemoryPart:
        begin = scale.percent(end_bytes)
        end_bytes += sizes.get(part, 0)
        drawn += _part(part, (begin, scale.percent(end_bytes)), at)
    if decision.job.gpu_budget_bytes:
        # The line has an edge of the ground's colour, so that it is seen on every part.
        drawn += (
            f'<svg aria-hidden="true" overflow="visible" x="{at:.1f}%">'
            '<rect class="edge" x="-2" width="4" height="22"/>'
            '<rect class="budget" x="-1" width="2" height="22"/></svg>'
        )
    if evaluated.device_bytes > scale.most_bytes:
        drawn += '<text x="100%" dx="-4" y="16" text-anchor="end" class="cut">»</text>'
    return drawn


def _part(part: MemoryPart, span: tuple[float, float], budget_percent: float) -> str:
    begin, end = span
    first, last = _lettered(begin, end, budget_percent)
    rectangle = (
        f'<rect class="{part.name.lower()}" y="3" height="16" x="{begin:.1f}%"'
        f' width="{end - begin:.1f}%"/>'
    )
    if last - first < _LETTER_PERCENT:
        return rectangle
    middle = f"{(first + last) / 2:.1f}%"
    letter = f'<text y="15" text-anchor="middle" x="{middle}" class="letter">'
    return f"{rectangle}{letter}{SIGNS[part][0]}</text>"


def _lettered(begin: float, end: float, budget_percent: float) -> tuple[float, float]:
    """The span, or where the line of the budget cuts it the longer piece."""
    if not begin < budget_percent < end:
        return begin, end
    pieces = (begin, budget_percent), (budget_percent, end)
    return max(pieces, key=lambda piece: piece[1] - piece[0])


def legend(decision: Decision) -> str:
    """What the colours and letters mean."""
    items = "".join(
        f'<li><span class="swatch {part.name.lower()}" aria-hidden="true">{SIGNS[part][0]}</span>'
        f" {_(part.value)}</li>"
        for part in _shown(decision)
    )
    tick = f'<li><span class="tick" aria-hidden="true"></span> {_("budget")}</li>'
    return f'<ul class="legend">{items}{tick}</ul>'


def _shown(decision: Decision) -> list[MemoryPart]:
    has_vllm = any(evaluated.vllm is not None for evaluated in decision.evaluated)
    return [part for part in MemoryPart if part is not MemoryPart.VLLM or has_vllm]


def numbers(decision: Decision) -> str:
    """The same as a table."""
    shown = _shown(decision)
    rows = "".join(_table_row(decision, evaluated, shown) for evaluated in decision.evaluated)
    caption = on_device(_("GiB of each GPU, where it is fullest"), decision.job.machine)
    return table(caption, ("strategy", *shown, N_("sum")), rows)


def _table_row(decision: Decision, evaluated: StrategyEstimate, shown: list[MemoryPart]) -> str:
    held = parts(decision.job, evaluated)
    sizes = (*(held.get(part, 0) for part in shown), evaluated.device_bytes)
    cells = "".join(f"<td>{bare_gib(size_bytes)}</td>" for size_bytes in sizes)
    return f'<tr><th scope="row">{_(evaluated.strategy.short_words)}</th>{cells}</tr>'


# Write every strategy as a row of a table: what people decide by.

_MORE = frozenset({N_("host"), N_("s a step")})


def strategy_numbers(decision: Decision) -> str:
    """The chosen one is marked by a word too."""
    rows = "".join(_strategy_row(decision, evaluated) for evaluated in decision.evaluated)
    caption = _("Sizes in GiB of each GPU, and of a node's host; times of a step in seconds")
    rate = rate_unit(each.step_time for each in decision.evaluated)
    headings = ("strategy", "needs", "free", "host", rate, "s a step", "verdict")
    return table(on_device(caption, decision.job.machine), headings, rows, _MORE)


def _strategy_row(decision: Decision, evaluated: StrategyEstimate) -> str:
    is_chosen = evaluated is decision.chosen
    host = bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-"
    kind = "" if evaluated.is_host_unknown else VERDICTS[evaluated.verdict]
    named = element("span", _(", chosen")) if is_chosen else ""
    # As at a terminal: what does not fit has no speed.
    is_timed = evaluated.runs or evaluated.is_host_unknown
    return (
        f'<tr class="{"chosen" if is_chosen else ""}">'
        f'<th scope="row">{_(evaluated.strategy.short_words)}{named}</th>'
        + element("td", bare_gib(evaluated.device_bytes))
        + element("td", bare_gib(evaluated.headroom_bytes))
        + element("td", host, 'class="more"')
        + element("td", rate_of(evaluated.step_time) if is_timed else "-")
        + element("td", bounds(evaluated), 'class="more"')
        + element("td", sentences.verdict(evaluated), f'class="{kind}"')
        + "</tr>"
    )


def bounds(evaluated: StrategyEstimate) -> str:
    """Between which seconds a step lies: `0.530 to 1.62`."""
    time = evaluated.step_time
    if time is None:
        return "-"
    return _(
        "{low_seconds} to {high_seconds}",
        low_seconds=seconds(time.low_seconds),
        high_seconds=seconds(time.high_seconds),
    )


# Write what changes from plan to plan: the answer, its flowchart, its pictures and its tables.


def answered(cell: GridCell) -> str:
    """The answer, and what speaks for it."""
    kind = f'class="answer {answer_kind(cell)}"'
    return element("p", answer(cell), kind) + element("p", why(cell))


def drawn(cell: GridCell) -> str:
    """What the answer comes from; nothing where the job cannot be so."""
    decision = cell.decision
    if decision is None:
        return ""
    is_timed = any(evaluated.step_time is not None for evaluated in decision.evaluated)
    why = "" if is_timed else _("No time is predicted: {why}.", why=decision.job.why_untimed)
    untimed = element("p", on_device(why, decision.job.machine))
    memory = on_device(_("Memory of each GPU"), decision.job.machine)
    return "".join(
        (
            section("flowchart", _("Flowchart"), steps(decision)),
            section("memory", memory, _memory(decision)),
            section("strategies", _("Strategies"), untimed + strategy_numbers(decision)),
        )
    )


def _memory(decision: Decision) -> str:
    budget_bytes = decision.job.gpu_budget_bytes
    words = _(
        "Where it is fullest. The budget is {budget}.",
        budget=_("unknown") if budget_bytes is None else gib(budget_bytes),
    )
    return "".join(
        (
            f'<p class="dim">{words}</p>',
            bars(decision),
            legend(decision),
            f"<details><summary>{_('Memory as a table')}</summary>",
            numbers(decision),
            "</details>",
        )
    )


def answer(cell: GridCell) -> str:
    """The settings and what they lead to, in one sentence."""
    step = _(
        "Micro-batch {micro_batch}, {sequence_tokens} tokens",
        micro_batch=cell.micro_batch,
        sequence_tokens=cell.sequence_tokens,
    )
    if cell.decision is None:
        return f"{step}: {spell(cell.refusal)}"
    return f"{step}: {_leads_to(cell.decision)}"


def _leads_to(decision: Decision) -> str:
    """What was chosen, its memory and time; or what the closest lacks."""
    chosen = decision.chosen
    if chosen is None:
        return sentences.nothing_fits(decision)
    fits = remedies.fits(_(chosen.strategy.words), chosen.verdict)
    needs = f"{fits}: {size_of(chosen.device_bytes, chosen.budget_bytes)}"
    time = chosen.step_time
    if time is None:
        return needs
    step = _(
        "{expected_seconds} s a step ({bounds})",
        expected_seconds=seconds(time.expected_seconds),
        bounds=bounds(chosen),
    )
    return _(
        "{needs}, {step}, {rate} {unit}",
        needs=needs,
        step=step,
        rate=rate_of(time),
        unit=rate_unit([time]),
    )


def answer_kind(cell: GridCell) -> str:
    """The colour of the answer."""
    if cell.decision is None or cell.decision.chosen is None:
        return "bad"
    return VERDICTS[cell.decision.chosen.verdict]


def why(cell: GridCell) -> str:
    """What speaks for the choice."""
    return "" if cell.decision is None else "; ".join(sentences.reasons(cell.decision))


# Write a plan as one page that opens offline, with sliders over plans that were worked out.


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
    status = f'<div id="answer" role="status">{answered(grid.own)}</div>'
    helps = [hint(remedy) for remedy in remedies]
    joined = f"<p>{escape(sentences.links(job.machine))}</p>"
    planned_by = _(
        "Planned by zerowiz {version}. Memory and times are predicted; nothing was measured for"
        " this page.",
        version=escape(version),
    )
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
            f"<main>{section('answer', _('Answer'), status)}",
            _list("remedies", _("What would help the plan"), helps),
            f'{_job(decision)}{_sliders(grid)}<div id="drawn">{drawn(grid.own)}</div>',
            section("links", _("Links"), joined),
            _list("notes", _("What the plan assumes"), notes),
            f"</main><footer><p>{planned_by}</p></footer>",
            _data(grid),
            f"<script>{script}</script></body></html>\n",
        )
    )


def _job(decision: Decision) -> str:
    job = decision.job
    step = job.workload
    words = _(
        "{model}. {precision}, {states} optimizer states, {method}, accumulation"
        " {accumulation_steps}, {checkpointing}.",
        model=sentences.model(job.model),
        precision=step.precision,
        states=job.state_format,
        method=sentences.method(step.method),
        accumulation_steps=step.accumulation_steps,
        checkpointing=_("with gradient checkpointing")
        if step.gradient_checkpointing
        else _("without gradient checkpointing"),
    )
    return f'<p class="dim">{escape(words)}</p>'


def _sliders(grid: Grid) -> str:
    batch = grid.micro_batch_stops.index(grid.own.micro_batch)
    length = grid.sequence_tokens.index(grid.own.sequence_tokens)
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


def _list(name: str, title: str, texts: Sequence[str]) -> str:
    return section(name, title, bullets(texts)) if texts else ""


def _data(grid: Grid) -> str:
    """The answer and the pictures of each plan, in pieces that end with a tag: each stands once."""
    places: dict[str, int] = {}
    plans = [
        [
            [places.setdefault(piece, len(places)) for piece in re.split("(?<=>)", html)]
            for html in (answered(cell), drawn(cell))
        ]
        for cell in grid.cells
    ]
    content = json.dumps({"pieces": list(places), "plans": plans}, separators=(",", ":"))
    # Nothing in a text may end the element.
    inside = content.replace("<", "\\u003c")
    return f'<script type="application/json" id="plans">{inside}</script>'


# Write a plan or a machine for a notebook: a piece of HTML that needs no script.

# A notebook has colours of its own, light or dark: text and lines take theirs.
_RULES = (
    "th,td{text-align:right;padding:.1rem .5rem}",
    "th:first-child{text-align:left}",
    ".first{display:flex;flex-wrap:wrap;gap:0 2rem}",
    ".first>div{flex:1 1 20rem}",
    ".first>div:empty{display:none}",
    ".row{display:grid;grid-template-columns:12rem minmax(8rem,30rem) 6rem;gap:.75rem}",
    ".chosen{font-weight:bold}",
    ".bar text{font-size:12px;fill:#000}",
    # A notebook's ground is not known: parts are told apart by a black edge, as their letters are.
    ".bar>rect{stroke:#000;stroke-width:.5}",
    ".bar .edge{fill:#fff}",
    ".bar .budget{fill:#000}",
    ".legend{list-style:none;padding:0}",
    ".legend li{display:inline-block;margin-right:1rem}",
    ".swatch{display:inline-block;width:1.25rem;text-align:center;color:#000}",
    ".tick{display:inline-block;border-left:2px solid currentColor;height:1em}",
    ".branch{display:block;opacity:.8;padding-left:1rem}",
    ".path{list-style:none;padding-left:1rem;border-left:3px solid}",
)


def _wrapped(content: str) -> str:
    """With its style, which reaches nothing else in the notebook."""
    parts = (f".{part.name.lower()}{{fill:{c};background:{c}}}" for part, c in PARTS.items())
    style = "".join(f".zerowiz {rule}" for rule in (*_RULES, *parts))
    return f'<div class="zerowiz"><style>{style}</style>{content}</div>'


def plan(decision: Decision, remedies: Sequence[Remedy]) -> str:
    """The answer, beside it what would help; the flowchart, every strategy, and what each holds."""
    why = prose("; ".join(sentences.reasons(decision)))
    by_part = ""
    if decision.job.accounting is Accounting.REAL:
        by_part = bars(decision) + legend(decision)
    helps = bullets(hint(remedy) for remedy in remedies)
    heading = f"<p>{_('What would help:')}</p>"
    return _wrapped(
        f'<div class="first"><div><p><b>{prose(_leads_to(decision))}</b></p><p>{why}</p></div>'
        f"<div>{heading + helps if helps else ''}</div></div>"
        f"{steps(decision)}{strategy_numbers(decision)}{by_part}"
    )


def of_machine(value: Machine) -> str:
    """Its GPUs, what links them, and what is remarked on it."""
    notes = bullets(value.notes)
    return _wrapped(f"<p>{escape(summary(value))}</p>{devices(value)}{notes}")
