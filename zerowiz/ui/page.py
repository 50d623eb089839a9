"""Write a plan or a machine as HTML: a page that opens offline, or a piece of a notebook."""

import io
import re
from collections.abc import Iterable, Sequence

from zerowiz.core.command_words import spell
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.remedies import Remedy
from zerowiz.core.machine.types import Machine
from zerowiz.core.workload import Accounting
from zerowiz.translation import _, language
from zerowiz.ui import machine, pictures, sentences, show
from zerowiz.ui.remedies import hint
from zerowiz.ui.text import Colour, Line, Picture, escape, gpus, on_device
from zerowiz.ui.wizard import consequence

STYLE = """\
.zerowiz section{flex:1 1 22rem;min-width:0;margin:0 0 1rem;overflow-wrap:anywhere}
.zerowiz section:has(pre){flex-basis:100%}
.zerowiz .parts{display:flex;flex-wrap:wrap;gap:0 2rem}
.zerowiz h2{font-size:1.125rem;margin:0}
.zerowiz p,.zerowiz ul{margin:.25rem 0}
.zerowiz pre{margin:.25rem 0;font:.8125rem/1.4 "DejaVu Sans Mono",Menlo,Consolas,monospace}
.zerowiz .wide{overflow-x:auto}
.zerowiz .lines{white-space:pre-wrap}
.zerowiz code{display:inline-block;font:.9375em "DejaVu Sans Mono",Menlo,Consolas,monospace}
.zerowiz table{border-collapse:collapse;white-space:nowrap}
.zerowiz :is(td,th){padding:.125rem .5rem;border-bottom:1px solid;text-align:right;font-weight:400}
.zerowiz :is(td,th):is(:first-child,:last-child){text-align:left}
.zerowiz .label{font-weight:700}
.zerowiz .good{color:var(--good)}
.zerowiz .doubt{color:var(--doubt)}
.zerowiz .bad{color:var(--bad)}
.zerowiz .dim{color:var(--dim)}
.zerowiz :is(.blue,.cyan,.magenta,.green,.yellow,.grey,.dark,.red){color:#000}
.zerowiz .blue{background:#4c86d8}
.zerowiz .cyan{background:#1f9aa8}
.zerowiz .magenta{background:#b06fd0}
.zerowiz .green{background:#3d9a4a}
.zerowiz .yellow{background:#c07c1a}
.zerowiz .grey{background:#858b94}
.zerowiz .dark{background:#a27b5c}
.zerowiz .red{background:#dd5f5f}
body.zerowiz{color-scheme:light dark;margin:0 auto;padding:0 1rem;max-width:64rem;
background:var(--page);color:var(--text);font:1rem/1.5 system-ui,sans-serif;
--page:#ffffff;--text:#1a1d21;--dim:#565d66;--good:#17693b;--doubt:#8f2a84;--bad:#b3261e}
@media (prefers-color-scheme:dark){body.zerowiz{
--page:#14181d;--text:#e6e9ee;--dim:#a3abb6;--good:#6fd08c;--doubt:#e79be0;--bad:#ff8d85}}
@media print{.zerowiz *{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
"""A notebook has colours of its own, light or dark: verdicts have theirs on a page alone."""

# As wide as a terminal's picture is at most.
_COLUMNS = 100


def page(decision: Decision, remedies: Sequence[Remedy], notes: Sequence[str], version: str) -> str:
    """A plan as a page, whole.

    Args:
        decision: The plan.
        remedies: What would help.
        notes: What the plan rests on.
        version: Of zerowiz.
    """
    job = decision.job
    title = escape(_("{model} on {machine}", model=job.model.name, machine=gpus(job.machine)))
    planned_by = _(
        "Planned by zerowiz {version}. Memory and times are predicted; nothing was measured for"
        " this page.",
        version=escape(version),
    )
    parts = [*_parts(decision, remedies), (_("What the plan assumes"), _bullets(notes))]
    return (
        f'<!doctype html>\n<html lang="{language()}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_('{title}: plan by zerowiz', title=title)}</title><style>{STYLE}</style></head>"
        f'<body class="zerowiz"><main><h1>{title}</h1>{_sections(parts, "h2")}</main>'
        f"<footer><p>{planned_by}</p></footer></body></html>\n"
    )


def plan(decision: Decision, remedies: Sequence[Remedy]) -> str:
    """A plan as a piece of HTML, for a notebook."""
    return _piece(_sections(_parts(decision, remedies), "b"))


def of_machine(value: Machine) -> str:
    """A machine as a terminal shows it, for a notebook."""
    stream = io.StringIO()
    machine.machine(value, stream)
    notes = _bullets(value.notes)
    return _piece(f'<pre class="wide">{escape(stream.getvalue())}</pre>{notes}')


def _piece(content: str) -> str:
    """With its style, which reaches nothing else in the notebook."""
    return f'<div class="zerowiz"><style>{STYLE}</style>{content}</div>'


def _parts(decision: Decision, remedies: Sequence[Remedy]) -> list[tuple[str, str]]:
    """The titles and contents of a plan: its answer first, beside it what would help."""
    job, chosen = decision.job, decision.chosen
    answer = sentences.nothing_fits(decision) if chosen is None else consequence(decision)
    why = "; ".join(sentences.reasons(decision))
    step = (
        sentences.machine_in_short(job.machine),
        sentences.model_in_short(job.model),
        show.step(job),
    )
    held = ""
    if job.accounting is Accounting.REAL:
        held = _drawn(pictures.strategies(job, decision.evaluated, _COLUMNS))
    chart = f'<pre class="lines">{_drawn(pictures.flowchart(decision))}</pre>'
    return [
        (_("Answer"), f"<p><b>{_prose(answer)}</b></p><p>{_prose(why)}</p>"),
        (_("What would help"), _bullets(hint(remedy) for remedy in remedies)),
        (_("Step"), "".join(f"<p>{escape(on_device(words, job.machine))}</p>" for words in step)),
        (
            _("Strategies"),
            _table(pictures.strategy_cells(decision, [[e] for e in decision.evaluated])),
        ),
        (_("Flowchart"), chart),
        (
            on_device(_("Memory of each GPU"), job.machine),
            held and f'<pre class="wide" tabindex="0">{held}</pre>',
        ),
    ]


def _sections(parts: Iterable[tuple[str, str]], heading: str) -> str:
    sections = (
        f"<section><{heading}>{title}</{heading}>{content}</section>"
        for title, content in parts
        if content
    )
    return f'<div class="parts">{"".join(sections)}</div>'


def _prose(text: str) -> str:
    """A sentence, what is typed in it as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(spell(text)))


def _bullets(texts: Iterable[str]) -> str:
    """A list of sentences."""
    items = "".join(f"<li>{_prose(text)}</li>" for text in texts)
    return items and f"<ul>{items}</ul>"


def _drawn(picture: Picture) -> str:
    lines = ("".join(_span(words, colour) for words, colour in line) for line in picture)
    return "\n".join(lines)


def _span(words: str, colour: Colour | None) -> str:
    text = escape(words)
    return text if colour is None else f'<span class="{colour.name.lower()}">{text}</span>'


def _table(rows: Sequence[Line]) -> str:
    """Cells, the first row of which says what each column is."""
    text = ""
    for row in rows:
        text += "<tr>"
        for place, (words, colour) in enumerate(row):
            tag = "th" if words and (row is rows[0] or place == 0) else "td"
            text += f"<{tag}>{_span(words, colour)}</{tag}>"
        text += "</tr>"
    return f'<div class="wide" tabindex="0"><table>{text}</table></div>'
