"""What a launch was started from, seen by real processes at a real terminal."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pexpect
import pytest
from cli.harness import clean_environ
from fake_host import build_host

from zerowiz.probe.machine.scheduler import read_launch_environment

SEE = """
from pathlib import Path
from zerowiz.probe.recording import HostFiles
from zerowiz.probe.machine.scheduler import read_launch_environment
print(read_launch_environment({}, HostFiles(root=Path("/nowhere"))))
"""


def at_terminal(command: str) -> str:
    child = pexpect.spawn("/bin/bash", ["-c", command], env=clean_environ(), timeout=20)
    return str(child.read().decode())


def see() -> str:
    return f"{sys.executable} -c '{SEE}'"


def test_the_process_that_a_terminal_belongs_to_is_in_the_foreground() -> None:
    assert "in_foreground=True, survives_hangup=False" in at_terminal(see())


@pytest.mark.parametrize(
    "command",
    [
        f"set -m; {see()} & wait",
        f"{see()} </dev/null",
        f"{see()} 2>/dev/null",
        f"setsid -w {see()}",
    ],
    ids=["background", "no input", "nobody reads its notes", "another session"],
)
def test_one_that_it_does_not_belong_to_is_not(command: str) -> None:
    assert "in_foreground=False" in at_terminal(command)


def test_a_process_without_a_terminal_is_not_in_the_foreground() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEE],
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert "in_foreground=False" in done.stdout


def test_nohup_is_seen_though_the_terminal_is_there() -> None:
    ignoring = f"trap '' {signal.SIGHUP.name.removeprefix('SIG')}; {see()}"
    assert "survives_hangup=True" in at_terminal(ignoring)


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "container"),
        ({"run/.containerenv": ""}, {}, "container"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "container"),
        ({}, {"container": "podman"}, "container"),
        ({}, {"container": ""}, None),
    ],
)
def test_a_container_shows_itself(
    files: Mapping[str, str], environ: Mapping[str, str], expected: str | None, tmp_path: Path
) -> None:
    assert expected == read_launch_environment(environ, build_host(tmp_path, files)).container


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, False), ({"CI": ""}, False), ({"CI": "1"}, True)]
)
def test_ci_says_so(environ: Mapping[str, str], expected: bool, tmp_path: Path) -> None:
    assert expected is read_launch_environment(environ, build_host(tmp_path, {})).runs_ci
