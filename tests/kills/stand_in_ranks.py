"""Ranks of a script, under a stand-in for DeepSpeed's launcher, under the supervisor."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kills.harness import HERE, SHIM, Ended, Job, supervised

# What every rank's script begins with: who it is, and a way to say how far it has come.
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
def mark(name): Path(f"{name}-{rank}").touch()
def on(number, does): signal.signal(number, lambda *_: does())
"""


@contextmanager
def ranks(folder: Path, script: str, *, count: int = 2, **settings: Any) -> Iterator[Job]:
    """A supervised stand-in that starts ranks of this script in a folder."""
    path = folder / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(script))
    command = (sys.executable, HERE / "stand_in.py", str(count), SHIM, path, "--lr", "0.1")
    inside = ("env", f"--chdir={folder}")
    with supervised(folder, (*inside, *command), ranks=count, **settings) as job:
        yield job


def run(folder: Path, script: str, **settings: Any) -> Ended:
    """The same, to its end."""
    with ranks(folder, script, **settings) as job:
        return job.wait()


def end_of(ended: Ended) -> tuple[int, str]:
    """The status and the cause, as judged, where the process says the same."""
    assert ended.end["status"] == ended.status
    return ended.status, ended.end["cause"]


def meet(job: Job, folder: Path, name: str, count: int = 2) -> None:
    job.wait_for_files(*(folder / f"{name}-{rank}" for rank in range(count)))


# Far below what the scripts here would take by themselves.
SOON_S = 25.0

WAIT = """
mark("ready")
time.sleep(60)
"""
SAVES = (
    """
def save():
    mark("saved")
    os._exit({status})
on(signal.SIGTERM, save)
"""
    + WAIT
)
STUBBORN = (
    """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
"""
    + WAIT
)
