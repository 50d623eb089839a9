"""`zerowiz measure SCRIPT`: a person's own script, run for some steps through the launcher."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from cli.harness import Run
from cli.test_measure import CPU, MODEL, measuring_environ
from paths import TEMPLATES
from ranks.harness import run

from zerowiz.app.measure import require_steps
from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.measured_row import ScriptRun
from zerowiz.core.model.from_name import model_from_size, parse_size
from zerowiz.core.outcome import Cause, JobEnd
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode
from zerowiz.core.workload import Workload
from zerowiz.errors import ZerowizError
from zerowiz.probe.package_data import read_gpu_table
from zerowiz.ui.measure import script_run

SCRIPT = "train_deepspeed.py"


def copy_script(folder: Path) -> None:
    """The template, and what it imports."""
    shutil.copy(TEMPLATES / SCRIPT, folder)
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")


@pytest.mark.parametrize(
    "words", [("--all",), ("--cases", "c.json"), ("--cap-bytes", "5"), ("--output", "rows.jsonl")]
)
def test_what_is_of_the_model_alone_is_refused_beside_a_script(
    here: Run, folder: Path, words: tuple[str, ...]
) -> None:
    copy_script(folder)
    done = here("measure", *CPU, *words, SCRIPT)
    assert 2 == done.code
    assert f"`{words[0]}` does not work with your own script" in done.problem


def test_options_stand_before_the_script_and_words_after_it_are_its_own(
    here: Run, folder: Path
) -> None:
    copy_script(folder)
    words = ("--model_config", MODEL, "--steps", "40")
    done = here("measure", *CPU, "--yes", "--dry-run", "--stage", "2", SCRIPT, *words)
    assert 0 == done.code, done.stderr
    assert f"--model_config {MODEL} --steps 40 --deepspeed" in done.stdout
    asked = here("measure", *CPU, "--yes", "--dry-run", "--json", "--stage", "2", SCRIPT, *words)
    assert 0 == asked.code, asked.stderr
    plan = json.loads(asked.stdout)
    assert ("zero2", "40") == (
        plan["chosen"],
        plan["command"][plan["command"].index("--steps") + 1],
    )


@pytest.mark.deepspeed
def test_a_script_is_ended_after_its_steps_and_stays_as_it_is(tmp_path: Path) -> None:
    copy_script(tmp_path)
    before = (tmp_path / SCRIPT).read_bytes()
    own = ["--model_config", MODEL, "--corpus", str(TEMPLATES / "corpus.txt")]
    done = run(
        [sys.executable, "-m", "zerowiz", "measure", *CPU, "--stage", "2", "--precision", "fp32"]
        + ["--yes", "--json", "--steps", "4", SCRIPT, *own]
        + ["--seq_len", "32", "--steps", "5000", "--output_dir", "out"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    said = json.loads(done.stdout)["script"]
    assert ("zero2", "finished", 4) == (said["strategy"], said["ended"], said["steps"])
    assert [3, 3] == [len(rank["timed_step_seconds"]) for rank in said["ranks"]]
    assert [[1] * 3] * 2 == [rank["timed_micro_batches"] for rank in said["ranks"]]
    assert [(2, 1), (2, 1)] == [(rank["stage"], rank["micro_batch"]) for rank in said["ranks"]]
    assert said["measured"]["step_seconds"] > 0
    assert said["measured"]["peak_bytes"] > 0
    assert before == (tmp_path / SCRIPT).read_bytes()
    assert not (tmp_path / "out").exists()
    assert () == done.shared_memory_left


def planned() -> StrategyEstimate:
    machine, table = parse_spec("2xH200", read_gpu_table()), read_gpu_table()
    size = parse_size("1b")
    assert size is not None
    job = PlanInput(
        machine=machine,
        model=model_from_size("1b", size),
        workload=Workload(),
        rates=find_rates(machine, table),
    )
    return evaluate(job, ZERO2)


def ran(*ranks: dict[str, object], **end: object) -> ScriptRun:
    ended = decode(JobEnd, {"status": 0, "cause": Cause.FINISHED.value, **end}, "end")
    return ScriptRun(planned=planned(), end=ended, ranks=ranks, wanted_steps=4)


def rank(*seconds: float, peak_bytes: int | None = 10**9) -> dict[str, object]:
    steps = len(seconds) + 1
    return {"steps": steps, "timed_step_seconds": list(seconds), "peak_bytes": peak_bytes}


def test_the_fullest_and_the_slowest_rank_count() -> None:
    one = ran(rank(1, 1, 1, peak_bytes=5), rank(3, 2, 2, 2, peak_bytes=7))
    assert (7, 4) == (one.peak.measured_bytes, one.steps)
    assert one.step.measured is not None
    assert 2 == one.step.measured.seconds
    assert one.measured


def test_of_a_cpu_rank_its_process_counts_without_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gib = 2**30
    process = {"outside_bytes": gib, "host_peak_rss_bytes": 3 * gib}
    one = ran(*(rank(1, 1, 1, peak_bytes=None) | process for _ in range(2)))
    assert 2 * gib == one.peak.measured_bytes
    script_run(one, sys.stdout)
    shown = capsys.readouterr().out
    assert "measured: 2.000 GiB" in shown
    assert "The memory of CPU ranks is predicted only roughly" in shown


def test_what_no_rank_or_only_one_knows_is_not_measured() -> None:
    assert ran(rank(1, 1, 1), rank(1, 1, 1, peak_bytes=None)).peak.measured_bytes is None
    assert ran(rank(1, 1, 1), {}).step.measured is None
    assert not ran({}, {}).measured


def test_running_out_of_memory_is_an_answer_and_failing_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    died = ran({}, {}, status=1, cause=Cause.CUDA_OOM.value)
    assert died.measured
    script_run(died, sys.stdout)
    assert "It ran out of GPU memory" in capsys.readouterr().out
    assert not ran(rank(1, 1, 1), status=1, cause=Cause.FAILED.value).measured


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_what_a_person_ends_is_told_from_what_the_deadline_ends(number: int, code: int) -> None:
    one = ran(rank(1.0), rank(1.0), status=1, cause=Cause.STOPPED.value, stopped_by=number)
    with pytest.raises(ZerowizError, match="after 2 of 4 optimizer steps") as raised:
        require_steps(one)
    assert code == raised.value.exit_code


def test_a_script_without_steps_is_an_error() -> None:
    with pytest.raises(ZerowizError, match="before its first optimizer step"):
        require_steps(ran({}, {}))
    require_steps(ran(rank(1.0), rank(1.0)))
