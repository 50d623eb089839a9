"""Draw what each GPU holds: a bar for each strategy against the budget, and the same as a table."""

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.memory_parts import parts
from zerowiz.core.memory.ledger import MemoryPart
from zerowiz.ui.page.blocks import table
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.pictures.memory import SIGNS, widest_bytes
from zerowiz.ui.text.units import bare_gib, gib, on_device
from zerowiz.words import N_, _

# A narrower part has no room for its letter, in per cent of the bar.
_LETTER_PERCENT = 4.0


class Scale:
    """How long a size is, in per cent of the widest bar."""

    def __init__(self, decision: Decision) -> None:
        totals = [each.device_bytes for each in decision.evaluated]
        self.most_bytes = widest_bytes(totals, decision.job.gpu_budget_bytes)

    def percent(self, size_bytes: int) -> float:
        """Never beyond the end."""
        return min(100.0, 100 * size_bytes / self.most_bytes)


def bars(decision: Decision, slots: Slots) -> str:
    """A bar for each strategy; what each part is stands in the legend and in the table."""
    scale = Scale(decision)
    rows = "".join(_row(decision, each, scale, slots) for each in decision.evaluated)
    return f'<div class="bars">{rows}</div>'


def _row(decision: Decision, evaluated: StrategyEstimate, scale: Scale, slots: Slots) -> str:
    is_chosen = evaluated is decision.chosen
    opened = slots.opened("div", kind="row chosen" if is_chosen else "row")
    shapes = bar(decision, evaluated, scale, slots)
    needs = slots.text("span", f"{bare_gib(evaluated.device_bytes)} GiB", 'class="number"')
    return (
        f'{opened}<span class="name">{evaluated.strategy.name}</span>'
        f'<svg class="bar" width="100%" height="22" aria-hidden="true">{shapes}</svg>{needs}</div>'
    )


def bar(decision: Decision, evaluated: StrategyEstimate, scale: Scale, slots: Slots) -> str:
    """The shapes of one bar."""
    sizes = parts(decision.job, evaluated)
    budget_bytes = decision.job.gpu_budget_bytes
    at = scale.percent(budget_bytes or 0)
    drawn, end_bytes = [], 0
    for part in MemoryPart:
        begin = scale.percent(end_bytes)
        end_bytes += sizes.get(part, 0)
        drawn.append(_part(part, (begin, scale.percent(end_bytes)), at, slots))
    # The line has an edge of the ground's colour, so that it is seen on every part.
    placed = {"x": f"{at:.1f}%", "kind": "" if budget_bytes else "off"}
    budget = (
        slots.opened("svg", 'aria-hidden="true" overflow="visible"', **placed)
        + '<rect class="edge" x="-2" width="4" height="22"/>'
        + '<rect class="budget" x="-1" width="2" height="22"/></svg>'
    )
    cut = slots.opened(
        "text",
        'x="100%" dx="-4" y="16" text-anchor="end"',
        kind="cut" if evaluated.device_bytes > scale.most_bytes else "off",
    )
    return f"{''.join(drawn)}{budget}{cut}»</text>"


def _part(part: MemoryPart, span: tuple[float, float], budget_percent: float, slots: Slots) -> str:
    begin, end = span
    width = end - begin
    first, last = _lettered(begin, end, budget_percent)
    has_letter = last - first >= _LETTER_PERCENT
    rectangle = slots.shape(
        "rect",
        f'class="{part.name.lower()}" y="3" height="16"',
        x=f"{begin:.1f}%",
        width=f"{width:.1f}%",
    )
    letter = slots.opened(
        "text",
        'y="15" text-anchor="middle"',
        x=f"{(first + last) / 2:.1f}%",
        kind="letter" if has_letter else "off",
    )
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
    has_vllm = any(each.vllm is not None for each in decision.evaluated)
    return [part for part in MemoryPart if part is not MemoryPart.VLLM or has_vllm]


def numbers(decision: Decision, slots: Slots) -> str:
    """The same as a table."""
    shown = _shown(decision)
    rows = "".join(_table_row(decision, each, shown, slots) for each in decision.evaluated)
    caption = on_device(_("GiB of each GPU, where it is fullest"), decision.job.machine)
    return table(caption, ("strategy", *shown, N_("sum")), rows)


def _table_row(
    decision: Decision, evaluated: StrategyEstimate, shown: list[MemoryPart], slots: Slots
) -> str:
    sizes = parts(decision.job, evaluated)
    cells = "".join(slots.text("td", bare_gib(sizes.get(part, 0))) for part in shown)
    total = slots.text("td", bare_gib(evaluated.device_bytes))
    return f'<tr><th scope="row">{evaluated.strategy.name}</th>{cells}{total}</tr>'


def budget_words(decision: Decision) -> str:
    """What the line is."""
    budget_bytes = decision.job.gpu_budget_bytes
    return _("unknown") if budget_bytes is None else gib(budget_bytes)
