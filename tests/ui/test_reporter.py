"""What a terminal shows of what use cases say."""

import errno
import io
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest
from fake_host import ANSWERING
from recorded import RecordedFiles

from zerowiz.app.reporter import SILENT, LaunchReporter, Reporter
from zerowiz.core.decision.flowchart import Constraints, decide
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import (
    AttemptRecord,
    Cause,
    JobEnd,
    MeasuredFigures,
    PredictedFigures,
)
from zerowiz.core.launch.plan import LaunchPlan, Resume, ResumeFrom
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Host
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Workload
from zerowiz.errors import LostEdit, PreflightError
from zerowiz.probe.files import read_gpu_table
from zerowiz.probe.machine.host import cpu_machine, read_host, with_number_formats
from zerowiz.ui import machine
from zerowiz.ui.job_end import TerminalLaunchReporter

DECISION = decide(
    Job(
        machine=parse_spec("4xA100-40GB", read_gpu_table()),
        model=model_from_size("7b", 7 * 10**9),
        workload=Workload(gradient_checkpointing=True),
    ),
    Constraints(),
)
LAUNCH_PLAN = LaunchPlan(
    files=(), argv=("deepspeed", "train.py"), env={}, notes=("a note",), supervised=True
)
FACTS = ScriptFacts(path="train.py", convention=Convention.HF_PARSER, integration=Integration.HF)
LOST = LostEdit(path="ds_config.json", there=b"theirs\n", wanted="ours\n")
MEASURED = AttemptRecord(
    strategy="zero2",
    why="it fits",
    config_path="ds_config_zero2.json",
    plan_path=None,
    command=("deepspeed", "train.py"),
    env={},
    logs="/out/.zerowiz/runs/1/attempt-1",
    resume_from=ResumeFrom.START,
    resume_path=None,
    started_at="2026-11-22T04:30:00Z",
    predicted=PredictedFigures(peak_bytes=9),
    measured=MeasuredFigures(ranks=2, peak_bytes=8, step_seconds=None),
)
RESUME = Resume(resume_from=ResumeFrom.START, script_args=())

# What a person who wants results alone does not see.
COMMENTS: dict[str, Callable[[LaunchReporter], None]] = {
    "note": lambda r: r.note("a note"),
    "script": lambda r: r.script(FACTS),
    "decision": lambda r: r.decision(DECISION, (), {}),
    "losses": lambda r: r.losses((LOST,)),
    "start": lambda r: r.start(LAUNCH_PLAN),
    "attempt_measured": lambda r: r.attempt_measured(MEASURED, "out"),
}
EVENTS: dict[str, Callable[[LaunchReporter], None]] = {
    "event": lambda r: r.event("it went on"),
    "error": lambda r: r.error(PreflightError("it failed", "try again")),
    "attempt_ended": lambda r: r.attempt_ended(JobEnd(status=1, cause=Cause.FAILED), ZERO2, 1),
    "next_attempt": lambda r: r.next_attempt(ZERO2, RESUME, 2),
}
each_comment = pytest.mark.parametrize("say", COMMENTS.values(), ids=COMMENTS)
each_event = pytest.mark.parametrize("say", EVENTS.values(), ids=EVENTS)
each_thing = pytest.mark.parametrize("say", [*COMMENTS.values(), *EVENTS.values()])

Say = Callable[[LaunchReporter], None]


class Unread(io.StringIO):
    """A stream that nobody reads any more."""

    def write(self, _text: str) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@each_comment
def test_quiet_leaves_out_what_a_result_rests_on(
    say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    say(TerminalLaunchReporter(quiet=True))
    assert ("", "") == capsys.readouterr()
    say(TerminalLaunchReporter())
    assert "" != capsys.readouterr().err


@each_event
def test_quiet_keeps_what_happened_to_a_run(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say(TerminalLaunchReporter(quiet=True))
    assert "" != capsys.readouterr().err


@each_thing
def test_where_nobody_reads_nothing_ends(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Unread())
    say(TerminalLaunchReporter())


@each_thing
def test_results_alone_stand_on_stdout(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say(TerminalLaunchReporter())
    assert "" == capsys.readouterr().out


def test_python_code_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter: Reporter = SILENT
    reporter.note("a note")
    reporter.error(PreflightError("it failed"))
    with reporter.wait("asking nodes", 2) as wait:
        wait.at("n1")
        wait.done("n1")
    assert ("", "") == capsys.readouterr()


# What a person sees of a machine.

FILES = RecordedFiles(answers=ANSWERING)
HOST = with_number_formats(read_host(FILES), FILES, {})
# No rank is planned in fp16 unasked; how fast Python runs differs from one look to the next, and is
# in `machine --json`.
UNSAID = {"computes_fp16", "python_call_seconds"}


def shown(host: Host) -> str:
    stream = io.StringIO()
    machine.machine(replace(cpu_machine(1, HOST), host=host), stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", sorted({*Host.__struct_fields__} - UNSAID))
def test_a_person_sees_each_fact_of_a_host(name: str) -> None:
    assert shown(HOST) != shown(replace(HOST, **{name: None}))
