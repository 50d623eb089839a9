"""Add files to a person's folder, each whole or not at all; what is there is never overwritten."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from zerowiz.core.launch.plan import PlannedFile
from zerowiz.emit.files import write_whole
from zerowiz.errors import ZerowizError
from zerowiz.words import _


def refuse_other_files(files: Sequence[PlannedFile]) -> None:
    """Refuse to add files where others have their names.

    Raises:
        ZerowizError: A path is there with other contents, or cannot be read.
    """
    tuple(_missing(files))


def _missing(files: Sequence[PlannedFile]) -> Iterator[PlannedFile]:
    """Those that are not there yet."""
    for file in files:
        try:
            there = Path(file.path).read_bytes()
        except FileNotFoundError:
            yield file
            continue
        except OSError as error:
            raise ZerowizError(
                _("`{path}` cannot be read: {reason}", path=file.path, reason=_reason(error)),
                _("use another folder"),
            ) from error
        if there != file.content:
            raise ZerowizError(
                _(
                    "`{path}` already exists with other content; zerowiz does not change it",
                    path=file.path,
                ),
                _("use an empty folder"),
            )


def add_files(files: Sequence[PlannedFile]) -> tuple[PlannedFile, ...]:
    """Add files to the working folder; where one cannot be added, none is.

    Returns:
        Those that were not there before.

    Raises:
        ZerowizError: A path is there with other contents, or cannot be written.
    """
    missing = tuple(_missing(files))
    try:
        for file in missing:
            _add(file)
    except BaseException:
        remove_added(missing)
        raise
    return missing


def _add(file: PlannedFile) -> None:
    path = Path(file.path)
    try:
        _add_whole(path, file.content)
    except OSError as error:
        raise ZerowizError(
            _("cannot write `{path}`: {reason}", path=file.path, reason=_reason(error)),
            _("use a folder that you can write to"),
        ) from error


def _add_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Reserves the name; whoever made a file of it meanwhile keeps it.
    path.touch(exist_ok=False)
    try:
        write_whole(path, content)
    except BaseException:
        path.unlink(missing_ok=True)
        _remove_empty(path.parent)
        raise


def remove_added(files: Sequence[PlannedFile]) -> tuple[str, ...]:
    """Take files off again that `add_files` added.

    Returns:
        The paths of those that somebody changed meanwhile: they stay.
    """
    changed = []
    for file in files:
        path = Path(file.path)
        with suppress(OSError):
            if path.read_bytes() == file.content:
                path.unlink()
                _remove_empty(path.parent)
            else:
                changed.append(file.path)
    return tuple(changed)


def _remove_empty(folder: Path) -> None:
    if folder != Path():
        with suppress(OSError):
            folder.rmdir()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
