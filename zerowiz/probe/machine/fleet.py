"""Ask every node of a cluster for its machine, several nodes concurrently."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Event, Lock
from typing import IO

from msgspec import Struct, field

from zerowiz.core.machine.merge import NodeAnswer, NodeFailure
from zerowiz.core.machine.names import decode_machine
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.machine_file import DESCRIPTION

# Make the command line that runs a command on another node, by SSH or SLURM.

Transport = Callable[[str, Sequence[str]], tuple[str, ...]]
"""The words that run a command on a host."""

# A node that is down must not delay the ones that wait.
_CONNECT_S = 10


def by_ssh(host: str, command: Sequence[str]) -> tuple[str, ...]:
    """The words by which `ssh` runs it."""
    # A master process of ControlPersist would outlive this call.
    options = ("BatchMode=yes", f"ConnectTimeout={_CONNECT_S}", "ControlMaster=no")
    words = tuple(word for option in options for word in ("-o", option))
    return ("ssh", *words, "--", host, shlex.join(command))


def by_srun(host: str, command: Sequence[str]) -> tuple[str, ...]:
    """The words by which `srun` runs it: the step sees every core of the job, and its memory."""
    words = ("--overlap", "--cpu-bind=none", "--mem=0", "--input=none", "--quiet")
    return ("srun", "--nodes=1", "--ntasks=1", *words, f"--nodelist={host}", *command)


# Names, addresses and `user@host`; neither options nor the lists of srun.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*")


def pick_transport(
    environ: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> Transport:
    """`srun` inside a job of SLURM, else `ssh`.

    Raises:
        PreflightError: None of them is installed.
    """
    if "SLURM_JOB_ID" in environ and which("srun") is not None:
        return by_srun
    if which("ssh") is None:
        raise PreflightError(
            "no `ssh` on PATH, which zerowiz needs to reach the nodes",
            "install an SSH client, or plan for nodes like this one: `$nodes 2`",
        )
    return by_ssh


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


def argv_for(transport: Transport, command: Sequence[str]) -> Callable[[str], Sequence[str]]:
    """A function that makes the command line for a host.

    It raises UsageError for a text that cannot be a host.
    """

    def argv(host: str) -> Sequence[str]:
        if _HOST.fullmatch(host) is None:
            raise UsageError(
                f"`{host}` is not the name of a host",
                "write names that `ssh` takes, such as `node1`",
            )
        return transport(host, command)

    return argv


_POLL_S = 0.02
# For a command to end by itself after SIGTERM: srun then ends its step on the node.
_GRACE_S = 2.0
# A node of 8 GPUs answers with 30 kB.
_OUTPUT_BYTES = 8_000_000


def ask_nodes(
    hosts: Sequence[str],
    argv_for: Callable[[str], Sequence[str]],
    *,
    concurrency: int,
    deadline_s: float,
    on_answer: Callable[[str], None],
) -> list[NodeAnswer | NodeFailure]:
    """The answer of every host, or why there is none, in the order of the hosts.

    However it ends, also at the deadline or by Ctrl-C, no process of it is left on this host. A
    signal interrupts this thread alone, and the threads that have started a process end it.

    Args:
        hosts: Each once.
        argv_for: The command line that asks a host.
        concurrency: How many hosts are asked at the same time; each takes one process and two open
            files.
        deadline_s: For all hosts together.
        on_answer: Called with each host that has answered or failed.
    """
    ends_at = time.monotonic() + deadline_s
    query = _Query(deadline_s=deadline_s, ends_at=ends_at)
    commands = {host: argv_for(host) for host in hosts}
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            asked = {pool.submit(query.ask, host, argv): host for host, argv in commands.items()}
            query.begin.set()
            for future in as_completed(asked):
                on_answer(asked[future])
        finally:
            query.stop.set()
            query.begin.set()
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in asked]


class _Query(Struct, frozen=True, kw_only=True):
    """What all hosts are asked within."""

    deadline_s: float
    ends_at: float
    starting: Lock = field(default_factory=Lock)
    """A start has three more files open than the process that it starts."""
    begin: Event = field(default_factory=Event)
    """Nothing starts before it: Ctrl-C in `submit` can lose a thread, unseen."""
    stop: Event = field(default_factory=Event)

    def ask(self, host: str, argv: Sequence[str]) -> NodeAnswer | NodeFailure:
        """The answer of one host.

        Its command writes to files, not to pipes: a process that it leaves behind cannot hold a
        file open so that we wait for it.
        """
        self.begin.wait()
        if self.stop.is_set() or time.monotonic() >= self.ends_at:
            why = f"its turn did not come within {self.deadline_s:g} s"
            return NodeFailure(host=host, why=why)
        with TemporaryFile() as stdout, TemporaryFile() as stderr:
            try:
                with self.starting:
                    process = subprocess.Popen(  # noqa: S603 - the transport's own words, no shell
                        argv,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                    )
            except OSError as error:
                why = f"cannot start `{argv[0]}` here: {(error.strerror or str(error)).lower()}"
                return NodeFailure(host=host, why=why)
            while not _has_ended(process.pid) and time.monotonic() < self.ends_at:
                if self.stop.wait(_POLL_S):
                    break
            is_late = not _has_ended(process.pid)
            status = _end(process)
            if is_late:
                return NodeFailure(host=host, why=f"no answer within {self.deadline_s:g} s")
            return parse_answer(host, status, _read(stdout), _read(stderr))


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; it is not reaped yet, so no other process has its pid."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ask it to end, with the processes that it left behind in its group, then kill them."""
    with suppress(ProcessLookupError, PermissionError):
        if not _has_ended(process.pid):
            os.killpg(process.pid, signal.SIGTERM)
        ends_at = time.monotonic() + _GRACE_S
        while not _has_ended(process.pid) and time.monotonic() < ends_at:
            time.sleep(_POLL_S)
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_OUTPUT_BYTES).decode("utf-8", "replace")


