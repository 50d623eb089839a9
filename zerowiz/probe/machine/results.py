"""Read what `measure` kept of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zerowiz.core.codec import decode, parse_json
from zerowiz.errors import UsageError
from zerowiz.probe.cache import cache_folder
from zerowiz.probe.named_file import read_named

if TYPE_CHECKING:
    from zerowiz.core.measure.machine_results import MachineResults


def results_path(key: str, environ: Mapping[str, str]) -> Path:
    """The path of the results of the machine with this key."""
    return _folder(environ) / f"{key}.json"


def has_results(environ: Mapping[str, str]) -> bool:
    """Whether anything was measured here."""
    return _folder(environ).is_dir()


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "zerowiz" / "measured"


def read_results(path: Path) -> "MachineResults":
    """The results in a file; none where the file is missing or cannot be read."""
    from zerowiz.core.measure.machine_results import MachineResults  # noqa: PLC0415 - seldom needed

    try:
        return decode(MachineResults, parse_json(read_named(path)), "measured")
    except (OSError, ValueError, UsageError):
        return MachineResults()
