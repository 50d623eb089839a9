"""Read which release of a library is installed, without loading it."""

import re
import sys
from contextlib import suppress
from pathlib import Path

from zerowiz.core.workload import NEWEST_TRANSFORMERS

_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")


def read_version(package: str) -> str | None:
    """As the folder of its metadata is named, else as `importlib.metadata` says.

    That loads all that reads e-mails: as much as a tenth of a plan.

    Args:
        package: A name without `-`, `.` and `_`.

    Returns:
        None where it is not installed.
    """
    for folder in map(Path, sys.path):
        with suppress(OSError):
            for found in sorted(folder.glob(f"{package}-*.dist-info")):
                return found.stem.removeprefix(f"{package}-")
            if (folder / package).is_dir():
                return _read_metadata(package)
    return None


def _read_metadata(package: str) -> str | None:
    """Of a checkout, or of what a distribution packages in a way of its own."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - seldom needed

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
