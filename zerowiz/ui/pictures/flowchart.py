"""Draw the flowchart: the path that was taken, and below each question the branch that was not.

Example:
    ● Does a replica fit on one GPU?  no
    ┃ ╌ yes → DDP: 133.2 of 39.4 GiB
    ● Does it fit with ZeRO-2?  yes
    ┃ ╌ no → ZeRO-3: 21.9 of 39.4 GiB
    ┗ ZeRO-2: 30.4 of 39.4 GiB
"""

from collections.abc import Iterator, Mapping

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Answer, Decision, FlowchartQuestion
from zerowiz.core.decision.path import FlowchartPath, FlowchartStep, find_path
from zerowiz.core.machine.types import Machine
from zerowiz.core.workload.choices import Accounting
from zerowiz.ui import remedies
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.cells import cells as cells_of
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.lines import Line, Picture, Span, length
from zerowiz.ui.text.units import OF, decimal_size_of, gib, on_device, range_of, size_of
from zerowiz.words import _

MOST_LINES, MOST_COLUMNS = 10, 50

VERDICT_COLOURS: Mapping[Verdict, Colour] = {
    Verdict.FITS: Colour.GOOD,
    Verdict.TIGHT: Colour.DOUBT,
    Verdict.UNCERTAIN: Colour.DOUBT,
    Verdict.DOES_NOT_FIT: Colour.BAD,
}
ANSWER_COLOURS: Mapping[str, Colour] = {
    _("yes"): Colour.GOOD,
    _("no"): Colour.BAD,
    _("too slow"): Colour.BAD,
    _("uncertain"): Colour.DOUBT,
}
_OFFLOADS: Mapping[str, str] = {
    "zero2-offload": _("ZeRO-2 offload"),
    "zero3-offload": _("ZeRO-3 offload"),
    "zero3-offload-optimizer": _("ZeRO-3 optimizer offload"),
}
_UNKNOWN = _(", unknown")
# Where a question shares a line with its branch.
_SHORT: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.FITS_ONE_GPU: _("Replica?"),
    FlowchartQuestion.FITS_ZERO1: "ZeRO-1?",
    FlowchartQuestion.FITS_ZERO2: "ZeRO-2?",
    FlowchartQuestion.FAST_INTERCONNECT: _("Fast link?"),
    FlowchartQuestion.FITS_ZERO3: "ZeRO-3?",
    FlowchartQuestion.FITS_OFFLOAD: _("Offload?"),
}


def flowchart(decision: Decision) -> Picture:
    """At most ten lines of at most fifty columns; of a long path the first questions are short."""
    path = find_path(decision)
    short = max(0, 2 * len(path.steps) + 1 - MOST_LINES)
    lines: list[Line] = []
    for place, step in enumerate(path.steps):
        is_last = place == len(path.steps) - 1
        lines += _step(decision, step, is_short=place < short, is_last=is_last)
    return (*lines, _end(decision, path))


def _step(
    decision: Decision, step: FlowchartStep, *, is_short: bool, is_last: bool
) -> Iterator[Line]:
    question = step.answer.question
    strategy = None if step.about is None else step.about.strategy
    words = _SHORT[question] if is_short else decisions.question(question, strategy)
    answer = decisions.answered(decision, step.answer)
    machine = decision.job.machine
    asked: Line = (
        ("● ", Colour.LABEL),
        (on_device(words, machine), Colour.LABEL),
        ("  ", None),
        (answer, ANSWER_COLOURS[answer]),
        *(() if is_short else _rate(step.answer, machine)),
    )
    branch = "" if is_followed(step, is_last=is_last) else f"╌ {other_branch(decision, step)}"
    if is_short:
        room = MOST_COLUMNS - length(asked) - len("  ")
        yield (*asked, ("  ", None), (_within(branch, room), Colour.DIM)) if branch else asked
        return
    yield asked
    if branch:
        yield ("┃ ", Colour.LABEL), (_within(branch, MOST_COLUMNS - 2), Colour.DIM)


def _rate(answer: Answer, machine: Machine) -> Iterator[Span]:
    """How fast the link is, where there is one kind of it."""
    rate = machine.interconnect.bytes_per_s
    if answer.question is FlowchartQuestion.FAST_INTERCONNECT and rate and machine.nodes == 1:
        yield f", {rate / 1e9:.0f} GB/s", None


def is_followed(step: FlowchartStep, *, is_last: bool) -> bool:
    """Whether what is asked next stands where a "yes" that was not taken led."""
    return step.answer.answer and step.about is not None and not is_last


def other_branch(decision: Decision, step: FlowchartStep) -> str:
    """Where the other answer leads, with its number: `yes → DDP: 133.2 of 39.4 GiB`."""
    other = _("no") if step.answer.answer else _("yes")
    if step.other is None:
        is_link = step.answer.question is FlowchartQuestion.FAST_INTERCONNECT
        return f"{other} → {(_('ZeRO-3 would be slow') if is_link else _('what would help'))}"
    asked = step.answer if step.other is step.about else None
    return f"{other} → {name(step.other)}: {sizes(decision, step.other, asked)}"


def name(evaluated: StrategyEstimate) -> str:
    """Its name, short: `ZeRO-3`, `ZeRO-3 offload`."""
    found = evaluated.strategy.name
    return _OFFLOADS.get(found) or remedies.strategy(found)


def _within(branch: str, columns: int) -> str:
    """A branch without what it is compared with, where that has no room."""
    if cells_of(branch) <= columns:
        return branch
    need, _of, have = branch.removesuffix(_UNKNOWN).partition(OF)
    return f"{need} {have.partition(' ')[2]}".rstrip()


def _end(decision: Decision, path: FlowchartPath) -> Line:
    if path.end is None:
        return (("┗ ", Colour.LABEL), (_("none"), Colour.BAD))
    called = name(path.end)
    room = MOST_COLUMNS - cells_of(called) - len("┗ : ")
    return (
        ("┗ ", Colour.LABEL),
        (called, VERDICT_COLOURS[path.end.verdict]),
        (f": {_within(sizes(decision, path.end, None), room)}", None),
    )


def sizes(decision: Decision, evaluated: StrategyEstimate, asked: Answer | None) -> str:
    """What a strategy needs of what there is, of the host where that decides."""
    job = decision.job
    if job.accounting is Accounting.TEXTBOOK:
        return decimal_size_of(evaluated.device_bytes, evaluated.budget_bytes)
    have_bytes, high_bytes = evaluated.budget_bytes, evaluated.high_device_bytes
    doubted = evaluated.verdict is Verdict.UNCERTAIN
    if doubted and have_bytes is not None and high_bytes > have_bytes:
        return range_of(evaluated.device_bytes, high_bytes, have_bytes)
    room_bytes = evaluated.headroom_bytes
    if not evaluated.runs and room_bytes is not None and room_bytes >= 0 and not evaluated.ran_out:
        need_bytes, host_bytes = evaluated.host.running_bytes, evaluated.host_budget_bytes
        if host_bytes is None:
            return _("{need_bytes} host{unknown}", need_bytes=gib(need_bytes), unknown=_UNKNOWN)
        return _("{size_of} host", size_of=size_of(need_bytes, host_bytes))
    if asked is None or doubted:
        return size_of(evaluated.device_bytes, have_bytes)
    return size_of(asked.need_bytes, asked.have_bytes)
