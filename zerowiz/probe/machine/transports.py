"""Make the command line that runs a command on another node, by SSH, pdsh or SLURM."""

import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from zerowiz.errors import PreflightError, UsageError
from zerowiz.words import _


class Transport(StrEnum):
    """What runs a command on another node."""

    SSH = "ssh"
    PDSH = "pdsh"
    SRUN = "srun"


# A node that is down must not delay the ones that wait.
_CONNECT_S = 10


def _ssh(host: str, command: Sequence[str], _environ: Mapping[str, str]) -> tuple[str, ...]:
    # A master process of ControlPersist would outlive this call.
    options = ("BatchMode=yes", f"ConnectTimeout={_CONNECT_S}", "ControlMaster=no")
    words = tuple(word for option in options for word in ("-o", option))
    return ("ssh", *words, "--", host, shlex.join(command))


def _pdsh(host: str, command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    # PDSH_RCMD_TYPE is the user's choice; without it some builds of pdsh use rsh.
    kind = environ.get("PDSH_RCMD_TYPE") or "ssh"
    words = ("pdsh", "-N", "-S", "-R", kind, "-t", f"{_CONNECT_S}", "-w", host)
    # pdsh(1): it replaces `%h` by the host, also inside quotes; `%%` is a `%`.
    return (*words, shlex.join(command).replace("%", "%%"))


def _srun(host: str, command: Sequence[str], _environ: Mapping[str, str]) -> tuple[str, ...]:
    # The step sees what the whole job has on the node: every core, all of its memory.
    words = ("--overlap", "--cpu-bind=none", "--mem=0", "--input=none", "--quiet")
    return ("srun", "--nodes=1", "--ntasks=1", *words, f"--nodelist={host}", *command)


_ARGV: Mapping[Transport, Callable[[str, Sequence[str], Mapping[str, str]], tuple[str, ...]]] = {
    Transport.SSH: _ssh,
    Transport.PDSH: _pdsh,
    Transport.SRUN: _srun,
}

# Names, addresses and `user@host`; neither options nor the lists of pdsh and srun.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")


def pick_transport(
    environ: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> Transport:
    """`srun` inside a job of SLURM, `pdsh` where the user has configured it, else `ssh`.

    Raises:
        PreflightError: None of them is installed.
    """
    wanted = (
        (Transport.SRUN, "SLURM_JOB_ID" in environ),
        (Transport.PDSH, "PDSH_RCMD_TYPE" in environ),
        (Transport.SSH, True),
    )
    for transport, takes in wanted:
        if takes and which(transport.value) is not None:
            return transport
    raise PreflightError(
        _("no `ssh` on PATH, which zerowiz needs to reach the nodes"),
        _("install an SSH client, or plan for nodes like this one: `$nodes 2`"),
    )


def node_command(
    words: Sequence[str] = (), *, limit_s: float, python: str = sys.executable
) -> tuple[str, ...]:
    """The command for a node: the zerowiz of this interpreter, whose path the nodes share.

    It ends by itself after a time limit, because a process that `ssh` started outlives the call.

    Args:
        words: More options of `zerowiz machine`.
        limit_s: The time limit.
        python: The interpreter.
    """
    limit = ("timeout", "-k", "5", f"{math.ceil(limit_s)}")
    return (*limit, python, "-P", "-m", "zerowiz", "machine", "--json", *words)


def argv_for(
    transport: Transport, command: Sequence[str], environ: Mapping[str, str]
) -> Callable[[str], Sequence[str]]:
    """A function that makes the command line for a host.

    It raises UsageError for a text that cannot be a host.
    """

    def argv(host: str) -> Sequence[str]:
        if _HOST.fullmatch(host) is None:
            raise UsageError(_("`{host}` is not the name of a host", host=host))
        return _ARGV[transport](host, command, environ)

    return argv
