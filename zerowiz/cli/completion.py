"""What a shell offers for a half-written value; typer asks, and writes the shells' scripts.

Where nothing is offered, a shell completes the names of files by itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from zerowiz.core.settings import OTHER_SETTINGS, SettingRow

_MOST_MODELS = 100


def complete_setting(row: SettingRow, choices: Sequence[str]) -> Callable[..., list[str]] | None:
    """What completes the value of a setting; None where a shell completes it as a path."""
    if row is OTHER_SETTINGS["model"]:
        return _complete_model
    if row is OTHER_SETTINGS["machine"]:
        return complete_machine
    return (lambda incomplete: [*_begin(incomplete, choices)]) if choices else None


def complete_machine(incomplete: str) -> list[str]:
    """Names of GPUs and instances, behind the counts that were written."""
    from zerowiz.probe.files import (  # noqa: PLC0415 - see plan
        read_gpu_table,
        read_instances,
    )

    # `2x8xH1`: the counts stay, the name is completed.
    counts = (re.match(r"(?:\d{1,6}x)*", incomplete, re.IGNORECASE) or [""])[0]
    names = [alias for gpu in read_gpu_table() for alias in gpu.aliases]
    names += [row.name for row in read_instances()]
    names += [] if counts else ["all", "cpu"]
    return [counts + name for name in _begin(incomplete[len(counts) :], names)]


def _complete_model(incomplete: str) -> list[str]:
    from zerowiz.probe.files import read_known_models  # noqa: PLC0415 - as above

    table = read_known_models()
    ids = [name for row in table for name in (row.id, *row.aliases)]
    names = ids if "/" in incomplete else [row.name.lower() for row in table] + ["7b", "13b", "70b"]
    return list(islice(_begin(incomplete, names), _MOST_MODELS))


def _begin(incomplete: str, names: Iterable[str]) -> Iterator[str]:
    """The names that begin so in any case, each once, with what was written as it was written."""
    begun = incomplete.lower()
    matches = dict.fromkeys(name for name in names if name.lower().startswith(begun))
    return (incomplete + name[len(incomplete) :] for name in matches)
