"""Write what changes from plan to plan: the answer, its flowchart, its pictures and its tables."""

from collections.abc import Callable, Mapping
from functools import partial

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.flags import spell
from zerowiz.core.search.grid import GridCell
from zerowiz.ui import remedies
from zerowiz.ui.page import flowchart, memory, speed, strategies
from zerowiz.ui.page.blocks import section
from zerowiz.ui.page.colours import VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.units import on_device, seconds, size_of
from zerowiz.words import _


def body(cell: GridCell, drawn: Decision, slots: Slots) -> str:
    """The parts of the page that a slider changes.

    Args:
        cell: The settings, and what they lead to.
        drawn: Its decision; where it has none another one, which fills the slots and is not shown.
        slots: Collects what changes.
    """
    said = slots.text("p", answer(cell), 'id="answer" role="status"', kind=answer_kind(cell))
    reasons = slots.text("p", why(cell))
    parts = [section("answer", _("Answer"), said + reasons)]
    contents: Mapping[str, tuple[str, Callable[[Decision, Slots], str]]] = {
        "flowchart": (_("Flowchart"), flowchart.steps),
        "speed": (_("Speed and headroom"), partial(speed.picture, cell.search)),
        "memory": (on_device(_("Memory of each GPU"), drawn.job.machine), _memory),
        "strategies": (_("Strategies"), strategies.numbers),
    }
    kind = "off" if cell.decision is None else ""
    for name, (title, write) in contents.items():
        opened = slots.opened("section", f'id="{name}" aria-labelledby="h-{name}"', kind=kind)
        parts.append(section(name, title, write(drawn, slots), opened))
    return "".join(parts)


def _memory(drawn: Decision, slots: Slots) -> str:
    budget = memory.budget_words(drawn)
    return "".join(
        (
            f'<p class="dim">{_fullest(budget)}</p>',
            memory.bars(drawn, slots),
            memory.legend(drawn),
            f"<details><summary>{_('Memory as a table')}</summary>",
            memory.numbers(drawn, slots),
            "</details>",
        )
    )


def _fullest(budget: str) -> str:
    return _("Where it is fullest. The budget is {budget}.", budget=budget)


def answer(cell: GridCell) -> str:
    """The settings and what they lead to, in one sentence."""
    step = _(
        "Micro-batch {micro_batch}, {sequence_tokens} tokens",
        micro_batch=cell.micro_batch,
        sequence_tokens=cell.sequence_tokens,
    )
    if cell.decision is None:
        return f"{step}: {spell(cell.refusal)}"
    chosen = cell.decision.chosen
    if chosen is None:
        return f"{step}: {decisions.nothing_fits(cell.decision)}"
    return f"{step}: {_chosen(chosen)}"


def _chosen(chosen: StrategyEstimate) -> str:
    fits = remedies.fits(chosen.strategy.name, chosen.verdict)
    needs = f"{fits}: {size_of(chosen.device_bytes, chosen.budget_bytes)}"
    time = chosen.step_time
    if time is None:
        return needs
    step = _(
        "{expected_seconds} s a step ({bounds})",
        expected_seconds=seconds(time.expected_seconds),
        bounds=strategies.bounds(chosen),
    )
    return _(
        "{needs}, {step}, {tokens_per_s:,.0f} tokens/s",
        needs=needs,
        step=step,
        tokens_per_s=time.tokens_per_s,
    )


def answer_kind(cell: GridCell) -> str:
    """The colour of the answer."""
    if cell.decision is None or cell.decision.chosen is None:
        return "bad"
    return VERDICTS[cell.decision.chosen.verdict]


def why(cell: GridCell) -> str:
    """What speaks for the choice."""
    return "" if cell.decision is None else "; ".join(decisions.reasons(cell.decision))
