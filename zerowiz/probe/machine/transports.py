"""Say how a command reaches another node: the table of SSH, pdsh and SLURM."""

import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from zerowiz.errors import PreflightError, UsageError


class Transport(StrEnum):
    """What runs a command on another node."""

    SSH = "ssh"
    PDSH = "pdsh"
    SRUN = "srun"


# A node that is down should not hold up one that waits its turn.
_CONNECT_S = 10


def _ssh(host: str, command: Sequence[str], _environ: Mapping[str, str]) -> tuple[str, ...]:
    # A master that ControlPersist leaves behind would outlive the question.
    options = ("BatchMode=yes", f"ConnectTimeout={_CONNECT_S}", "ControlMaster=no")
    words = tuple(word for option in options for word in ("-o", option))
    return ("ssh", *words, "--", host, shlex.join(command))


def _pdsh(host: str, command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    # PDSH_RCMD_TYPE is the person's word; without it some builds of pdsh take rsh.
    kind = environ.get("PDSH_RCMD_TYPE") or "ssh"
    words = ("pdsh", "-N", "-S", "-R", kind, "-t", f"{_CONNECT_S}", "-w", host)
    # pdsh(1): it puts the host for `%h`, also inside quotes; `%%` stands for itself.
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

# Names, addresses and `user@host`; no option, and none of the lists of pdsh and srun.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")


def pick_transport(
    environ: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> Transport:
    """SLURM's own inside its job, `pdsh` where the person has set it up, else `ssh`.

    Raises:
        PreflightError: None of them is there.
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
        "no `ssh` on PATH to ask the nodes with",
        "install an SSH client, or plan with `$nodes N` for nodes like this one",
    )


def node_command(
    words: Sequence[str] = (), *, limit_s: float, python: str = sys.executable
) -> tuple[str, ...]:
    """What a node runs: the zerowiz of this interpreter, as the nodes share its path.

    It ends itself, also where nobody is left to end it: a process of `ssh` outlives the call.

    Args:
        words: More options of `zerowiz machine`.
        limit_s: After which it gives up.
        python: The interpreter.
    """
    limit = ("timeout", "-k", "5", f"{math.ceil(limit_s)}")
    return (*limit, python, "-P", "-m", "zerowiz", "machine", "--json", *words)


def argv_for(
    transport: Transport, command: Sequence[str], environ: Mapping[str, str]
) -> Callable[[str], Sequence[str]]:
    """The command line here that runs a command on a host.

    The call raises UsageError for what cannot be a host.
    """

    def argv(host: str) -> Sequence[str]:
        if _HOST.fullmatch(host) is None:
            raise UsageError(f"`{host}` is not the name of a host")
        return _ARGV[transport](host, command, environ)

    return argv
