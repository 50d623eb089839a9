"""Write a plan or a machine for a notebook: a piece of HTML that needs no script."""

from collections.abc import Sequence

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.types import Machine
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.workload.choices import Accounting
from zerowiz.ui.page import flowchart, machine, memory, strategies
from zerowiz.ui.page.blocks import bullets, prose
from zerowiz.ui.page.colours import PARTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.remedies import hint
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.plain import escape
from zerowiz.words import _

# A notebook has colours of its own, light or dark: text and lines take theirs.
_RULES = (
    ".off{display:none}",
    "th,td{text-align:right;padding:.1rem .5rem}",
    "th:first-child{text-align:left}",
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
    """The flowchart, every strategy, what each holds; what would help, where nothing fits."""
    slots = Slots(exchanged=False)
    name = _("none") if decision.chosen is None else decision.chosen.strategy.name
    why = prose("; ".join(decisions.reasons(decision)))
    drawn = ""
    if decision.job.accounting is Accounting.REAL:
        drawn = memory.bars(decision, slots) + memory.legend(decision)
    helps = bullets(hint(each) for each in remedies)
    heading = f"<p>{_('What would help:')}</p>"
    return _wrapped(
        f"<p>{_('Chosen')}: <b>{escape(name)}</b>: {why}</p>"
        f"{flowchart.steps(decision, slots)}{strategies.numbers(decision, slots)}{drawn}"
        f"{heading + helps if helps else ''}"
    )


def of_machine(value: Machine) -> str:
    """Its GPUs, the links between them, and what is remarked on it."""
    notes = bullets(value.notes)
    return _wrapped(
        f"<p>{escape(machine.summary(value))}</p>{machine.devices(value)}{machine.links(value)}"
        f"{notes}"
    )
