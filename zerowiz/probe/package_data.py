"""Read zerowiz's own data, and the releases of the libraries beside it."""

import difflib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zerowiz.core.structs import decode
from zerowiz.core.workload import MODEL_FOLDER, NEWEST_TRANSFORMERS, NEWEST_TRL
from zerowiz.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from zerowiz.core.decision.job import Pair
    from zerowiz.core.dsconfig.schema import Schema
    from zerowiz.core.findings import BadRelease
    from zerowiz.core.launch.provenance import PlannedFile
    from zerowiz.core.machine.names import GpuModel, Instance
    from zerowiz.core.model.from_name import KnownModel

# Not by importlib.resources, which takes longer to load than a table.
_PACKAGE = Path(__file__).parents[1]
_DATA = _PACKAGE / "data"


def read_page_files() -> tuple[str, str]:
    """The style and the script that stand inside the page, so that it opens without a network."""
    style, script = ((_DATA / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return style, script


# Read what the page of errors says of a code.

ALL = "all"
"""In the place of a code: every code."""

# A line of the page's tables: a code, its name, its severity and what it is about.
_ROW = re.compile(r"^\| \[([A-Z]{2}\d+)\]\(#\w+\) \| `(.+?)` \| (\w+) \| (.*) \|$", re.MULTILINE)
# The comments of cog around what it generates, which nobody reads at a terminal.
_MARKS = re.compile(r"^<!-- \[\[\[(?s:.*?)\]\]\] -->\n?", re.MULTILINE)


def read_explanation(code: str) -> str:
    """The section of the page about a code of `check` or `doctor`, or an exit code, in Markdown.

    Args:
        code: As it stands in a finding, in any case; `exit-4` for an exit code. `all` lists every
            code of findings, one on a line.

    Raises:
        UsageError: There is no such code.

    Example:
        >>> read_explanation("zw101").splitlines()[0]
        'ZW101'
    """
    page = _read_page()
    if code.lower() == ALL:
        rows = _ROW.findall(page)
        return "".join(
            f"{rule} {name} ({severity}): {about}\n" for rule, name, severity, about in rows
        )
    titles = re.findall(r"^### ([A-Z]{2}\d+|Exit \d+)$", page, re.MULTILINE)
    codes = {title.replace("Exit ", "exit-"): title for title in titles}
    spelled = {known.lower(): known for known in codes}
    wanted = code.lower()
    if wanted not in spelled:
        near = difflib.get_close_matches(wanted, spelled, n=3)
        raise UsageError(
            f"there is no code `{code}`",
            *did_you_mean(spelled[name] for name in near),
            "to list all codes: `zerowiz check --explain all`",
        )
    title = codes[spelled[wanted]]
    section = page.partition(f"\n### {title}\n")[2]
    text = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return f"{title}\n\n{_MARKS.sub('', text).strip()}\n"


def _read_page() -> str:
    """Of the installed package, or beside it in a checkout."""
    inside = _DATA / "errors.md"
    page = inside if inside.is_file() else _PACKAGE / ".." / "docs" / "reference" / "errors.md"
    return page.read_text(encoding="utf-8")


# Read the scripts that a person can start from.

# What each script needs beside it.
_SHARED = ("portable_checkpoint", MODEL_FOLDER, "corpus.txt")


def find_templates() -> Path:
    """The folder of the templates: in the installed package, or beside it in a checkout."""
    inside = _PACKAGE / "templates"
    return inside if inside.is_dir() else _PACKAGE / ".." / "templates"


def read_template(script: str, folder: Path = Path()) -> "tuple[PlannedFile, ...]":
    """A script of the templates and all that it needs, as files of a folder.

    Args:
        script: Its name; it is the last of the files.
        folder: Where they are to lie.
    """
    templates = find_templates()
    names = (*_SHARED, script)
    return tuple(
        file for name in names for file in _read(templates.joinpath(name), str(folder / name))
    )


def _read(entry: Path, path: str) -> "Iterator[PlannedFile]":
    from zerowiz.core.launch.provenance import PlannedFile  # noqa: PLC0415 - one command reads one table

    if entry.is_file():
        yield PlannedFile(path=path, text=entry.read_text(encoding="utf-8"))
        return
    for item in sorted(entry.iterdir(), key=lambda file: file.name):
        if item.name != "__pycache__":
            yield from _read(item, f"{path}/{item.name}")


# Read the schema of DeepSpeed's configs that ships with the package.


def read_ds_schema(version: str | None = None) -> "Schema":
    """The schema of a DeepSpeed version, or of the nearest known one.

    Args:
        version: As in `deepspeed.__version__`; None takes the newest.
    """
    from zerowiz.core.dsconfig.schema import choose_schema  # noqa: PLC0415 - one command reads one table

    return choose_schema(read_ds_schemas(), version)


@cache
def read_ds_schemas() -> "tuple[Schema, ...]":
    """Every version of `zerowiz/data/ds_schema.json`, the newest first."""
    from zerowiz.core.dsconfig.schema import decode_schemas  # noqa: PLC0415 - one command reads one table

    text = (_DATA / "ds_schema.json").read_text(encoding="utf-8")
    return decode_schemas(json.loads(text))


# Read the tables that ship with the package: bad releases, GPUs, instances, models, measured runs.

_Rows = TypeVar("_Rows")


def _read_rows(kind: type[_Rows], name: str) -> _Rows:
    """The rows of a table of `zerowiz/data`, which are all that its object has."""
    [rows] = json.loads((_DATA / name).read_bytes()).values()
    return decode(kind, rows, name)


@cache
def read_bad_releases() -> "tuple[BadRelease, ...]":
    """Every row of `zerowiz/data/bad_releases.json`."""
    from zerowiz.core.findings import BadRelease  # noqa: PLC0415 - one command reads one table

    return _read_rows(tuple[BadRelease, ...], "bad_releases.json")


@cache
def read_gpu_table() -> "tuple[GpuModel, ...]":
    """Every row of `zerowiz/data/gpus.json`."""
    from zerowiz.core.machine.names import GpuModel  # noqa: PLC0415 - one command reads one table

    return _read_rows(tuple[GpuModel, ...], "gpus.json")


@cache
def read_instances() -> "tuple[Instance, ...]":
    """Every row of `zerowiz/data/instances.json`."""
    from zerowiz.core.machine.names import Instance  # noqa: PLC0415 - one command reads one table

    return _read_rows(tuple[Instance, ...], "instances.json")


@cache
def read_known_models() -> "tuple[KnownModel, ...]":
    """Every row of `zerowiz/data/models.json`."""
    from zerowiz.core.model.from_name import KnownModel  # noqa: PLC0415 - one command reads one table

    return _read_rows(tuple[KnownModel, ...], "models.json")


@cache
def read_measured_pairs() -> "frozenset[Pair]":
    """Every pair of settings that some run of `zerowiz/data/measured_runs.json` had."""
    from zerowiz.core.decision.job import MeasuredRuns  # noqa: PLC0415 - one command reads one table

    content = json.loads((_DATA / "measured_runs.json").read_bytes())
    return decode(MeasuredRuns, content, "measured_runs").pairs()


# Read the installed release of a library without loading the library.

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
    for folder in (Path(name) for name, _changed in folders):
        with suppress(OSError):
            for folder_of_package in sorted(folder.glob(f"{package}-*.dist-info")):
                return folder_of_package.stem.removeprefix(f"{package}-")
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


def read_transformers_release() -> tuple[int, int]:
    """Major and minor release of the installed transformers; the newest if there is none."""
    return parse_release(read_version("transformers")) or NEWEST_TRANSFORMERS


def read_trl_release() -> tuple[int, int]:
    """Major and minor release of the installed TRL; the newest if there is none."""
    return parse_release(read_version("trl")) or NEWEST_TRL


def parse_release(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a text like `5.23.0`; None for any other."""
    match = _MAJOR_MINOR.match(text or "")
    return (int(match[1]), int(match[2])) if match else None
