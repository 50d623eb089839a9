"""Read which release of a library is installed, without loading it."""

import re
import sys
from pathlib import Path

from zerowiz.core.workload import NEWEST_TRANSFORMERS

_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")


def read_version(package: str) -> str | None:
    """As the folder of its metadata is named; None where it is not installed.

    `importlib.metadata` says the same, but it loads all that reads e-mails: as much as a tenth of
    a plan.

    Args:
        package: A name without `-`, `.` and `_`.
    """
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob(f"{package}-*.*-info")):
            # `torch-2.13.0+cpu.dist-info`, and of Debian `torch-1.13.0-py3.11.egg-info`.
            return found.stem.removeprefix(f"{package}-").partition("-")[0]
    return None


def read_transformers_release() -> tuple[int, int]:
    """Major and minor of the transformers that runs the model; the newest where none is here."""
    return parse_release(read_version("transformers")) or NEWEST_TRANSFORMERS


def parse_release(text: str | None) -> tuple[int, int] | None:
    """Major and minor of `5.23.0`; None where nothing like it is told."""
    found = _MAJOR_MINOR.match(text or "")
    return (int(found[1]), int(found[2])) if found else None
