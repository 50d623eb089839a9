"""Measure: run cases on real ranks of this machine, and append a row for each.

Run with `python tests/measured/measure.py cases.json --output rows.jsonl`. `README.md` says what a case
may hold. The ranks load their libraries once, and fork a process for each case (`ranks.py`).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

from msgspec import Struct

# Its siblings are `measured.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from measured.ranks import (
    Case,
    WorkerBatch,
    case_folder,
    end_file,
    log_file,
    report_file,
    start_file,
    write_json,
)
from measured.trials import (
    PlannedTrial,
    Trial,
    TrialEnd,
    decode_trials,
    make_row,
    ops_of,
    plan_trial,
)

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.app.resolve.resolved_job import count_or_trace, read_and_trace
from zerowiz.core.launch.plan import launch_env, launcher_options
from zerowiz.core.machine.types import Accelerator, Machine, with_gpus
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.model.from_name import config_of_size
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.emit.processes import ENDING_SIGNALS, PATIENCE_S, adopt_orphans, end_job, read_children
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import Files, read_transformers_release
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.model.hf import Named, read_config_json
from zerowiz.probe.preflight.read_facts import find_programs, try_core_binding

_TESTS = Path(__file__).parents[1]
# Why a rank's case was killed: another rank had failed.
KILLED_FOR_PEER = "peer"
# Where a rank left no end: it was lost with the launcher.
KILLED_WITH_LAUNCHER = "launcher"
_POLL_S = 0.05
# A rank ends its own case at the deadline; this is for ranks that no longer answer.
_GRACE_S = 15.0
# The build of an op, which removes torch's lock on it, needs longer than other processes to unwind.
_PATIENCE_S = {**PATIENCE_S, signal.SIGTERM: 5.0}
# Every process of the job has this variable, with the folder as its value.
_JOB_VARIABLE = "ZEROWIZ_MEASURE"
_TAIL_LINES = 12


class Batch(Struct, frozen=True, kw_only=True):
    """What one launch measures."""

    cases: Sequence[Mapping[str, object]]
    ops: Sequence[str]
    """The builders of the ops that DeepSpeed compiles before the first case."""
    launcher: Sequence[str]
    """`deepspeed` and its options."""
    env: Mapping[str, str]
    """Variables that the job needs beyond the caller's environment."""
    deadline_s: float
    """For the whole batch, with the loading of the libraries."""
    case_deadline_s: float
    cores: Sequence[int] = ()
    """Those that the ranks of a case that offloads divide; none where they cannot be bound."""


class EndedCase(Struct, frozen=True, kw_only=True):
    """A case that has ended on all its ranks."""

    index: int
    """In the batch, from 0."""
    ends: tuple[TrialEnd, ...]
    log_tail: str
    """The last lines of the rank that failed first; empty when none did."""


