"""What runs in the ranks repeats values of core, emit and cli, which it may not import; they agree.

`worker/rank.py` needs the standard library alone, and the rest of `worker/` no room but its own. A
value that changes on one side only fails here.
"""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kills.harness import SHIM

from zerowiz.cli.launch import launch
from zerowiz.core import job_end
from zerowiz.core.launch import plan
from zerowiz.core.launch.plan import needs_rank_program
from zerowiz.core.preflight import facts
from zerowiz.core.script import config_delivery
from zerowiz.emit import job, processes
from zerowiz.probe.preflight import read_facts
from zerowiz.worker import first_steps, measured_script, prepared_script, rank

SAME = {
    "the variable of who looks on": (
        {each.PROGRESS_VARIABLE for each in (rank, measured_script, prepared_script, first_steps)},
        {plan.PROGRESS_VARIABLE},
    ),
    "what torch builds beside": (first_steps.EXTENSIONS_VARIABLE, rank.EXTENSIONS_VARIABLE),
    "its lock": (first_steps.LOCK_FILE, rank.LOCK_FILE),
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
    "what an Accelerator is told on the CPU": (needs_rank_program(rank.ACCELERATE_ON_CPU), True),
    "the same of a prepared rank": (rank.ACCELERATE_ON_CPU, prepared_script.ACCELERATE_ON_CPU),
    "the variable of a base": (
        {rank.BASE_VARIABLE, prepared_script.BASE_VARIABLE},
        {config_delivery.BASE_VARIABLE},
    ),
    "the variable of its config": (
        prepared_script.CONFIG_VARIABLE,
        config_delivery.CONFIG_VARIABLE,
    ),
    "the variable of measured steps": (measured_script.STEPS_VARIABLE, job.STEPS_VARIABLE),
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
}


@pytest.mark.parametrize("what", SAME)
def test_a_value_that_stands_twice_is_the_same(what: str) -> None:
    ours, theirs = SAME[what]
    assert ours == theirs


def test_the_report_of_an_end_is_waited_for_longer_than_it_takes() -> None:
    assert job.WRITTEN_S > rank.DRAIN_S + rank.POLL_S


def test_a_signal_that_is_passed_on_does_not_end_who_passes_it_on() -> None:
    assert {*processes.FORWARDED_SIGNALS} <= {*rank.IGNORED_SIGNALS}


def test_an_op_is_built_in_the_folder_of_its_name() -> None:
    deepspeed = pytest.importorskip("deepspeed")
    folder = Path(deepspeed.__file__).parent / "ops" / "op_builder"
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    names = {*re.findall(r"^    NAME = ['\"](\w+)['\"]", text, re.MULTILINE)}
    assert {each.name for each in vars(facts).values() if isinstance(each, facts.Op)} <= names


# As DeepSpeed's launcher tells it (launcher/launch.py, 0.19.8).
RANK_3 = {"RANK": "3", "LOCAL_RANK": "1"}


@pytest.mark.parametrize("by", ["file", "memory"])
def test_the_supervisor_reads_what_a_rank_wrote(by: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; sys.stderr.write('last words'); os.kill(os.getpid(), 9)")
    folder = processes.AttemptFolder(tmp_path / "attempt")
    folder.create(lambda _: None)
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
