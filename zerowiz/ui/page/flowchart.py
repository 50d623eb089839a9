"""Write the way through the flowchart as a list: what was asked, and where the other answer led."""

from zerowiz.core.decision.flowchart import Decision, FlowchartQuestion
from zerowiz.core.decision.path import FlowchartStep, find_path
from zerowiz.ui.page.colours import ANSWERS, VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.pictures.flowchart import is_followed, name, other_branch, sizes
from zerowiz.ui.sentences import decisions, machines
from zerowiz.ui.text.units import on_device
from zerowiz.words import _

# More than any decision asks.
_MOST_STEPS = 8


def steps(decision: Decision, slots: Slots) -> str:
    """Each question with its answer, the branch that was not taken, and where the path ends."""
    path = find_path(decision)
    found = list(path.steps)
    items = [_item(decision, step, slots, is_last=step is found[-1]) for step in found]
    items += [_item(decision, None, slots) for _step in range(_MOST_STEPS - len(found))]
    called, kind, numbers = _("none"), "bad", ""
    if path.end is not None:
        called, kind = name(path.end), VERDICTS[path.end.verdict]
        numbers = f": {sizes(decision, path.end, None)}"
    end = slots.text("b", called, kind=kind) + slots.text("span", numbers)
    return f'<ol class="path">{"".join(items)}<li class="end">{end}</li></ol>'


def _item(
    decision: Decision, step: FlowchartStep | None, slots: Slots, *, is_last: bool = False
) -> str:
    question = answer = link = branch = ""
    if step is not None:
        machine = decision.job.machine
        strategy = None if step.about is None else step.about.strategy
        question = on_device(decisions.question(step.answer.question, strategy), machine)
        answer = decisions.answered(decision, step.answer)
        if step.answer.question is FlowchartQuestion.FAST_INTERCONNECT:
            link = f": {machines.links(machine)}"
        if not is_followed(step, is_last=is_last):
            branch = on_device(other_branch(decision, step), machine)
    return (
        slots.opened("li", kind="off" if step is None else "")
        + slots.text("span", question)
        + " "
        + slots.text("b", answer, kind=ANSWERS.get(answer, "off"))
        + slots.text("span", link)
        + slots.text("span", branch, kind="branch" if branch else "off")
        + "</li>"
    )
