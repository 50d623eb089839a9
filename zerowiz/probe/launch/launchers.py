"""Check that the programs that start ranks on other nodes are installed here."""

import shutil
import subprocess
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import PreflightError
from zerowiz.words import _

_LIMIT_S = 10


class _Needs(Struct, frozen=True, kw_only=True):
    programs: tuple[str, ...]
    """What DeepSpeed looks for, and runs (multinode_runner.py, backend_exists, 0.19.8)."""
    package: str
    """The package of Debian that has them."""
    version_words: tuple[str, ...] = ("",)
    """One of these is in the output of `mpirun --version`; DeepSpeed runs the first on PATH."""


_NEEDS: Mapping[Launcher, _Needs] = {
    Launcher.PDSH: _Needs(programs=("pdsh", "ssh"), package="pdsh"),
    Launcher.OPENMPI: _Needs(
        programs=("ompi_info", "mpirun", "ssh"),
        package="openmpi-bin",
        version_words=("Open MPI", "OpenRTE"),
    ),
    Launcher.MPICH: _Needs(programs=("mpirun", "ssh"), package="mpich", version_words=("HYDRA",)),
}


def check_launcher(launcher: Launcher, environ: Mapping[str, str]) -> None:
    """Refuse a launcher that would not start.

    Args:
        launcher: Which of DeepSpeed's launchers.
        environ: The environment, whose PATH is searched.

    Raises:
        PreflightError: It is not installed, or the `mpirun` of another MPI comes first on PATH.
    """
    needs, path = _NEEDS[launcher], environ.get("PATH", "")
    for program in needs.programs:
        if shutil.which(program, path=path) is None:
            package = "openssh-client" if program == "ssh" else needs.package
            raise PreflightError(
                _(
                    "`--launcher {launcher}` needs `{program}`, which is not on PATH",
                    launcher=launcher,
                    program=program,
                ),
                _(
                    "install it: `apt-get install {package}`, or the package of that name "
                    "on your system",
                    package=package,
                ),
            )
    version = _version(environ) if "mpirun" in needs.programs else ""
    if not any(words in version for words in needs.version_words):
        raise PreflightError(
            _(
                "`--launcher {launcher}`: `{which}` belongs to another MPI",
                launcher=launcher,
                which=shutil.which("mpirun", path=path),
            ),
            _("put the `mpirun` of {package} first on PATH", package=needs.package),
            _("on Debian: `update-alternatives --config mpirun`"),
        )


def _version(environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["mpirun", "--version"],  # noqa: S607 - the user's PATH decides, as in DeepSpeed
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
