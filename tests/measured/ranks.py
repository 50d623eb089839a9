"""Serve a batch as one rank: load the libraries once, then fork a fresh process for each case.

An engine does not give all its memory back, so each case needs a process of its own. To load torch,
DeepSpeed and transformers takes longer than most cases. So the rank loads them without touching
CUDA, which does not survive a fork, and each case is a child process.

The ranks coordinate through files, each of which is written whole or not at all. Rank 0 begins a case once every rank has
ended the one before. A rank whose child failed says so in a file; the other ranks then kill their
children, which may wait in a collective for the rank that is gone.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, TypedDict, cast

from zerowiz.worker.rank import oom_kills

# Errors of a measured case.


class MissingLibraryError(Exception):
    """A case needs a library that this environment lacks."""


Phase = Literal["model", "init", "forward", "backward", "step", "evaluate"]
Iteration = Literal["first", "middle", "steady"]
KillReason = Literal["deadline", "peer", "launcher", "host_memory"]
"""Why a case was killed: its time was over, another rank failed, the launcher was gone, or the
kernel killed for want of the host's memory."""


class Case(TypedDict):
    """The keys of a case that a rank reads; `trials.py` says what they mean."""

    model: str
    config: dict[str, Any]
    ds_config: dict[str, Any]
    gpus: int
    ranks_on_one_gpu: int
    kind: str
    precision: str
    optimizer: str
    micro_batch: int
    sequence_tokens: int
    accumulation_steps: int
    gradient_checkpointing: bool
    every_n_layers: int
    attention: str
    loss: str
    packing: bool
    sequence_parallel: int
    eval_batch: int
    lora_rank: int | None
    lora_target_modules: list[str]
    quantized: bool
    zero_init: bool
    expandable_segments: bool
    memory_cap_bytes: int | None
    free_bytes: int | None
    nccl_p2p: bool
    steps: int
    least_timed_steps: int
    most_timed_steps: int
    offload: str


class WorkerBatch(TypedDict):
    """The whole task of the ranks."""

    folder: str
    cases: list[Case]
    ops: list[str]
    """The builders of DeepSpeed's ops to compile, such as `FusedAdamBuilder`."""
    stop_at: float
    """In seconds since 1970."""
    case_deadline_s: float
    cores: list[int]
    """Those that the ranks of a case that offloads divide; empty where they cannot be bound."""


class CaseStart(TypedDict):
    """Rank 0 begins a case."""

    port: int
    """Where its ranks meet."""
    until: float
    """When they are ended, in seconds since 1970."""


class CaseEnd(TypedDict):
    """How a case ended on one rank."""

    status: int
    """The exit status; negative for a signal."""
    killed: KillReason | None
    seconds: float
    """From its fork to its end."""


class Reading(TypedDict):
    """Memory of a phase; None where it cannot be measured."""

    allocated_bytes: int | None
    peak_bytes: int | None
    peak_reserved_bytes: int | None


class Report(TypedDict, total=False):
    """What a rank measured so far; the names are those of a measured row."""

    ok: bool
    oom_phase: str | None
    error: str | None
    phases: dict[str, Reading]
    step_seconds: list[float]
    timed_step_seconds: list[float]
    timed_peak_bytes: int | None
    timed_allocator_retries: int | None
    python_call_seconds: float
    """Of this host, beside the steps that ran freely."""
    cpu_cores: int
    cpu_threads: int
    cores_bound: bool
    params: int
    trainable_params: int | None
    gpu: str
    versions: dict[str, str]
    wrapper: list[str]
    losses: list[float]
    """Of each measured micro-step: the mean over all ranks."""
    gradient_norms: list[float]
    """Of each measured step, as DeepSpeed clips it."""
    expandable_segments: bool | None
    allocator_retries: int | None
    peak_reserved_bytes: int | None
    host_peak_rss_bytes: int
    context_bytes: int
    context_and_nccl_bytes: int
    device_used_outside_allocator_bytes: int | None


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON object in one step: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    temporary.replace(path)


def read_start(path: Path) -> CaseStart | None:
    """What a `start_file` says; None where it is not there yet."""
    return cast("CaseStart | None", _read_json(path))


def read_report(path: Path) -> Report | None:
    """What a `report_file` says; None where it is not there yet."""
    return cast("Report | None", _read_json(path))


def read_end(path: Path) -> CaseEnd | None:
    """What an `end_file` says; None where it is not there yet."""
    return cast("CaseEnd | None", _read_json(path))


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def case_folder(folder: Path, index: int) -> Path:
    """The folder of a case, by its index in the batch."""
    return folder / f"case-{index}"