# How the output of `zerowiz machine --json` begins; login shells may print other text before it.
_OBJECT = re.compile(r'\{\s*"schema_version"')
# The transport's own last line about a command that failed; the command's reason stands above it.
_EPILOGUE = re.compile(r"srun: error: .*: Exited with exit code|srun: Terminating|slurmstepd")
_SHOWN = 200


def parse_answer(host: str, status: int, stdout: str, stderr: str) -> NodeAnswer | NodeFailure:
    """The answer in the output of a host's command, without the banners of login shells.

    Args:
        host: The host that was asked.
        status: The exit status of the command; below 0 the signal that ended it.
        stdout: Holds the JSON object of `zerowiz machine --json` if it succeeded.
        stderr: Holds the reason if it failed.
    """
    try:
        # A command that fails says why in an object of its own, and on stderr.
        content = next((each for each in _objects(stdout) if "error" not in each), None)
        if content is None:
            return NodeFailure(host=host, why=_reason(status, stdout, stderr))
        version = content["schema_version"]
        if version != DESCRIPTION:
            why = f"its zerowiz answers in schema {version!r:.40}, this one reads {DESCRIPTION}"
            return NodeFailure(host=host, why=why)
        return NodeAnswer(host=host, machine=decode_machine(content.get("machine"), "machine"))
    except UsageError as error:
        return NodeFailure(host=host, why=f"its answer is not valid: {error.message}")


def _objects(text: str) -> Iterator[dict[str, object]]:
    for match in _OBJECT.finditer(text):
        with suppress(ValueError, RecursionError):
            yield json.JSONDecoder().raw_decode(text, match.start())[0]


def _reason(status: int, stdout: str, stderr: str) -> str:
    """One line about what went wrong on the node."""
    lines = [line for line in _lines(stderr) if _EPILOGUE.match(line) is None]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors or (lines and status != 0):
        return (errors or lines)[-1]
    printed = _lines(stdout)
    if printed and status == 0:
        return f"it printed `{printed[-1]}` instead of a machine"
    return f"its command ended with status {status} without output"


def _lines(text: str) -> list[str]:
    """The lines that are not empty, without characters that would control a terminal."""
    lines = ("".join(filter(str.isprintable, line)).strip() for line in text.splitlines())
    return [line[:_SHOWN].rstrip(".") for line in lines if line]
