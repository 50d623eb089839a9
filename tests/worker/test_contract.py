"""What runs in the ranks repeats values of core, emit and cli, which it may not import; they agree.

`worker/rank.py` needs the standard library alone, and the rest of `worker/` no room but its own. A
value that changes on one side only fails here.
"""

import ast
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest
from changed_settings import CHANGED
from kills.harness import SHIM
from measured.rows import read_model, read_rows

import zerowiz.worker
from zerowiz.cli.launch import launch
from zerowiz.core import job_end, measured_row
from zerowiz.core.launch.plan import sees_one_rank
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.measured_trial import (
    OPS,
    PlannedTrial,
    Trial,
    decode_trial,
    plan_trial,
    stepper_for,
)
from zerowiz.core.memory import losses as predicted_losses
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.preflight.facts import BUILT_BY
from zerowiz.core.strategy_types import Offload
from zerowiz.core.workload import (
    KERNELS,
    SETTINGS,
    Attention,
    Loss,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.emit import job, measure, processes
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table
from zerowiz.probe.preflight import read_facts
from zerowiz.worker import batch_files, measured_script, rank

KILL_REASONS = {*get_args(batch_files.KillReason)}
SAME = {
    "how long a failed rank may take to end": (rank.TAKING_DOWN_S, job_end.TAKING_DOWN_S),
    "the line above an error that ends nothing": (
        rank.ENDS_NOTHING.pattern.decode(),
        job_end.ENDS_NOTHING.pattern,
    ),
    "how that line is matched": (
        rank.ENDS_NOTHING.flags,
        job_end.ENDS_NOTHING.flags & ~re.UNICODE,
    ),
    "how a traceback begins": (rank.TRACEBACK.decode(), job_end.TRACEBACK),
    "what a shell adds to a signal": (rank.SIGNALLED, job_end.SIGNALLED),
    "what an Accelerator is told on the CPU": (sees_one_rank(rank.ACCELERATE_ON_CPU), True),
    "the variable of measured steps": (measured_script.STEPS_VARIABLE, measure.STEPS_VARIABLE),
    "the folder of measured steps": (
        measured_script.MEASURED_FOLDER,
        processes.MEASURED_FOLDER,
    ),
    "the same folder's variable": (
        measured_script.ATTEMPT_VARIABLE,
        processes.ATTEMPT_VARIABLE,
    ),
    "the folder's variable": (rank.ATTEMPT_VARIABLE, processes.ATTEMPT_VARIABLE),
    "the supervisor's variable": (rank.SUPERVISOR_VARIABLE, processes.SUPERVISOR_VARIABLE),
    "the memory's variable": (rank.MEMORY_VARIABLE, processes.MEMORY_VARIABLE),
    "the grace's variable": (rank.GRACE_VARIABLE, processes.GRACE_VARIABLE),
    "the grace": (rank.GRACE_S, inspect.signature(launch).parameters["grace_seconds"].default),
    "the file of orders": (rank.ORDERS_FILE, processes.ORDERS_FILE),
    "the order to end": (rank.END_ORDER, processes.END_ORDER),
    "the namespace": (rank.read_pid_namespace(), processes.read_pid_namespace()),
    "torch's lock": (rank.LOCK_FILE, read_facts.LOCK_FILE),
    "the worker's module": (zerowiz.worker.__name__, measure.WORKER_MODULE),
    "why a case was killed": (
        KILL_REASONS,
        {*measured_row.ENDED, measure.KILLED_FOR_PEER, measured_row.HOST_MEMORY},
    ),
    "the phases": (
        {*get_args(batch_files.Phase)},
        {phase.value for phase in Phase} - {Phase.GENERATE, Phase.EVALUATE},
    ),
    "the names of the phases": (
        {
            *("model", "init"),
            *(f"{i}_{p}" for i in ("first", "steady") for p in ("forward", "backward", "step")),
        },
        {*measured_row.PHASES},
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_a_value_that_stands_twice_is_the_same(what: str) -> None:
    ours, theirs = SAME[what]
    assert ours == theirs


def test_a_case_without_an_end_was_killed_for_a_reason_that_there_is() -> None:
    assert measure.KILLED_WITH_LAUNCHER in KILL_REASONS


def test_the_report_of_an_end_is_waited_for_longer_than_it_takes() -> None:
    assert job.WRITTEN_S > rank.DRAIN_S + rank.POLL_S


def test_a_signal_that_is_passed_on_does_not_end_who_passes_it_on() -> None:
    assert {*processes.FORWARDED_SIGNALS} <= {*rank.IGNORED_SIGNALS}


CASE, RANK = Path("/batch/case-3"), 5
FILES = {
    "folder": (batch_files.case_folder(CASE.parent, 3), measure.case_folder(CASE.parent, 3)),
    "start": (batch_files.start_file(CASE), measure.start_file(CASE)),
    "report": (batch_files.report_file(CASE, RANK), measure.report_file(CASE, RANK)),
    "end": (batch_files.end_file(CASE, RANK), measure.end_file(CASE, RANK)),
    "log": (batch_files.log_file(CASE, RANK), measure.log_file(CASE, RANK)),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_of_a_case_has_one_path(what: str) -> None:
    ours, theirs = FILES[what]
    assert ours == theirs


def test_the_trainer_steps_with_every_optimizer_that_is_not_refused() -> None:
    pytest.importorskip("deepspeed")
    from zerowiz.worker.trainer_loop import OPTIMIZERS

    assert {kernel.value for kernel, row in KERNELS.items() if row.by_trainer} == {*OPTIMIZERS}


def test_a_batch_is_written_with_the_keys_that_are_read(tmp_path: Path) -> None:
    batch = measure.Batch(
        cases=(),
        ops=(),
        launcher=(sys.executable, "-c", ""),
        env={},
        deadline_s=1,
        case_deadline_s=1,
    )
    measure.start_batch(batch, tmp_path, os.environ).wait()
    written = json.loads((tmp_path / "batch.json").read_text())
    assert batch_files.WorkerBatch.__annotations__.keys() == written.keys()


MEASURED = next(each for each in read_rows() if each["id"] == "b4-001")


def planned() -> PlannedTrial:
    trial = decode_trial(MEASURED, "case")
    machine = parse_spec("4xH200", read_gpu_table())
    return plan_trial(trial, machine, read_model(MEASURED["model"]), None)


def test_a_case_has_every_key_that_a_rank_reads() -> None:
    assert set() == {*batch_files.Case.__annotations__} - planned().as_case().keys()


def case_of(workload: Workload, **said: object) -> dict[str, object]:
    """What the ranks read of a case with this step."""
    half = workload.optimizer_state_dtype is StateDtype.BF16
    trial = Trial(
        model="llama-3.2-1b",
        stage=2,
        gpus=2,
        workload=workload,
        kernel=stepper_for(workload.optimizer, Offload.NONE),
        bf16={"bf16_optimizer_states": True} if half else {},
        **said,  # type: ignore[arg-type]
    )
    machine = parse_spec("2xH200", read_gpu_table())
    case = plan_trial(trial, machine, read_model(trial.model), None).as_case()
    return {key: case[key] for key in batch_files.Case.__annotations__}


@pytest.mark.parametrize("zero", [None, {}], ids=["zerowiz's config", "DeepSpeed's defaults"])
@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_reaches_the_ranks_of_measure_or_is_refused(
    name: str, zero: dict[str, object] | None
) -> None:
    before, after = CHANGED[name]
    if SETTINGS[name].measurable:
        assert case_of(before, zero_optimization=zero) != case_of(after, zero_optimization=zero)
    else:
        with pytest.raises(UsageError, match=f"`measure` cannot train with .*`{name}`"):
            case_of(after)


class Asked(dict[str, object]):
    """A report that notes which keys it is asked for."""

    def __init__(self, values: dict[str, object]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        self.keys_asked.add(key)
        return super().get(key, default)


def test_a_row_is_made_of_every_key_that_a_rank_reports_and_of_no_other() -> None:
    reported = batch_files.Report.__annotations__
    report = Asked({key: MEASURED.get(key) for key in reported})
    failed = Asked({"ok": False, "error": "ValueError in init: no"})
    ends = [
        measured_row.TrialEnd(rank=number, report=each, status=number, killed=None)
        for number, each in enumerate((report, failed))
    ]
    measured_row.make_row(planned(), ends, Accelerator.CUDA)
    assert {*reported} == report.keys_asked | failed.keys_asked


def test_a_phase_is_reported_with_the_keys_of_a_measured_row() -> None:
    readings = MEASURED["phases"].values()
    assert [batch_files.Reading.__annotations__.keys()] * len(readings) == [
        reading.keys() for reading in readings
    ]


def tables_of_models() -> dict[str, set[str]]:
    """The keys of each table of `worker/models.py`, which loads torch."""
    nodes = ast.parse((Path(rank.__file__).parent / "models.py").read_text(encoding="utf-8")).body
    return {
        ast.unparse(target): {ast.literal_eval(key) for key in node.value.keys if key is not None}
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }


NAMES: Mapping[str, set[StrEnum]] = {
    "BUILDERS": {kernel for kernel, row in KERNELS.items() if not row.section},
    "LOSSES": {*Loss},
    "ATTENTION": {*Attention},
    "DTYPES": {*Precision},
}


@pytest.mark.parametrize("table", NAMES)
def test_the_ranks_know_every_name_that_a_case_may_hold(table: str) -> None:
    assert NAMES[table] == tables_of_models()[table]


def test_an_op_is_built_in_the_folder_that_its_builder_names() -> None:
    deepspeed = pytest.importorskip("deepspeed")
    folder = Path(deepspeed.__file__).parent / "ops" / "op_builder"
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    names = {
        *re.findall(
            r"^class (\w+)\(.*\):\n(?:.*\n){0,3}? +NAME = ['\"](\w+)['\"]", text, re.MULTILINE
        )
    }
    assert {(builder, op.name) for builder, op in BUILT_BY.items()} <= names
    assert {*OPS.values()} <= BUILT_BY.keys()


def test_a_model_is_built_as_it_is_traced() -> None:
    pytest.importorskip("deepspeed")
    from zerowiz.probe.model import trace
    from zerowiz.worker import models

    assert predicted_losses.CHUNK_TOKENS == models.CHUNK_TOKENS
    assert trace.IMAGE_SIZE == models.IMAGE_SIZE
    assert models.HEADS == trace.HEADS[: len(models.HEADS)]


# As DeepSpeed's launcher tells it (launcher/launch.py, 0.19.8).
RANK_3 = {"RANK": "3", "LOCAL_RANK": "1", rank.LAUNCHER_VARIABLE: "0"}


@pytest.mark.parametrize("by", ["file", "memory"])
def test_the_supervisor_reads_what_a_rank_wrote(by: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; sys.stderr.write('last words'); os.kill(os.getpid(), 9)")
    folder = processes.AttemptFolder(tmp_path / "attempt")
    folder.create()
    environ = {**os.environ, processes.ATTEMPT_VARIABLE: str(folder.path), **RANK_3}
    environ |= folder.memory_env() if by == "memory" else {}
    words = [sys.executable, str(SHIM), "--local_rank=1", str(script)]
    done = subprocess.run(words, env=environ, capture_output=True, check=False)
    if by == "memory":
        shutil.rmtree(folder.path)
    folder.read_new()
    folder.close()
    started, end = folder.ranks[3], folder.ends[3]
    assert (-signal.SIGKILL, job_end.KILLED) == (done.returncode, end.status)
    assert processes.read_pid_namespace() == started.pid_namespace
    assert started.process.pid != started.supervisor.pid
    assert (started.host, ("last words",), str(folder.path / "rank-3.log")) == (
        *(end.host, end.tail, end.log),
    )
