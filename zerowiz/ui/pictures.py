"""Draw a plan at a terminal: flowchart, memory, strategies, links, comparison.

Example:
    ● Does a replica fit on one GPU?  no
    ┃ ╌ yes → DDP: 133.2 of 39.4 GiB
    ● Does it fit with ZeRO-2?  yes
    ┃ ╌ no → ZeRO-3: 21.9 of 39.4 GiB
    ┗ ZeRO-2: 30.4 of 39.4 GiB
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TextIO

from msgspec import Struct

from zerowiz.core.command_words import spell
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, outside, parts, parts_by_phase
from zerowiz.core.decision.flowchart import (
    Answer,
    Decision,
    FlowchartPath,
    FlowchartQuestion,
    FlowchartStep,
    find_path,
    seconds_of,
)
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import UNKNOWN_WORD, Machine, PairLink, PciePath
from zerowiz.core.memory.allocations import AllocationKind, MemoryPart, Phase
from zerowiz.core.speed.costs import StepTime, TermKind
from zerowiz.core.speed.step_time import is_assumed
from zerowiz.core.strategy_types import Offload
from zerowiz.core.workload import SETTINGS, Accounting, Workload
from zerowiz.translation import N_, _, listing
from zerowiz.ui import sentences
from zerowiz.ui.text import (
    OF,
    Cell,
    Colour,
    Line,
    Picture,
    Span,
    bare_gib,
    columns_of,
    count,
    decimal_gb,
    decimal_size_of,
    draw,
    gib,
    gpus,
    length,
    on_device,
    pad,
    pad_left,
    range_of,
    say,
    seconds,
    show_rows,
    show_sides,
    size_of,
    wrap,
)
from zerowiz.ui.text import cells as cells_of

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
_UNKNOWN = _(", unknown")
# Where a question shares a line with its branch.
_SHORT: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.FITS_ONE_GPU: _("Replica?"),
    FlowchartQuestion.FITS_ZERO1: "ZeRO-1?",
    FlowchartQuestion.FITS_ZERO2: "ZeRO-2?",
    FlowchartQuestion.FAST_INTERCONNECT: _("Fast link?"),
    FlowchartQuestion.FITS_ZERO3: "ZeRO-3?",
    FlowchartQuestion.IS_THE_SEQUENCE: _("Sequence?"),
    FlowchartQuestion.FITS_OFFLOAD: _("Offload?"),
    FlowchartQuestion.LEANER_AND_FASTER: _("Better?"),
    FlowchartQuestion.SURE_AND_AS_FAST: _("Surer?"),
    FlowchartQuestion.NO_OFFLOAD_AS_FAST: _("Simpler?"),
    FlowchartQuestion.RIGHT_FOR_SCRIPT: _("Right?"),
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
    words = _SHORT[question] if is_short else sentences.question(question, strategy)
    answer = sentences.answered(decision, step.answer)
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
        branch = _within(branch, room)
        shows = branch and cells_of(branch) <= room
        yield (*asked, ("  ", None), (branch, Colour.DIM)) if shows else asked
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
    if step.answer.question is FlowchartQuestion.IS_THE_SEQUENCE:
        return True
    return step.answer.answer and step.about is not None and not is_last


def other_branch(decision: Decision, step: FlowchartStep) -> str:
    """Where the other answer leads, with its number: `yes → DDP: 133.2 of 39.4 GiB`."""
    other = _("no") if step.answer.answer else _("yes")
    if step.other is None:
        is_link = step.answer.question is FlowchartQuestion.FAST_INTERCONNECT
        return f"{other} → {(_('ZeRO-3 would be slow') if is_link else _('what would help'))}"
    asked = step.answer if step.other is step.about else None
    sized = f"{_(step.other.strategy.short_words)}: {sizes(decision, step.other, asked)}"
    return f"{other} → {sized}{_compared(decision, step.other)}"


def _compared(decision: Decision, evaluated: StrategyEstimate) -> str:
    """The time of a step, where the last question of the flowchart weighs it."""
    value = seconds_of(evaluated)
    if (
        value is None
        or decision.beaten is None
        or evaluated not in (decision.beaten, decision.chosen)
    ):
        return ""
    return f", {seconds(value)} s"


def _within(branch: str, columns: int) -> str:
    """A branch without what it is compared with, where that has no room."""
    if cells_of(branch) <= columns:
        return branch
    need, _of, have = branch.removesuffix(_UNKNOWN).partition(OF)
    return f"{need} {have.partition(' ')[2]}".rstrip()


def _end(decision: Decision, path: FlowchartPath) -> Line:
    if path.end is None:
        return (("┗ ", Colour.LABEL), (_("none"), Colour.BAD))
    called = _(path.end.strategy.short_words)
    room = MOST_COLUMNS - cells_of(called) - len("┗ : ")
    return (
        ("┗ ", Colour.LABEL),
        (called, VERDICT_COLOURS[path.end.verdict]),
        (f": {_within(end_sizes(decision, path.end), room)}", None),
    )


def end_sizes(decision: Decision, end: StrategyEstimate) -> str:
    """What the strategy at the end of the path needs, and how long a step takes if that decided."""
    return sizes(decision, end, None) + _compared(decision, end)


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


# Draw the links between the GPUs of a machine: the matrix of `nvidia-smi topo -m`.
#
# Example:
#           GPU0  GPU1  GPU2
#     GPU0     X   NV4   SYS
#     GPU1   NV4     X   SYS
#     GPU2   SYS   SYS     X
#     NV4: 4 NVLinks; SYS: PCIe, between NUMA nodes

_PATHS: Mapping[PciePath, str] = {
    PciePath.SAME_BOARD: _("PCIe, one board"),
    PciePath.PIX: _("PCIe, one switch"),
    PciePath.PXB: _("PCIe, several switches"),
    PciePath.PHB: _("PCIe, through the CPU"),
    PciePath.NODE: _("PCIe, through host bridges of one NUMA node"),
    PciePath.SYS: _("PCIe, between NUMA nodes"),
}
_MEANINGS: Mapping[str, str] = {
    **{path.value: words for path, words in _PATHS.items()},
    UNKNOWN_WORD: _("unknown"),
}


def links(machine: Machine, columns: int) -> Picture:
    """Every pair; where the terminal is too narrow, one part of the columns below the other."""
    indices = list(dict.fromkeys(gpu.index for gpu in machine.gpus))
    by_pair = {link.pair: link for link in machine.links}
    names = {index: f"GPU{index}" for index in indices}
    label = max(map(len, names.values()))
    width = max(label, *(len(link.word) for link in machine.links))
    gap = 2 if label + len(indices) * (width + 2) <= columns else 1
    at_once = max(1, (columns - label) // (width + gap))
    lines: list[Line] = []
    for start in range(0, len(indices), at_once):
        shown = indices[start : start + at_once]
        heading = "".join(f"{names[link]:>{width + gap}}" for link in shown)
        lines.append(((f"{'':{label}}{heading}", Colour.LABEL),))
        for row in indices:
            cells = (_cell(by_pair, row, column, width + gap) for column in shown)
            lines.append(((f"{names[row]:{label}}", Colour.LABEL), *cells))
    return (*lines, *_meanings(machine.links, columns))


def _cell(
    by_pair: Mapping[tuple[int, int], PairLink], row: int, column: int, width: int
) -> tuple[str, Colour | None]:
    if row == column:
        return f"{'X':>{width}}", Colour.DIM
    low, high = sorted((row, column))
    link = by_pair.get((low, high))
    if link is None:
        return f"{UNKNOWN_WORD:>{width}}", None
    return f"{link.word:>{width}}", Colour.GOOD if link.nvlinks else Colour.DOUBT


def _meanings(pairs: Sequence[PairLink], columns: int) -> Iterator[Line]:
    """What the words mean that stand in the matrix, in as many lines as it takes."""
    words = sorted({link.word: link.nvlinks for link in pairs}.items())
    line = ""
    for word, nvlinks in words:
        plural = "NVLink" if nvlinks == 1 else "NVLinks"
        meaning = f"{word}: {f'{nvlinks} {plural}' if nvlinks else _MEANINGS[word]}"
        if line and len(line) + len("; ") + len(meaning) > columns:
            yield ((f"{line};", Colour.DIM),)
            line = ""
        line = f"{line}; {meaning}" if line else meaning
    yield ((line, Colour.DIM),)


# Draw memory: a bar for each strategy, or each phase, of what a GPU holds, against the budget.
#
# Example:
#     GiB of each GPU               budget 39.4
#     zero2  wwwwwwwwwgggooooooooooooooooooooo│ooocc   48.1
#     zero3  wwwggooooooooooobc               │        32.2
#     w=weights g=gradients o=optimizer b=buffers c=context

SIGNS: Mapping[MemoryPart, tuple[str, Colour]] = {
    MemoryPart.WEIGHTS: ("w", Colour.BLUE),
    MemoryPart.GRADIENTS: ("g", Colour.CYAN),
    MemoryPart.OPTIMIZER: ("o", Colour.MAGENTA),
    MemoryPart.ACTIVATIONS: ("a", Colour.GREEN),
    MemoryPart.LOGITS: ("l", Colour.YELLOW),
    MemoryPart.BUFFERS: ("b", Colour.GREY),
    MemoryPart.CONTEXT: ("c", Colour.DARK),
    MemoryPart.VLLM: ("v", Colour.RED),
}
"""The letter of each part, and the colour behind it."""

# A bar that is longer says no more; one that needs many times the budget would flatten the others.
_WIDEST_COLUMNS, _MOST_BUDGETS = 100, 1.6
# From here on the number of a bar has room beside it.
_WITH_NUMBERS_COLUMNS = 66
_NUMBER_COLUMNS = 7
_FEWEST_CELLS = 8

Sizes = Mapping[MemoryPart, int]


def strategies(job: Job, evaluated: Sequence[StrategyEstimate], columns: int) -> Picture:
    """Every strategy where its device is fullest."""
    return _bars(
        job, {strategy.strategy.name: parts(job, strategy) for strategy in evaluated}, columns
    )


def phases(job: Job, evaluated: StrategyEstimate, columns: int) -> Picture:
    """One strategy at the peak of each phase."""
    sizes_by_phase = parts_by_phase(job, evaluated)
    return _bars(job, {_(phase.value): sizes for phase, sizes in sizes_by_phase.items()}, columns)


def _bars(job: Job, rows: Mapping[str, Sizes], columns: int) -> Picture:
    columns = min(columns, _WIDEST_COLUMNS)
    numbered = columns >= _WITH_NUMBERS_COLUMNS
    label = max(map(cells_of, rows))
    # One column is the budget's.
    cells = columns - label - 2 - (_NUMBER_COLUMNS if numbered else 0)
    cells = max(cells, _FEWEST_CELLS)
    scale = _Scale([sum(sizes.values()) for sizes in rows.values()], job.gpu_budget_bytes, cells)
    lines: list[Line] = [_heading(job, label, scale)]
    for name, sizes in rows.items():
        number = f"{bare_gib(sum(sizes.values())):>{_NUMBER_COLUMNS}}" if numbered else ""
        lines.append(((pad(name, label) + " ", None), *scale.bar(sizes), (number, None)))
    seen = {part for sizes in rows.values() for part in sizes}
    # What the letters mean, in as many lines as it takes.
    entries = ((SIGNS[part], (f"={_(part.value)}", None)) for part in MemoryPart if part in seen)
    return (*lines, *wrap(entries, " ", columns))


def widest_bytes(totals: Sequence[int], budget_bytes: int | None) -> int:
    """What a whole bar stands for: the largest size, or some times the budget; 1 at least."""
    most = max(totals)
    if budget_bytes:
        most = max(budget_bytes, min(most, int(_MOST_BUDGETS * budget_bytes)))
    return max(most, 1)


class _Scale:
    """How many cells a size has, and which column the budget is."""

    def __init__(self, totals: Sequence[int], budget_bytes: int | None, cells: int) -> None:
        self.cells = cells
        self._cells_per_byte = cells / widest_bytes(totals, budget_bytes)
        self.budget = None if budget_bytes is None else self.cells_of(budget_bytes)

    def cells_of(self, size_bytes: int) -> int:
        """One more than a bar has, at most: a size may be a billion budgets."""
        return min(round(size_bytes * self._cells_per_byte), self.cells + 1)

    def bar(self, sizes: Sizes) -> Line:
        """The parts, one behind the other, with the column of the budget between them."""
        cells: list[Span] = []
        end_bytes = 0
        for part in MemoryPart:
            end_bytes += sizes.get(part, 0)
            cells += [SIGNS[part]] * (self.cells_of(end_bytes) - len(cells))
        if len(cells) > self.cells:
            cells[self.cells - 1 :] = [("»", Colour.BAD)]
        cells += [(" ", None)] * (self.cells - len(cells))
        if self.budget is None:
            cells.append((" ", None))
        else:
            cells.insert(self.budget, ("│", Colour.LABEL))
        runs = ((key, len(list(run))) for key, run in groupby(cells))
        return tuple((sign * count, colour) for (sign, colour), count in runs)


def _heading(job: Job, label: int, scale: _Scale) -> Line:
    title = on_device(_("GiB of each GPU"), job.machine)
    if scale.budget is None:
        return ((title, None),)
    budget = _("budget {gpu_budget_bytes}", gpu_budget_bytes=bare_gib(job.gpu_budget_bytes))
    # It ends where its line is.
    room = label + 1 + scale.budget + 1 - cells_of(title)
    return ((title, None), (pad_left(budget, max(room, cells_of(budget) + 2)), Colour.LABEL))


# Show every strategy in a table: what people decide by, or all that is known of each.

# The column that says least beside the others leaves first.
_LEAVING = (N_("sent"), "peak in", N_("host"), N_("peak"), N_("headroom"), N_("time"))
_DETAILS = frozenset({"peak", "peak in", "host", "sent"})

_LEGEND = _(
    "peak is what torch allocates; needs adds CUDA, NCCL and allocator slack; headroom is what is"
    " left of the budget; host is the most that a node's ranks hold of its memory, saving"
    " included; sent is what each GPU sends in one optimizer step"
)
_OF_THE_HOST = {
    sentences.HOST_UNKNOWN: _(
        '"{verdict}": the GPU has room; the free host memory is unknown (`$host_memory`)',
        verdict=sentences.HOST_UNKNOWN,
    ),
    sentences.HOST_TOO_SMALL: _(
        '"{verdict}": the GPU has room; the host has too little memory',
        verdict=sentences.HOST_TOO_SMALL,
    ),
}
_RULE_OF_THUMB_LEGEND = _(
    "This is the usual rule of thumb; by default DeepSpeed needs more: remove `--accounting"
    " textbook` to count what it allocates"
)
_HANG = 2


def table(decision: Decision, stream: TextIO, *, is_verbose: bool) -> None:
    """A row for each strategy, its sizes in GiB."""
    machine = decision.job.machine
    budget = gib(decision.job.gpu_budget_bytes)
    title = _("Sizes in GiB, times in seconds; the budget of each GPU is {budget}", budget=budget)
    say(stream, on_device(title, machine), hang=_HANG)
    rows = [
        _strategy_row(evaluated, is_chosen=evaluated is decision.chosen)
        for evaluated in decision.evaluated
    ]
    names = [name for name in rows[0] if is_verbose or name not in _DETAILS]
    show_rows(stream, names, [[row[name] for name in names] for row in rows], _LEAVING)
    legend = [on_device(_LEGEND, machine)] if is_verbose else []
    verdicts = {sentences.verdict(evaluated) for evaluated in decision.evaluated}
    legend += [on_device(words, machine) for v, words in _OF_THE_HOST.items() if v in verdicts]
    if legend:
        say(stream, "", *legend, hang=_HANG)


def _strategy_row(evaluated: StrategyEstimate, *, is_chosen: bool) -> Mapping[str, Cell]:
    time, name = evaluated.step_time, evaluated.strategy.name
    return {
        "strategy": (name, Colour.LABEL) if is_chosen else name,
        "peak": bare_gib(evaluated.estimate.peak_bytes),
        "peak in": _(evaluated.estimate.peak_phase.value),
        N_("needs"): bare_gib(evaluated.device_bytes),
        "headroom": bare_gib(evaluated.headroom_bytes),
        "host": bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-",
        "sent": bare_gib(evaluated.wire_bytes_per_step),
        "time": "-" if time is None else seconds(time.expected_seconds),
        "verdict": (sentences.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]),
    }


# The ledger's kind, and the heading of the rule of thumb for it.
_RULE_OF_THUMB_KINDS = {
    AllocationKind.PARAMETERS: N_("params"),
    AllocationKind.GRADIENTS: N_("grads"),
    AllocationKind.OPTIMIZER: N_("optimizer"),
    AllocationKind.ACTIVATIONS: N_("activations"),
}


def rule_of_thumb_table(decision: Decision, stream: TextIO) -> None:
    """A row for each strategy with the four parts of the rule of thumb."""
    parts = tuple(_RULE_OF_THUMB_KINDS.values())
    total = on_device(_("per GPU"), decision.job.machine)
    rows = [_rule_of_thumb_row(evaluated) for evaluated in decision.evaluated]
    headings = ("strategy", *parts, total, "verdict")
    show_rows(stream, headings, rows, (parts[3], *parts[:3]))
    say(stream, "", _RULE_OF_THUMB_LEGEND, hang=_HANG)


def _rule_of_thumb_row(evaluated: StrategyEstimate) -> tuple[Cell, ...]:
    held = {
        allocation.kind: allocation.size_bytes
        for allocation in evaluated.estimate.peaks()[Phase.STEP]
    }
    return (
        evaluated.strategy.name,
        *(decimal_gb(held.get(kind, 0)) for kind in _RULE_OF_THUMB_KINDS),
        decimal_gb(evaluated.device_bytes),
        (sentences.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]),
    )


# Set two plans side by side: what differs first, then every strategy, then what is the same.

_SIDE_COLUMNS = 3
_NO_VALUE, _OFF = "-", _("off")
# Shown of every step.
_ALWAYS = ("micro_batch", "sequence_tokens", "accumulation_steps", "precision", "method")


class Side(Struct, frozen=True, kw_only=True):
    """One of the two plans."""

    words: str
    """The options that make it differ."""
    decision: Decision


def compare(plan_a: Side, plan_b: Side, stream: TextIO) -> None:
    """Two plans, A and B."""
    for name, side in (("A", plan_a), ("B", plan_b)):
        say(stream, f"{name}  {side.words}", hang=_SIDE_COLUMNS)
    first, second = _facts(plan_a.decision), _facts(plan_b.decision)
    facts = {name: (first.get(name, _OFF), second.get(name, _OFF)) for name in first | second}
    different = [(name, a, b) for name, (a, b) in facts.items() if a != b]
    stream.write("\n")
    if different:
        show_sides(stream, ("", "A", "B"), different)
        _faster(plan_a.decision, plan_b.decision, stream)
        stream.write("\n")
    _strategies(plan_a.decision, plan_b.decision, stream)
    same = listing(f"{name} {a}" for name, (a, b) in facts.items() if a == b and a != _NO_VALUE)
    if same:
        say(stream, "", _("The same in both: {same}", same=same))


def _facts(decision: Decision) -> dict[str, str]:
    """What a plan comes to, and what it is for."""
    job = decision.job
    link = sentences.link_class(job.machine.interconnect)
    speed = sentences.links(job.machine).removeprefix(link).lstrip(",;、 ")
    return {
        **_outcome(decision),
        _("machine"): gpus(job.machine).replace("NVIDIA ", ""),
        _("links"): link,
        _("link speed"): speed or _NO_VALUE,
        _("budget"): gib(job.gpu_budget_bytes),
        _("model"): _(
            "{model}, {params} parameters", model=job.model.name, params=count(job.model.params)
        ),
        _("optimizer states"): job.state_format,
        _("global batch"): str(job.global_batch),
        **dict(_settings(job.workload)),
    }


def _settings(step: Workload) -> Iterator[tuple[str, str]]:
    """What is shown of every step, and each setting that differs from its default."""
    for name in dict.fromkeys((*_ALWAYS, *step.changed())):
        value = getattr(step, name)
        label = SETTINGS[name].on.removeprefix("--").replace("-", " ")
        if isinstance(value, bool):
            yield label, _("on") if value else _OFF
        else:
            yield label, listing(value) if isinstance(value, tuple) else str(value)


def _outcome(decision: Decision) -> dict[str, str]:
    """What the chosen strategy takes; where there is none, what the closest one would."""
    shown = decision.chosen or decision.closest
    name, time = shown.strategy.name, shown.step_time
    return {
        _("chosen"): name if decision.chosen else _("none (closest: {name})", name=name),
        _("verdict"): sentences.verdict(shown),
        _("needs"): gib(shown.device_bytes),
        _("headroom"): gib(shown.headroom_bytes),
        _("step time"): _NO_VALUE if time is None else f"{seconds(time.expected_seconds)} s",
        _("tokens/s"): _NO_VALUE if time is None else f"{time.tokens_per_s:,.0f}",
        _("host"): gib(shown.host_bytes) if shown.host_bytes else _NO_VALUE,
    }


# Below, a percentage says more.
_AS_TIMES, _SAME_FRACTION = 1.5, 0.03


def _faster(plan_a: Decision, plan_b: Decision, stream: TextIO) -> None:
    """Which of the two trains more tokens a second."""
    speeds = [
        decision.chosen.step_time.tokens_per_s
        for decision in (plan_a, plan_b)
        if decision.chosen is not None and decision.chosen.step_time is not None
    ]
    if len(speeds) < 2:  # noqa: PLR2004 - both of them
        return
    first, second = speeds
    name, ratio = ("A", first / second) if first >= second else ("B", second / first)
    if ratio < 1 + _SAME_FRACTION:
        sentence = _("A and B train about as many tokens a second")
    elif ratio < _AS_TIMES:
        sentence = _(
            "{name} trains {ratio:.0f} % more tokens a second", name=name, ratio=100 * (ratio - 1)
        )
    else:
        sentence = _(
            "{name} trains {ratio:.1f} times as many tokens a second", name=name, ratio=ratio
        )
    say(stream, "", sentence)


def _strategies(plan_a: Decision, plan_b: Decision, stream: TextIO) -> None:
    """Each strategy in both plans."""
    rows = [
        (a.strategy.name, *_compared_row(a), *_compared_row(plan_b.of(a.strategy)))
        for a in plan_a.evaluated
    ]
    size, time = "GiB", N_("s/step")
    headings = ("strategy", size, time, N_("A verdict"), size, time, N_("B verdict"))
    show_rows(stream, headings, rows, (time, size))


def _compared_row(evaluated: StrategyEstimate) -> Iterator[Cell]:
    time = evaluated.step_time
    yield bare_gib(evaluated.device_bytes)
    yield _NO_VALUE if time is None else seconds(time.expected_seconds)
    yield sentences.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]


# Explain a strategy line by line: what its step takes its time for, and its memory.

_TERMS: Mapping[TermKind, str] = {
    TermKind.MATRIX_PRODUCTS: _("matrix products"),
    TermKind.ATTENTION: _("attention"),
    TermKind.ELEMENTWISE: _("elementwise"),
    TermKind.HOST: _("host"),
    TermKind.HOOKS: _("hooks"),
    TermKind.GATHERING: _("gathering"),
    TermKind.REDUCTION: _("reduction"),
    TermKind.EXCHANGE: _("exchange"),
    TermKind.OPTIMIZER: _("optimizer"),
    TermKind.CPU_OPTIMIZER: _("cpu optimizer"),
    TermKind.PCIE: _("pcie"),
    TermKind.ALLOCATOR: _("allocator"),
}


def explain(decision: Decision, evaluated: StrategyEstimate, stream: TextIO) -> None:
    """The time of a step; the memory by phase, as bars and line by line."""
    job, name = decision.job, evaluated.strategy.name
    say(stream, "", _("Time of a step with {name}, in seconds:", name=name))
    if evaluated.step_time is None:
        say(
            stream,
            on_device(_("  unknown: {why_untimed}", why_untimed=job.why_untimed), job.machine),
        )
    else:
        _times(evaluated.step_time, stream)
        say(stream, *(on_device(line, job.machine) for line in _pcie(job, evaluated)))
    _why(job, evaluated, stream)
    say(
        stream,
        "",
        on_device(_("Memory of each GPU with {name}, by phase:", name=name), job.machine),
    )
    if job.accounting is Accounting.REAL:
        draw(phases(job, evaluated, columns_of(stream)), stream)
        stream.write("\n")
    rows = [
        (_(phase.value), _(part.kind.value), bare_gib(part.size_bytes), _(part.formula))
        for phase, moment in evaluated.estimate.peaks().items()
        for part in moment
    ]
    show_rows(stream, ("phase", "part", "GiB", "formula"), rows)


def _times(value: StepTime, stream: TextIO) -> None:
    rows = [
        (
            _TERMS[term.kind],
            seconds(term.exposed_seconds),
            f"{term.exposed_seconds / value.expected_seconds:.0%}",
            _(term.formula),
        )
        for term in value.terms
    ]
    rows.append((_("sum"), seconds(value.expected_seconds), "100%", ""))
    show_rows(stream, ("part", N_("seconds"), N_("share"), "formula"), rows)


def _pcie(job: Job, evaluated: StrategyEstimate) -> Iterator[str]:
    """Where the PCIe rate of the GPU enters the time, and how large it is taken to be."""
    if job.rates is None:
        return
    rate = _(
        "{pcie_gigabytes_per_s:.0f} GB/s one way",
        pcie_gigabytes_per_s=job.rates.pcie_bytes_per_s / 1e9,
    )
    if is_assumed(job.machine, job.rates):
        yield _(
            "The link between the GPUs has no known speed: their PCIe is assumed, {rate}.",
            rate=rate,
        )
    if evaluated.strategy.offload is not Offload.NONE:
        yield _(
            "What is offloaded crosses the PCIe of each GPU: {rate} by the table of GPUs.",
            rate=rate,
        )


def _why(job: Job, evaluated: StrategyEstimate, stream: TextIO) -> None:
    """Every line of what a device holds where that is most; they add up to what is needed."""
    phase = evaluated.estimate.peak_phase
    needs = bare_gib(evaluated.device_bytes)
    title = _(
        "Why {needs} GiB: what each GPU holds in {phase}, where that is most:",
        needs=needs,
        phase=_(phase.value),
    )
    say(stream, "", on_device(title, job.machine))
    rows = [
        (_(peak.kind.value), bare_gib(peak.size_bytes), _(peak.formula))
        for peak in evaluated.estimate.peaks()[phase]
    ]
    beside = outside(job, evaluated)
    besides = (
        (
            job.machine.accelerator.row.libraries,
            beside.context_bytes,
            _("as it was measured"),
        ),
        (_("allocator slack"), beside.slack_bytes, _("a part of the peak, as it was measured")),
        ("vLLM", beside.vllm_bytes, _("`$vllm_memory_fraction` of the GPU")),
    )
    rows += [(name, bare_gib(size), spell(why)) for name, size, why in besides if size]
    rows.append((_("sum"), needs, ""))
    show_rows(stream, ("part", "GiB", "formula"), rows)
