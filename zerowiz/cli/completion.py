"""What a shell offers for a half-written value; typer asks, and writes the shells' scripts."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from zerowiz.core.settings import OTHER_SETTINGS, SettingRow

# `2x8xH1`: the counts stay, the name is completed.
_COUNTS = re.compile(r"(?:\d{1,6}[x*])*", re.IGNORECASE)
_MOST_FILES, _MOST_MODELS = 50, 100


def complete_setting(row: SettingRow, choices: Sequence[str]) -> Callable[..., list[str]] | None:
    """What completes the value of a setting; None where a shell completes it as a path."""
    if row is OTHER_SETTINGS["model"]:
        return _complete_model
    if row is OTHER_SETTINGS["machine"]:
        return complete_machine
    if not choices:
        return None

    def complete(incomplete: str) -> list[str]:
        return list(_begin(incomplete, choices))

    return complete


def complete_machine(incomplete: str) -> list[str]:
    """Names of GPUs and instances, behind the counts that were written; files stay files."""
    from zerowiz.probe.package_data import (  # noqa: PLC0415 - see plan
        read_gpu_table,
        read_instances,
    )

    counts = (_COUNTS.match(incomplete) or [""])[0]
    names = [alias for gpu in read_gpu_table() for alias in gpu.aliases]
    names += [row.name for row in read_instances()]
    if not counts:
        names += ["all", "cpu", *_files("*.json")]
    return [counts + name for name in _begin(incomplete[len(counts) :], names)]


def complete_script(incomplete: str) -> list[str]:
    """Python files here, or in the folder that was begun, and folders on the way."""
    folder = incomplete.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    return list(_begin(incomplete, [*_files(f"{prefix}*.py"), *_files(f"{prefix}*/")]))


def _complete_model(incomplete: str) -> list[str]:
    from zerowiz.probe.package_data import read_known_models  # noqa: PLC0415 - as above

    table = read_known_models()
    ids = [name for row in table for name in (row.id, *row.aliases)]
    names = ids if "/" in incomplete else [row.name.lower() for row in table] + ["7b", "13b", "70b"]
    folders = [str(Path(path).parent) for path in _files("*/config.json")]
    return list(islice(_begin(incomplete, [*folders, *names]), _MOST_MODELS))


def _files(pattern: str) -> list[str]:
    folder = pattern.endswith("/")
    if pattern.startswith("/"):
        root, pattern = Path("/"), pattern.lstrip("/")
    else:
        root = Path()
    try:
        paths = sorted(str(path) for path in islice(root.glob(pattern), _MOST_FILES))
    except (OSError, ValueError, NotImplementedError):
        return []
    return [f"{name}/" for name in paths if not name.startswith(".")] if folder else paths


def _begin(incomplete: str, names: Iterable[str]) -> Iterator[str]:
    """The names that begin so in any case, each once, with what was written as it was written."""
    begun = incomplete.lower()
    matches = dict.fromkeys(name for name in names if name.lower().startswith(begun))
    return (incomplete + name[len(incomplete) :] for name in matches)
