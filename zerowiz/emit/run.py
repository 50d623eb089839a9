"""Execute a LaunchPlan: write its files, then replace this process by the job."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.emit.files import write_held
from zerowiz.errors import PreflightError
from zerowiz.words import _


def execute(plan: LaunchPlan, environ: Mapping[str, str], *, force: bool = False) -> NoReturn:
    """Write the plan's files and replace this process by its command.

    Raises:
        HandEditedError: A file was changed by hand, and `force` is off; no file is written then.
        ZerowizError: A file could not be written, or the command could not be started.
    """
    # The command inherits the descriptors, and so holds the files.
    write_held(plan.files, force=force)
    sys.stdout.flush()
    sys.stderr.flush()
    program, *_rest = plan.argv
    try:
        os.execvpe(program, plan.argv, plan.environ(environ))  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise PreflightError(
            _("cannot start `{program}`: {strerror}", program=program, strerror=error.strerror),
            _("see what the launch needs: `zerowiz doctor SCRIPT`"),
        ) from error
