"""Write files whole or not at all, and never overwrite a person's edits unasked."""

import errno
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from zerowiz.core import shell
from zerowiz.core.launch.provenance import (
    PlannedFile,
    is_config_of_plan,
    is_plan_path,
    is_unchanged_plan,
    plan_path,
)
from zerowiz.core.structs import replace
from zerowiz.errors import HandEditedError, LostEdit, ZerowizError

# In this folder, next to the configs, lies one empty marker file for each content that zerowiz
# wrote. Markers are only ever added, so concurrent jobs cannot contradict each other: a config is
# zerowiz's own as long as its marker exists. Where there is none, as in a fresh clone, the hashes
# in the plan file say the same. A job that runs holds the markers of what its ranks read.
RECORDS = ".zerowiz"

_OTHER_PLACE = "choose another folder with `--output-dir DIR`"

# Of an existing file no more than this is read: zerowiz writes none as large. A plan takes some
# 45 kB, the largest recording in tests/machines 0.1 MB.
_LARGEST_BYTES = 16_000_000


def _marker(path: Path, content: bytes) -> Path:
    return path.parent / RECORDS / "written" / hashlib.sha256(content).hexdigest()


def _cannot_write(path: Path, error: OSError, hint: str = "") -> ZerowizError:
    hint = hint or _OTHER_PLACE
    reason = (error.strerror or str(error)).lower()
    records = path.parent / RECORDS
    if isinstance(error, PermissionError) and records in Path(str(error.filename)).parents:
        # Another user's job was here first.
        owner = f"`{records}` belongs to user {records.stat().st_uid}"
        return ZerowizError(f"cannot write `{error.filename}`: {reason}; {owner}", hint)
    return ZerowizError(f"cannot write `{path}`: {reason}", hint)


@contextmanager
def _writing(path: Path, hint: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, error, hint) from error


def find_losses(files: Sequence[PlannedFile]) -> tuple[LostEdit, ...]:
    """What writing these files would lose: existing contents that zerowiz did not write.

    The losses stand in reverse order of the files: the last file is the one that the others were
    written for.

    Raises:
        ZerowizError: An existing path cannot be read, or is no file.
    """
    losses: list[LostEdit] = []
    for file in (file for file in reversed(files) if not file.own_folder):
        path, there = Path(file.path), _read_there(file)
        if there is None or there == file.content or _marker(path, there).exists():
            continue
        if there == file.takes_over and not file.conflicts:
            continue
        # A job that replaces the plan file leaves the marker first: it is looked for once more.
        if _is_of_plan(path, there) or _marker(path, there).exists():
            continue
        losses.append(
            LostEdit(
                path=file.path,
                there=there,
                wanted=file.text,
                copy_of=file.copy_of,
                # Edits that do not contradict the plan would not be lost.
                conflicts=file.conflicts if there == file.takes_over else (),
            )
        )
    return tuple(losses)


def _read_there(file: PlannedFile) -> bytes | None:
    """What is in an existing file, or the beginning of a huge one; None where there is none."""
    path = Path(file.path)
    _refuse_special(path, file.elsewhere)
    try:
        with path.open("rb") as stream:
            return stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_write(path, error, file.elsewhere) from None


def _is_of_plan(path: Path, there: bytes) -> bool:
    """Whether this is a config or a plan file as zerowiz wrote it, by the hashes in the latter."""
    if is_plan_path(path.name):
        return is_unchanged_plan(there)
    plan = Path(plan_path(str(path)))
    try:
        noted = plan.read_bytes() if plan.is_file() else b""
    except OSError:
        return False
    return is_config_of_plan(path.name, there, noted)


def _mark_known(file: PlannedFile) -> None:
    """Leave a marker of what a plan file says of this one: the next plan file says it no more.

    Raises:
        ZerowizError: The folder cannot be written.
    """
    path = Path(file.path)
    there = None if file.own_folder else _read_there(file)
    if there is None or _marker(path, there).exists() or not _is_of_plan(path, there):
        return
    with _writing(path, file.elsewhere), _marked(path, there):
        pass


@contextmanager
def _marked(path: Path, content: bytes) -> Iterator[None]:
    """Leave a marker of what is written then; where that fails, nothing of it stays."""
    marker = _marker(path, content)
    was_there = marker.exists()
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        yield
    except OSError:
        with suppress(OSError):
            if not was_there:
                marker.unlink(missing_ok=True)
            # A folder that has something in it stays.
            marker.parent.rmdir()
            marker.parent.parent.rmdir()
        raise


