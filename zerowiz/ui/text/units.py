"""Write sizes and counts as people read them; GiB lives only here."""

import re
from collections import Counter
from collections.abc import Iterable

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.rule import Severity
from zerowiz.words import Message, _, joined, listing

OF = _(" of ")
"""Between what is needed and what there is."""
# Not in a path or a name.
_GPU = re.compile(r"(?<![\w/.-])GPU(?=s?\b)")


def gib(size_bytes: int | None) -> str:
    """Binary gigabytes with one decimal: `47.3 GiB`."""
    return _("unknown") if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def mib(size_bytes: int | None) -> str:
    """Whole binary megabytes, as `nvidia-smi` lists what processes hold: `20998 MiB`."""
    return _("unknown") if size_bytes is None else f"{size_bytes // 2**20} MiB"


def bare_gib(size_bytes: int | None) -> str:
    """As `gib`, for a column whose heading says GiB; what rounds to nothing shows its digits."""
    if size_bytes is None:
        return "?"
    size = size_bytes / 2**30
    return f"{size:.2f}" if 0 < size < 0.1 else f"{size:.1f}"  # noqa: PLR2004 - one decimal


def with_bounds(expected_bytes: int, low_bytes: int, high_bytes: int) -> tuple[str, str, str]:
    """A size with its unit, and its bounds in the same one: `310 MiB`, `301`, `318`."""
    if high_bytes < 2**30:
        low, high = (f"{each / 2**20:.0f}" for each in (low_bytes, high_bytes))
        return f"{expected_bytes / 2**20:.0f} MiB", low, high
    return gib(expected_bytes), bare_gib(low_bytes), bare_gib(high_bytes)


def decimal_gb(size_bytes: int | None) -> str:
    """Decimal gigabytes without idle decimals, as textbooks write them: `28.5 GB`."""
    return _("unknown") if size_bytes is None else f"{round(size_bytes / 1e9, 2):g} GB"


def size_of(need_bytes: int | None, have_bytes: int | None) -> str:
    """What is needed of what there is, in the unit that shows the difference: `594 of 590 MiB`."""
    known = [size for size in (need_bytes, have_bytes) if size is not None]
    unit, digits, name = (2**20, 0, "MiB") if max(known, default=0) < 2**30 else (2**30, 1, "GiB")
    need, have = ("?" if b is None else f"{b / unit:.{digits}f}" for b in (need_bytes, have_bytes))
    return f"{need}{OF}{have} {name}"


def range_of(low_bytes: int, high_bytes: int, have_bytes: int) -> str:
    """As `size_of`, for what is not known better: `38.2 to 41.0 of 39.4 GiB`."""
    is_small = max(high_bytes, have_bytes) < 2**30
    unit, digits, name = (2**20, 0, "MiB") if is_small else (2**30, 1, "GiB")
    low, high, have = (f"{b / unit:.{digits}f}" for b in (low_bytes, high_bytes, have_bytes))
    return _("{low} to {high}", low=low, high=high) + f"{OF}{have} {name}"


def decimal_size_of(need_bytes: int | None, have_bytes: int | None) -> str:
    """As `size_of`, in textbook units: `28.5 of 42.29 GB`."""
    return f"{decimal_gb(need_bytes).removesuffix(' GB')}{OF}{decimal_gb(have_bytes)}"


def small(size_bytes: int) -> str:
    """A size of any magnitude: `0 B`, `12.0 MiB`, `3.1 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - the unit itself
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def seconds(value: float) -> str:
    """A time of three digits, without its unit: `0.0124`, `1.24`, `124`."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3  # noqa: PLR2004
    return f"{value:.{digits}f}"


def count(params: int) -> str:
    """A count in words: `6.74 B`, `10.5 M`, `2,500 T`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        # What rounds to a thousand of one unit is one of the next.
        if params >= 0.9995 * size:
            number = params / size
            # Three digits, without an exponent where the last unit has more than a thousand.
            return f"{number:,.0f} {unit}" if number >= 999.5 else f"{number:.3g} {unit}"  # noqa: PLR2004 - a thousand
    return str(params)


def severities(found: Iterable[Severity], advice: tuple[str, str]) -> str:
    """How many of each there are: `2 errors, 1 warning`; empty if there is none.

    Args:
        found: Of every finding.
        advice: One finding of the mildest severity in words, and several.
    """
    one_and_more = {
        Severity.ERROR: (_("error"), _("errors")),
        Severity.WARNING: (_("warning"), _("warnings")),
        Severity.INFO: advice,
    }
    counts = Counter(found)
    return listing(
        _("{count} {kind}", count=counts[severity], kind=one if counts[severity] == 1 else more)
        for severity, (one, more) in one_and_more.items()
        if counts[severity]
    )


def gpus(machine: Machine) -> str:
    """The machine's devices in words: `2 nodes of 4 x NVIDIA H200`."""
    count = len(machine.gpus)
    if machine.accelerator is Accelerator.CPU:
        node = _("1 CPU rank") if count == 1 else _("{count} CPU ranks", count=count)
    else:
        names = list(dict.fromkeys(_(gpu.name) for gpu in machine.gpus))
        node = f"{count} x {' + '.join(names)}"
    return (
        node if machine.nodes == 1 else _("{nodes} nodes of {node}", nodes=machine.nodes, node=node)
    )


def on_device(text: str, machine: Machine) -> str:
    """The text for the machine's devices: what a GPU is to a job is a rank on the CPU."""
    if machine.accelerator is Accelerator.CUDA:
        return text
    rank = _("CPU rank")
    if isinstance(text, Message):
        shown = str(joined(rank, _GPU.split(text)))
        return Message(shown, _GPU.sub("CPU rank", text.english))
    return _GPU.sub(rank, text)


def hours(value: float) -> str:
    """A time that people plan with: `35.2 h`, `1,220 h`; `14 min`, `20 s` and `3.5 s` below."""
    if value < 9.95 / 3600:  # what rounds to less than ten seconds has two digits
        return f"{value * 3600:.2g} s"
    if value < 1 / 60:
        return f"{value * 3600:.0f} s"
    if value < 1:
        return f"{value * 60:.0f} min"
    return f"{value:,.0f} h" if value >= 100 else f"{value:.1f} h"  # noqa: PLR2004 - three digits


def money(amount: float, currency: str = "") -> str:
    """An amount in a currency: `$704`, `17.60 EUR`, `0.0123`; no currency is assumed."""
    digits = 0 if amount >= 100 else 2 if amount >= 0.1 or not amount else 4  # noqa: PLR2004 - three digits
    plain = f"{amount:,.{digits}f}"
    return f"{plain} {currency}" if currency.isalpha() else f"{currency}{plain}"
