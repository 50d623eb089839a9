"""Read the files of the rendezvous, which the zerowiz processes of several nodes write."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from zerowiz.core.launch.rendezvous import (
    OPEN_FILE,
    AttemptSpec,
    Join,
    OpenRendezvous,
    attempt_name,
    decode_file,
    join_name,
)
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.words import _

_Value = TypeVar("_Value")


def read_open_rendezvous(folder: Path) -> OpenRendezvous | None:
    """The newest rendezvous that a node 0 has opened; None if there is none.

    Args:
        folder: Of the job.
    """
    return _read(OpenRendezvous, folder / OPEN_FILE)


def read_join(folder: Path, node_rank: int) -> Join | None:
    """The newest join of this node; None if there is none.

    Args:
        folder: Of the rendezvous.
        node_rank: The node's number.
    """
    return _read(Join, folder / join_name(node_rank))


def read_attempt(folder: Path, number: int) -> AttemptSpec | None:
    """This attempt, for whichever nodes it is meant; None if there is none.

    Args:
        folder: Of the rendezvous.
        number: Of the attempt, from 1.
    """
    return _read(AttemptSpec, folder / attempt_name(number))


def has_content(path: Path, sha256: str) -> bool:
    """Whether a file exists and its content has this hash."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _read(kind: type[_Value], path: Path) -> _Value | None:
    """The value in a file; None where it is missing, or another version of zerowiz wrote it."""
    # A network file system caches for up to a minute that a file is missing, unless its folder is
    # read (nfs(5), "Directory entry caching").
    with suppress(OSError):
        os.listdir(path.parent)  # noqa: PTH208 - the names are not used
    try:
        return decode_file(kind, path.read_text(encoding="utf-8"), path.name)
    except (FileNotFoundError, UsageError, UnicodeDecodeError):
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ZerowizError(
            _("`{path}` cannot be read: {reason}", path=path, reason=reason)
        ) from None
