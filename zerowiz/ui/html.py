"""Draw a decision as HTML, for notebooks."""

from collections.abc import Sequence
from html import escape

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.ui import sentences
from zerowiz.ui.remedies import hint
from zerowiz.ui.text.units import bare_gib, seconds

_HEADINGS = (
    "strategy",
    "peak GiB",
    "peak in",
    "device GiB",
    "headroom GiB",
    "host GiB",
    "s/step",
    "verdict",
)


def plan_table(decision: Decision, remedies: Sequence[Remedy]) -> str:
    """Every strategy in a row, the chosen one in bold; under it why, and what would help."""
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    rows = "".join(_row(each, decision) for each in decision.evaluated)
    reasons = "; ".join(sentences.reasons(decision))
    name = "none" if decision.chosen is None else decision.chosen.strategy.name
    listed = "".join(f"<li>{escape(hint(each))}</li>" for each in remedies)
    helps = f"<p>What would help:</p><ul>{listed}</ul>" if listed else ""
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>Chosen: <b>{escape(name)}</b>: {escape(reasons)}</p>{helps}"
    )


def _row(evaluated: StrategyEstimate, decision: Decision) -> str:
    cells = (
        evaluated.strategy.name,
        bare_gib(evaluated.estimate.peak_bytes),
        evaluated.estimate.peak_phase.value,
        bare_gib(evaluated.device_bytes),
        bare_gib(evaluated.headroom_bytes),
        bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-",
        "-" if evaluated.step_time is None else seconds(evaluated.step_time.expected_seconds),
        sentences.verdict(evaluated),
    )
    tag = "b" if evaluated is decision.chosen else "span"
    return "<tr>" + "".join(f"<td><{tag}>{escape(each)}</{tag}></td>" for each in cells) + "</tr>"
