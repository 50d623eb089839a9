"""Read which release of a library is installed, without loading it."""

import re
from importlib.metadata import PackageNotFoundError, version

from zerowiz.core.workload import NEWEST_TRANSFORMERS

_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")


def read_version(package: str) -> str | None:
    """As its metadata says; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_transformers_release() -> tuple[int, int]:
    """Major and minor of the transformers that runs the model; the newest where none is here."""
    return parse_release(read_version("transformers")) or NEWEST_TRANSFORMERS


def parse_release(text: str | None) -> tuple[int, int] | None:
    """Major and minor of `5.23.0`; None where nothing like it is told."""
    found = _MAJOR_MINOR.match(text or "")
    return (int(found[1]), int(found[2])) if found else None
