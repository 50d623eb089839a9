"""Draw a plan at a terminal: flowchart, memory, strategies, links, comparison.

Example:
    ● Does a replica fit on one GPU?  no
    ┃ ╌ yes → DDP: 133.2 of 39.4 GiB
    ● Does it fit with ZeRO-2?  yes
    ┃ ╌ no → ZeRO-3: 21.9 of 39.4 GiB
    ┗ ZeRO-2: 30.4 of 39.4 GiB
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
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
    HANG,
    Cell,
    Colour,
    Line,
    Picture,
    Span,
    aligned,
    bare_gib,
    columns_of,
    count,
    decimal_gb,
    decimal_size_of,
    draw,
    gib,
    gpus,
    is_dumb,
    length,
    on_device,
    pad,
    range_of,
    rate_of,
    rate_unit,
    say,
    seconds,
    show_rows,
    show_sides,
    size_of,
    whole_gib,
    wrap,
)
from zerowiz.ui.text import cells as cells_of

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
    _("unknown"): Colour.DOUBT,
}
_UNKNOWN = _(", unknown")


def flowchart(decision: Decision) -> Picture:
    """Each question with its answer, the branch that was not taken, and where the path ends."""
    path = find_path(decision)
    lines: list[Line] = []
    for place, step in enumerate(path.steps):
        lines += _step(decision, step, is_last=place == len(path.steps) - 1)
    return (*lines, _end(decision, path))


def _step(decision: Decision, step: FlowchartStep, *, is_last: bool) -> Iterator[Line]:
    question = step.answer.question
    strategy = None if step.about is None else step.about.strategy
    answer = sentences.answered(decision, step.answer)
    machine = decision.job.machine
    words = on_device(sentences.question(question, strategy), machine)
    yield (
        ("● ", Colour.LABEL),
        (words, Colour.LABEL),
        ("  ", None),
        (answer, ANSWER_COLOURS[answer]),
        *_rate(step.answer, machine),
    )
    if not _is_followed(step, is_last=is_last):
        yield ("┃ ", Colour.LABEL), (f"╌ {_other_branch(decision, step)}", Colour.DIM)


def flowchart_line(decision: Decision, columns: int) -> Picture:
    """The answers one behind the other: `DDP 133.2 no > NVLink yes > ZeRO-3 28.1 yes`."""
    *before, last = list(_short_answers(decision)) or [()]
    linked = [*((*answer, (" >", None)) for answer in before), last]
    return (*wrap(linked, " ", columns),) if last else ()


_FOUND: Mapping[FlowchartQuestion, str] = {
    FlowchartQuestion.LEANER_AND_FASTER: _("faster"),
    FlowchartQuestion.SURE_AND_AS_FAST: _("surer"),
    FlowchartQuestion.NO_OFFLOAD_AS_FAST: _("no offload"),
    FlowchartQuestion.RIGHT_FOR_SCRIPT: _("right for the script"),
}


def _short_answers(decision: Decision) -> Iterator[Line]:
    by_rule = decision.job.accounting is Accounting.TEXTBOOK
    for step in find_path(decision).steps:
        if step.about is not None and step.about.is_host_unknown:
            continue  # the table says so
        answer, about = sentences.answered(decision, step.answer), step.about
        colour = ANSWER_COLOURS[answer]
        *_inside, named = sentences.short_links(decision.job.machine)
        if step.answer.question is FlowchartQuestion.IS_THE_SEQUENCE:
            named = _("ZeRO-3 without activations {gib}", gib=bare_gib(step.answer.need_bytes or 0))
        elif step.answer.question is FlowchartQuestion.FAST_INTERCONNECT:
            answer = _("fast") if step.answer.answer else _("slow")
        elif about is not None:
            size = decimal_gb if by_rule else bare_gib
            named = f"{_(about.strategy.short_words)} {size(about.device_bytes)}"
            if about.verdict is Verdict.TIGHT:
                answer, colour = _("tight"), Colour.DOUBT
        answer = _FOUND.get(step.answer.question, answer)
        yield (f"{named} ", None), (answer, colour), *_short_of(decision, about)


def _short_of(decision: Decision, about: StrategyEstimate | None) -> Iterator[Span]:
    """What the closest strategy lacks, where nothing fits."""
    is_closest = decision.chosen is None and about == decision.closest
    if is_closest and about is not None and (about.headroom_bytes or 0) < 0:
        short = bare_gib(-(about.headroom_bytes or 0))
        yield _(" ({short} short)", short=short), None


def _rate(answer: Answer, machine: Machine) -> Iterator[Span]:
    """How fast the link is, where there is one kind of it."""
    rate = machine.interconnect.bytes_per_s
    if answer.question is FlowchartQuestion.FAST_INTERCONNECT and rate and machine.nodes == 1:
        yield f", {rate / 1e9:.0f} GB/s", None


def _is_followed(step: FlowchartStep, *, is_last: bool) -> bool:
    """Whether what is asked next stands where a "yes" that was not taken led."""
    if step.answer.question is FlowchartQuestion.IS_THE_SEQUENCE:
        return True
    return step.answer.answer and step.about is not None and not is_last


def _other_branch(decision: Decision, step: FlowchartStep) -> str:
    """Where the other answer leads, with its number: `yes → DDP: 133.2 of 39.4 GiB`."""
    other = _("no") if step.answer.answer else _("yes")
    if step.other is None:
        is_link = step.answer.question is FlowchartQuestion.FAST_INTERCONNECT
        return f"{other} → {(_('ZeRO-3 would be slow') if is_link else _('what would help'))}"
    asked = step.answer if step.other is step.about else None
    sized = f"{_(step.other.strategy.short_words)}: {_sizes(decision, step.other, asked)}"
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


def _end(decision: Decision, path: FlowchartPath) -> Line:
    if path.end is None:
        return (("┗ ", Colour.LABEL), (_("none"), Colour.BAD))
    called = _(path.end.strategy.short_words)
    return (
        ("┗ ", Colour.LABEL),
        (called, VERDICT_COLOURS[path.end.verdict]),
        (f": {_sizes(decision, path.end, None)}{_compared(decision, path.end)}", None),
    )


def _sizes(decision: Decision, evaluated: StrategyEstimate, asked: Answer | None) -> str:
    """What a strategy needs of what there is, of the host where that decides."""
    job = decision.job
    if job.accounting is Accounting.TEXTBOOK:
        return decimal_size_of(evaluated.device_bytes, evaluated.budget_bytes)
    have_bytes, high_bytes = evaluated.budget_bytes, evaluated.high_device_bytes
    doubted = evaluated.verdict is Verdict.UNCERTAIN
    if doubted and have_bytes is not None and high_bytes > have_bytes:
        return range_of(evaluated.device_bytes, high_bytes, have_bytes)
    room_bytes = evaluated.headroom_bytes
    if not evaluated.runs and room_bytes is not None and room_bytes >= 0:
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
    texts = []
    for word, nvlinks in sorted({link.word: link.nvlinks for link in pairs}.items()):
        plural = "NVLink" if nvlinks == 1 else "NVLinks"
        texts.append(f"{word}: {f'{nvlinks} {plural}' if nvlinks else _MEANINGS[word]}")
    *before, last = texts
    entries = [*(f"{text};" for text in before), last]
    return wrap([((text, Colour.DIM),) for text in entries], " ", columns)


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
    rows = {_(each.strategy.short_words): parts(job, each) for each in evaluated}
    return _bars(job, rows, columns)


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
        lines.append(((pad(name, label) + " ", None), *scale.bar(_ends(sizes)), (number, None)))
    seen = {part for sizes in rows.values() for part in sizes}
    # What the letters mean, in as many lines as it takes.
    entries = ((SIGNS[part], (f"={_(part.value)}", None)) for part in MemoryPart if part in seen)
    return (*lines, *wrap(entries, " ", columns))


def _ends(sizes: Sizes) -> Iterator[tuple[int, tuple[str, Colour]]]:
    ends = accumulate(sizes.get(part, 0) for part in MemoryPart)
    return zip(ends, (SIGNS[part] for part in MemoryPart), strict=True)


class _Scale:
    """How many cells a size has, and which column the budget is."""

    def __init__(self, totals: Sequence[int], budget_bytes: int | None, cells: int) -> None:
        self.cells = cells
        most = max(totals)
        if budget_bytes:
            most = max(budget_bytes, min(most, int(_MOST_BUDGETS * budget_bytes)))
        self._cells_per_byte = cells / max(most, 1)
        self._budget_bytes = budget_bytes
        self.budget = None if budget_bytes is None else self.cells_of(budget_bytes)

    def cells_of(self, size_bytes: int) -> int:
        """One more than a bar has, at most: a size may be a billion budgets.

        What is more than the budget is more by one cell at least.
        """
        cells = round(size_bytes * self._cells_per_byte)
        if self._budget_bytes is not None and size_bytes > self._budget_bytes:
            cells = max(cells, round(self._budget_bytes * self._cells_per_byte) + 1)
        return min(cells, self.cells + 1)

    def bar(self, pieces: Iterable[tuple[int, tuple[str, Colour]]]) -> Line:
        """Pieces, one behind the other, with the column of the budget between them.

        Args:
            pieces: Of each where it ends, in bytes, and the sign that its cells are filled with.
        """
        cells: list[Span] = []
        for end_bytes, sign in pieces:
            cells += [sign] * (self.cells_of(end_bytes) - len(cells))
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
    gap = " " * max(room - cells_of(budget), 2)
    return (title + gap, None), (budget, Colour.LABEL)


# Show every strategy in a table: what people decide by, or all that is known of each.

_WITH_BARS_COLUMNS, _MOST_BAR_CELLS = 66, 40


class StrategyLine(Struct, frozen=True, kw_only=True):
    """A row of the table of strategies."""

    evaluated: tuple[StrategyEstimate, ...]
    """The strategy; several where one row stands for all with offload."""
    line: Line


def strategy_lines(
    decision: Decision, columns: int, *, folded: bool = True
) -> tuple[Line, tuple[StrategyLine, ...]]:
    """The heading, and a row for each strategy: name, needs, bar, free, tokens/s, verdict.

    Args:
        decision: What was decided.
        columns: How wide a row may be; where that is too narrow for bars, there are none.
        folded: Whether the strategies with offload share a row where none of them was chosen.
    """
    job = decision.job
    groups = _groups(decision) if folded else [(e,) for e in decision.evaluated]
    lines = aligned(strategy_cells(decision, groups), {0, 4}, columns, leaving=(2, 3))
    cells = min(columns - max(map(length, lines)) - 3, _MOST_BAR_CELLS)
    if columns >= _WITH_BARS_COLUMNS and cells >= _FEWEST_CELLS and not is_dumb():
        totals = [max(e.device_bytes for e in group) for group in groups]
        scale = _Scale(totals, job.gpu_budget_bytes, cells)
        room = job.gpu_budget_bytes or 0, ("·", Colour.DIM)
        signs = [("■", verdict_colour(group[0])) for group in groups]
        bars = [scale.bar((piece, room)) for piece in zip(totals, signs, strict=True)]
        counted = on_device(_("per GPU, predicted"), job.machine)
        counted = "" if cells_of(counted) > cells else counted
        blank: Line = ((counted + " " * (cells + 1 - cells_of(counted)), Colour.DIM),)
        lines = [
            (*line[:2], ("  ", None), *bar, *line[2:])
            for line, bar in zip(lines, [blank, *bars], strict=True)
        ]
    first, *others = lines
    return first, tuple(
        StrategyLine(evaluated=group, line=line) for group, line in zip(groups, others, strict=True)
    )


def strategy_cells(decision: Decision, groups: Iterable[Sequence[StrategyEstimate]]) -> list[Line]:
    """The cells of the heading, and of a row for each strategy or group of them."""
    job = decision.job
    times = [evaluated.step_time for evaluated in decision.evaluated]
    is_timed = any(time is not None for time in times)
    title = on_device(_("GiB of {budget}", budget=bare_gib(job.gpu_budget_bytes)), job.machine)
    heading = (
        title,
        _("needs"),
        _("free"),
        rate_unit(times) if is_timed else "",
        _("(all GPUs)") if is_timed and job.machine.world_size > 1 else "",
    )
    rows = (_strategy_cells(decision, group, is_timed=is_timed) for group in groups)
    return [tuple((words, Colour.DIM) for words in heading), *rows]


def _groups(decision: Decision) -> list[tuple[StrategyEstimate, ...]]:
    """The strategies of each row."""
    plain = [(e,) for e in decision.evaluated if e.strategy.offload is Offload.NONE]
    offloaded = [e for e in decision.evaluated if e.strategy.offload is not Offload.NONE]
    if decision.chosen in offloaded:
        # What is too big stands in the answers.
        taken = (e for e in offloaded if (e.runs and e in decision.allowed) or e is decision.chosen)
        return [*plain, *((e,) for e in taken)]
    return [*plain, tuple(offloaded)]


def _strategy_cells(
    decision: Decision, group: Sequence[StrategyEstimate], *, is_timed: bool
) -> Line:
    """What a row says of one strategy, or of several: from the least to the most."""
    best = min(
        group,
        key=lambda e: (not e.is_sure, not e.runs, not e.is_host_unknown, e.lacking_bytes),
    )
    name, is_chosen = _(best.strategy.short_words), best is decision.chosen
    needs, free = _needed(best), bare_gib(best.headroom_bytes)
    rate = "-" if is_timed else ""
    if is_timed and (best.runs or best.is_host_unknown):
        rate = rate_of(best.step_time)
    verdict = sentences.verdict(best)
    if len(group) > 1:
        stages = "/".join(dict.fromkeys(str(e.strategy.stage) for e in group))
        name = _("ZeRO-{stages} offload", stages=stages)
        needs = _least_to_most(e.device_bytes for e in group)
        free = _least_to_most(e.headroom_bytes for e in group)
        times = [e.step_time for e in group if e.step_time is not None]
        if rate not in {"", "-"} and times:
            rate = f"<{rate_of(min(times, key=lambda time: time.expected_seconds))}"
    elif best.is_host_unknown:
        verdict = _("host unknown, {gib}", gib=whole_gib(best.host.peak_bytes))
    if is_chosen:
        word = _("chosen") if decision.constraints.pinned else _("recommended")
        verdict = word if best.verdict is Verdict.FITS else listing([word, verdict])
    return (
        (name, Colour.LABEL if is_chosen else None),
        *((words, None) for words in (needs, free, rate)),
        (verdict, verdict_colour(best)),
    )


def _needed(evaluated: StrategyEstimate) -> str:
    """What it takes of a GPU, up to its bound where that decides."""
    need_bytes, high_bytes = evaluated.device_bytes, evaluated.high_device_bytes
    decides = high_bytes > (evaluated.budget_bytes or high_bytes)
    if evaluated.verdict is Verdict.UNCERTAIN and decides:
        return _least_to_most((need_bytes, high_bytes))
    return bare_gib(need_bytes)


def _least_to_most(sizes: Iterable[int | None]) -> str:
    """Whole GiB, as a range: `34-49`; one size where they round to the same."""
    known = sorted(size for size in sizes if size is not None)
    ends = [f"{size / 2**30:.0f}" for size in (*known[:1], *known[-1:])]
    between = _(" to ") if known and known[0] < 0 else "-"
    return between.join(ends) if len({*ends}) > 1 else bare_gib(known[-1] if known else None)


def verdict_colour(evaluated: StrategyEstimate) -> Colour:
    """Of a verdict: what nobody knows is no error."""
    return Colour.DIM if evaluated.is_host_unknown else VERDICT_COLOURS[evaluated.verdict]


# The column that says least beside the others leaves first.
_LEAVING = (N_("sent"), "peak in", N_("host"), N_("peak"), N_("headroom"), N_("time"))
_LEGEND = _(
    "peak is what torch allocates; needs adds CUDA, NCCL and allocator slack; headroom is what is"
    " left of the budget; host is the most that a node's ranks hold of its memory, saving"
    " included; sent is what each GPU sends in one optimizer step"
)
_RULE_OF_THUMB_LEGEND = _(
    "This is the usual rule of thumb; by default DeepSpeed needs more: remove `--accounting"
    " textbook` to count what it allocates"
)


def table(decision: Decision, stream: TextIO) -> None:
    """All that is known of each strategy, its sizes in GiB."""
    machine = decision.job.machine
    budget = gib(decision.job.gpu_budget_bytes)
    title = _("Sizes in GiB, times in seconds; the budget of each GPU is {budget}", budget=budget)
    say(stream, on_device(title, machine), hang=HANG)
    rows = [
        _strategy_row(evaluated, is_chosen=evaluated is decision.chosen)
        for evaluated in decision.evaluated
    ]
    show_rows(stream, [*rows[0]], [[*row.values()] for row in rows], _LEAVING)
    say(stream, "", on_device(_LEGEND, machine), hang=HANG)


def _strategy_row(evaluated: StrategyEstimate, *, is_chosen: bool) -> Mapping[str, Cell]:
    time, name = evaluated.step_time, _(evaluated.strategy.short_words)
    return {
        "strategy": (name, Colour.LABEL) if is_chosen else name,
        "peak": bare_gib(evaluated.estimate.peak_bytes),
        "peak in": _(evaluated.estimate.peak_phase.value),
        N_("needs"): bare_gib(evaluated.device_bytes),
        "headroom": bare_gib(evaluated.headroom_bytes),
        "host": bare_gib(evaluated.host_bytes) if evaluated.host_bytes else "-",
        "sent": bare_gib(evaluated.wire_bytes_per_step),
        "time": "-" if time is None else seconds(time.expected_seconds),
        "verdict": (sentences.verdict(evaluated), verdict_colour(evaluated)),
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
    say(stream, "", _RULE_OF_THUMB_LEGEND, hang=HANG)


def _rule_of_thumb_row(evaluated: StrategyEstimate) -> tuple[Cell, ...]:
    held = {
        allocation.kind: allocation.size_bytes
        for allocation in evaluated.estimate.peaks()[Phase.STEP]
    }
    return (
        _(evaluated.strategy.short_words),
        *(decimal_gb(held.get(kind, 0)) for kind in _RULE_OF_THUMB_KINDS),
        decimal_gb(evaluated.device_bytes),
        (sentences.verdict(evaluated), verdict_colour(evaluated)),
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
        stream.write("\n")
    _strategies(plan_a.decision, plan_b.decision, stream)
    same = listing(f"{name} {a}" for name, (a, b) in facts.items() if a == b and a != _NO_VALUE)
    if same:
        say(stream, "", _("The same in both: {same}", same=same))


def _facts(decision: Decision) -> dict[str, str]:
    """What a plan comes to, and what it is for."""
    job = decision.job
    shown = decision.chosen or decision.closest
    name, time = _(shown.strategy.short_words), shown.step_time
    return {
        _("chosen"): name if decision.chosen else _("none (closest: {name})", name=name),
        _("verdict"): sentences.verdict(shown),
        _("needs"): gib(shown.device_bytes),
        _("headroom"): gib(shown.headroom_bytes),
        _("step time"): _NO_VALUE if time is None else f"{seconds(time.expected_seconds)} s",
        _("speed"): _NO_VALUE if time is None else f"{rate_of(time)} {rate_unit([time])}",
        _("host"): gib(shown.host_bytes) if shown.host_bytes else _NO_VALUE,
        _("machine"): gpus(job.machine).replace("NVIDIA ", ""),
        _("links"): listing(sentences.links_in_short(job.machine)) or _NO_VALUE,
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


def _strategies(plan_a: Decision, plan_b: Decision, stream: TextIO) -> None:
    """Each strategy in both plans."""
    rows = [
        (_(a.strategy.short_words), *_compared_row(a), *_compared_row(plan_b.of(a.strategy)))
        for a in plan_a.evaluated
    ]
    size, time = "GiB", N_("s/step")
    headings = ("strategy", size, time, N_("A verdict"), size, time, N_("B verdict"))
    show_rows(stream, headings, rows, (time, size))


def _compared_row(evaluated: StrategyEstimate) -> Iterator[Cell]:
    time = evaluated.step_time
    yield bare_gib(evaluated.device_bytes)
    yield _NO_VALUE if time is None else seconds(time.expected_seconds)
    yield sentences.verdict(evaluated), verdict_colour(evaluated)


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
    job, name = decision.job, _(evaluated.strategy.short_words)
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
