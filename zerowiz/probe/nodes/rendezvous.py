"""Read what the copies of zerowiz on several nodes left for each other."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from zerowiz.core.launch.rendezvous import (
    CALL,
    AttemptSpec,
    Join,
    RendezvousCall,
    attempt_name,
    decode_file,
    join_name,
)
from zerowiz.errors import UsageError, ZerowizError

_Value = TypeVar("_Value")


def read_call(folder: Path) -> RendezvousCall | None:
    """The newest call of a node 0."""
    return _read(RendezvousCall, folder / CALL)


def read_hello(folder: Path, rank: int) -> Join | None:
    """The newest answer of this node."""
    return _read(Join, folder / join_name(rank))


def read_attempt(folder: Path, number: int) -> AttemptSpec | None:
    """This attempt, whoever is meant by it."""
    return _read(AttemptSpec, folder / attempt_name(number))


def is_file_of(path: Path, sha256: str) -> bool:
    """Whether the file is there with this content."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _read(kind: type[_Value], path: Path) -> _Value | None:
    """What the file says; what another version left there in an earlier run says nothing."""
    # A network file system remembers for up to a minute that a file was not there, unless its
    # folder is looked at (nfs(5), "Directory entry caching").
    with suppress(OSError):
        os.listdir(path.parent)  # noqa: PTH208 - it is to look, not to see
    try:
        return decode_file(kind, path.read_text(encoding="utf-8"), path.name)
    except (FileNotFoundError, UsageError, UnicodeDecodeError):
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ZerowizError(f"`{path}` cannot be read: {reason}") from None