def case_file(folder: Path) -> Path:
    """The case itself, for a rank that cannot inherit it by a fork."""
    return folder / "case.json"


def start_file(folder: Path) -> Path:
    """A CaseStart: rank 0 begins the case."""
    return folder / "start.json"


def report_file(folder: Path, rank: int) -> Path:
    """A Report, written by the process of the case after each phase."""
    return folder / f"rank-{rank}.json"


def end_file(folder: Path, rank: int) -> Path:
    """A CaseEnd, written by the process that forked the case."""
    return folder / f"end-{rank}.json"


def stop_file(folder: Path) -> Path:
    """An empty object: no further case of the batch begins."""
    return folder / "stop.json"


def log_file(folder: Path, rank: int) -> Path:
    """What the case wrote to stdout and stderr on a rank."""
    return folder / f"rank-{rank}.log"


# Compile DeepSpeed's ops before the first case, which would otherwise spend a minute on it.


def start_builds(ops: Iterable[str]) -> list[subprocess.Popen[bytes]]:
    """Start a process for each builder, such as `FusedAdamBuilder`."""
    argv, tests = [sys.executable, "-m", "measured.ranks", "--build"], Path(__file__).parents[1]
    return [subprocess.Popen([*argv, op], cwd=tests, stdin=subprocess.DEVNULL) for op in ops]


def finish_builds(builds: Iterable[subprocess.Popen[bytes]]) -> None:
    """Wait for all of them; a case whose op could not be built fails with an error of its own."""
    for build in builds:
        build.wait()


def raise_exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Handle a signal by SystemExit, so that `finally` clauses run."""
    raise SystemExit(1)


def build(op: str) -> None:
    """Compile one op, unless it is compiled already.

    torch's lock file outlives a process that is killed, and every later build then waits for it
    without end (torch/utils/file_baton.py). So SIGTERM unwinds, which removes the file.
    """
    signal.signal(signal.SIGTERM, raise_exit)
    # After the handler is set: loading takes seconds.
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(op)
    if builder is not None:
        builder.load()


# Serve a batch.

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
    from measured.case import preload

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
        }
    write_json(start_file(here), dict(start))
    return start


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
    free_bytes = case.get("free_bytes")
    ballast = None if free_bytes is None else _start_ballast(free_bytes, rank)
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
        if ballast is not None:
            ballast.kill()
            ballast.wait()
    seconds = round(time.monotonic() - began, 3)
    return {"status": status, "killed": killed, "seconds": seconds}


def _start_ballast(free_bytes: int, rank: int) -> subprocess.Popen[bytes]:
    """Start a process that holds all but so much of this rank's GPU, and wait until it does."""
    argv = [sys.executable, "-m", "measured.ranks", "--hold", str(free_bytes), str(rank)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError(f"nothing holds the rest of GPU {rank}")
    return process


def hold(free_bytes: int, gpu: int) -> None:
    """Hold all but so much of a GPU until this process is killed, or its parent is gone."""
    import torch

    held: list[torch.Tensor] = []
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.zeros(1, device=gpu)
        rest_bytes = torch.cuda.mem_get_info(gpu)[0] - free_bytes
        held.append(torch.empty(max(0, rest_bytes), dtype=torch.uint8, device=gpu))
    sys.stdout.write(f"{len(held)}\n")
    sys.stdout.flush()
    while not _orphaned():
        time.sleep(1)


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
        local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
        shared = case.get("ranks_on_one_gpu", 1)
        if shared > 1:
            # NCCL refuses two ranks of one GPU, unless they say that they are on two hosts.
            local |= {"LOCAL_RANK": str(rank // shared), "NCCL_HOSTID": str(rank)}
        os.environ |= local
        from measured.case import can_fork, run_case

        if not can_fork():
            argv = [sys.executable, "-m", "measured.case", str(here)]
            os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted
        code = run_case(case, rank, here, start["until"])
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
    for buffer in Path("/dev/shm").glob(pattern):
        buffer.unlink(missing_ok=True)


def main() -> None:
    """Read the batch, and serve it as this rank, which `deepspeed` started."""
    parser = argparse.ArgumentParser(description="Be a rank of `measured/measure.py`")
    parser.add_argument("batch", type=Path, nargs="?", help="what to measure")
    parser.add_argument("--build", metavar="OP", help="compile an op of DeepSpeed, and end")
    parser.add_argument("--hold", nargs=2, type=int, help="leave BYTES of GPU free, until killed")
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the launcher")
    args = parser.parse_args()
    if args.build:
        build(args.build)
        return
    if args.hold:
        hold(*args.hold)
        return
    serve(json.loads(args.batch.read_text(encoding="utf-8")), int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
