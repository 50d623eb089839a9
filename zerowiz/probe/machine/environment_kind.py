"""See what a launch was started from: a person's terminal, `nohup`, CI, a container."""

import os
import signal
import sys
from collections.abc import Mapping

from zerowiz.core.launch.supervision import LaunchEnvironment
from zerowiz.probe.recording.files import Files

# Docker and Podman leave these files in every container; podman(1) and systemd-nspawn(1) set
# `container`, Kubernetes the address of its API.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


def read_surroundings(environ: Mapping[str, str], files: Files) -> LaunchEnvironment:
    """What this process was started from."""
    return LaunchEnvironment(
        in_foreground=_is_in_foreground(),
        survives_hangup=signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        runs_ci=bool(environ.get("CI")),
        container=_find_container(environ, files),
    )


def _is_in_foreground() -> bool:
    """Whether keys pressed at a terminal reach this process, and its words are seen there."""
    try:
        owner = os.tcgetpgrp(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
    return owner == os.getpgrp() and sys.stderr.isatty()


def _find_container(environ: Mapping[str, str], files: Files) -> str | None:
    shown = any(files.real(path) is not None for path in _CONTAINER_FILES)
    said = any(environ.get(name) for name in _CONTAINER_VARIABLES)
    return "container" if shown or said else None
