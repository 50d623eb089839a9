"""The files of a batch that `measure` and the ranks exchange, and builds before the first case.

core and emit read and write the other side of them. This room may not import emit, and takes
nothing of core that says what a file has, so `tests/worker/test_contract.py` holds the two sides
together. Each file is written whole or not at all.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, TypedDict, cast

# Errors of a measured case.


class MissingLibraryError(Exception):
    """A case needs a library that this environment lacks."""


Phase = Literal["model", "init", "forward", "backward", "step"]
Iteration = Literal["first", "middle", "steady"]
KillReason = Literal["deadline", "peer", "launcher", "host_memory"]
"""Why a case was killed: its time was over, another rank failed, the launcher was gone, or the
kernel killed for want of the host's memory."""


class Case(TypedDict):
    """The keys of a case that a rank reads; `core/measured_trial.py` says what they mean."""

    model: str
    config: dict[str, Any]
    ds_config: dict[str, Any]
    gpus: int
    kind: str
    precision: str
    optimizer: str
    micro_batch: int
    sequence_tokens: int
    accumulation_steps: int
    gradient_checkpointing: bool
    attention: str
    loss: str
    packing: bool
    lora_rank: int | None
    lora_target_modules: list[str]
    quantized: bool
    zero_init: bool
    expandable_segments: bool
    memory_cap_bytes: int | None
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
    bus: bool
    """Whether the links between them are measured when all else is."""


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


class BusReading(TypedDict):
    """What the links carry while a collective of this size runs."""

    collective: str
    size_bytes: int
    """Of the whole message."""
    bus_bytes_per_s: int


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
    bus: list[BusReading]
    cpu_cores: int
    cpu_threads: int
    cores_bound: bool
    params: int
    trainable_params: int | None
    gpu: str
    versions: dict[str, str]
    wrapper: list[str]
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
    argv = [sys.executable, "-m", "zerowiz.worker.batch_files"]
    return [subprocess.Popen([*argv, op], stdin=subprocess.DEVNULL) for op in ops]  # noqa: S603


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
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415

    builder = get_accelerator().create_op_builder(op)
    if builder is not None:
        builder.load()


if __name__ == "__main__":
    build(sys.argv[1])
