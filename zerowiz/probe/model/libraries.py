"""Read the installed release of a library without loading the library."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from zerowiz.core.workload.workload import NEWEST_TRANSFORMERS, NEWEST_TRL

_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")


def read_version(package: str) -> str | None:
    """The release of a package, by the name of its metadata's folder, else `importlib.metadata`.

    The latter loads the standard library's e-mail parser, which takes a tenth of a plan's time.

    Args:
        package: A name without `-`, `.` and `_`.

    Returns:
        None where it is not installed.
    """
    return _find_version(package, tuple((folder, _changed_ns(folder)) for folder in sys.path))


def _changed_ns(folder: str) -> int | None:
    """When an entry came to a folder or left it last; None where there is none."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return None


# The wizard plans at each key that is pressed. What is installed meanwhile changes a folder.
@lru_cache(maxsize=64)
def _find_version(package: str, folders: tuple[tuple[str, int | None], ...]) -> str | None:
    for folder in (Path(name) for name, _ in folders):
        with suppress(OSError):
            for found in sorted(folder.glob(f"{package}-*.dist-info")):
                return found.stem.removeprefix(f"{package}-")
            if (folder / package).is_dir():
                return _read_metadata(package)
    return None


def _read_metadata(package: str) -> str | None:
    """The release of a checkout, or of a package whose metadata a Linux distribution moved."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - seldom needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def list_model_types() -> Iterator[str]:
    """The folders that the installed transformers has for its models; none where it is missing.

    A folder is looked at as the first of them is asked for.
    """
    for folder in sys.path:
        with suppress(OSError):
            models = Path(folder) / "transformers" / "models"
            yield from sorted(path.name for path in models.iterdir() if path.is_dir())
            return


def read_transformers_release() -> tuple[int, int]:
    """Major and minor release of the installed transformers; the newest if there is none."""
    return parse_release(read_version("transformers")) or NEWEST_TRANSFORMERS


def read_trl_release() -> tuple[int, int]:
    """Major and minor release of the installed TRL; the newest if there is none."""
    return parse_release(read_version("trl")) or NEWEST_TRL


def parse_release(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a text like `5.23.0`; None for any other."""
    found = _MAJOR_MINOR.match(text or "")
    return (int(found[1]), int(found[2])) if found else None
