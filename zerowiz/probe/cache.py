"""Find the user's cache folder."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The cache folder of the XDG base directory specification."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")) / ".cache"
    return without_tilde(cache)


def without_tilde(path: str | Path) -> Path:
    """A path that a variable names, with a home folder for its `~`.

    The home of an unknown user stays as it stands, as for torch and huggingface_hub, whose
    variables these are; `Path.expanduser` raises an error.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - see above
