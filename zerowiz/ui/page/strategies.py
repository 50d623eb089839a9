"""Write every strategy as a row of a table: what people decide by."""

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.ui.page.blocks import table
from zerowiz.ui.page.colours import VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.units import bare_gib, on_device, seconds
from zerowiz.words import N_, _

_HEADINGS = ("strategy", "needs", "headroom", "host", "time", N_("bounds of it"), "verdict")
_MORE = frozenset({"host", "bounds of it"})


def numbers(decision: Decision, slots: Slots) -> str:
    """The chosen one is marked by a word too."""
    rows = "".join(_row(decision, each, slots) for each in decision.evaluated)
    caption = _("Sizes in GiB of each GPU, and of a node's host; times of a step in seconds")
    return table(on_device(caption, decision.job.machine), _HEADINGS, rows, _MORE)


def _row(decision: Decision, evaluated: StrategyEstimate, slots: Slots) -> str:
    is_chosen = evaluated is decision.chosen
    host = bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-"
    time = evaluated.step_time
    return (
        slots.opened("tr", kind="chosen" if is_chosen else "")
        + f'<th scope="row">{evaluated.strategy.name}'
        + slots.text("span", _(", chosen") if is_chosen else "")
        + "</th>"
        + slots.text("td", bare_gib(evaluated.device_bytes))
        + slots.text("td", bare_gib(evaluated.headroom_bytes))
        + slots.text("td", host, "class=more")
        + slots.text("td", "-" if time is None else seconds(time.expected_seconds))
        + slots.text("td", bounds(evaluated), "class=more")
        + slots.text("td", decisions.verdict(evaluated), kind=VERDICTS[evaluated.verdict])
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
