"""Find the user's cache folder."""

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The cache folder of the XDG base directory specification."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")) / ".cache"
    return Path(cache).expanduser()
