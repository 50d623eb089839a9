"""What can happen to a real DeepSpeed job, and how it must end: one row a case."""

import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kills.harness import HERE, SHIM, Ended, Job, supervised
from ranks.harness import drop_shared_memory, rank_environ

from zerowiz.probe.preflight.read_facts import find_free_port

DEEPSPEED = Path(sys.executable).with_name("deepspeed")
RANKS = 2
# Threads of torch's can abort a Python that ends with an error, in one run of a hundred.
AN_ERROR = (1, 128 + signal.SIGABRT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Something that happens to a job."""

    way: str
    """What the script does."""
    meet: str | None
    """How far every rank has come before it happens; None for a job that has just been started."""
    happens: Callable[[Job], None]
    status: int | tuple[int, ...]
    cause: str | None
    """As the supervisor judges it; None where it is killed itself."""


def nothing(_job: Job) -> None:
    """The script sees to it."""


def signalled(number: int) -> Callable[[Job], None]:
    """A signal to the supervisor."""
    return lambda job: job.send(number)


def kill_rank(job: Job) -> None:
    """The training of one rank."""
    job.send(signal.SIGKILL, job.rank(1)["process"]["pid"])


def kill_watcher(job: Job) -> None:
    """Who stands beside a rank, and so the rank too."""
    job.send(signal.SIGKILL, job.rank(1)["beside"]["pid"])


def kill_runner(job: Job) -> None:
    """The `deepspeed` command itself."""
    job.send(signal.SIGKILL, job.find(str(DEEPSPEED), "--num_gpus"))


def kill_inner_launcher(job: Job) -> None:
    """Its launch.py, the parent of the ranks."""
    job.send(signal.SIGKILL, job.find("-m", "deepspeed.launcher.launch"))


def save_then_stop(job: Job) -> None:
    """SIGUSR1 is for the ranks, which save and go on; then they are stopped."""
    folder = job.output / "marks"
    job.send(signal.SIGUSR1)
    job.wait_for_files(*(folder / f"saved-{rank}" for rank in range(RANKS)))
    for rank in range(RANKS):
        (folder / f"later-{rank}").unlink(missing_ok=True)
    job.wait_for_files(*(folder / f"later-{rank}" for rank in range(RANKS)))
    job.send(signal.SIGINT)


def lose_folder(job: Job) -> None:
    """Where the ranks and the supervisor leave word for each other."""
    shutil.rmtree(job.folder)


def lose_folder_then_finish(job: Job) -> None:
    """The job goes on without it, and ends by itself."""
    lose_folder(job)
    (job.output / "marks" / "finish").touch()


def lose_folder_then_stop(job: Job) -> None:
    """It can be stopped without it."""
    lose_folder(job)
    job.send(signal.SIGTERM)


# fmt: off
CASES = {
    "a rank raises": Case(way="raise", meet="step", happens=nothing, status=AN_ERROR, cause="failed"),
    "a rank is killed": Case(way="go", meet="step", happens=kill_rank, status=137, cause="killed"),
    "a rank is killed with its parent": Case(way="go", meet="step", happens=kill_watcher, status=137, cause="killed"),
    "a rank on the CPU speaks of a GPU": Case(way="memory", meet="step", happens=nothing, status=AN_ERROR, cause="failed"),
    "a rank's allocation fails": Case(way="allocate", meet="step", happens=nothing, status=AN_ERROR, cause="host_oom"),
    "deepspeed is killed": Case(way="go", meet="step", happens=kill_runner, status=137, cause="launcher"),
    "launch.py is killed": Case(way="go", meet="step", happens=kill_inner_launcher, status=137, cause="launcher"),
    "TERM at the start": Case(way="go", meet=None, happens=signalled(signal.SIGTERM), status=143, cause="stopped"),
    "INT at the start": Case(way="go", meet=None, happens=signalled(signal.SIGINT), status=130, cause="stopped"),
    "TERM in a step": Case(way="go", meet="step", happens=signalled(signal.SIGTERM), status=143, cause="stopped"),
    "USR1 saves, then INT in a step": Case(way="engine", meet="step", happens=save_then_stop, status=130, cause="stopped"),
    "TERM in a save": Case(way="save", meet="saving", happens=signalled(signal.SIGTERM), status=143, cause="stopped"),
    "zerowiz is killed": Case(way="go", meet="step", happens=signalled(signal.SIGKILL), status=-9, cause=None),
    "zerowiz is killed at the start": Case(way="go", meet=None, happens=signalled(signal.SIGKILL), status=-9, cause=None),
    "zerowiz is killed in a save": Case(way="save", meet="saving", happens=signalled(signal.SIGKILL), status=-9, cause=None),
    "the folder is lost, it finishes": Case(way="go", meet="step", happens=lose_folder_then_finish, status=0, cause="finished"),
    "the folder is lost, then TERM": Case(way="go", meet="step", happens=lose_folder_then_stop, status=143, cause="stopped"),
    "INT in a save": Case(way="save", meet="saving", happens=signalled(signal.SIGINT), status=130, cause="stopped"),
}
# fmt: on
# How long a job that has just been started is left alone; its ranks start after some 5 s.
START_S = 12.0


def run_case(case: Case, folder: Path, chance: random.Random) -> Ended:
    """Start a job, let it happen, and wait for the end.

    Args:
        case: What happens.
        folder: Empty, for this run.
        chance: When exactly.
    """
    marks = folder / "marks"
    marks.mkdir(parents=True)
    port = find_free_port()
    launcher = (DEEPSPEED, "--num_gpus", str(RANKS), "--master_port", str(port))
    command = (*launcher, SHIM, HERE / "train.py", marks, case.way)
    try:
        with supervised(folder, command, env=rank_environ(folder / "reports")) as job:
            if case.meet is None:
                job.wait_for("launcher", lambda: "--num_gpus" in _all_words(job))
                time.sleep(chance.uniform(0, START_S))
            else:
                job.wait_for_files(*(marks / f"{case.meet}-{rank}" for rank in range(RANKS)))
                time.sleep(chance.uniform(0, 0.5))
            job.done_at = time.monotonic()
            case.happens(job)
            return job.wait()
    finally:
        drop_shared_memory(f"--master_port={port}")


def _all_words(job: Job) -> str:
    job.look()
    return " ".join(job.alive())


def misses(case: Case, ended: Ended) -> list[str]:
    """What is not as it must be; empty where all is well."""
    found = []
    allowed = case.status if isinstance(case.status, tuple) else (case.status,)
    judged = None if case.cause is None else ended.status
    if ended.status not in allowed or ended.end.get("status") != judged:
        found.append(f"status {ended.status} (judged {ended.end.get('status')}), not {case.status}")
    if ended.end.get("cause") != case.cause:
        found.append(f"cause {ended.end.get('cause')}, not {case.cause}")
    if ended.left:
        found.append(f"left: {'; '.join(ended.left)}")
    return found
