"""Show every strategy in a table: what people decide by, or all that is known of each."""

from collections.abc import Mapping
from typing import TextIO

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.memory.ledger import AllocationKind, Phase
from zerowiz.ui.pictures.flowchart import VERDICT_COLOURS
from zerowiz.ui.sentences import decisions
from zerowiz.ui.text.colours import Colour
from zerowiz.ui.text.table import Cell, say, show_rows
from zerowiz.ui.text.units import bare_gib, decimal_gb, gib, on_device, seconds
from zerowiz.words import N_, _

# The column that says least beside the others leaves first.
_LEAVING = (N_("sent"), "peak in", N_("host"), N_("peak"), N_("headroom"), N_("time"))
_DETAILS = frozenset({"peak", "peak in", "host", "sent"})

_LEGEND = _(
    "peak is what torch allocates; needs adds CUDA, NCCL and allocator slack; headroom is what is"
    " left of the budget; host is the most that a node's ranks hold of its memory, saving"
    " included; sent is what each GPU sends in one optimizer step"
)
_OF_THE_HOST = {
    decisions.HOST_UNKNOWN: _(
        '"{verdict}": the GPU has room; the free host memory is unknown (`$host_memory`)',
        verdict=decisions.HOST_UNKNOWN,
    ),
    decisions.HOST_TOO_SMALL: _(
        '"{verdict}": the GPU has room; the host has too little memory',
        verdict=decisions.HOST_TOO_SMALL,
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
    rows = [_row(each, is_chosen=each is decision.chosen) for each in decision.evaluated]
    names = [name for name in rows[0] if is_verbose or name not in _DETAILS]
    show_rows(stream, names, [[row[name] for name in names] for row in rows], _LEAVING)
    legend = [on_device(_LEGEND, machine)] if is_verbose else []
    verdicts = {decisions.verdict(each) for each in decision.evaluated}
    legend += [on_device(words, machine) for v, words in _OF_THE_HOST.items() if v in verdicts]
    if legend:
        say(stream, "", *legend, hang=_HANG)


def _row(evaluated: StrategyEstimate, *, is_chosen: bool) -> Mapping[str, Cell]:
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
        "verdict": (decisions.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]),
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
    rows = [_rule_of_thumb_row(each) for each in decision.evaluated]
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
        (decisions.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]),
    )
