"""Ask nodes through a real sshd, a real pdsh and a real SLURM, all on this host.

Needs root, openssh-server, pdsh, slurm-wlm and munge; run with `make cluster`.
"""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from zerowiz.core.fleet import NodeAnswer, NodeFailure, merge_nodes
from zerowiz.core.machine import Accelerator
from zerowiz.probe.fleet import ask_nodes
from zerowiz.probe.transports import Transport, argv_for, node_command

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
HOSTS = ("n1", "n2", "n3")
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
over_ssh = pytest.mark.parametrize("transport", [Transport.SSH, Transport.PDSH])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def answers_on(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(what: str, seen: Path, *, within_s: float = 30) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if seen.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{what} did not come up")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A client's configuration in which n1 to n3 are this host, behind a login that talks."""
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, when root runs it
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
        )
    greeting = folder / "greeting"
    greeting.write_text("Welcome to the cluster {1}\n", encoding="utf-8")
    login = folder / "login"
    login.write_text(
        f'#!/bin/sh\ncat {greeting}\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n', encoding="utf-8"
    )
    login.chmod(0o755)
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPidFile {folder}/sshd.pid\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"MaxStartups 100\nBanner {greeting}\nForceCommand {login}\nSetEnv PYTHONPATH={ROOT}\n",
        encoding="utf-8",
    )
    client = folder / "ssh_config"
    client.write_text(
        f"Host down\n  Port {free_port()}\n"
        f"Host {' '.join(HOSTS)}\n  Port {port}\n"
        f"Host *\n  HostName 127.0.0.1\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
        encoding="utf-8",
    )
    program = shutil.which("sshd", path="/usr/sbin:/sbin:" + os.environ["PATH"])
    assert program is not None
    with subprocess.Popen([program, "-D", "-e", "-f", str(config)]) as daemon:
        try:
            wait_for("sshd", folder / "sshd.pid")
            assert answers_on(port)
            yield client
        finally:
            daemon.terminate()


