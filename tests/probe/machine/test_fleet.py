import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from zerowiz.core.machine.merge import NodeAnswer, NodeFailure
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.types import Gpu, Machine, MachineSource
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.fleet import (
    Transport,
    argv_for,
    ask_nodes,
    by_srun,
    by_ssh,
    node_command,
    parse_answer,
    pick_transport,
)

MACHINE = Machine(source=MachineSource.NVML, gpus=(Gpu(index=0, name="NVIDIA H200"),))
TEXT = json.dumps({"schema_version": 1, "machine": encode_machine(MACHINE)}, indent=2) + "\n"
GOOD = f"cat <<'END'\n{TEXT}END\n"

PATIENCE_S = 60.0

# What a node's shell does. Every process that it starts writes its number down.
NODES = {
    "good": GOOD,
    "banner": f"echo 'Welcome to {{cluster}}'; echo motd >&2\n{GOOD}echo bye",
    "late": "sleep 300 & echo $! $$ >> pids; wait",
    "stubborn": "trap '' TERM; sleep 300 & echo $! $$ >> pids; while :; do wait; done",
    "failing": "echo 'error: no GPU here.' >&2; echo >&2; echo 'hint: plug one in' >&2; exit 5",
    "garbage": "echo hello; echo '{\"a\": 1}'",
    "forgetful": f"sleep 300 & echo $! $$ >> pids\n{GOOD}",
}


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of all processes, none of which may live on."""
    monkeypatch.chdir(tmp_path)
    written = tmp_path / "pids"
    written.touch()
    yield written
    # A process that was killed takes a moment to be gone.
    until = time.monotonic() + PATIENCE_S
    while living(written) and time.monotonic() < until:
        time.sleep(0.01)
    left = living(written)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert [] == left


no_child_left = pytest.mark.usefixtures("pids")


def living(pids: Path) -> list[int]:
    """Those that still run; one that only waits to be reaped does not."""
    return [pid for pid in map(int, pids.read_text(encoding="utf-8").split()) if runs(pid)]


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def shell(host: str) -> tuple[str, ...]:
    return ("sh", "-c", NODES[host.partition("-")[0]])


def ask(
    *hosts: str, concurrency: int = 8, deadline_s: float = 20
) -> list[NodeAnswer | NodeFailure]:
    return ask_nodes(
        hosts, shell, concurrency=concurrency, deadline_s=deadline_s, on_answer=lambda _: None
    )


@no_child_left
def test_nodes_answer_in_the_order_they_were_named() -> None:
    expected = [
        NodeAnswer(host="good", machine=MACHINE),
        NodeFailure(host="failing", why="no GPU here"),
        NodeFailure(host="garbage", why='it printed `{"a": 1}` instead of a machine'),
        NodeAnswer(host="banner", machine=MACHINE),
    ]
    assert expected == ask("good", "failing", "garbage", "banner")


def test_a_late_node_fails_and_holds_up_no_other(pids: Path) -> None:
    start = time.monotonic()
    answers = ask("late", "good", deadline_s=1)
    late = NodeFailure(host="late", why="no answer within 1 s")
    assert [late, NodeAnswer(host="good", machine=MACHINE)] == answers
    assert 2 == len(pids.read_text(encoding="utf-8").split())
    assert time.monotonic() - start < PATIENCE_S


def test_a_late_node_that_does_not_listen_is_ended_too(pids: Path) -> None:
    assert [NodeFailure(host="stubborn", why="no answer within 2 s")] == ask(
        "stubborn", deadline_s=2
    )
    assert 2 == len(pids.read_text(encoding="utf-8").split())


@no_child_left
def test_what_an_answered_node_leaves_behind_is_ended_and_not_waited_for() -> None:
    start = time.monotonic()
    assert [NodeAnswer(host="forgetful", machine=MACHINE)] == ask("forgetful")
    assert time.monotonic() - start < PATIENCE_S


@no_child_left
def test_a_node_whose_turn_does_not_come_is_told_so() -> None:
    answers = ask("late", "good", concurrency=1, deadline_s=0.5)
    assert NodeFailure(host="good", why="its turn did not come within 0.5 s") == answers[1]


@no_child_left
def test_each_host_is_told_once_when_it_is_done() -> None:
    answered: list[str] = []
    hosts = ["late-1", "good-1", "late-2", "failing-1", "good-2"]
    ask_nodes(hosts, shell, concurrency=4, deadline_s=1, on_answer=answered.append)
    assert sorted(hosts) == sorted(answered)
    assert {"late-1", "late-2"} == set(answered[-2:])


@no_child_left
def test_no_more_are_asked_at_once_than_allowed(tmp_path: Path) -> None:
    count = 'touch $$.on; ls *.on | wc -l >> most; sleep 0.1; rm $$.on; echo "{}"'
    hosts = [f"n{i}" for i in range(12)]
    ask_nodes(
        hosts, lambda _: ("sh", "-c", count), concurrency=3, deadline_s=20, on_answer=lambda _: None
    )
    seen = [int(line) for line in (tmp_path / "most").read_text(encoding="utf-8").split()]
    assert (12, 3) == (len(seen), max(seen))


@no_child_left
def test_three_hundred_hosts_do_not_exhaust_the_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hosts = [f"good-{i}" for i in range(300)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        answers = ask(*hosts, concurrency=64, deadline_s=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [NodeAnswer(host=host, machine=MACHINE) for host in hosts] == answers


def test_a_transport_that_is_not_there_is_a_failure_of_each_host() -> None:
    answers = ask_nodes(
        ["n1"], lambda _: ("/no/ssh", "n1"), concurrency=1, deadline_s=5, on_answer=lambda _: None
    )
    why = "cannot start `/no/ssh` here: no such file or directory"
    assert [NodeFailure(host="n1", why=why)] == answers


ASK = f"""
import signal
# A shell without job control has what it starts in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from zerowiz.probe.machine.fleet import ask_nodes
ask_nodes(
    ["a", "b"], lambda _: ("sh", "-c", {NODES["stubborn"]!r}),
    concurrency=2, deadline_s=100, on_answer=lambda _: None,
)
"""


def test_ctrl_c_ends_all_children(pids: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASK],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
    ) as asking:
        until = time.monotonic() + PATIENCE_S
        while len(pids.read_text(encoding="utf-8").split()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert 4 == len(living(pids))
        asking.send_signal(signal.SIGINT)
        _, stderr = asking.communicate(timeout=PATIENCE_S)
    assert b"KeyboardInterrupt" in stderr


def test_ctrl_c_while_a_child_starts_ends_that_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)

    class Slow(threading.Thread):
        """Runs before who starts it goes on."""

        def start(self) -> None:
            super().start()
            time.sleep(0.3)

    monkeypatch.setattr("concurrent.futures.thread.threading.Thread", Slow)
    monkeypatch.setattr("zerowiz.probe.machine.fleet.subprocess.Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask("late")
    monkeypatch.undo()
    assert [False] == [runs(pid) for pid in started]


FAILURES: Mapping[str, tuple[int, str, str, str]] = {
    "ssh cannot connect": (
        255,
        "",
        "ssh: connect to host n1 port 22: Connection refused\r\n",
        "ssh: connect to host n1 port 22: Connection refused",
    ),
    "ssh is not let in": (
        255,
        "",
        "Welcome\nroot@n1: Permission denied (publickey,password).\r\n",
        "root@n1: Permission denied (publickey,password)",
    ),
    "no zerowiz there": (
        1,
        "",
        "/opt/v/bin/python: No module named zerowiz\n",
        "/opt/v/bin/python: No module named zerowiz",
    ),
    "no timeout there": (
        127,
        "",
        "bash: line 1: timeout: command not found\n",
        "bash: line 1: timeout: command not found",
    ),
    "zerowiz says why in JSON too": (
        5,
        '{"schema_version": 1, "error": {"message": "no GPU here"}}\n',
        "error: no GPU here\n\nhint: ask\n",
        "no GPU here",
    ),
    "srun's own last line": (
        2,
        "",
        "Traceback\nValueError: x\nsrun: error: n1: task 0: Exited with exit code 2\n",
        "ValueError: x",
    ),
    "srun refuses": (
        1,
        "",
        "srun: error: Unable to create step for job 5: Invalid node name\n",
        "srun: error: Unable to create step for job 5: Invalid node name",
    ),
    "time ran out": (124, "", "", "its command ended with status 124 without output"),
    "killed": (-9, "", "", "its command ended with status -9 without output"),
    "silence": (0, "", "", "its command ended with status 0 without output"),
    "a warning is no reason": (0, "x\n", "Warning: y\n", "it printed `x` instead of a machine"),
    "colours": (1, "", "\x1b[31mno\x1b[0m disk.\n", "[31mno[0m disk"),
    "another version": (
        0,
        '{"schema_version": 7, "machine": {}}',
        "",
        "its zerowiz answers in schema 7, this one reads 1",
    ),
    "no machine": (
        0,
        '{"schema_version": 1}',
        "",
        "its answer is not valid: `machine`: expected `object`, got `null`",
    ),
    "half an answer": (0, TEXT[:40], "", 'it printed `"machine": {` instead of a machine'),
}


@pytest.mark.parametrize(("status", "stdout", "stderr", "why"), FAILURES.values(), ids=FAILURES)
def test_a_failure_says_why_in_one_line(status: int, stdout: str, stderr: str, why: str) -> None:
    assert NodeFailure(host="n1", why=why) == parse_answer("n1", status, stdout, stderr)


def test_an_answer_counts_whatever_the_transport_says_after_it() -> None:
    expected = NodeAnswer(host="n1", machine=MACHINE)
    assert expected == parse_answer("n1", 255, f"motd {TEXT} bye", "Connection closed\n")


def test_an_answer_that_only_looks_like_one_does_not_hide_the_real_one() -> None:
    banner = 'we answer {"schema_version" here\n'
    assert NodeAnswer(host="n1", machine=MACHINE) == parse_answer("n1", 0, banner + TEXT, "")


COMMAND = ("python", "-m", "zero wiz")
ARGV: Mapping[Transport, Sequence[str]] = {
    by_ssh: (
        *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
        *("--", "n1", "python -m 'zero wiz'"),
    ),
    by_srun: (
        *("srun", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mem=0"),
        *("--input=none", "--quiet", "--nodelist=n1", *COMMAND),
    ),
}


@pytest.mark.parametrize("transport", [by_ssh, by_srun])
def test_a_transport_quotes_what_a_shell_would_split(transport: Transport) -> None:
    assert ARGV[transport] == argv_for(transport, COMMAND)("n1")


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "^file", "n[1-3]", "a,b", "a b", ""])
@pytest.mark.parametrize("transport", [by_ssh, by_srun])
def test_what_cannot_be_a_host_never_reaches_a_transport(transport: Transport, host: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a host"):
        argv_for(transport, COMMAND)(host)


@pytest.mark.parametrize(
    ("environ", "there", "picked"),
    [
        ({"SLURM_JOB_ID": "5"}, "srun ssh", by_srun),
        ({"SLURM_JOB_ID": "5"}, "ssh", by_ssh),
        ({}, "srun ssh", by_ssh),
    ],
)
def test_the_transport_is_the_one_this_place_is_set_up_for(
    environ: Mapping[str, str], there: str, picked: Transport
) -> None:
    assert picked == pick_transport(environ, lambda name: name if name in there.split() else None)


def test_without_any_transport_the_way_out_is_said() -> None:
    with pytest.raises(PreflightError, match="no `ssh` on PATH"):
        pick_transport({}, lambda _: None)


def test_a_node_runs_the_zerowiz_of_this_interpreter_for_a_bounded_time() -> None:
    expected = (
        *("timeout", "-k", "5", "31", sys.executable, "-P", "-m", "zerowiz", "machine", "--json"),
        *("--accelerator", "cpu"),
    )
    assert expected == node_command(("--accelerator", "cpu"), limit_s=30.5)
