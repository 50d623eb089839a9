"""Parse amounts that people type."""

import re
from collections.abc import Mapping

from zerowiz.errors import UsageError

_AMOUNT = r"(?i)(\d{1,18}(?:\.\d+)?)\s*([kmgt]i?b?|b)?"
# No GPU has less than a MiB: a smaller bare number is one that lost its unit.
_SMALLEST_BYTES = 2**20
_POWERS: Mapping[str, int] = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_budget(text: str, total_bytes: int | None) -> int:
    """Bytes per GPU of `--memory-budget`: `30GiB`, `24GB`, `25769803776`, or a fraction `0.5`.

    Args:
        text: A number up to 1 is a fraction of the total; units are decimal unless they say `i`.
        total_bytes: Memory of the smallest GPU.

    Raises:
        UsageError: The text is no amount, or a fraction of an unknown total.
    """
    match = re.fullmatch(_AMOUNT, text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"`$memory_budget {text}` is not an amount of memory",
            "use an amount such as `30GiB` or `24GB`, or a fraction such as `0.5`",
        )
    number, unit = float(match[1]), (match[2] or "").lower()
    if unit:
        return _to_bytes(number, unit)
    if number >= _SMALLEST_BYTES:
        return int(number)
    if number > 1:
        raise UsageError(
            f"`$memory_budget {text}` is {text} bytes",
            f"did you mean `{text}GiB`?",
        )
    if total_bytes is None:
        raise UsageError(
            f"`$memory_budget {text}` is a fraction, and the total memory is unknown",
            "use an amount such as `30GiB`",
        )
    return int(number * total_bytes)


def parse_host_memory(text: str) -> int:
    """Bytes of `--host-memory`: `1TiB`, `512GB`; units are decimal unless they say `i`.

    Raises:
        UsageError: The text is no amount, or has no unit.
    """
    match = re.fullmatch(_AMOUNT, text.strip())
    if match is None or not match[2] or float(match[1]) == 0:
        raise UsageError(
            f"`$host_memory {text}` is not an amount of memory",
            "use an amount such as `1TiB` or `512GiB`",
        )
    return _to_bytes(float(match[1]), match[2])


_STEP_COUNT = re.compile(r"(\d{1,15})(k?)", re.ASCII | re.IGNORECASE)


def read_count(text: str) -> int | None:
    """A count of a step: `4096`, or `4k`, which means the same; None for anything else.

    Example:
        >>> read_count("128k"), read_count("128000"), read_count("4 k")
        (131072, 128000, None)
    """
    match = _STEP_COUNT.fullmatch(text)
    return None if match is None else int(match[1]) * (1024 if match[2] else 1)


def _to_bytes(number: float, unit: str) -> int:
    return int(number * (1024 if "i" in unit.lower() else 1000) ** _POWERS[unit[0].lower()])


def largest_part(number: int, most: int) -> int:
    """The largest divisor of a number that is not above `most`.

    Example:
        >>> largest_part(12, 8)
        6
    """
    return next(size for size in range(min(most, number), 0, -1) if number % size == 0)


def divide_batch(global_batch: int, unit: int, words: str, *hints: str) -> int:
    """How many times a unit of sequences is in the global batch.

    Args:
        global_batch: Of all ranks.
        unit: Sequences that are taken together.
        words: What makes up the unit.
        hints: What else would help, beside the nearest that divide.

    Raises:
        UsageError: It does not divide.
    """
    times, rest = divmod(global_batch, unit)
    if times and not rest:
        return times
    nearest = [str(size * unit) for size in (times, times + 1) if size]
    use = (
        f"use the nearest multiple: {nearest[0]}"
        if len(nearest) == 1
        else f"use one of the nearest multiples: {' or '.join(nearest)}"
    )
    # Ranks that share sequences are one: a batch below their number is possible only so.
    if not (hints or times or unit % global_batch):
        hints = (f"or let GPUs share sequences: `$sequence_parallel {unit // global_batch}`",)
    raise UsageError(
        f"`$global_batch {global_batch}` is not a multiple of {words}",
        use,
        *hints,
    )


def solve_accumulation(
    global_batch: int, micro_batch: int, ranks: int, *, is_own: bool = True
) -> int:
    """Micro-steps per optimizer step that make up the global batch.

    Args:
        global_batch: Of all ranks.
        micro_batch: Of each rank.
        ranks: That share the global batch.
        is_own: Whether an option says the micro-batch, so that another may be offered.

    Raises:
        UsageError: It does not divide; the hints are the nearest that do.
    """
    unit = micro_batch * ranks
    part, rest = divmod(global_batch, ranks)
    others = f"or {_nearest_micro_batches(part, micro_batch)}" if part and not rest else ""
    return divide_batch(
        global_batch,
        unit,
        f"{micro_batch} x {ranks} ranks = {unit}",
        *((others,) if is_own and others else ()),
    )


def keep_batch(part: int, micro_batch: int) -> int:
    """Micro-steps per optimizer step that keep what each rank trains in one.

    Args:
        part: Its sequences, as a script or a config says.
        micro_batch: That an option says instead of theirs.

    Raises:
        UsageError: It does not divide; the hints are the nearest that do.

    Example:
        >>> keep_batch(32, 1)
        32
    """
    steps, rest = divmod(part, micro_batch)
    if steps and not rest:
        return steps
    raise UsageError(
        f"`$micro_batch {micro_batch}` does not divide the {part} sequences that each rank trains"
        " in an optimizer step",
        _nearest_micro_batches(part, micro_batch),
        "or add `$accumulation_steps N`, which changes the global batch",
    )


def _nearest_micro_batches(part: int, micro_batch: int) -> str:
    """The micro-batches around this one that divide the sequences of a rank, in words."""
    below = largest_part(part, micro_batch)
    above = next((size for size in range(micro_batch, part + 1) if part % size == 0), None)
    sizes = [size for size in dict.fromkeys((below, above)) if size is not None]
    return "use " + " or ".join(f"`$micro_batch {size}`" for size in sizes)
