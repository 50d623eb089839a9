"""Run a job under the supervisor, meet it where a test wants to, and see what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHIM = ROOT / "zerowiz" / "worker" / "rank.py"
PATIENCE_S = 120.0
# Once the supervisor has ended, or was killed, nothing of its job may live for longer.
GONE_S = 5.0


def read_stat(pid: int) -> list[str] | None:
    """The words of `/proc/PID/stat` after the name; None for a process that is gone, or a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words


def processes() -> dict[int, list[str]]:
    """Every living process of this host."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {pid: stat for pid in pids if (stat := read_stat(pid)) is not None}


def carries(pid: int, mark: str) -> bool:
    """Whether a process was started with this variable."""
    try:
        return os.fsencode(mark) in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def words_of(pid: int) -> list[str]:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What is left of a job."""

    status: int
    """The supervisor's own exit status."""
    end: dict[str, Any]
    """The JobEnd; empty where the supervisor was killed."""
    left: tuple[str, ...]
    """Commands that were still alive 5 s later."""
    gone_after_s: float
    """From what the test did until nothing was left."""
    stdout: bytes
    stderr: bytes


class Job:
    """A supervised job that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, output: Path) -> None:
        self.process = process
        self.folder = folder
        self.output = output
        self.seen: dict[int, str] = {}
        self.done_at = time.monotonic()

    def look(self) -> None:
        """Remember every process below the supervisor, and when it began."""
        living = processes()
        parents, fresh = {self.process.pid, *self.seen}, {self.process.pid, *self.seen}
        while fresh:
            fresh = {pid for pid, stat in living.items() if int(stat[1]) in fresh} - parents
            parents |= fresh
        for pid in parents - {self.process.pid}:
            if pid in living:
                self.seen.setdefault(pid, living[pid][19])

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something is so.

        Raises:
            TimeoutError: It never was.
        """
        until = time.monotonic() + PATIENCE_S
        while not holds():
            # What it did before it ended is still so.
            is_over = time.monotonic() > until or self.process.poll() is not None
            if is_over and not holds():
                raise TimeoutError(f"no {what}\n{self.said()[-4000:]}")
            time.sleep(0.02)
        self.look()

    def wait_for_files(self, *paths: Path) -> None:
        """Wait until every one of them is there."""
        self.wait_for(str(paths), lambda: all(path.exists() for path in paths))

    def rank(self, number: int) -> dict[str, Any]:
        """What is known of a rank, once it has started."""
        path = self.folder / f"rank-{number}.json"
        self.wait_for_files(path)
        return cast("dict[str, Any]", json.loads(path.read_text()))

    def find(self, *words: str) -> int:
        """The first process of the job with these words in its command line."""
        self.look()
        own = {str(HERE / "supervised.py")}
        lines = {pid: {*words_of(pid)} for pid in sorted(self.seen)}
        return next(pid for pid, line in lines.items() if {*words} <= line and not own & line)

    def send(self, number: int, pid: int | None = None) -> None:
        """Signal a process, the supervisor where none is named."""
        self.look()
        self.done_at = time.monotonic()
        os.kill(pid or self.process.pid, number)

    def said(self) -> str:
        """What the job wrote so far."""
        files = (self.output / "stdout", self.output / "stderr")
        return "".join(path.read_text(errors="replace") for path in files)

    def alive(self) -> list[str]:
        """What still runs: by pid, by group and session, and by environment."""
        living = processes()
        mark = f"ZEROWIZ_ATTEMPT={self.folder}"
        groups = {str(pid) for pid in self.seen}
        found = [
            pid
            for pid, stat in living.items()
            if self.seen.get(pid) == stat[19] or {stat[2], stat[3]} & groups or carries(pid, mark)
        ]
        return [f"{pid}: {' '.join(words_of(pid))}" for pid in found]

    def wait(self) -> Ended:
        """Wait for the supervisor, and then see what is left."""
        until = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError(f"no end\n{self.said()[-4000:]}")
            self.look()
            time.sleep(0.05)
        until = time.monotonic() + GONE_S
        while (left := self.alive()) and time.monotonic() < until:
            time.sleep(0.05)
        judged = self.folder.with_suffix(".json")
        return Ended(
            status=self.process.returncode,
            end=json.loads(judged.read_text()) if judged.exists() else {},
            left=tuple(left),
            gone_after_s=time.monotonic() - self.done_at,
            stdout=(self.output / "stdout").read_bytes(),
            stderr=(self.output / "stderr").read_bytes(),
        )


@contextmanager
def supervised(
    folder: Path,
    command: Sequence[str | Path],
    *,
    ranks: int = 2,
    grace_s: float = 10.0,
    env: dict[str, str] | None = None,
    stdout: IO[bytes] | int | None = None,
    before: Sequence[str] = (),
) -> Iterator[Job]:
    """A job under a supervisor of its own; whatever a test leaves of it is killed.

    Args:
        folder: Of this test; the ranks write to `folder/attempt`.
        command: The launcher with all its words.
        ranks: How many it starts on this host.
        grace_s: As of Watch.
        env: Variables besides this process's own.
        stdout: Where the job's output goes, instead of a file.
        before: What starts the supervisor: `nohup`.
    """
    attempt = folder / "attempt"
    argv = [*before, sys.executable, str(HERE / "supervised.py"), str(attempt), str(ranks)]
    inherited = {key: os.environ[key] for key in os.environ if key != "CUDA_VISIBLE_DEVICES"}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [*argv, str(grace_s), *map(str, command)],
            env={**inherited, "PYTHONPATH": paths, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out if stdout is None else stdout,
            stderr=err,
            start_new_session=True,
        )
    job = Job(process, attempt, folder)
    try:
        yield job
    finally:
        job.look()
        for pid in (process.pid, *job.seen):
            if pid == process.pid or job.seen[pid] == (read_stat(pid) or [""] * 20)[19]:
                end_process(pid)
        process.wait()


def end_process(pid: int) -> None:
    """Kill one process, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
