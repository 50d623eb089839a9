"""Write what changes from plan to plan: the answer, its flowchart, its pictures and its tables."""

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.grid import GridCell
from zerowiz.core.flags import spell
from zerowiz.ui import remedies, sentences
from zerowiz.ui.page import flowchart, memory, speed, strategies
from zerowiz.ui.page.blocks import section
from zerowiz.ui.page.colours import VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.text.units import on_device, seconds, size_of


def body(cell: GridCell, drawn: Decision, slots: Slots) -> str:
    """The parts of the page that a slider changes.

    Args:
        cell: The settings, and what they lead to.
        drawn: Its decision; where it has none another one, which fills the slots and is not shown.
        slots: Collects what changes.
    """
    said = slots.text("p", answer(cell), 'id="answer" role="status"', kind=answer_kind(cell))
    reasons = slots.text("p", why(cell))
    parts = [section("answer", "Answer", said + reasons)]
    contents = {
        "flowchart": ("Flowchart", flowchart.steps),
        "speed": ("Speed and headroom", speed.picture),
        "memory": (on_device("Memory of each GPU", drawn.job.machine), _memory),
        "strategies": ("Strategies", strategies.numbers),
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
            f'<p class="dim">Where it is fullest. The budget is {budget}.</p>',
            memory.bars(drawn, slots),
            memory.legend(drawn),
            "<details><summary>Memory as a table</summary>",
            memory.numbers(drawn, slots),
            "</details>",
        )
    )


def answer(cell: GridCell) -> str:
    """The settings and what they lead to, in one sentence."""
    step = f"Micro-batch {cell.micro_batch}, {cell.sequence_tokens} tokens"
    if cell.decision is None:
        return f"{step}: {spell(cell.refusal)}"
    chosen = cell.decision.chosen
    if chosen is None:
        return f"{step}: {sentences.nothing_fits(cell.decision)}"
    return f"{step}: {_chosen(chosen)}"


def _chosen(chosen: StrategyEstimate) -> str:
    fits = remedies.fits(chosen.strategy.name, chosen.verdict)
    needs = f"{fits}: {size_of(chosen.device_bytes, chosen.budget_bytes)}"
    time = chosen.step_time
    if time is None:
        return needs
    step = f"{seconds(time.expected_seconds)} s a step ({strategies.bounds(chosen)})"
    return f"{needs}, {step}, {time.tokens_per_s:,.0f} tokens/s"


def answer_kind(cell: GridCell) -> str:
    """The colour of the answer."""
    if cell.decision is None or cell.decision.chosen is None:
        return "bad"
    return VERDICTS[cell.decision.chosen.verdict]


def why(cell: GridCell) -> str:
    """What speaks for the choice."""
    return "" if cell.decision is None else "; ".join(sentences.reasons(cell.decision))