def write_whole(link: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file in one step, so that readers see the old content or the new, never a part.

    A symbolic link stays, and the file that it points to changes.

    Args:
        link: The file, which need not be there, or a link to it.
        content: All of it.
        mode: Its permissions; None for those of a new file.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    path = Path(os.path.realpath(link))  # Path.resolve() raises no OSError on a loop before 3.13
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        flags, made = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600
        with os.fdopen(os.open(temporary, flags, made), "wb") as stream:
            stream.write(content)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def replace_file(path: Path, text: str) -> None:
    """Write a file of zerowiz's own, whole; an existing file is replaced.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    with _writing(path):
        write_whole(path, os.fsencode(text))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads: it may hold a person's secrets.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    with _writing(path):
        write_whole(path, content, stat.S_IRUSR | stat.S_IWUSR)


def rewrite_file(path: Path, text: str) -> None:
    """Change a person's own file, which they asked for; its permissions stay as they are.

    Raises:
        ZerowizError: It is gone or no regular file, or its folder cannot be written.
    """
    _refuse_special(path)
    with _writing(path):
        write_whole(path, os.fsencode(text), _mode(path))


def _refuse_special(path: Path, hint: str = "") -> None:
    """Refuse to replace a folder, a device or a pipe by a file, also where the caller may do so."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # a path whose status cannot be read is refused where it is written
    if stat.S_ISDIR(mode):
        error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise _cannot_write(path, error, hint)
    if not stat.S_ISREG(mode):
        raise ZerowizError(f"cannot write `{path}`: it is not a regular file", hint or _OTHER_PLACE)


def _is_read(file: PlannedFile) -> bool:
    """Whether the ranks of a job read the file, and other jobs write it too."""
    return not file.own_folder and not is_plan_path(file.path)


def _refuse_held(file: PlannedFile) -> None:
    """Refuse to change what a job that runs was started with; writing the same again is harmless.

    Its ranks may read it late: DeepSpeed's launcher starts them one after the other, and
    `--escalate` starts them again.
    """
    there = _read_there(file) if _is_read(file) else None
    if there is None or there == file.content:
        return
    holder = find_holder(_marker(Path(file.path), there))
    if holder is not None:
        raise ZerowizError(
            (
                f"`{file.path}` is in use: a job runs with it {holder}, and this one needs other "
                "settings in it"
            ),
            file.elsewhere or _OTHER_PLACE,
            "wait until that job has ended",
        )


def refuse_loss(*files: PlannedFile, force: bool = False) -> None:
    """Refuse to write these files where a person's edits would be lost, or a job reads them.

    Raises:
        HandEditedError: Some files were changed by hand, and `force` is off.
        ZerowizError: A path cannot be read, or can be no file, or a job that runs reads it.
    """
    for file in files:
        _refuse_special(Path(file.path), file.elsewhere)
        _refuse_held(file)
    if force:
        return
    losses = find_losses(files)
    if losses:
        # A copy of a person's settings may hold a secret, which no screen or log is to show.
        shown = tuple(loss for loss in losses if loss.copy_of is None)
        raise HandEditedError(_refusal(losses), *_hints(losses), losses=shown)


def _refusal(losses: Sequence[LostEdit]) -> str:
    names = " and ".join(f"`{loss.path}`" for loss in losses)
    conflicts = [f"`{loss.path}`: {each}" for loss in losses for each in loss.conflicts]
    if conflicts:
        return f"you edited what the plan decides: {', '.join(conflicts)}"
    if len(losses) == 1:
        return (
            f"{names} exists and was not written by zerowiz, or was changed since; it stays "
            "unchanged"
        )
    return (
        f"{names} exist and were not written by zerowiz, or were changed since; they stay unchanged"
    )


def _hints(losses: Sequence[LostEdit]) -> Iterator[str]:
    if any(loss.conflicts for loss in losses):
        yield "take the plan's values with `--force`: your edits of other keys stay"
    else:
        yield (
            "overwrite it with `--force`" if len(losses) == 1 else "overwrite them with `--force`"
        )
    configs = [loss.path for loss in losses if Path(loss.path).name.startswith("ds_config")]
    for path in configs:
        if is_plan_path(path):
            yield f"no run reads `{path}`: move it away, and zerowiz writes a new one"
        else:
            yield f"launch with it unchanged: `--config {shell.quote(path)}`"
    for original in dict.fromkeys(loss.copy_of for loss in losses if loss.copy_of is not None):
        yield f"it is a copy of `{original}`: make lasting changes there"
    if configs or any(loss.copy_of is not None for loss in losses):
        yield _OTHER_PLACE


def write_files(files: Sequence[PlannedFile], *, force: bool = False) -> None:
    """Write planned files in their order; where one is refused, none is written.

    Raises:
        HandEditedError: Some files were changed by hand, and `force` is off.
        ZerowizError: A folder cannot be written.
    """
    refuse_loss(*files, force=force)
    for file in files:
        _mark_known(file)
    for file in files:
        write_file(file, force=force)


def write_held(files: Sequence[PlannedFile], *, force: bool = False) -> tuple[int, ...]:
    """Write the files of a job that starts, and hold what its ranks read until it has ended.

    Returns:
        Descriptors; the files are held until every process that has them has closed them.

    Raises:
        HandEditedError: Some files were changed by hand, and `force` is off.
        ZerowizError: A folder cannot be written, or another job that runs reads a file.
    """
    read = [Path(file.path) for file in files if _is_read(file)]
    with ExitStack() as stack:
        for folder in sorted({path.parent for path in read}):
            stack.enter_context(alone_in(folder))
        write_files(files, force=force)
        contents = {Path(file.path): file.content for file in files}
        held = [hold(_marker(path, contents[path])) for path in read]
    return tuple(descriptor for descriptor in held if descriptor is not None)


def write_file(file: PlannedFile, *, force: bool = False) -> None:
    """Write one planned file and its marker.

    Raises:
        HandEditedError: The file was changed by hand, and `force` is off.
        ZerowizError: Its folder cannot be written.
    """
    path, content = Path(file.path), file.content
    if file.own_folder:
        write_private(path, content)
        return
    refuse_loss(file, force=force)
    with _writing(path, file.elsewhere), _marked(path, content):
        # A plan file holds the words of a command, among which a secret may be that nothing names.
        private = stat.S_IRUSR | stat.S_IWUSR if is_plan_path(file.path) else None
        write_whole(path, content, private if file.copy_of is None else _mode(Path(file.copy_of)))


# Add files to a person's folder, each whole or not at all; what is there is never overwritten.


def refuse_other_files(files: Sequence[PlannedFile]) -> None:
    """Refuse to add files where others have their names.

    Raises:
        ZerowizError: A path is there with other contents, or cannot be read.
    """
    tuple(_missing(files))


def _missing(files: Sequence[PlannedFile]) -> Iterator[PlannedFile]:
    """Those that are not there yet."""
    for file in files:
        there = _read_there(replace(file, elsewhere="use another folder"))
        if there is None:
            yield file
        elif there != file.content:
            raise ZerowizError(
                f"`{file.path}` already exists with other content; zerowiz does not change it",
                "use an empty folder",
            )


def add_files(files: Sequence[PlannedFile]) -> tuple[PlannedFile, ...]:
    """Add files to the working folder; where one cannot be added, none is.

    Returns:
        Those that were not there before.

    Raises:
        ZerowizError: A path is there with other contents, or cannot be written.
    """
    missing, added, made = tuple(_missing(files)), list[Path](), list[Path]()
    try:
        for path, content in ((Path(file.path), file.content) for file in missing):
            with _writing(path, "use a folder that you can write to"):
                made += [folder for folder in path.parents if not folder.exists()]
                path.parent.mkdir(parents=True, exist_ok=True)
                # Whoever made a file of this name meanwhile keeps it.
                with path.open("xb") as stream:
                    added.append(path)
                    stream.write(content)
    except BaseException:
        for path in added:
            path.unlink(missing_ok=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise
    return missing


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
                # Its folder goes, too, if nothing else is in it.
                if path.parent != Path():
                    path.parent.rmdir()
            else:
                changed.append(file.path)
    return tuple(changed)


# Hold a file for as long as a job runs, so that no other job changes what it reads.
#
# A hold is a lock of an open file description (fcntl(2)). The kernel releases it when the last
# process that has its descriptor ends, however it ends. A file system without such locks holds
# nothing.

# struct flock of fcntl(2) on 64 bits: type, whence, start, length (0: to the end) and pid.
_FLOCK = "hhqqi0q"


def hold(path: Path) -> int | None:
    """Hold a file together with all who hold it already; the descriptor, which an exec keeps.

    None where it cannot be held.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK))
    with suppress(OSError):
        since = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path.write_text(f"{os.getpid()} {os.uname().nodename} {since}\n", encoding="utf-8")
    fcntl.fcntl(descriptor, fcntl.F_SETFD, 0)  # without FD_CLOEXEC
    return descriptor


def release(held: Iterable[int]) -> None:
    """Let go of what `hold` holds."""
    for descriptor in held:
        os.close(descriptor)


def find_holder(path: Path) -> str | None:
    """Who holds a file, and since when; None where nobody else does, or it cannot be seen."""
    with suppress(OSError), path.open("rb") as file:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK))
        if struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK:
            words = file.read(1024).decode("utf-8", "replace").split()
            pid, host, since = (*words, "?", "?", "?")[:3]
            return f"since {since} (process {pid} on {host})"
    return None


def _lock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other job checks and writes files in a folder; NFS locks no folder."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