def append_line(path: Path, line: str) -> None:
    """Append one line to a file of rows; a missing file is made."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _read(path: Path) -> Mapping[str, object]:
    try:
        return cast("Mapping[str, object]", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def _has_begun(folder: Path, index: int) -> bool:
    return start_file(case_folder(folder, index)).exists()


def _read_end(case: Path, rank: int) -> TrialEnd:
    end = _read(end_file(case, rank))
    return TrialEnd(
        rank=rank,
        report=_read(report_file(case, rank)),
        status=cast("int", end.get("status", 1)),
        killed=cast("str | None", end.get("killed", KILLED_WITH_LAUNCHER)),
        seconds=cast("float | None", end.get("seconds")),
    )


def _read_case(folder: Path, index: int, ranks: int) -> EndedCase:
    """What the ranks of a case left behind; a rank without an end was lost with the launcher."""
    case = case_folder(folder, index)
    ends = tuple(_read_end(case, rank) for rank in range(ranks))
    failed = [end for end in ends if end.status != 0]
    # A rank that was killed because another one had failed is not the cause.
    first = min(failed, key=lambda end: end.killed == KILLED_FOR_PEER, default=None)
    log_tail = "" if first is None else tail(log_file(case, first.rank))
    return EndedCase(index=index, ends=ends, log_tail=log_tail)


def _has_ended(folder: Path, index: int, ranks: int) -> bool:
    case = case_folder(folder, index)
    return all(end_file(case, rank).exists() for rank in range(ranks))


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _ending_job(
    process: subprocess.Popen[bytes], folder: Path, unrelated: frozenset[int]
) -> Iterator[None]:
    """End every process of the job when this block ends, also by a signal that asks for an end.

    A signal that was ignored before, as `nohup` does it, stays ignored.
    """
    caught = [
        ending_signal
        for ending_signal in ENDING_SIGNALS
        if signal.getsignal(ending_signal) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, _interrupt) for number in caught}
    try:
        yield
    finally:
        # A second request must not interrupt this.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        end_job(f"{_JOB_VARIABLE}={folder}", process.pid, _PATIENCE_S, unrelated)
        process.poll()
        for number, handler in before.items():
            signal.signal(number, handler)


def start_batch(batch: Batch, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the launcher over a batch, which is written into the folder first."""
    content: WorkerBatch = {
        "folder": str(folder),
        "cases": cast("list[Case]", list(batch.cases)),
        "ops": list(batch.ops),
        "stop_at": time.time() + batch.deadline_s,
        "case_deadline_s": batch.case_deadline_s,
        "cores": list(batch.cores),
    }
    path = folder / "batch.json"
    write_json(path, dict(content))
    # The ranks find zerowiz where this process found it, installed or not.
    found = (str(_TESTS), str(_TESTS.parent), environ.get("PYTHONPATH"))
    paths = os.pathsep.join(filter(None, found))
    with (folder / "launcher.log").open("wb") as log:
        return subprocess.Popen(
            [*batch.launcher, "--module", "measured.ranks", str(path)],
            env={**environ, **batch.env, "PYTHONPATH": paths, _JOB_VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _follow(batch: Batch, folder: Path, process: subprocess.Popen[bytes]) -> Iterator[EndedCase]:
    """Yield each case as it ends, until all cases have ended or the launcher has."""
    until = time.monotonic() + batch.deadline_s + _GRACE_S
    for index, case in enumerate(batch.cases):
        ranks = cast("int", case["gpus"])
        while not _has_ended(folder, index, ranks):
            # A case can end between the check above and the end of the launcher.
            gone = process.poll() is not None or time.monotonic() > until
            if gone and not _has_ended(folder, index, ranks):
                if _has_begun(folder, index):
                    yield _read_case(folder, index, ranks)
                return
            time.sleep(_POLL_S)
        yield _read_case(folder, index, ranks)


def run_batch(batch: Batch, environ: Mapping[str, str]) -> Generator[EndedCase, None, None]:
    """Start the launcher and yield each case as it ends; a case that never began is not yielded.

    Args:
        batch: What is measured.
        environ: The caller's environment.

    Raises:
        ZerowizError: The launcher or its ranks ended before the first case began.
    """
    with tempfile.TemporaryDirectory(prefix="zerowiz-measure-") as name:
        folder = Path(name)
        adopt_orphans()
        unrelated = read_children(os.getpid())
        process = start_batch(batch, folder, environ)
        with _ending_job(process, folder, unrelated):
            yield from _follow(batch, folder, process)
            if not _has_begun(folder, 0):
                log = tail(folder / "launcher.log")
                status = process.poll()
                raise ZerowizError(
                    f"the ranks ended before the first case began, with status {status}:\n{log}"
                )


# Choose what is run, and where.


def find_ranks(options: Options, trials: Sequence[Trial]) -> Machine:
    """This machine, with a GPU for each rank that shares one; CPU ranks are as many as needed."""
    if options.gpus_per_node is None and options.accelerator is Accelerator.CPU:
        options = replace(options, gpus_per_node=max(trial.gpus for trial in trials))
        return find_machine(options, os.environ)
    machine = find_machine(options, os.environ)
    shared = max(trial.ranks_on_one_gpu for trial in trials)
    if shared == 1:
        return machine
    gpus = (replace(gpu, index=n, ordinal=n) for n, gpu in enumerate(machine.gpus * shared))
    return replace(machine, gpus=tuple(gpus))


def plan_case(trial: Trial, machine: Machine) -> PlannedTrial:
    """The case as it will run."""
    step = replace(trial.workload, transformers_version=read_transformers_release())
    trial = replace(trial, workload=step, config=trial.config or read_config_json(trial.model))
    read = _read_model(trial)
    if isinstance(read, str):
        return plan_trial(trial, machine, read)
    if not trial.config:
        trial = replace(trial, config=config_of_size(read.model))
    return plan_trial(trial, machine, read.model, read.traced)


def _read_model(trial: Trial) -> ReadModel | str:
    """The model as the estimator counts it, or why it cannot.

    Raises:
        ZerowizError: There is no such model at all.
    """
    try:
        if trial.config:
            named = Named(Path(trial.model).name, trial.config)
            return count_or_trace(
                trial.model, named, trial.workload, os.environ, SILENT, trace=None
            )
        return read_and_trace(trial.model, trial.workload, os.environ, SILENT, trace=None)
    except ZerowizError as error:
        if not trial.config:
            raise
        return error.message


def make_batch(
    planned: Sequence[PlannedTrial], machine: Machine, deadline_s: int, case_deadline_s: int
) -> Batch:
    """The batch of some cases on this machine."""
    programs = find_programs(os.environ)
    trials = [plan.trial for plan in planned]
    used = with_gpus(machine, max(trial.gpus for trial in trials))
    env = launch_env(used, programs, os.environ, {})
    offloads = any(trial.offload is not Offload.NONE for trial in trials)
    bound = offloads and machine.accelerator is Accelerator.CUDA
    cores = try_core_binding(os.environ, len(used.gpus), Files()).cores if bound else None
    port = ("--master_port", str(programs.master_port))
    # `--include` takes each GPU once.
    shared = any(trial.ranks_on_one_gpu > 1 for trial in trials)
    options = ("--num_gpus", str(len(used.gpus))) if shared else launcher_options(used)
    return Batch(
        cases=[plan.as_case() for plan in planned],
        ops=ops_of(trials, machine.accelerator),
        launcher=(programs.deepspeed, *options, *port),
        env={name: value for name, value in env.items() if name not in _OF_A_CASE},
        deadline_s=deadline_s,
        case_deadline_s=case_deadline_s,
        cores=sorted(parse_list(cores or "")),
    )


# What a case itself decides; a variable of the caller's would decide it for all.
_OF_A_CASE = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE")


def measure(
    trials: Sequence[Trial], options: Options, output: Path, deadline_s: int, case_deadline_s: int
) -> list[dict[str, object]]:
    """Run every case that has enough ranks here; its row is appended as it ends.

    Args:
        trials: The cases.
        options: Of the machine.
        output: A file that gets a line of JSON for each run.
        deadline_s: For everything.
        case_deadline_s: For one run.

    Raises:
        ZerowizError: No case has its ranks here, or the ranks could not be started.
    """
    machine = find_ranks(options, trials)
    few = [trial for trial in trials if trial.gpus <= machine.world_size]
    if not few:
        raise ZerowizError(f"every case needs more than {machine.world_size} ranks")
    planned = [plan_case(trial, machine) for trial in few]
    batch = make_batch(planned, machine, deadline_s, case_deadline_s)
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_CASE}
    rows = []
    with closing(run_batch(batch, environ)) as ended:
        for case in ended:
            row = dict(make_row(planned[case.index], case.ends, machine.accelerator))
            append_line(output, json.dumps(row))
            rows.append(row)
            said = "ran" if row["ok"] else f"{row['oom_phase'] or row['error']}\n{case.log_tail}"
            sys.stderr.write(f"{len(rows)} of {len(planned)}: {row['id']}: {said}\n")
    return rows


def main() -> int:
    """Run the cases of a file; 1 where one failed, or did not begin."""
    parser = argparse.ArgumentParser(description="Run cases on real ranks, and append their rows")
    parser.add_argument("cases", type=Path, help="a JSON list of runs")
    parser.add_argument("--output", type=Path, required=True, help="gets a line for each run")
    parser.add_argument("--accelerator", choices=["cuda", "cpu"])
    parser.add_argument("--deadline", type=int, default=900, help="in seconds, for all runs")
    parser.add_argument("--case-deadline", type=int, default=300, help="in seconds, for one run")
    asked = parser.parse_args()
    accelerator = None if asked.accelerator is None else Accelerator(asked.accelerator)
    trials = decode_trials(json.loads(asked.cases.read_text(encoding="utf-8")))
    options = Options(accelerator=accelerator)
    rows = measure(trials, options, asked.output, asked.deadline, asked.case_deadline)
    failed = [row for row in rows if not row["ok"] and row["oom_phase"] is None]
    return 1 if failed or len(rows) < len(trials) else 0


if __name__ == "__main__":
    sys.exit(main())
