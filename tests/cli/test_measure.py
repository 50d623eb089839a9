"""`zerowiz measure`: what it refuses, what it would run, and real steps on two ranks."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.harness import Run
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, run_loaded

from zerowiz import __version__
from zerowiz.app.measure import require_all
from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import (
    Cause,
    JobEnd,
    KeptRun,
    MachineResults,
    ScriptMeasurement,
    formulas_of,
    machine_key,
)
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.model.from_name import model_from_size, parse_size
from zerowiz.core.speed.costs import TermKind, find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode, encode, replace
from zerowiz.core.workload import Workload
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import read_gpu_table
from zerowiz.probe.machine.machine_file import results_path
from zerowiz.ui.job_end import candidates, script_run

MODEL = str(TEMPLATES / "model")
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
# What is assumed depends on the CPU of this host.
SMALL = ("--model", MODEL, "--offload", "none", "--precision", "bf16")


def dry(here: Run, *words: str) -> Any:
    return here("measure", *CPU, *words, "--dry-run", "--json", "--quiet").content


def after(command: list[str], word: str) -> str:
    return command[command.index(word) + 1]


def test_a_model_is_trained_by_a_copy_of_the_template(here: Run, folder: Path) -> None:
    words = ("--model", MODEL, "--stage", "2", "--micro-batch", "3", "--seq-len", "64")
    plan = dry(here, *words, "--steps", "5")
    command = plan["command"]
    assert ("zero2", 3) == (plan["chosen"], plan["workload"]["micro_batch"])
    assert ("5", "64", MODEL) == tuple(
        after(command, word) for word in ("--steps", "--seq_len", "--model_config")
    )
    assert [] == list(folder.iterdir())


def test_a_size_is_trained_as_the_llama_that_stands_for_it(here: Run) -> None:
    plan = dry(here, "--model", "10m", "--stage", "0")
    assert "10m" == Path(after(plan["command"], "--model_config")).name
    assert ("config", 10_017_600) == (plan["model"]["source"], plan["model"]["params"])


def test_a_persons_own_config_is_run_as_it_is(here: Run, folder: Path) -> None:
    own = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    (folder / "own.json").write_text(json.dumps(own))
    plan = dry(here, "--model", MODEL, "--config", "own.json")
    assert "own.json" == after(plan["command"], "--deepspeed_config")


NOT_ALL_FIT = ("--micro-batch", "1", "--seq-len", "64", "--memory-budget", "1600MiB")
EVERY = ["ddp", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        # A named stage is measured whether or not it fits.
        (("--model", "1t", "--stage", "0"), ["ddp"]),
        ((*SMALL, "--all"), EVERY),
        (
            ("--model", MODEL, "--all", "--stage", "3", "--offload", "auto"),
            ["zero3", "zero3-offload", "zero3-offload-optimizer"],
        ),
        (("--model", "100m", *SMALL[2:], *NOT_ALL_FIT, "--all"), EVERY[1:]),
    ],
    ids=["one", "all", "all of a stage", "all that fit"],
)
def test_each_strategy_that_fits_is_run(
    here: Run, words: tuple[str, ...], names: list[str]
) -> None:
    plans = dry(here, *words)
    assert names == sorted(plan["chosen"] for plan in (plans if "--all" in words else [plans]))


def test_the_chosen_one_is_run_first(here: Run) -> None:
    smallest = (*SMALL, "--objective", "smallest")
    names = [plan["chosen"] for plan in dry(here, *smallest, "--all")]
    assert dry(here, *smallest)["chosen"] == names[0] != "ddp"
    assert {*EVERY} == {*names}


def test_with_the_split_of_the_batch_open_each_strategy_has_its_own(here: Run) -> None:
    words = ("--all", "--global-batch", "16", "--no-gradient-checkpointing")
    steps = [plan["workload"] for plan in dry(here, *SMALL, *words)]
    assert 4 == len(steps)
    assert {8} == {step["micro_batch"] * step["accumulation_steps"] for step in steps}
    assert {True} == {step["micro_batch"] > 1 for step in steps}


def test_what_deepspeed_does_not_train_is_left_out_and_named(here: Run) -> None:
    words = ("--all", "--optimizer-state-dtype", "bf16", "--objective", "smallest", "--dry-run")
    done = here("measure", *CPU, *SMALL, *words).good
    assert "ddp is left out: " in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--model", MODEL, "--machine", "4xH200"), "4xH200"),
        (("--model", MODEL, "--nodes", "2"), "this machine only"),
        ((), "needs a script or a model"),
        (("--model", MODEL, "--method", "lora", "--dry-run"), "`--method lora` conflicts with"),
    ],
)
def test_what_cannot_be_measured_here_is_refused(
    here: Run, words: tuple[str, ...], named: str
) -> None:
    accelerator = () if "--machine" in words else ("--accelerator", "cpu")
    done = here("measure", *accelerator, *words)
    assert 2 == done.code
    assert named in done.problem


@pytest.mark.deepspeed
@pytest.mark.slow
def test_all_candidates_are_run_one_after_the_other_and_kept(tmp_path: Path) -> None:
    words = ("--model", MODEL, "--micro-batch", "1", "--seq-len", "32", "--precision", "fp32")
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "measure", *CPU, "--all", *words]
        + ["--steps", "4", "--stage", "2", "--offload", "auto", "--yes"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    ).good

    assert "2 of 2: " in done.stderr
    heading, *table = done.stdout.splitlines()
    assert ["strategy", "peak", "step"] == [
        w for w in heading.split() if w in {"strategy", "peak", "step"}
    ]
    [kept] = (tmp_path / "cache" / "zerowiz" / "measured").iterdir()
    seconds = {
        run["setting"]["strategy"]: run["measured_seconds"]
        for run in json.loads(kept.read_text())["runs"]
    }
    assert {"zero2", "zero2-offload"} == {*seconds}
    names = [line.split()[0] for line in table[:2]]
    assert sorted(seconds, key=lambda name: seconds[name]) == names
    assert {"reports", "cache"} == {path.name for path in tmp_path.iterdir()}
    assert () == done.shared_memory_left


def measuring_environ(folder: Path) -> dict[str, str]:
    """Of ranks whose results are kept in this folder, and not in the cache of who runs the tests."""
    own = {"PYTHONPATH": python_path(), "XDG_CACHE_HOME": str(folder / "cache")}
    return rank_environ(folder / "reports") | own


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


# `zerowiz measure SCRIPT`: a person's own script, run for some steps through the launcher.

SCRIPT = "train_deepspeed.py"


def copy_script(folder: Path) -> None:
    """The template, and what it imports."""
    shutil.copy(TEMPLATES / SCRIPT, folder)
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")


def test_options_stand_before_the_script_and_words_after_it_are_its_own(
    here: Run, folder: Path
) -> None:
    copy_script(folder)
    words = ("--model_config", MODEL, "--steps", "40")
    done = here("measure", *CPU, "--yes", "--dry-run", "--stage", "2", SCRIPT, *words).good
    assert f"--model_config {MODEL} --steps 40 --deepspeed" in done.stdout
    plan = here(
        "measure", *CPU, "--yes", "--dry-run", "--json", "--stage", "2", SCRIPT, *words
    ).content
    assert ("zero2", "40") == (
        plan["chosen"],
        plan["command"][plan["command"].index("--steps") + 1],
    )


@pytest.mark.deepspeed
@pytest.mark.slow
def test_a_script_is_ended_after_its_steps_and_stays_as_it_is(tmp_path: Path) -> None:
    copy_script(tmp_path)
    before = (tmp_path / SCRIPT).read_bytes()
    own = ["--model_config", MODEL, "--corpus", str(TEMPLATES / "corpus.txt")]
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "measure", *CPU, "--stage", "2", "--precision", "fp32"]
        + ["--yes", "--json", "--steps", "4", SCRIPT, *own]
        + ["--seq_len", "32", "--steps", "5000", "--output_dir", "out"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    ).good

    said = json.loads(done.stdout)["script"]
    assert ("zero2", "finished", 4) == (said["strategy"], said["ended"], said["steps"])
    assert [3, 3] == [len(rank["timed_step_seconds"]) for rank in said["ranks"]]
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
    job = Job(
        machine=machine,
        model=model_from_size("1b", size),
        workload=Workload(),
        rates=find_rates(machine, table),
    )
    return evaluate(job, ZERO2)


def ran(*ranks: dict[str, object], **end: object) -> ScriptMeasurement:
    ended = decode(JobEnd, {"status": 0, "cause": Cause.FINISHED.value, **end}, "end")
    return ScriptMeasurement(
        name="zero2", planned=planned(), end=ended, ranks=ranks, wanted_steps=4
    )


def rank(*seconds: float, peak_bytes: int = 10**9) -> dict[str, object]:
    steps = len(seconds) + 1
    return {"steps": steps, "timed_step_seconds": list(seconds), "peak_bytes": peak_bytes}


def test_the_fullest_and_the_slowest_rank_count() -> None:
    one = ran(rank(1, 1, 1, peak_bytes=5), rank(3, 2, 2, 2, peak_bytes=7))
    assert (7, 4) == (one.peak_bytes[1], one.steps)
    assert 2 == one.step_seconds[1]
    assert one.measured


def test_of_a_cpu_rank_the_figure_is_said_to_be_rough(capsys: pytest.CaptureFixture[str]) -> None:
    script_run(ran(*[rank(1, 1, 1) | {"outside_bytes": 2**30}] * 2), sys.stdout)
    shown = capsys.readouterr().out
    assert (
        "The memory of CPU ranks, here without Python and its libraries, is predicted only roughly"
        in shown
    )


def test_what_no_rank_or_only_one_knows_is_not_measured() -> None:
    assert ran(rank(1, 1, 1), {}).peak_bytes[1] is None
    assert ran(rank(1, 1, 1), {}).step_seconds[1] is None
    assert not ran({}, {}).measured


def test_running_out_of_memory_is_an_answer_and_failing_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    died = ran({}, {}, status=1, cause=Cause.CUDA_OOM.value)
    assert died.measured
    script_run(died, sys.stdout)
    assert "zero2: ran out of GPU memory" in capsys.readouterr().out
    assert not ran(rank(1, 1, 1), status=1, cause=Cause.FAILED.value).measured


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_what_a_person_ends_is_told_from_what_the_deadline_ends(number: int, code: int) -> None:
    one = ran(rank(1.0), rank(1.0), status=1, cause=Cause.STOPPED.value, stopped_by=number)
    with pytest.raises(ZerowizError, match="after 2 of 4 optimizer steps") as raised:
        require_all([one], 1)
    assert code == raised.value.exit_code


def test_a_script_without_steps_is_an_error() -> None:
    with pytest.raises(ZerowizError, match="before its first optimizer step"):
        require_all([ran({}, {})], 1)
    require_all([ran(rank(1.0), rank(1.0))], 1)


def test_of_many_runs_those_that_failed_or_did_not_begin_are_named() -> None:
    runs = [ran(rank(1.0), rank(1.0)), ran({}, {}, status=1, cause=Cause.FAILED.value)]
    with pytest.raises(ZerowizError) as raised:
        require_all(runs, 3)
    assert "2 of 3 strategies were not measured" == raised.value.message
    assert any("zero2: " in hint for hint in raised.value.hints)
    assert any("set a longer `--deadline`" in hint for hint in raised.value.hints)
    require_all(runs[:1], 1)


def test_the_fastest_of_many_is_shown_first(capsys: pytest.CaptureFixture[str]) -> None:
    died = ran({}, {}, status=1, cause=Cause.CUDA_OOM.value)
    slow, fast = ran(rank(2, 2, 2), rank(2, 2, 2)), ran(rank(1, 1, 1), rank(1, 1, 1))
    named = zip(("died", "slow", "fast"), (died, slow, fast), strict=True)
    candidates([replace(each, name=name) for name, each in named], sys.stdout)
    shown = capsys.readouterr().out.splitlines()
    assert ["fast", "slow", "died"] == [line.split()[0] for line in shown[1:4]]
    assert "died: ran out of GPU memory" == shown[-1]


# What `measure` kept of a machine reaches later plans for it, unless somebody says no.

SAID = "step times are scaled by"
WORDS = ("--model", "1b", "--micro-batch", "2", "--seq-len", "1024", "--gradient-checkpointing")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a cache by which two H200s took half as long again as predicted."""
    run = KeptRun(
        setting={},
        formulas=formulas_of(__version__),
        measured_seconds=1.5,
        predicted_seconds={TermKind.MATRIX_PRODUCTS.value: 1.0},
    )
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    machine = parse_spec("2xH200", read_gpu_table())
    path = results_path(machine_key(machine), {"XDG_CACHE_HOME": cache})
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(encode(MachineResults(runs=(run,)))))
    return path


