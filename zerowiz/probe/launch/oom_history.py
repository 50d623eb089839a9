"""Read which runs of a job died for want of memory on this machine."""

import json
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.codec import decode
from zerowiz.core.decision.oom_history import History
from zerowiz.errors import UsageError
from zerowiz.probe.cache import cache_folder


def history_path(key: str, environ: Mapping[str, str]) -> Path:
    """Where the history of the jobs with this key lies, or will lie."""
    return cache_folder(environ) / "zerowiz" / "ran_out" / f"{key}.json"


def read_history(path: Path) -> History:
    """The history in this file; an empty one where there is none, or none that can be read."""
    try:
        return decode(History, json.loads(path.read_bytes()), "ran_out")
    except (OSError, ValueError, UsageError):
        return History()
