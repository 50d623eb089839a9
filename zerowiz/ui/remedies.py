"""Say what would help a job that does not fit: the change, what it leads to, what it costs."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.flags import flags
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.strategy import Offload
from zerowiz.ui.text.table import say
from zerowiz.ui.text.units import gib, seconds, size_of

STRATEGIES: Mapping[str, str] = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "zero2-offload": "ZeRO-2 with the optimizer offloaded",
    "zero3-offload-optimizer": "ZeRO-3 with the optimizer offloaded",
    "zero3-offload": "ZeRO-3 with everything offloaded",
}
"""Each strategy in words, by its name."""
_VERDICTS: Mapping[Verdict, str] = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "just fits",
    Verdict.UNCERTAIN: "may fit",
    Verdict.DOES_NOT_FIT: "does not fit",
}
_SAME_FRACTION = 0.03
_AS_TIMES = 2
_MANY_TIMES = 10


def options(remedy: Remedy) -> str:
    """A remedy as the options to type."""
    words = [
        flags()[name] if value is True else f"{flags()[name]} {shlex.quote(str(value))}"
        for name, value in remedy.change.items()
        if value != Offload.NONE.value or name != "offload"
    ]
    return " ".join(words)


def strategy(name: str) -> str:
    """A strategy in words: `ZeRO-3 with the optimizer offloaded`."""
    return STRATEGIES.get(name, name)


def fits(name: str, verdict: Verdict) -> str:
    """Whether a strategy fits, in words: `ZeRO-3 fits`."""
    return f"{strategy(name)} {_VERDICTS[verdict]}"


def outcome(remedy: Remedy) -> str:
    """What a remedy leads to, how fast that is, and what it costs besides.

    Example: `ZeRO-3 fits: 32.1 of 39.4 GiB, 0.93 s a step, about 26 % slower`.
    """
    sizes = size_of(remedy.device_bytes, remedy.budget_bytes)
    return "; ".join(
        [
            ", ".join([f"{fits(remedy.strategy, remedy.verdict)}: {sizes}", *_speed(remedy)]),
            *_costs(remedy),
        ]
    )


def _speed(remedy: Remedy) -> Iterator[str]:
    if remedy.step_seconds is not None:
        yield f"{seconds(remedy.step_seconds)} s a step"
    ratio = remedy.time_fraction
    if ratio is None:
        return
    slower = ratio >= 1
    times = ratio if slower else 1 / ratio
    word = "slower" if slower else "faster"
    if times < 1 + _SAME_FRACTION:
        yield "as fast"
    elif times < _AS_TIMES:
        yield f"about {100 * (times - 1):.0f} % {word}"
    else:
        digits = 0 if times >= _MANY_TIMES else 1
        yield f"about {times:.{digits}f} times {'as slow' if slower else 'as fast'}"


# By a setting, and the value that it is changed to where only one costs so.
_COSTS: Mapping[tuple[str, str | None], str] = {
    ("optimizer_state_dtype", None): "optimizer states have fewer digits",
    ("precision", None): "weights have fewer digits",
    ("sequence_tokens", None): "longer sequences are cut",
    ("method", "lora"): "trains adapters alone",
    ("method", "qlora"): "trains adapters alone, on 4-bit weights",
    ("loss", "liger"): "needs liger-kernel",
    ("loss", "chunked"): "needs a loss that is computed in chunks",
    ("interconnect", None): "if the nodes are linked so",
}


def _costs(remedy: Remedy) -> Iterator[str]:
    """What a change costs besides time, or needs to be true."""
    for name, value in remedy.change.items():
        words = _COSTS.get((name, None)) or _COSTS.get((name, str(value)))
        if words is not None:
            yield words
    if "host_memory" in remedy.change:
        more = remedy.more_host_bytes
        yield f"{gib(more)} more than is free" if more else "if that much is free"


def hint(remedy: Remedy) -> str:
    """A remedy in one line, with what the script needs for it."""
    edit = "" if remedy.edit is None else f"; change your script first: {remedy.edit}"
    return f"`{options(remedy)}`: {outcome(remedy)}{edit}"


def none_found(config: str | None) -> str:
    """What is left where no remedy was found.

    Args:
        config: The person's own, of which nothing is changed.
    """
    if config is not None:
        return (
            f"zerowiz changes nothing of `{config}`; without `$config {config}` it chooses the"
            " strategy, and says what would help"
        )
    from zerowiz.core.remedies.machines import SIZES  # noqa: PLC0415 - most plans need none of it

    most = SIZES[-1]
    return (
        "no machine that zerowiz knows would do, not even"
        f" {most.nodes} nodes of {most.gpus} of the largest GPUs: plan with fewer tokens, or a"
        " smaller model"
    )


def listed(remedies: Sequence[Remedy], stream: TextIO) -> None:
    """All of them, those that need another script apart."""
    own = [each for each in remedies if each.edit is None]
    others = [each for each in remedies if each.edit is not None]
    if own:
        stream.write("\nWhat would help, the cheapest first:\n")
        say(stream, *(f"  {hint(each)}" for each in own), hang=4)
    if others:
        stream.write("\nWhat your script can change:\n")
        say(stream, *(f"  {hint(each)}" for each in others), hang=4)
