"""Ask nodes through a real sshd, all on this host.

Needs root and openssh-server; run with `make cluster`. A real SLURM is asked in `tests/slurm/`.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from paths import ROOT

from zerowiz.core.machine.merge import NodeAnswer, NodeFailure, merge_nodes
from zerowiz.core.machine.types import Accelerator
from zerowiz.probe.machine.fleet import argv_for, ask_nodes, by_ssh, node_command
from zerowiz.probe.preflight.read_facts import find_free_port

pytestmark = pytest.mark.cluster

HOSTS = ("n1", "n2", "n3")
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")


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
    folder, port = tmp_path_factory.mktemp("sshd"), find_free_port()
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
        f"Host down\n  Port {find_free_port()}\n"
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


def ask(
    hosts: Sequence[str], command: Sequence[str], *, deadline_s: float = 60
) -> list[NodeAnswer | NodeFailure]:
    argv = argv_for(by_ssh, command)
    return ask_nodes(hosts, argv, concurrency=8, deadline_s=deadline_s, on_answer=lambda _: None)


def why(answer: NodeAnswer | NodeFailure) -> str:
    assert isinstance(answer, NodeFailure)
    return answer.why


@pytest.mark.usefixtures("cluster")
def test_every_node_answers_for_itself() -> None:
    fleet = merge_nodes(ask(HOSTS, node_command(CPU, limit_s=60)))
    assert () == fleet.failures
    assert (3, 2) == (fleet.machine.nodes, len(fleet.machine.gpus))
    assert Accelerator.CPU is fleet.machine.accelerator


@pytest.mark.usefixtures("cluster")
def test_a_node_that_is_down_is_told_from_those_that_answer() -> None:
    hosts = ("n1", "down", "n2")
    fleet = merge_nodes(ask(hosts, node_command(CPU, limit_s=60)))
    assert 2 == fleet.machine.nodes
    assert ["down"] == [failure.host for failure in fleet.failures]
    assert "Connection refused" in fleet.failures[0].why


@pytest.mark.usefixtures("cluster")
def test_what_zerowiz_says_there_is_the_reason_here() -> None:
    [answer] = ask(["n1"], node_command(("--machine", "no.json"), limit_s=60))
    assert "machine file `no.json` does not exist" == why(answer)


@pytest.mark.usefixtures("cluster")
def test_a_node_without_zerowiz_says_where_it_was_looked_for() -> None:
    [answer] = ask(["n1"], node_command(limit_s=60, python="/no/bin/python"))
    assert "/no/bin/python" in why(answer)


@pytest.mark.usefixtures("cluster")
def test_a_python_without_zerowiz_says_which_it_is() -> None:
    python = "/usr/bin/python3"
    command = ("env", "-u", "PYTHONPATH", python, "-m", "zerowiz", "machine", "--json")
    [answer] = ask(["n1"], command)
    assert f"{python}: No module named zerowiz" == why(answer)


@pytest.mark.usefixtures("cluster")
def test_nothing_outlives_the_deadline_here_nor_there(tmp_path: Path) -> None:
    """The shell of `ssh` leaves the command running on the node; `timeout` ends it there."""
    mark = tmp_path / "pid"
    command = ("timeout", "4", "sh", "-c", f"echo $$ > {mark}; sleep 200")
    [answer] = ask(["n1"], command, deadline_s=2)
    assert "no answer within 2 s" == why(answer)
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="utf-8")
    names = {Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") for pid in own.split()}
    assert "ssh\n" not in names
    time.sleep(4)
    assert not Path(f"/proc/{mark.read_text(encoding='utf-8').strip()}/cwd").exists()


@pytest.mark.usefixtures("cluster")
def test_words_reach_the_node_as_they_are() -> None:
    words = ("sh", "-c", 'echo "error: $1" >&2; exit 1', "sh", "a  'b' \"c\" $HOME %h ; &")
    [answer] = ask(["n1"], words)
    assert "a  'b' \"c\" $HOME %h ; &" == why(answer)
