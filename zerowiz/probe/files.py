"""Read the files that a person names, and the data of the package."""

import difflib
import errno
import hashlib
import json
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from zerowiz.core.speed.costs import time_python_call
from zerowiz.core.structs import Count, decode, parse_json
from zerowiz.core.workload import MODEL_FOLDER, NEWEST_TRANSFORMERS, NEWEST_TRL
from zerowiz.errors import PreflightError, UsageError, ZerowizError, did_you_mean

if TYPE_CHECKING:
    from zerowiz.core.decision.job import Pair
    from zerowiz.core.dsconfig.schema import Schema
    from zerowiz.core.findings import BadRelease
    from zerowiz.core.launch.provenance import PlannedFile
    from zerowiz.core.machine.names import GpuModel, Instance
    from zerowiz.core.model.from_name import KnownModel


# Replace UUIDs by hashes; equal ones get equal hashes.

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def hash_uuids(text: str) -> str:
    """The text with every UUID replaced by a UUID made of its hash."""
    return _UUID.sub(
        lambda match: str(uuid.UUID(bytes=hashlib.sha256(match[0].lower().encode()).digest()[:16])),
        text,
    )


# Every access to /proc, /sys and disks is here.

# /proc/cpuinfo has 2 kB for each core, and a file of hosts a name for each rank.
_MOST_HOST_BYTES = 4 * 2**20


class Space(Struct, frozen=True, kw_only=True):
    """The size of the file system that holds a path."""

    total_bytes: Count
    free_bytes: Count
    """For a process that is not root."""


class Files(Struct, frozen=True, kw_only=True):
    """The files of this host. Paths start at its root, without a slash: `proc/meminfo`."""

    root: Path = Path("/")
    """The host's root; tests build a whole host in a folder."""

    def text(self, path: str) -> str | None:
        """The content of a file; `None` where it is missing or cannot be read."""
        try:
            return read_named(self.root / path, _MOST_HOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; empty where it is missing or cannot be read."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / folder).iterdir()))
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        """The path with every symbolic link resolved; `None` where it is missing."""
        try:
            # Path.resolve() raises no OSError on a loop before Python 3.13.
            resolved = Path(os.path.realpath(self.root / path, strict=True))
            return resolved.relative_to(os.path.realpath(self.root)).as_posix()
        except (OSError, ValueError):
            return None

    def space(self, path: str) -> Space | None:
        """The size of the file system under a path; `None` where the path is missing."""
        try:
            system = os.statvfs(self.root / path)
        except OSError:
            return None
        return Space(
            total_bytes=system.f_blocks * system.f_frsize,
            free_bytes=system.f_bavail * system.f_frsize,
        )

    def opens(self, path: str) -> bool:
        """Whether this process may read and write a file."""
        return os.access((self.root / path), os.R_OK | os.W_OK)

    def python_call_seconds(self) -> float | None:
        """What a call takes in Python on the host; `None` where nobody can tell."""
        return time_python_call(time.perf_counter)


CALL_TIMEOUT_S = 30.0
"""Without persistence mode a GPU takes seconds to wake, and all are woken by one call."""


class World(Struct, frozen=True, kw_only=True):
    """The sources of every fact about a machine, beside its driver."""

    files: Files
    environ: Mapping[str, str]
    call_timeout_s: float = CALL_TIMEOUT_S
    """How long the driver may take to answer one call."""
    on_wait: Callable[[str], object] = lambda _: None
    """Told what is waited for, where the driver takes long."""


_Rows = TypeVar("_Rows")

MOST_BYTES = 32 * 2**20
"""The index of a checkpoint of 671 billion parameters has 9 MB."""

LONGEST_SCRIPT_BYTES = 2**19
"""More than somebody writes; Python takes up to 1 kB of memory for each byte."""

# Until something is written to a pipe: a GPU may have to wake.
_OPENED_SECONDS = 2
_WRITTEN_SECONDS = 30
# The kernel has no memory for a read of 4 MiB from /proc/sys.
_PART_BYTES = 2**16

# What is at a path that is neither a file nor a pipe.
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder, not a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
)


def is_named_file(path: Path) -> bool:
    """Whether a path leads to something else than a folder: what a person names is to be read."""
    return path.exists() and not path.is_dir()


