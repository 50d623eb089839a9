"""Make nodes of namespaces: each with an address, an sshd and processes of its own."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

_NETWORK = "10.77.0"
_SPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")

# PID 1 of a node is its sshd: it reaps what is orphaned there, and all of the node ends with it.
_BOOT = """set -e
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
touch {folder}/{name}.up
exec {sshd} -D -E {folder}/{name}.log -f {folder}/sshd_config
"""

_SSHD = """Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 100
"""

_SSH = """Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"/usr/sbin:/sbin:{os.environ['PATH']}")


def why_not() -> str | None:
    """Why no nodes can be made here; None where they can."""
    if os.geteuid() != 0:
        return "nodes of namespaces need root"
    programs = ("ip", "nsenter", "unshare", "pdsh", "ssh", "ssh-keygen", "sshd")
    lacking = [name for name in programs if _which(name) is None]
    if lacking:
        return f"nodes of namespaces need {', '.join(lacking)}"
    trial = subprocess.run(
        ["unshare", *_SPACES, "--fork", "--mount-proc", "mount", "-t", "tmpfs", "x", "/dev/shm"],
        check=False,
        capture_output=True,
        text=True,
    )
    return trial.stderr.strip() or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process of a node, as this host sees it."""

    pid: int
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node, known by its PID 1."""

    name: str
    address: str
    pid: int
    space: str
    """Its pid namespace."""

    def inside(self, cwd: Path, *argv: str | Path) -> tuple[str, ...]:
        """The command line here that runs a command there."""
        return (
            *("nsenter", "--target", str(self.pid), *_SPACES, f"--wdns={cwd}", "--"),
            *map(str, argv),
        )

    def run(self, *argv: str | Path) -> str:
        """What a command says there; it has to succeed."""
        command = self.inside(Path("/"), *argv)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def processes(self) -> list[Process]:
        """What runs there beside its sshd."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                there = str((folder / "ns/pid").readlink()) == self.space
                words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            # What has ended has no words.
            if there and words and not words.startswith(("sshd:", "/usr/sbin/sshd")):
                found.append(Process(pid=int(folder.name), command=words.replace("\0", " ")))
        return found

    def die(self) -> None:
        """End all that runs there."""
        os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A command that runs on the head."""

    entered: subprocess.Popen[bytes]
    out: Path

    @property
    def pid(self) -> int:
        """The command's own, not that of what entered the namespaces for it."""
        outer = self.entered.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="utf-8"))

    def text(self) -> str:
        """All that it has said so far."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def says(self, words: str, *, within_s: float = 90) -> None:
        """Wait until it has said so."""
        wait_for(
            f"`{words}`", lambda: words in self.text() or self.entered.poll() is not None, within_s
        )
        assert words in self.text(), self.text()[-4000:]

    def status(self, *, within_s: float) -> int:
        """Its exit status, as a shell tells it."""
        code = self.entered.wait(timeout=within_s)
        return code if code >= 0 else 128 - code


def wait_for(what: str, there: Callable[[], object], within_s: float) -> None:
    """Look until it is there.

    Raises:
        TimeoutError: It did not come in time.
    """
    until = time.monotonic() + within_s
    while not there():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} not within {within_s:g} s")
        time.sleep(0.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A head and the nodes on its bridge; ssh needs no password anywhere."""

    folder: Path
    head: Node
    nodes: tuple[Node, ...]

    def hostfile(self, count: int, slots: int) -> Path:
        """The first nodes, with so many slots each."""
        file = self.folder / f"hosts-{count}x{slots}"
        lines = [f"{node.name} slots={slots}\n" for node in self.nodes[:count]]
        file.write_text("".join(lines), encoding="utf-8")
        return file

    def cut(self, node: Node) -> None:
        """Pull its cable: not a packet more, either way."""
        self.head.run("ip", "link", "set", f"to-{node.name}", "down")

    @contextmanager
    def start(
        self, argv: Sequence[str | Path], environ: Mapping[str, str], cwd: Path
    ) -> Iterator[Job]:
        """A command on the head; whatever of it is left anywhere is killed."""
        out = cwd / "out.log"
        with out.open("wb") as stream:
            entered = subprocess.Popen(
                self.head.inside(cwd, *argv),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Job(entered=entered, out=out)
        finally:
            for _ in range(2):  # what the first round orphaned
                for process in chain.from_iterable(self.left().values()):
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            entered.wait(timeout=20)

    def left(self) -> dict[str, list[Process]]:
        """What runs on the head and on the nodes, by name."""
        every = {node.name: node.processes() for node in (self.head, *self.nodes)}
        return {name: running for name, running in every.items() if running}


@contextmanager
def _node(folder: Path, name: str, address: str) -> Iterator[Node]:
    sshd = _which("sshd")
    boot = _BOOT.format(name=name, folder=folder, sshd=sshd)
    up = folder / f"{name}.up"
    # PID 1 gets SIGKILL when `unshare` ends, and with it the node and its end of the cable.
    words = ("unshare", *_SPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", boot)
    with (
        (folder / f"{name}.boot").open("wb") as said,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=said) as outer,
    ):
        try:
            wait_for(f"node {name}", up.exists, 20)
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            pid = int(children.read_text(encoding="utf-8"))
            space = str(Path(f"/proc/{pid}/ns/pid").readlink())
            yield Node(name=name, address=address, pid=pid, space=space)
        finally:
            outer.kill()


def _connect(head: Node, node: Node) -> None:
    cable = f"to-{node.name}"
    # Only the head's network is entered: the other end is named by its PID on this host.
    enter = ("nsenter", "--target", str(head.pid), "--net", "ip", "link", "add", cable)
    peer = ("type", "veth", "peer", "name", "lan0", "netns", str(node.pid))
    subprocess.run([*enter, *peer], check=True)
    head.run("ip", "link", "set", cable, "master", "lan0", "up")
    _come_up(node)


def _come_up(node: Node) -> None:
    node.run("ip", "address", "add", f"{node.address}/24", "dev", "lan0")
    node.run("ip", "link", "set", "lan0", "up")


@contextmanager
def make_cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """A head and so many nodes, for as long as the context lasts.

    The bridge is the head's, so this host's own network holds nothing of it.
    """
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, when root runs it
    for key in ("host_key", "user_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(words, check=True)
    places = {"head": f"{_NETWORK}.100"}
    places |= {f"n{number}": f"{_NETWORK}.{number}" for number in range(1, count + 1)}
    hosts = "".join(f"{address} {name}\n" for name, address in places.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}", encoding="utf-8")
    for name, text in (("sshd_config", _SSHD), ("ssh_config", _SSH)):
        (folder / name).write_text(text.format(folder=folder), encoding="utf-8")
    with ExitStack() as stack:
        head, *nodes = (
            stack.enter_context(_node(folder, name, address)) for name, address in places.items()
        )
        head.run("ip", "link", "add", "lan0", "type", "bridge", "forward_delay", "0")
        _come_up(head)
        for node in nodes:
            _connect(head, node)
        yield Cluster(folder=folder, head=head, nodes=tuple(nodes))
