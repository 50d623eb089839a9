"""Read which release of a library is installed, without loading it."""

import re
from importlib.metadata import PackageNotFoundError, distribution

from zerowiz.core.workload import NEWEST_TRANSFORMERS

_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")


def read_version(package: str) -> str | None:
    """As its metadata says; None where it is not installed, or does not say it."""
    try:
        # `metadata.version` parses all of it as an e-mail: for torch, a long one.
        found = _VERSION.search(distribution(package).read_text("METADATA") or "")
    except PackageNotFoundError:
        return None
    return found[1] if found else None


def read_transformers_release() -> tuple[int, int]:
    """Major and minor of the transformers that runs the model; the newest where none is here."""
    return parse_release(read_version("transformers")) or NEWEST_TRANSFORMERS


def parse_release(text: str | None) -> tuple[int, int] | None:
    """Major and minor of `5.23.0`; None where nothing like it is told."""
    found = _MAJOR_MINOR.match(text or "")
    return (int(found[1]), int(found[2])) if found else None