def read_named(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file, or what is written to a pipe.

    Args:
        path: What the person named.
        most_bytes: More than a file of this kind has.

    Raises:
        OSError: It cannot be read, is no file, or is larger; `strerror` is what to say of it.
    """
    data = read_beginning(path, most_bytes)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {_size(most_bytes)}")
    return data


def read_named_text(path: Path, encoding: str = "utf-8", most_bytes: int = MOST_BYTES) -> str:
    """The text of a file, as `read_named`.

    Raises:
        OSError: As `read_named`.
        UnicodeDecodeError: It is no text in this encoding.
    """
    text = read_named(path, most_bytes).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def require_text(path: Path, missing: str | None = None) -> str:
    """As `read_named_text`, of a file that a job cannot do without.

    Args:
        path: The file.
        missing: What is said if no such file exists; else it is a FileNotFoundError.

    Raises:
        PreflightError: There is none, or it cannot be read.
        UsageError: It is no UTF-8 text.
    """
    try:
        return read_named_text(path)
    except FileNotFoundError:
        if missing is None:
            raise
        raise PreflightError(missing, "its path counts from the current folder") from None
    except OSError as error:
        raise PreflightError(f"`{path}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"`{path}` is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from None


def read_kept(kind: type[_Rows], path: Path) -> _Rows | None:
    """What zerowiz kept in a file; None where it is missing or cannot be read."""
    try:
        return decode(kind, parse_json(read_named(path)), path.name)
    except (OSError, ValueError, UsageError):
        return None


def read_beginning(path: Path, most_bytes: int) -> bytes:
    """As `read_named`; of a larger file the beginning, one byte more than `most_bytes`."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        status = os.fstat(handle)
        for is_kind, number, reason in _KINDS:
            if is_kind(status.st_mode):
                raise OSError(number, reason)
        if not stat.S_ISFIFO(status.st_mode):
            return _read_to_end(handle, most_bytes + 1)
        data = _PIPES.get(_last_written(handle))
        if data is None:
            data = _read_to_end(handle, most_bytes + 1)
            _PIPES[_last_written(handle)] = data
        return data
    finally:
        os.close(handle)


# A pipe can be read once, and a command may need a file twice.
_PIPES: dict[tuple[int, int, int], bytes] = {}


def _last_written(handle: int) -> tuple[int, int, int]:
    """Which pipe it is, and when something was written to it."""
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read_to_end(handle: int, most_bytes: int) -> bytes:
    data, is_pipe = b"", stat.S_ISFIFO(os.fstat(handle).st_mode)
    while rest := most_bytes - len(data):
        is_ready = not is_pipe or bool(select([handle], [], [], _OPENED_SECONDS)[0])
        try:
            part = os.read(handle, min(rest, _PART_BYTES))
        except BlockingIOError:
            # A log of the kernel waits for its next line.
            if not is_pipe:
                raise OSError(errno.EINVAL, "it has no end") from None
            if select([handle], [], [], _WRITTEN_SECONDS)[0]:
                continue
            reason = f"nothing was written to it for {_WRITTEN_SECONDS} seconds"
            raise TimeoutError(errno.ETIMEDOUT, reason) from None
        if not (part or is_ready):
            raise TimeoutError(errno.ETIMEDOUT, "no program has it open to write to it")
        if not part:
            break
        data += part
    return data


def _size(count_bytes: int) -> str:
    whole, rest = divmod(count_bytes, 2**20)
    return f"{count_bytes // 2**10} KiB" if rest else f"{whole} MiB"


# Find what the environment names.


def first_set(environ: Mapping[str, str], names: Iterable[str]) -> str:
    """The value of the first of these variables that has one, else ""."""
    return next((environ[name] for name in names if environ.get(name)), "")


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


# Find the answers file of a job, and read it: `zerowiz.toml`, or a table of `pyproject.toml`.

FILE_NAME = "zerowiz.toml"
CHECK = "check"
"""The table in it that is of no job."""
_PYPROJECT = "pyproject.toml"
_TABLE = re.compile(r"^\[tool\.zerowiz[.\]]", re.MULTILINE)
# Every key that there is takes a few kB.
_MOST_BYTES = 64 * 2**10


def find_answers_files(script: str | None, output_dir: Path | None) -> Iterator[Path]:
    """The files that a run in the working folder may read, the first that counts first.

    First in the folder of the configs, where that is said. Then in the folder of the script, where
    that lies below the working folder, else in the working folder, and from there upwards: to the
    root of the repository, and outside of one no further than the working folder. So a stray file
    far up changes no job.

    Args:
        script: Its path, where it is named.
        output_dir: The folder of the configs, where it is said.
    """
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    start = here if script is None else Path(script).absolute().parent
    if ".." in start.parts or not start.is_relative_to(here) or not start.is_dir():
        start = here
    levels = (start, *start.parents)
    folders = levels[: levels.index(root) + 1]
    if output_dir is not None:
        folders = (here / output_dir, *folders)
    paths = (folder / name for folder in folders for name in (FILE_NAME, _PYPROJECT))
    return (path for path in paths if path.is_file() and _has_answers(path))


def _has_answers(path: Path) -> bool:
    try:
        return path.name == FILE_NAME or bool(_TABLE.search(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False  # what builds the project says so


def read_answers(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """The text of an answers file, and what it holds.

    Args:
        path: Where it lies.
        name: What errors call it.

    Raises:
        ZerowizError: It cannot be read.
        UsageError: It is not TOML.
    """
    import tomllib  # noqa: PLC0415 - most folders have no answers file

    try:
        text = read_named_text(path, "utf-8-sig", _MOST_BYTES)
        if path.name != _PYPROJECT:
            return text, tomllib.loads(text)
        # Its lines keep their numbers.
        above = _TABLE.split(text, maxsplit=1)[0]
        text = "\n" * above.count("\n") + text.removeprefix(above)
        return text, tomllib.loads(text)["tool"]["zerowiz"]
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ZerowizError(f"`{name}` cannot be read: {why}", "ignore it: `$isolated`") from None
    except (RecursionError, ValueError) as error:
        raise UsageError(
            f"`{name}` is not TOML: {error}",
            "write each option in a line of its own: `seq-len = 2048`",
        ) from None


# What the package has: tables, schemas, templates, and the releases that are installed.

# Not by importlib.resources, which takes longer to load than a table.
_PACKAGE = Path(__file__).parents[1]
_DATA = _PACKAGE / "data"


# Read what the page of errors says of a code.

ALL = "all"
"""In the place of a code: every code."""

# A line of the page's tables: a code, its name, its severity and what it is about.
_ROW = r"(?m)^\| \[([A-Z]{2}\d+)\]\(#\w+\) \| `(.+?)` \| (\w+) \| (.*) \|$"
# The comments of cog around what it generates, which nobody reads at a terminal.
_MARKS = r"(?m)^<!-- \[\[\[(?s:.*?)\]\]\] -->\n?"


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
    inside = _DATA / "errors.md"
    beside = _PACKAGE / ".." / "docs" / "reference" / "errors.md"
    page = (inside if inside.is_file() else beside).read_text(encoding="utf-8")
    if code.lower() == ALL:
        rows = re.findall(_ROW, page)
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
    return f"{title}\n\n{re.sub(_MARKS, '', text).strip()}\n"


# Read the scripts that a person can start from.

# What each script needs beside it.
_SHARED = ("portable_checkpoint", MODEL_FOLDER, "corpus.txt")


def read_template(script: str, folder: Path = Path()) -> "tuple[PlannedFile, ...]":
    """A script of the templates and all that it needs, as files of a folder.

    Args:
        script: Its name; it is the last of the files.
        folder: Where they are to lie.
    """
    inside = _PACKAGE / "templates"
    templates = inside if inside.is_dir() else _PACKAGE / ".." / "templates"
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
    """Every row of `zerowiz/data/measured_pairs.json`: the settings that some run had together."""
    from zerowiz.core.decision.job import Pair  # noqa: PLC0415 - one command reads one table

    return _read_rows(frozenset[Pair], "measured_pairs.json")


# Read the installed release of a library without loading the library.

_MAJOR_MINOR = re.compile(r"(\d+)\.(\d+)")
_METADATA = ".dist-info"


def read_version(package: str) -> str | None:
    """The release of a package, by the name of its metadata's folder.

    `importlib.metadata` loads the standard library's e-mail parser: a tenth of a plan's time.

    Args:
        package: A name without `-`, `.` and `_`.

    Returns:
        None where it is not installed, or only there without such a folder.
    """
    for folder in map(Path, sys.path):
        with suppress(OSError):
            version = _list_versions(folder, folder.stat().st_mtime_ns).get(package)
            if version is not None:
                return version
    return None


# The wizard plans at each key that is pressed. What is installed meanwhile changes the folder.
@lru_cache(maxsize=64)
def _list_versions(folder: Path, changed_ns: int) -> Mapping[str, str]:
    """The releases of the packages in a folder, by name; of several the first by its name."""
    del changed_ns
    names = sorted(os.listdir(folder), reverse=True)  # noqa: PTH208 - a Path of each takes longer
    metadata = (name[: -len(_METADATA)] for name in names if name.endswith(_METADATA))
    return {package: version for package, _, version in (name.partition("-") for name in metadata)}


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
