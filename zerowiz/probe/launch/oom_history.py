"""Read which runs of a job ran out of memory on this machine."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.codec import decode, parse_json
from zerowiz.core.decision.oom_history import History
from zerowiz.errors import UsageError
from zerowiz.probe.cache import cache_folder
from zerowiz.probe.named_file import read_named


def history_path(key: str, environ: Mapping[str, str]) -> Path:
    """The path of the history of the jobs with this key."""
    return _folder(environ) / f"{key}.json"


def has_histories(environ: Mapping[str, str]) -> bool:
    """Whether any job ran out of memory here; where none did, no key has to be worked out."""
    return _folder(environ).is_dir()


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "zerowiz" / "ran_out"


def read_history(path: Path) -> History:
    """The history in a file; an empty one where the file is missing or cannot be read."""
    try:
        return decode(History, parse_json(read_named(path)), "ran_out")
    except (OSError, ValueError, UsageError):
        return History()
