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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from tempfile import TemporaryFile
from typing import IO

from msgspec import Struct, field

from zerowiz.core.machine.merge import NodeAnswer, NodeFailure
from zerowiz.core.machine.spec import decode_machine
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.machine_file import DESCRIPTION

# Make the command line that runs a command on another node, by SSH, pdsh or SLURM.


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
        "no `ssh` on PATH, which zerowiz needs to reach the nodes",
        "install an SSH client, or plan for nodes like this one: `$nodes 2`",
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
            raise UsageError(f"`{host}` is not the name of a host")
        return _ARGV[transport](host, command, environ)

    return argv


_POLL_S = 0.02
# For a child to end by itself after SIGTERM: srun then ends its step on the node.
_GRACE_S = 2.0
# A node of 8 GPUs answers with 30 kB; a login shell that prints without end must not fill the disk.
_OUTPUT_BYTES = 8_000_000


class _Child(Struct, frozen=True, kw_only=True):
    """A command that asks one host.

    It writes to files, not to pipes: a process that it leaves behind cannot hold a file open so
    that we wait for it.
    """

    host: str
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def has_ended(self) -> bool:
        """Whether it has ended; it is not reaped yet, so no other process has its pid."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def prints_too_much(self) -> bool:
        """Whether it printed more than a description of a machine can take."""
        return any(os.fstat(f.fileno()).st_size > _OUTPUT_BYTES for f in (self.stdout, self.stderr))

    def signal(self, number: signal.Signals) -> None:
        """Signal its whole process group, with the processes that it left behind there."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def close(self) -> tuple[int, str, str]:
        """Kill what is left of it; the exit status, its stdout and its stderr."""
        self.signal(signal.SIGKILL)
        return (self.process.wait(), _read(self.stdout), _read(self.stderr))


def _read(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read(_OUTPUT_BYTES).decode("utf-8", "replace")


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Within, Ctrl-C waits: between its start and its first mention a process is nobody's."""
    pressed = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def _start(host: str, argv: Sequence[str]) -> _Child:
    with ExitStack() as files:
        stdout = files.enter_context(TemporaryFile())
        stderr = files.enter_context(TemporaryFile())
        process = subprocess.Popen(  # noqa: S603 - the transport's own words, no shell
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        files.pop_all()
    return _Child(host=host, process=process, stdout=stdout, stderr=stderr)


def _end(children: Sequence[_Child]) -> None:
    """Ask all of them to end, then kill them."""
    try:
        for child in children:
            child.signal(signal.SIGTERM)
        ends_at = time.monotonic() + _GRACE_S
        while time.monotonic() < ends_at and not all(child.has_ended() for child in children):
            time.sleep(_POLL_S)
    finally:
        for child in children:
            child.close()


def ask_nodes(
    hosts: Sequence[str],
    argv_for: Callable[[str], Sequence[str]],
    *,
    concurrency: int,
    deadline_s: float,
    on_answer: Callable[[str], None],
) -> list[NodeAnswer | NodeFailure]:
    """The answer of every host, or why there is none, in the order of the hosts.

    However it ends, also at the deadline or by Ctrl-C, no process of it is left on this host.

    Args:
        hosts: Each once.
        argv_for: The command line that asks a host.
        concurrency: How many hosts are asked at the same time; each takes one process and two open
            files.
        deadline_s: For all hosts together.
        on_answer: Called with each host that has answered or failed.
    """
    queries = _Queries(waiting=deque(hosts), argv_for=argv_for, on_answer=on_answer)
    ends_at = time.monotonic() + deadline_s
    try:
        while queries.step(concurrency) and time.monotonic() < ends_at:
            time.sleep(_POLL_S)
    finally:
        _end(queries.in_flight)
    for child in queries.in_flight:
        queries.done(NodeFailure(host=child.host, why=f"no answer within {deadline_s:g} s"))
    for host in queries.waiting:
        queries.done(
            NodeFailure(
                host=host,
                why=f"its turn did not come within {deadline_s:g} s",
            )
        )
    return [queries.answers[host] for host in hosts]


class _Queries(Struct, kw_only=True):
    """The hosts that wait, those that are being asked, and the answers so far."""

    waiting: deque[str]
    argv_for: Callable[[str], Sequence[str]]
    on_answer: Callable[[str], None]
    in_flight: list[_Child] = field(default_factory=list)
    answers: dict[str, NodeAnswer | NodeFailure] = field(default_factory=dict)

    def step(self, concurrency: int) -> bool:
        """Collect the answers that are there, and ask further hosts; whether any are left."""
        for child in [c for c in self.in_flight if c.prints_too_much() or c.has_ended()]:
            self._take(child)
        while self.waiting and len(self.in_flight) < concurrency:
            self._start(self.waiting.popleft())
        return bool(self.waiting or self.in_flight)

    def _take(self, child: _Child) -> None:
        too_much = child.prints_too_much()
        status, stdout, stderr = child.close()
        self.in_flight.remove(child)
        if too_much:
            why = f"it printed more than {_OUTPUT_BYTES} bytes"
            self.done(NodeFailure(host=child.host, why=why))
        else:
            self.done(parse_answer(child.host, status, stdout, stderr))

    def _start(self, host: str) -> None:
        argv = self.argv_for(host)
        try:
            with _ctrl_c_held():
                self.in_flight.append(_start(host, argv))
        except OSError as error:
            why = f"cannot start `{argv[0]}` here: {(error.strerror or str(error)).lower()}"
            self.done(NodeFailure(host=host, why=why))

    def done(self, answer: NodeAnswer | NodeFailure) -> None:
        self.answers[answer.host] = answer
        self.on_answer(answer.host)


# How the output of `zerowiz machine --json` begins; login shells may print other text before it.
_OBJECT = re.compile(r'\{\s*"schema_version"')
# The transport's own last line about a command that failed; the command's reason stands above it.
_EPILOGUE = re.compile(r"pdsh@|srun: error: .*: Exited with exit code|srun: Terminating|slurmstepd")
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
        content = next(_objects(stdout), None)
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
