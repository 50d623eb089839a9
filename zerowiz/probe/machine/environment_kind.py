"""Find out what a launch was started from: a terminal, `nohup`, CI, a container."""

import os
import signal
import sys
from collections.abc import Mapping

from zerowiz.core.launch.supervision import LaunchEnvironment
from zerowiz.probe.recording.files import Files

# Docker and Podman make these files in every container; podman(1) and systemd-nspawn(1) set the
# variable `container`, Kubernetes that of its API's address.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


def read_launch_environment(environ: Mapping[str, str], files: Files) -> LaunchEnvironment:
    """What this process was started from."""
    return LaunchEnvironment(
        in_foreground=_is_in_foreground(),
        survives_hangup=signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        runs_ci=bool(environ.get("CI")),
        container=_find_container(environ, files),
    )


def _is_in_foreground() -> bool:
    """Whether this process reads its input from a terminal, and writes its messages to one."""
    try:
        owner = os.tcgetpgrp(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
    return owner == os.getpgrp() and sys.stderr.isatty()


def _find_container(environ: Mapping[str, str], files: Files) -> str | None:
    by_file = any(files.real(path) is not None for path in _CONTAINER_FILES)
    by_variable = any(environ.get(name) for name in _CONTAINER_VARIABLES)
    return "container" if by_file or by_variable else None
