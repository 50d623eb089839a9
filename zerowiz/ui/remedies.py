"""Say what would help a job that does not fit: the change, what it leads to, what it costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from zerowiz.core.command_words import spell, spell_change
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.remedies import Remedy
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Strategy
from zerowiz.translation import N_, _, listing
from zerowiz.ui.text import (
    Colour,
    Line,
    aligned,
    bare_gib,
    cells,
    columns_of,
    draw,
    fill_wide,
    fold,
    gib,
    length,
    rate_of,
    rate_unit,
    size_of,
)

_VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: N_("{strategy} fits"),
    Verdict.TIGHT: N_("{strategy} just fits"),
    Verdict.UNCERTAIN: N_("{strategy} may fit"),
    Verdict.DOES_NOT_FIT: N_("{strategy} does not fit"),
}


def fits(strategy: str, verdict: Verdict) -> str:
    """Whether a strategy fits, in words: `ZeRO-3 fits`."""
    return _(_VERDICTS[verdict], strategy=strategy)


def outcome(remedy: Remedy) -> str:
    """What a remedy leads to, how fast that is, and what it costs besides.

    Example: `ZeRO-3 fits: 32.1 of 39.4 GiB, 7,629 tokens/s`.
    """
    sizes = size_of(remedy.device_bytes, remedy.budget_bytes)
    led = [f"{fits(strategy_of(remedy).words, remedy.verdict)}: {sizes}"]
    if remedy.step_time is not None:
        led.append(f"{rate_of(remedy.step_time)} {rate_unit([remedy.step_time])}")
    return "; ".join([listing(led), *_costs(remedy)])


def strategy_of(remedy: Remedy) -> Strategy:
    """What a remedy leads to."""
    return next(row for row in STRATEGIES if row.name == remedy.strategy)


# By a setting, and the value that it is changed to where only one costs so.
_COSTS: Mapping[tuple[str, str | None], str] = {
    ("optimizer_state_dtype", None): _("bf16 master weights: small updates may be lost"),
    ("precision", None): _("fewer digits"),
    ("sequence_tokens", None): _("shorter sequences"),
    ("method", "lora"): _("trains adapters only"),
    ("method", "qlora"): _("trains adapters only, on 4-bit weights"),
    **{("loss", loss.value): _(row.needs) for loss, row in LOSS_ROWS.items() if row.needs},
    ("interconnect", None): _("if the nodes have this link"),
    ("gpus", None): _("leaves out the GPUs that others use"),
}


def _costs(remedy: Remedy) -> Iterator[str]:
    """What a change costs besides time, or needs to be true."""
    for name, value in remedy.change.items():
        words = _COSTS.get((name, None)) or _COSTS.get((name, str(value)))
        if words is not None:
            yield words
    if remedy.global_batch is not None:
        yield _("the global batch becomes {batch}", batch=remedy.global_batch)
    if "host_memory" in remedy.change:
        more = remedy.more_host_bytes
        yield (
            _("{more} more than is free", more=gib(more))
            if more
            else _("only if each node has that much free")
        )


def hint(remedy: Remedy) -> str:
    """A remedy in one line, with what the script needs for it."""
    edit = "" if remedy.edit is None else _("; first {edit}", edit=remedy.edit)
    return f"`{spell_change(remedy.change)}`: {outcome(remedy)}{edit}"


def none_found(config: str | None, *, only_cpu: bool) -> str:
    """What is left where no remedy was found.

    Args:
        config: The person's own, of which nothing is changed.
        only_cpu: Whether `--accelerator cpu` kept every other machine from being tried.
    """
    if config is not None:
        return _(
            "zerowiz does not change `{config}`; without `$config {config}` it chooses "
            "the strategy, and suggests changes",
            config=config,
        )
    if only_cpu:
        return _(
            "no change is enough on CPU ranks: plan with fewer tokens, or a smaller model, or "
            "see which GPUs the job fits: `zerowiz plan $machine all` without `$accelerator cpu`"
        )
    from zerowiz.core.decision.remedies import SIZES  # noqa: PLC0415 - most plans need none of it

    most = SIZES[-1]
    return _(
        "no machine that zerowiz knows has enough memory, not even {nodes} nodes of "
        "{gpus} of the largest GPUs: plan with fewer tokens, or a smaller model",
        nodes=most.nodes,
        gpus=most.gpus,
    )


def table(remedies: Sequence[Remedy], stream: TextIO, most_lines: int | None = None) -> None:
    """A row for each: what to add, the strategy, its needs, what is free, tokens/s, the costs.

    Args:
        remedies: The cheapest first.
        stream: Where to.
        most_lines: How many lines there are for it; None for as many as it takes.
    """
    columns = columns_of(stream)
    led = [
        (
            _(strategy_of(remedy).short_words),
            bare_gib(remedy.device_bytes),
            bare_gib(remedy.budget_bytes and remedy.budget_bytes - remedy.device_bytes),
            rate_of(remedy.step_time),
        )
        for remedy in remedies
    ]
    heading = (
        _("strategy"),
        _("needs"),
        _("free"),
        rate_unit(remedy.step_time for remedy in remedies),
    )
    # An option that is longer has a line of its own, above its row.
    widths = [max(map(cells, column)) + 2 for column in zip(heading, *led, strict=True)]
    room = columns - sum(widths)
    words = [spell_change(remedy.change) for remedy in remedies]
    rows = zip([_("what to add"), *words], [heading, *led], strict=True)
    named: list[Line] = [
        tuple((cell, None) for cell in (word if cells(word) <= room else "", *others))
        for word, others in rows
    ]
    first, *lines = aligned(named, {0, 1}, columns)
    is_timed = any(remedy.step_time is not None for remedy in remedies)
    scope = (f"  {_('(all GPUs)')}", None)
    titles = (*first, scope) if is_timed and length((*first, scope)) <= columns else first
    drawn: list[Line] = [tuple((words, Colour.DIM) for words, _ in titles)]
    for place, (remedy, word, line) in enumerate(zip(remedies, words, lines, strict=True)):
        above = fold(word, stream, hang=4).split("\n") if cells(word) > room else []
        block = [*(((part, None),) for part in above), *_block(remedy, line, columns)]
        left = None if most_lines is None else most_lines - len(drawn) - len(block)
        if left is not None and left < (place < len(remedies) - 1):
            if not place:
                # The one that is proposed stands there, if alone.
                drawn = [*block[: len(above)], line]
            if count := len(remedies) - max(place, 1):
                more = _("{count} more: `$verbose` shows them", count=count)
                drawn.append(((spell(more), Colour.DIM),))
            break
        drawn += block
    draw(tuple(drawn), stream)


def _block(remedy: Remedy, line: Line, columns: int) -> list[Line]:
    """A row, and what its remedy costs behind or below it."""
    verdict = {Verdict.TIGHT: _("tight"), Verdict.UNCERTAIN: _("may fit")}
    edit = [] if remedy.edit is None else [_("first {edit}", edit=remedy.edit)]
    costs = spell("; ".join([*filter(None, [verdict.get(remedy.verdict)]), *_costs(remedy), *edit]))
    if not costs:
        return [line]
    if length(line) + 2 + cells(costs) <= columns:
        return [(*line, ("  ", None), (costs, Colour.DIM))]
    return [line, *(((part, Colour.DIM),) for part in fill_wide(costs, columns, *_INDENT))]


_INDENT = "    ", "    "
