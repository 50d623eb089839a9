"""Serve a batch as one rank: load the libraries once, then fork a fresh process for each case.

An engine does not give all its memory back, so each case needs a process of its own. To load torch,
DeepSpeed and transformers takes longer than most cases. So the rank loads them without touching
CUDA, which does not survive a fork, and each case is a child process.

The ranks coordinate through files (`batch_files.py`). Rank 0 begins a case once every rank has
ended the one before. A rank whose child failed says so in a file; the other ranks then kill their
children, which may wait in a collective for the rank that is gone.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from zerowiz.worker.batch_files import (
    Case,
    CaseEnd,
    CaseStart,
    KillReason,
    WorkerBatch,
    case_file,
    case_folder,
    end_file,
    finish_builds,
    log_file,
    raise_exit,
    read_end,
    read_report,
    read_start,
    report_file,
    start_builds,
    start_file,
    stop_file,
    write_json,
)
from zerowiz.worker.rank import oom_kills

_POLL_S = 0.02
# For a rank that fails by itself shortly after another one: it can still report its own error.
_GRACE_S = 3.0


def serve(batch: WorkerBatch, rank: int) -> None:
    """Run every case that includes this rank, in order."""
    # SIGTERM unwinds, so that what a case leaves in shared memory is removed.
    signal.signal(signal.SIGTERM, raise_exit)
    folder, cases = Path(batch["folder"]), batch["cases"]
    builds = start_builds(batch["ops"]) if rank == 0 else []
    # torch then asks NVML whether there is a GPU, and does not initialize CUDA
    # (torch/cuda/__init__.py).
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Loaded here, while the ops are built.
    from zerowiz.worker.case import preload  # noqa: PLC0415

    preload(cases)
    finish_builds(builds)
    for index, case in enumerate(cases):
        if rank >= case["gpus"]:
            continue
        here = case_folder(folder, index)
        start = _begin(folder, index, batch) if rank == 0 else _wait_for_start(folder, here)
        if start is None:
            return
        end = _run(case, here, rank, start, share_of(batch["cores"], case, rank))
        write_json(end_file(here, rank), dict(end))
        if rank == 0 and not _all_ended(here, case["gpus"]):
            return


def _orphaned(parent: int = os.getppid()) -> bool:
    """Whether the launcher is gone."""
    return os.getppid() != parent


def _begin(folder: Path, index: int, batch: WorkerBatch) -> CaseStart | None:
    """Begin a case, on rank 0; None where the time of the batch is over."""
    if time.time() >= batch["stop_at"]:
        write_json(stop_file(folder), {})
        return None
    here = case_folder(folder, index)
    here.mkdir(parents=True, exist_ok=True)
    write_json(case_file(here), dict(batch["cases"][index]))
    with socket.socket() as listener:
        listener.bind(("", 0))
        start: CaseStart = {
            "port": listener.getsockname()[1],
            "until": min(time.time() + batch["case_deadline_s"], batch["stop_at"]),
            "bus": _wants_bus(folder, batch["cases"], index),
        }
    write_json(start_file(here), dict(start))
    return start


def _wants_bus(folder: Path, cases: Sequence[Case], index: int) -> bool:
    """Whether the case has links that no case before it measured."""
    case = cases[index]
    before = (
        read_report(report_file(case_folder(folder, place), 0))
        for place, other in enumerate(cases[:index])
        if (other["gpus"], other["nccl_p2p"]) == (case["gpus"], case["nccl_p2p"])
    )
    known = any(report is not None and report.get("bus") for report in before)
    return case["gpus"] > 1 and case["most_timed_steps"] > 0 and not known


def _wait_for_start(folder: Path, here: Path) -> CaseStart | None:
    while not _orphaned():
        start = read_start(start_file(here))
        if start is not None or stop_file(folder).exists():
            return start
        time.sleep(_POLL_S)
    return None


def _all_ended(here: Path, ranks: int) -> bool:
    """Wait until the case has ended on every rank; no rank outlives its deadline."""
    while not _orphaned():
        if all(end_file(here, rank).exists() for rank in range(ranks)):
            return True
        time.sleep(_POLL_S)
    return False


def share_of(cores: Sequence[int], case: Case, rank: int) -> Sequence[int]:
    """The cores of this rank alone, as DeepSpeed's launcher divides them (utils/numa.py).

    Empty where it has none of its own: a launch binds a job that offloads, and no other.
    """
    share = len(cores) // case["gpus"] if case["offload"] != "none" else 0
    return cores[share * rank : share * (rank + 1)]


def _run(case: Case, here: Path, rank: int, start: CaseStart, cores: Sequence[int]) -> CaseEnd:
    """Fork the case, and wait until it has ended."""
    began, kills = time.monotonic(), oom_kills()
    child = os.fork()
    if child == 0:
        _run_child(case, here, rank, start, cores)
    try:
        status, killed = _supervise(child, here, rank, case["gpus"], start["until"])
        if killed is None and status == -signal.SIGKILL and oom_kills() > kills:
            killed = "host_memory"
    finally:
        _drop_shared_memory(start["port"], rank)
    seconds = round(time.monotonic() - began, 3)
    return {"status": status, "killed": killed, "seconds": seconds}


def _run_child(
    case: Case, here: Path, rank: int, start: CaseStart, cores: Sequence[int]
) -> NoReturn:
    """Run the case in the child, with its own log and port; never return to the parent's code."""
    code = 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        log = os.open(log_file(here, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ranks = str(case["gpus"])
        os.environ |= {"MASTER_PORT": str(start["port"]), "WORLD_SIZE": ranks, "RANK": str(rank)}
        if cores:
            os.sched_setaffinity(0, cores)
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
        from zerowiz.worker.case import can_fork, run_case  # noqa: PLC0415 - loaded by now

        if not can_fork():
            argv = [sys.executable, "-m", "zerowiz.worker.case", str(here)]
            os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted
        code = run_case(case, rank, here, start)
    except BaseException:  # noqa: BLE001 - a child must not unwind into its parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _supervise(
    child: int, here: Path, rank: int, ranks: int, until: float
) -> tuple[int, KillReason | None]:
    """Wait until the case has ended, or has to be; its status, and why it was killed."""
    grace_until: float | None = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), None
        if grace_until is None and _peer_failed(here, rank, ranks):
            grace_until = time.time() + _GRACE_S
        why = _reason_to_kill(until, grace_until)
        if why is not None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, why
        time.sleep(_POLL_S)


def _peer_failed(here: Path, rank: int, ranks: int) -> bool:
    ends = (read_end(end_file(here, peer)) for peer in range(ranks) if peer != rank)
    return any(end is not None and end["status"] != 0 for end in ends)


def _reason_to_kill(until: float, grace_until: float | None) -> KillReason | None:
    now = time.time()
    if now > until:
        return "deadline"
    if grace_until is not None and now > grace_until:
        return "peer"
    return "launcher" if _orphaned() else None


def _drop_shared_memory(port: int, rank: int) -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    pattern = f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_{rank}"
    for buffer in Path("/dev/shm").glob(pattern):  # noqa: S108 - DeepSpeed's own place
        buffer.unlink(missing_ok=True)
