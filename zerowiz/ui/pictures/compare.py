"""Set two plans side by side: what differs first, then every strategy, then what is the same."""

from collections.abc import Iterator
from typing import TextIO

from msgspec import Struct

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.workload.workload import SETTINGS, Workload
from zerowiz.ui.pictures.flowchart import VERDICT_COLOURS
from zerowiz.ui.sentences import decisions, machines
from zerowiz.ui.text.table import Cell, say, show_rows, show_sides
from zerowiz.ui.text.units import bare_gib, count, gib, gpus, seconds
from zerowiz.words import N_, _, listing

_LABEL_COLUMNS = 3
_UNKNOWN, _OFF = "-", _("off")
# Shown of every step.
_ALWAYS = ("micro_batch", "sequence_tokens", "accumulation_steps", "precision", "method")


class Side(Struct, frozen=True, kw_only=True):
    """One of the two plans."""

    words: str
    """The options that make it differ."""
    decision: Decision


def compare(one: Side, other: Side, stream: TextIO) -> None:
    """Two plans, A and B."""
    for name, side in (("A", one), ("B", other)):
        say(stream, f"{name}  {side.words}", hang=_LABEL_COLUMNS)
    first, second = _facts(one.decision), _facts(other.decision)
    facts = {name: (first.get(name, _OFF), second.get(name, _OFF)) for name in first | second}
    different = [(name, a, b) for name, (a, b) in facts.items() if a != b]
    stream.write("\n")
    if different:
        show_sides(stream, ("", "A", "B"), different)
        _faster(one.decision, other.decision, stream)
        stream.write("\n")
    _strategies(one.decision, other.decision, stream)
    same = listing(f"{name} {a}" for name, (a, b) in facts.items() if a == b and a != _UNKNOWN)
    if same:
        say(stream, "", _("The same in both: {same}", same=same))


def _facts(decision: Decision) -> dict[str, str]:
    """What a plan comes to, and what it is for."""
    job = decision.job
    link = machines.link_class(job.machine.interconnect)
    speed = machines.links(job.machine).removeprefix(link).lstrip(",;、 ")
    return {
        **_outcome(decision),
        _("machine"): gpus(job.machine).replace("NVIDIA ", ""),
        _("links"): link,
        _("link speed"): speed or _UNKNOWN,
        _("budget"): gib(job.gpu_budget_bytes),
        _("model"): _(
            "{model}, {params} parameters", model=job.model.name, params=count(job.model.params)
        ),
        _("optimizer states"): job.state_format,
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
        _("verdict"): decisions.verdict(shown),
        _("needs"): gib(shown.device_bytes),
        _("headroom"): gib(shown.headroom_bytes),
        _("step time"): _UNKNOWN if time is None else f"{seconds(time.expected_seconds)} s",
        _("tokens/s"): _UNKNOWN if time is None else f"{time.tokens_per_s:,.0f}",
        _("host"): gib(shown.host_bytes) if shown.host_bytes else _UNKNOWN,
    }


# Below, a percentage says more.
_AS_TIMES, _SAME_FRACTION = 1.5, 0.03


def _faster(one: Decision, other: Decision, stream: TextIO) -> None:
    """Which of the two trains more tokens a second."""
    speeds = [
        each.chosen.step_time.tokens_per_s
        for each in (one, other)
        if each.chosen is not None and each.chosen.step_time is not None
    ]
    if len(speeds) < 2:  # noqa: PLR2004 - both of them
        return
    first, second = speeds
    name, ratio = ("A", first / second) if first >= second else ("B", second / first)
    if ratio < 1 + _SAME_FRACTION:
        said = _("A and B train about as many tokens a second")
    elif ratio < _AS_TIMES:
        said = _(
            "{name} trains {ratio:.0f} % more tokens a second", name=name, ratio=100 * (ratio - 1)
        )
    else:
        said = _("{name} trains {ratio:.1f} times as many tokens a second", name=name, ratio=ratio)
    say(stream, "", said)


def _strategies(one: Decision, other: Decision, stream: TextIO) -> None:
    """Each strategy in both plans."""
    rows = [(a.strategy.name, *_row(a), *_row(other.of(a.strategy))) for a in one.evaluated]
    size, time = "GiB", N_("s/step")
    headings = ("strategy", size, time, N_("A verdict"), size, time, N_("B verdict"))
    show_rows(stream, headings, rows, (time, size))


def _row(evaluated: StrategyEstimate) -> Iterator[Cell]:
    time = evaluated.step_time
    yield bare_gib(evaluated.device_bytes)
    yield _UNKNOWN if time is None else seconds(time.expected_seconds)
    yield decisions.verdict(evaluated), VERDICT_COLOURS[evaluated.verdict]