@pytest.fixture
def cluster(sshd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssh` with that configuration, which is else looked for in the home of the user."""
    wrapper = tmp_path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {sshd} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("PDSH_RCMD_TYPE", raising=False)


def ask(
    transport: Transport, hosts: Sequence[str], command: Sequence[str], *, deadline_s: float = 60
) -> list[NodeAnswer | NodeFailure]:
    argv = argv_for(transport, command, os.environ)
    return ask_nodes(hosts, argv, at_once=8, deadline_s=deadline_s, told=lambda _: None)


def why(answer: NodeAnswer | NodeFailure) -> str:
    assert isinstance(answer, NodeFailure)
    return answer.why


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_every_node_answers_for_itself(transport: Transport) -> None:
    fleet = merge_nodes(ask(transport, HOSTS, node_command(CPU, limit_s=60)))
    assert () == fleet.failures
    assert (3, 2) == (fleet.machine.nodes, len(fleet.machine.gpus))
    assert Accelerator.CPU is fleet.machine.accelerator


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_a_node_that_is_down_is_told_from_those_that_answer(transport: Transport) -> None:
    hosts = ("n1", "down", "n2")
    fleet = merge_nodes(ask(transport, hosts, node_command(CPU, limit_s=60)))
    assert 2 == fleet.machine.nodes
    assert ["down"] == [failure.host for failure in fleet.failures]
    assert "Connection refused" in fleet.failures[0].why


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_what_zerowiz_says_there_is_the_reason_here(transport: Transport) -> None:
    [answer] = ask(transport, ["n1"], node_command(("--machine", "no.json"), limit_s=60))
    assert "machine file `no.json` does not exist" == why(answer)


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_a_node_without_zerowiz_says_where_it_was_looked_for(transport: Transport) -> None:
    [answer] = ask(transport, ["n1"], node_command(limit_s=60, python="/no/bin/python"))
    assert "zerowiz is not installed at `/no/bin/python` there" == why(answer)


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_a_python_without_zerowiz_says_which_it_is(transport: Transport) -> None:
    python = "/usr/bin/python3"
    command = ("env", "-u", "PYTHONPATH", python, "-m", "zerowiz", "machine", "--json")
    [answer] = ask(transport, ["n1"], command)
    assert f"zerowiz is not installed at `{python}` there" == why(answer)


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_nothing_outlives_the_deadline_here_nor_there(transport: Transport, tmp_path: Path) -> None:
    """The shell of `ssh` leaves the command running on the node; `timeout` ends it there."""
    mark = tmp_path / "pid"
    command = ("timeout", "4", "sh", "-c", f"echo $$ > {mark}; sleep 200")
    [answer] = ask(transport, ["n1"], command, deadline_s=2)
    assert "no answer within 2 s" == why(answer)
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="utf-8")
    names = {Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") for pid in own.split()}
    assert set() == names & {"ssh\n", "pdsh\n"}
    time.sleep(4)
    assert not Path(f"/proc/{mark.read_text(encoding='utf-8').strip()}/cwd").exists()


@over_ssh
@pytest.mark.usefixtures("cluster")
def test_words_reach_the_node_as_they_are(transport: Transport) -> None:
    words = ("sh", "-c", 'echo "error: $1" >&2; exit 1', "sh", "a  'b' \"c\" $HOME %h ; &")
    [answer] = ask(transport, ["n1"], words)
    assert "a  'b' \"c\" $HOME %h ; &" == why(answer)


IN_A_JOB = """
import json, os, sys
from zerowiz.core.codec import encode_machine
from zerowiz.core.fleet import merge_nodes
from zerowiz.probe.fleet import ask_nodes
from zerowiz.probe.transports import argv_for, node_command, pick_transport
transport = pick_transport(os.environ)
argv = argv_for(transport, node_command(sys.argv[1:], limit_s=60), os.environ)
fleet = merge_nodes(ask_nodes(["n1", "n2", "n9"], argv, at_once=3, deadline_s=60, told=lambda _: None))
print(json.dumps({
    "transport": transport,
    "machine": encode_machine(fleet.machine),
    "failures": {failure.host: failure.why for failure in fleet.failures},
}))
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a SLURM whose nodes n1 and n2 are this host."""
    folder = tmp_path_factory.mktemp("slurm")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    name, config = socket.gethostname().partition(".")[0], folder / "slurm.conf"
    nodes = "".join(
        f"NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={free_port()}"
        " CPUs=2 RealMemory=2000\n"
        for node in ("n1", "n2")
    )
    config.write_text(
        f"ClusterName=zerowiz\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={free_port()}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nCredType=cred/munge\n"
        "SlurmUser=root\nSlurmdUser=root\nProctrackType=proctrack/linuxproc\n"
        "TaskPlugin=task/none\nMpiDefault=none\nSelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_CPU\nReturnToService=2\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n"
        f"SlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\n"
        f"{nodes}PartitionName=all Nodes=n1,n2 Default=YES OverSubscribe=FORCE State=UP\n",
        encoding="utf-8",
    )
    munge = ("socket", "key-file", "pid-file", "log-file", "seed-file")
    places = [f"--{word}={folder}/munge.{word.partition('-')[0]}" for word in munge]
    daemons = (
        ("munged", "--foreground", "--force", *places),
        ("slurmctld", "-D", "-f", str(config)),
        ("slurmd", "-D", "-f", str(config), "-N", "n1"),
        ("slurmd", "-D", "-f", str(config), "-N", "n2"),
    )
    seen = ("munge.socket", "slurmctld.pid", "slurmd-n1.pid", "slurmd-n2.pid")
    path = f"/usr/sbin:{os.environ['PATH']}"
    running: list[subprocess.Popen[bytes]] = []
    try:
        for argv, file in zip(daemons, seen, strict=True):
            output = (folder / f"{file}.out").open("wb")
            with output:
                running.append(
                    subprocess.Popen(
                        argv, env={**os.environ, "PATH": path}, stdout=output, stderr=output
                    )
                )
            wait_for(argv[0], folder / file)
        yield config
    finally:
        for daemon in reversed(running):
            daemon.terminate()
            daemon.wait(timeout=30)


@pytest.mark.parametrize(
    "memory", [(), ("--mem-per-cpu=100",), ("--mem=200",)], ids=["plain", "per CPU", "per node"]
)
def test_a_slurm_job_asks_its_own_nodes_with_srun(slurm: Path, memory: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *memory]
        + [sys.executable, "-c", IN_A_JOB, *CPU],
        env={**os.environ, "SLURM_CONF": str(slurm), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    told = json.loads(done.stdout)
    assert "srun" == told["transport"]
    assert (2, 2) == (told["machine"]["nodes"], len(told["machine"]["gpus"]))
    assert ["n9"] == list(told["failures"])
    assert "node" in told["failures"]["n9"].lower()
