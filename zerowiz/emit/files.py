"""Write files whole or not at all, and never over somebody's work unasked."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from zerowiz.core.launch import PlannedFile
from zerowiz.errors import ZerowizError

# Beside the configs lies one empty file for each content that zerowiz wrote. Marks are only ever
# added, so racing jobs cannot contradict each other: a config is ours as long as its mark exists.
RECORDS = ".zerowiz"


def _mark(path: Path, content: bytes) -> Path:
    return path.parent / RECORDS / "written" / hashlib.sha256(content).hexdigest()


def _cannot_write(path: Path, error: OSError) -> ZerowizError:
    reason = error.strerror or str(error)
    return ZerowizError(
        f"cannot write `{path}`: {reason.lower()}", "`--output-dir` writes elsewhere"
    )


def is_somebodys_work(path: Path, text: str) -> bool:
    """Whether writing `text` would lose something: a file that zerowiz did not write so.

    Raises:
        ZerowizError: What is there cannot be read.
    """
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _cannot_write(path, error) from None
    return there != text.encode() and not _mark(path, there).exists()


def _replace(link: Path, content: bytes, mode: int | None = None) -> None:
    """Readers see the old content or the new, never half; a link stays, and its file changes."""
    path = Path(os.path.realpath(link))  # Path.resolve() raises no OSError on a loop before 3.13
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        # mkstemp makes private files; a config is for the whole job's user group.
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def replace_file(path: Path, text: str) -> None:
    """Write a file of zerowiz's own, whole, whatever is there.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    try:
        _replace(path, text.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def rewrite_file(path: Path, text: str) -> None:
    """Change a person's own file at their word; who may read it stays as it is.

    Raises:
        ZerowizError: It is gone or no regular file, or its folder cannot be written.
    """
    _refuse_special(path)
    try:
        _replace(path, text.encode(), stat.S_IMODE(path.stat().st_mode))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ZerowizError(f"cannot write `{path}`: {reason.lower()}") from error


def _refuse_special(path: Path) -> None:
    """A device or a pipe is not replaced by a file, whoever may do so."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # what cannot be looked at is refused where it is written
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ZerowizError(f"cannot write `{path}`: it is no regular file")


def refuse_loss(file: PlannedFile, *, force: bool = False) -> None:
    """See that writing this file loses nobody's work.

    Raises:
        ZerowizError: It was changed by hand, or cannot be read.
    """
    path = Path(file.path)
    _refuse_special(path)
    if force or not is_somebodys_work(path, file.text):
        return
    hints = (
        f"`--config {file.path}` launches with it as it is",
        "`--output-dir` writes elsewhere",
    )
    raise ZerowizError(
        f"`{file.path}` exists and zerowiz did not write it like this; it is left as it is",
        "`--force` overwrites it",
        *(hints if path.name.startswith("ds_config") else ()),
    )


def write_file(file: PlannedFile, *, force: bool = False) -> None:
    """Write one planned file and leave its mark.

    Raises:
        ZerowizError: The file was changed by hand, or its folder cannot be written.
    """
    refuse_loss(file, force=force)
    path, content = Path(file.path), file.text.encode()
    mark = _mark(path, content)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        _replace(path, content)
    except OSError as error:
        raise _cannot_write(path, error) from error
