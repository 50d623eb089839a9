"""Say what would help a job that does not fit: the change, what it leads to, what it costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from zerowiz.core import shell
from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.decision.remedy_table import Remedy
from zerowiz.core.memory.losses import LOSS_ROWS
from zerowiz.core.settings import Change
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Offload
from zerowiz.translation import N_, _, listing
from zerowiz.ui.text import gib, say, seconds, size_of

_VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: N_("{strategy} fits"),
    Verdict.TIGHT: N_("{strategy} just fits"),
    Verdict.UNCERTAIN: N_("{strategy} may fit"),
    Verdict.DOES_NOT_FIT: N_("{strategy} does not fit"),
}
_SAME_FRACTION = 0.03
_AS_TIMES = 2
_MANY_TIMES = 10


def options(change: Change) -> str:
    """A change as the options to type."""
    words = [
        flags()[name] if value is True else f"{flags()[name]} {shell.quote(value)}"
        for name, value in change.items()
        if value != Offload.NONE.value or name != "offload"
    ]
    return " ".join(words)


def fits(strategy: str, verdict: Verdict) -> str:
    """Whether a strategy fits, in words: `ZeRO-3 fits`."""
    return _(_VERDICTS[verdict], strategy=strategy)


def outcome(remedy: Remedy) -> str:
    """What a remedy leads to, how fast that is, and what it costs besides.

    Example: `ZeRO-3 fits: 32.1 of 39.4 GiB, 0.93 s a step, about 26 % slower`.
    """
    sizes = size_of(remedy.device_bytes, remedy.budget_bytes)
    words = next(_(row.words) for row in STRATEGIES if row.name == remedy.strategy)
    return "; ".join(
        [
            listing([f"{fits(words, remedy.verdict)}: {sizes}", *_speed(remedy)]),
            *_costs(remedy),
        ]
    )


def _speed(remedy: Remedy) -> Iterator[str]:
    if remedy.step_seconds is not None:
        yield _("{step_seconds} s a step", step_seconds=seconds(remedy.step_seconds))
    ratio = remedy.time_fraction
    if ratio is None:
        return
    slower = ratio >= 1
    times = ratio if slower else 1 / ratio
    word = _("slower") if slower else _("faster")
    if times < 1 + _SAME_FRACTION:
        yield _("as fast")
    elif times < _AS_TIMES:
        yield _("about {times:.0f} % {word}", times=100 * (times - 1), word=word)
    else:
        digits = 0 if times >= _MANY_TIMES else 1
        number = f"{times:.{digits}f}"
        yield (
            _("about {ratio} times as slow", ratio=number)
            if slower
            else _("about {ratio} times as fast", ratio=number)
        )


# By a setting, and the value that it is changed to where only one costs so.
_COSTS: Mapping[tuple[str, str | None], str] = {
    ("optimizer_state_dtype", None): _("optimizer states have fewer digits"),
    ("precision", None): _("weights have fewer digits"),
    ("sequence_tokens", None): _("longer sequences are cut"),
    ("method", "lora"): _("trains only the adapters that your script creates"),
    ("method", "qlora"): _("trains only the adapters that your script creates, on 4-bit weights"),
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
    return f"`{options(remedy.change)}`: {outcome(remedy)}{edit}"


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


def listed(remedies: Sequence[Remedy], stream: TextIO) -> None:
    """All of them, those that need another script apart."""
    remedies_by_option = [remedy for remedy in remedies if remedy.edit is None]
    others = [remedy for remedy in remedies if remedy.edit is not None]
    if remedies_by_option:
        stream.write(_("\nWhat would help, the cheapest first:\n"))
        say(stream, *(f"  {hint(remedy)}" for remedy in remedies_by_option), hang=4)
    if others:
        stream.write(_("\nWhat your script can change:\n"))
        say(stream, *(f"  {hint(other)}" for other in others), hang=4)