def step_of(here: Run, *words: str) -> tuple[float, bool, str]:
    """The seconds of a step of ZeRO-2, whether they are calibrated, and the notes."""
    done = here("plan", *WORDS, "--json", *words).good
    strategies = {each["name"]: each for each in json.loads(done.stdout)["strategies"]}
    step = strategies["zero2"]
    return step["step_seconds"], step["step_seconds_interval"]["calibrated"], done.stderr


@pytest.mark.usefixtures("measured")
def test_a_plan_is_calibrated_by_what_was_measured_on_its_machine(here: Run) -> None:
    calibrated = step_of(here, "--machine", "2xH200")
    bare = step_of(here, "--machine", "2xH200", "--no-calibration")
    assert f"{SAID} 1 setting measured on this machine" in calibrated[2]
    assert SAID not in bare[2]
    assert calibrated[0] > 1.05 * bare[0]
    assert (True, False) == (calibrated[1], bare[1])


@pytest.mark.parametrize(("machine", "text"), [("4xH200", None), ("2xH200", '{"runs": [{')])
def test_another_machine_and_a_file_that_cannot_be_read_are_as_none(
    here: Run, measured: Path, machine: str, text: str | None
) -> None:
    measured.write_text(text or measured.read_text())
    _, is_calibrated, notes = step_of(here, "--machine", machine)
    assert (False, False) == (is_calibrated, SAID in notes)
