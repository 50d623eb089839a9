"""Read a file that a person names, and find the answers file and the caches."""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from select import select
from typing import Any

from zerowiz.errors import PreflightError, UsageError, ZerowizError

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


def require_text(path: Path) -> str:
    """As `read_named_text`, of a file that a job cannot do without.

    Raises:
        FileNotFoundError: There is none.
        PreflightError: It cannot be read.
        UsageError: It is no UTF-8 text.
    """
    try:
        return read_named_text(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PreflightError(f"`{path}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"`{path}` is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from None


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
            try:
                data = _read_to_end(handle, most_bytes + 1)
            except TimeoutError as error:
                data = error
            _PIPES[_last_written(handle)] = data
        if isinstance(data, TimeoutError):
            raise data
        return data
    finally:
        os.close(handle)


# A pipe can be read once, and a command may need a file twice; nor is one waited for twice.
_PIPES: dict[tuple[int, int, int], bytes | TimeoutError] = {}


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


# Find the user's cache folder.


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


# Find the answers file of a job, `zerowiz.toml`, and read it.

FILE_NAME = "zerowiz.toml"
CHECK = "check"
"""The table in it that is of no job."""
# Every key that there is takes a few kB.
_MOST_BYTES = 64 * 2**10


def find_answers_file(
    script: str | None, output_dir: Path | None, name: str = FILE_NAME
) -> Path | None:
    """The file that a run in the working folder reads; None where there is none.

    First in the folder of the configs, where that is said. Then in the folder of the script, where
    that lies below the working folder, else in the working folder, and from there upwards: to the
    root of the repository, and outside of one no further than the working folder. So a stray file
    far up changes no job.

    Args:
        script: Its path, where it is named.
        output_dir: The folder of the configs, where it is said.
        name: What the file is called.
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
    paths = (folder / name for folder in folders)
    return next((path for path in paths if path.is_file()), None)


_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


def read_answers(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """The text of an answers file, and what it holds.

    Args:
        path: Where it lies.
        name: What errors call it.

    Raises:
        ZerowizError: It cannot be read.
        UsageError: It is not TOML.
    """
    try:
        text = read_named_text(path, "utf-8-sig", _MOST_BYTES)
        return text, tomllib.loads(text)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ZerowizError(f"`{name}` cannot be read: {why}", "ignore it: `$isolated`") from None
    except UnicodeDecodeError:
        raise UsageError(f"`{name}` is not UTF-8", "ignore it: `$isolated`") from None
    except RecursionError:
        raise UsageError(
            f"`{name}` is not an answers file: it has too many levels",
            "write each option in a line of its own: `seq-len = 2048`",
        ) from None
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = f" line {place[1]}" if place else ""
        what = _PLACE.sub("", str(error))
        raise UsageError(
            f"`{name}`{where} is not TOML: {what[:1].lower()}{what[1:]}",
            "write each option in a line of its own: `seq-len = 2048`",
        ) from None
    except ValueError:
        # Python converts no more digits than sys.get_int_max_str_digits().
        raise UsageError(
            f"`{name}`: a number has too many digits", "write the number that you mean"
        ) from None
