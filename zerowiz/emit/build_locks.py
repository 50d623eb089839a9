"""Remove the lock of a build that was killed."""

from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.launch.doctor.facts import LOCK_NOTE, Lock
from zerowiz.errors import PreflightError
from zerowiz.words import _


def remove_lock(lock: Lock) -> bool:
    """Remove a lock that its maker has left, and its note; whether it was there, and no later one.

    Raises:
        PreflightError: It cannot be removed.
    """
    path = Path(lock.path)
    try:
        status = path.stat()
        if (status.st_ino, status.st_mtime_ns) != lock.made:
            return False
        path.unlink()
        path.with_name(LOCK_NOTE).unlink(missing_ok=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PreflightError(
            _(
                "cannot remove `{path}`, which a dead rank left behind: {strerror}",
                path=path,
                strerror=error.strerror,
            ),
            f"rm {shell.quote(path)}",
        ) from error
    return True
