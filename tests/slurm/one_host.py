"""Start a real SLURM of two nodes on this host, in one folder, and stop it without a trace.

Needs root, and Debian's slurm-wlm and munge (`install.sh`).
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from zerowiz.probe.preflight.read_facts import find_free_port

NODES = ("n1", "n2")
_HOSTS_FILE = Path("/etc/hosts")
_SBIN = "/usr/sbin:/sbin"

# Each node sees its own processes alone, and has a name of its own. A shell is the first of them:
# it takes in orphans; with `unshare` all of them end.
_APART = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child", "sh", "-c")
_AS_NODE = 'hostname "$0" && "$@" & wait'


class Slurm(Struct, frozen=True, kw_only=True):
    """A running one."""

    folder: Path
    environ: Mapping[str, str]
    """With which its clients find it."""

    def ask(self, *argv: str, cwd: Path | None = None) -> str:
        """What a client prints; it has to succeed."""
        done = subprocess.run(
            argv, env=self.environ, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, script: Path, *options: str, cwd: Path) -> str:
        """The number of the job."""
        return self.ask("sbatch", "--parsable", *options, str(script), cwd=cwd).partition(";")[0]

    def told(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of it."""
        words = self.ask("scontrol", "show", "job", job, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *, within_s: float = 180) -> dict[str, str]:
        """What is said of the job once it has ended."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            told = self.told(job)
            if told["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
                return told
            time.sleep(0.3)
        raise AssertionError(f"job {job} has not ended: {self.told(job)}")


@contextmanager
def named_nodes() -> Iterator[None]:
    """The nodes' names as this host's own, for a master address by name."""
    before = _HOSTS_FILE.read_text(encoding="utf-8")
    line = f"127.0.0.1 {' '.join(NODES)} # tests/slurm\n"
    kept = [each for each in before.splitlines(keepends=True) if each != line]
    # Written in place: in a container the file is a mount, which nothing can replace.
    _HOSTS_FILE.write_text("".join(kept) + line, encoding="utf-8")
    try:
        yield
    finally:
        now = _HOSTS_FILE.read_text(encoding="utf-8").splitlines(keepends=True)
        _HOSTS_FILE.write_text("".join(each for each in now if each != line), encoding="utf-8")


def _config(folder: Path, cpus: int) -> str:
    name = socket.gethostname().partition(".")[0]
    nodes = "".join(
        f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={find_free_port()}"
        f" CPUs={cpus} RealMemory=4000\n"
        for node in NODES
    )
    return (
        f"ClusterName=zerowiz\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={find_free_port()}\n"
        # A requeued job starts once its old credential is out of date: after 120 s by default.
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket,cred_expire=5\n"
        "CredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\nSchedulerParameters=sched_interval=2\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
        # A node may say to have more CPUs than this host has.
        "SlurmdParameters=config_overrides\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n"
        f"SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\n"
        f"{nodes}PartitionName=all Nodes={','.join(NODES)} Default=YES"
        " OverSubscribe=FORCE State=UP\n"
    )


@contextmanager
def _daemon(argv: Sequence[str], sign: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Run it until the end; it is up once its sign is there."""
    with (
        sign.with_suffix(".out").open("wb") as output,
        subprocess.Popen(argv, env=environ, stdout=output, stderr=output) as process,
    ):
        try:
            until = time.monotonic() + 30
            while not sign.exists():
                assert process.poll() is None, sign.with_suffix(".out").read_text(encoding="utf-8")
                assert time.monotonic() < until, f"{argv[0]} did not come up"
                time.sleep(0.1)
            yield
        finally:
            # unshare(1) ignores SIGTERM; killed, it takes all of its node along.
            process.send_signal(signal.SIGKILL if argv[0] == "unshare" else signal.SIGTERM)
            process.wait(timeout=30)


@contextmanager
def running_slurm(folder: Path, *, cpus: int = 4) -> Iterator[Slurm]:
    """A SLURM whose nodes n1 and n2 are this host; its folder's path must be short.

    Args:
        folder: Holds all that it writes.
        cpus: Of each node, whatever this host has.
    """
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(_config(folder, cpus), encoding="utf-8")
    environ = {**os.environ, "PATH": f"{os.environ['PATH']}:{_SBIN}", "SLURM_CONF": str(config)}
    words = ("socket", "key-file", "pid-file", "log-file", "seed-file")
    places = [f"--{word}={folder}/munge.{word.partition('-')[0]}" for word in words]
    daemons = (
        (("munged", "--foreground", "--force", *places), "munge.socket"),
        (("slurmctld", "-D", "-f", str(config)), "slurmctld.pid"),
        *(
            (
                (*_APART, _AS_NODE, node, "slurmd", "-D", "-f", str(config), "-N", node),
                f"slurmd-{node}.pid",
            )
            for node in NODES
        ),
    )
    with ExitStack() as stack:
        stack.enter_context(named_nodes())
        for argv, sign in daemons:
            stack.enter_context(_daemon(argv, folder / sign, environ))
        slurm = Slurm(folder=folder, environ=environ)
        _wait_until_idle(slurm)
        try:
            yield slurm
        finally:
            slurm.ask("scancel", "--state=PENDING", "--user", "root")
            slurm.ask("scancel", "--full", "--signal=KILL", "--user", "root")


def _wait_until_idle(slurm: Slurm) -> None:
    until = time.monotonic() + 30
    while set(slurm.ask("sinfo", "-h", "-N", "-o", "%T").split()) != {"idle"}:
        assert time.monotonic() < until, slurm.ask("sinfo", "-N", "-l")
        time.sleep(0.3)
