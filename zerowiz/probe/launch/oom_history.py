"""Read which runs of a job ran out of memory on this machine."""

import json
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.codec import decode
from zerowiz.core.decision.oom_history import History
from zerowiz.errors import UsageError
from zerowiz.probe.cache import cache_folder


def history_path(key: str, environ: Mapping[str, str]) -> Path:
    """The path of the history of the jobs with this key."""
    return cache_folder(environ) / "zerowiz" / "ran_out" / f"{key}.json"


def read_history(path: Path) -> History:
    """The history in a file; an empty one where the file is missing or cannot be read."""
    try:
        return decode(History, json.loads(path.read_bytes()), "ran_out")
    except (OSError, ValueError, UsageError):
        return History()
