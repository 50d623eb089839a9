"""Write the way through the flowchart as a list: what was asked, and where the other answer led."""

from zerowiz.core.decision.flowchart import Decision, FlowchartQuestion
from zerowiz.core.decision.path import FlowchartStep, find_path
from zerowiz.ui import sentences
from zerowiz.ui.page.colours import ANSWERS, VERDICTS
from zerowiz.ui.page.slots import Slots
from zerowiz.ui.pictures.flowchart import sizes
from zerowiz.ui.text.units import gib, on_device

# More than any decision asks.
_MOST_STEPS = 8


def steps(decision: Decision, slots: Slots) -> str:
    """Each question with its answer, its numbers, and the branch that was not taken."""
    path = find_path(decision)
    found = list(path.steps)
    items = [_item(decision, step, slots) for step in found]
    items += [_item(decision, None, slots) for _ in range(_MOST_STEPS - len(found))]
    name = "none" if path.end is None else path.end.strategy.name
    kind = "bad" if path.end is None else VERDICTS[path.end.verdict]
    items.append(f"<li>The flowchart leads to {slots.text('b', name, kind=kind)}</li>")
    return f'<ol class="path">{"".join(items)}</ol>'


def _item(decision: Decision, step: FlowchartStep | None, slots: Slots) -> str:
    question = answer = numbers = branch = ""
    if step is not None:
        machine = decision.job.machine
        strategy = None if step.about is None else step.about.strategy
        question = on_device(sentences.question(step.answer.question, strategy), machine)
        answer = sentences.answered(decision, step.answer)
        numbers = on_device(_numbers(decision, step), machine)
        branch = _branch(step)
    return (
        slots.opened("li", kind="off" if step is None else "")
        + slots.text("span", question, 'class="question"')
        + " "
        + slots.text("b", answer, kind=ANSWERS.get(answer, "off"))
        + " "
        + slots.text("span", numbers)
        + slots.text("span", branch, kind="branch" if branch else "off")
        + "</li>"
    )


def _numbers(decision: Decision, step: FlowchartStep) -> str:
    """What was compared, or the link."""
    if step.about is None:
        return sentences.links(decision.job.machine)
    return f"{step.about.strategy.name}: {sizes(decision, step.about, step.answer)}"


def _branch(step: FlowchartStep) -> str:
    """Where the other answer leads, with its number."""
    other = "no" if step.answer.answer else "yes"
    if step.other is step.about and step.other is not None:
        return f"If {other}: {step.other.strategy.name}"
    if step.other is not None:
        needs = gib(step.other.device_bytes)
        return f"If {other}: {step.other.strategy.name}, which needs {needs}"
    is_link = step.answer.question is FlowchartQuestion.FAST_INTERCONNECT
    return f"If {other}: {'ZeRO-3 would be slow' if is_link else 'see what would help'}"
