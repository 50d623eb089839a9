"""An error is one line, hints after an empty one, the cause's exit code, and never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.harness import (
    CONFIG_ARGUMENTS,
    HF_IN_CODE,
    HF_PARSER,
    UNREACHABLE,
    Run,
    clean_environ,
)
from paths import ROOT
from recorded import Replay

ERRORS_CPU = ("--machine", "cpu", "--model", "10m")


@pytest.fixture
def scripts(folder: Path) -> Path:
    """A folder with one script of each kind that matters here."""
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "in_code.py").write_text(HF_IN_CODE)
    (folder / "unreachable.py").write_text(UNREACHABLE)
    (folder / "shell.py").write_text("set -e\npython train.py\n")
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": ')
    (folder / "list.json").write_text("[]")
    (folder / "hosts").write_text("node1 slots=four\n")
    (folder / "own.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "liger.py").write_text(HF_IN_CODE.replace("bf16", "use_liger_kernel=True, bf16"))
    return folder


@pytest.mark.parametrize(
    ("words", "code", "problem", "hint"),
    [
        (("plan", "--bogus"), 2, "no such option: --bogus", "zerowiz plan --help"),
        (("plan", "-dash.py"), 2, "no such option: -d", "put it after the script"),
        (("plan", "--modle", "7b"), 2, "no such option: --modle", "did you mean `--model`?"),
        (
            ("plan", "--gradient_checkpointing"),
            2,
            "no such option: --gradient_checkpointing",
            "did you mean `--gradient-checkpointing`?",
        ),
        (
            ("plan", "--seq-len", "128x"),
            2,
            "must be a whole number, such as 4096 or 4k, not '128x'",
            "--help",
        ),
        (("plan", "--num_gpus", "2"), 2, "--num_gpus", "did you mean `--gpus-per-node`?"),
        (("plan", "--list"), 2, "no such option: --list", "did you mean `--limits`?"),
        (
            ("plan", "--micro-bach"),
            2,
            "no such option: --micro-bach",
            "did you mean `--micro-batch`?",
        ),
        (
            ("launch", "--my opt"),
            2,
            "no such option: --my opt",
            "`zerowiz launch train.py '--my opt'`",
        ),
        (
            ("launch", "--resume"),
            2,
            "no such option: --resume",
            "`zerowiz launch train.py --resume`",
        ),
        (
            ("plan", *ERRORS_CPU[2:], "--hostfile", "no"),
            2,
            "hostfile `no` cannot be read",
            "`host slots=N`",
        ),
        (("machine", *ERRORS_CPU[:2], "--save", "."), 1, "cannot write `.`", "`--save FILE`"),
        (("plan", *ERRORS_CPU, "--html", "."), 1, "cannot write `.`", "`--html FILE`"),
        (
            ("plan", *ERRORS_CPU, "--html", "list.json/plan.html"),
            1,
            "cannot write `list",
            "`--html FILE`",
        ),
        (("plan", *ERRORS_CPU, "llama-3.1-8b"), 5, "there is no script", "`--model llama-3.1-8b`"),
        (
            ("launch", "--dry-run", "--machine", "2x8xH100", "--model", "7b", "train.py"),
            2,
            "`--machine 2x8xH100`: zerowiz does not know the hosts of these 2 nodes",
            "zerowiz init --slurm",
        ),
        (("plna",), 2, "no such command 'plna'", "zerowiz --help"),
        (("plan", "--model"), 2, "option '--model' requires an argument", "zerowiz plan --help"),
        (("plan", "--stage", "7"), 2, "'--stage': must be one of auto, 0, 1, 2, 3", "--help"),
        (("plan", "--offload", "gpu"), 2, "'--offload': must be one of auto, none", "--help"),
        (
            ("plan", "--vllm-memory-fraction", "x"),
            2,
            "'x' is not a valid float",
            "",
        ),
        (("plan", *ERRORS_CPU, "--seq-len", "0"), 2, "`--seq-len 0`", ""),
        (("measure", "--steps", "0"), 2, "'--steps': 0 is not in the range x>=1", "--help"),
        (
            ("plan", "--machine", "8xH100", "--model", "7b", "--interconnect", "token-ring"),
            2,
            "token-ring",
            "infiniband",
        ),
        (("plan", *ERRORS_CPU, "--nodes", "-1"), 2, "'--nodes': must be a whole number", ""),
        (("plan", "--machine", "cpu", "--gpus-per-node", "0"), 2, "`--gpus-per-node 0`", ""),
        (("plan", *ERRORS_CPU, "nope.py"), 5, "there is no script `nope.py`", ""),
        (("machine", "train.py"), 2, "unexpected extra argument", "zerowiz machine --help"),
        (("plan", "--machine", "4xA100-60G", "--model", "7b"), 2, "`A100-60G`", "`4xA100-40GB`"),
        (("plan", "--machine", "nope.json", "--model", "7b"), 2, "`nope.json`", "machine --save"),
        (("plan", "--machine", "list.json", "--model", "7b"), 2, "`list.json`", ""),
        (("plan", "--machine", "a" * 300, "--model", "7b"), 2, "file name too long", ""),
        (("report", "train.py"), 2, "`train.py` is a file", "`zerowiz report .`"),
        (("plan", *ERRORS_CPU, "--memory-budget", "lots"), 2, "lots", ""),
        (("plan", *ERRORS_CPU, "--host-memory", "512"), 2, "512", "1TiB"),
        (("plan", *ERRORS_CPU, "--hostfile", "hosts"), 2, "line 1", "host slots=N"),
        (("plan", *ERRORS_CPU, "--hostfile", "none"), 2, "`none`", ""),
        (("plan", *ERRORS_CPU, "--config", "none.json"), 2, "`none.json` does not exist", ""),
        (("plan", *ERRORS_CPU, "--stage", "1", "--offload", "all"), 2, "`--stage 1`", "stage 3"),
        (("plan", "--machine", "cpu"), 3, "an answer is missing", "`--model`"),
        (("launch", "--machine", "cpu", "--dry-run"), 3, "an answer is missing", "`--model`"),
        (("init", "--yes", "--machine", "cpu"), 3, "an answer is missing", "`--model`"),
        (("plan", "--machine", "cpu", "--model", "broken"), 2, "broken", "download the file again"),
        (("plan", "--machine", "cpu", "--model", "empty"), 2, "empty", ""),
        (("plan", "--machine", "1xRTX4090", "--model", "70b"), 4, "nothing fits 70b", "--m"),
        (("launch", *ERRORS_CPU, "nope.py"), 5, "there is no script `nope.py`", ""),
        (("launch", *ERRORS_CPU, "trian.py"), 5, "`trian.py`", "did you mean `train.py`?"),
        (("init", *ERRORS_CPU, "--yes", "trian.py"), 5, "`trian.py`", "did you mean `train.py`?"),
        (("launch", *ERRORS_CPU, "empty"), 5, "`empty` is a folder", ""),
        (("launch", *ERRORS_CPU, "shell.py"), 1, "shell.py line 2 is not Python", ""),
        (("launch", *ERRORS_CPU, "--dry-run", "unreachable.py"), 5, "unreachable.py", ""),
        (
            ("init", *ERRORS_CPU, "--yes", "--micro-batch", "1", "unreachable.py"),
            5,
            "unreachable.py",
            "",
        ),
        (("launch", *ERRORS_CPU, "--json", "train.py"), 2, "`--dry-run`", "plan --json"),
        (
            ("launch", "--machine", "4xA100-40GB", "--model", "1b", "train.py"),
            2,
            "another",
            "dry-run",
        ),
        (
            ("launch", *ERRORS_CPU, "--micro-batch", "2", "in_code.py"),
            2,
            (
                "`--micro-batch 2` conflicts with the script:"
                " `TrainingArguments(per_device_train_batch_size=4)` in in_code.py line 3 says 4"
            ),
            "or remove",
        ),
        # A Trainer's own `compute_loss` may work in chunks; Liger's kernels are its argument's.
        *(
            (
                ("launch", "--dry-run", *ERRORS_CPU, "--loss", loss, script),
                2,
                f"`--loss {loss}` conflicts with the script",
                "",
            )
            for script, loss in (
                ("in_code.py", "liger"),
                ("liger.py", "plain"),
                ("liger.py", "chunked"),
            )
        ),
        (
            (
                *("init", "--yes", "--machine", "4xA100-80GB", "--model", "1b", "--launch"),
                "train.py",
            ),
            2,
            "`--launch` conflicts with `--machine 4xA100-80GB`",
            "remove `--launch` to write the files",
        ),
        *(
            (
                (*words, *ERRORS_CPU[:2], "in_code.py"),
                3,
                "an answer is missing",
                "such as `--model 10m` or `--model 1.3b`: it is planned as a Llama",
            )
            for words in (("plan",), ("launch", "--dry-run"), ("init", "--yes"))
        ),
        (
            ("launch", *ERRORS_CPU, "--nodes", "2", "--dry-run", "train.py"),
            2,
            "zerowiz does not know the hosts of these",
            "--hostfile",
        ),
        (("init", *ERRORS_CPU, "--output-dir", "hosts/below"), 1, "`hosts/below/", "--output-dir"),
        (("init", *ERRORS_CPU, "--output-dir", "/proc/none"), 1, "`/proc/none/", "--output-dir"),
        (("machine", "--machine", "cpu", "--save", "hosts/m.json"), 2, "`hosts/m.json`", ""),
    ],
)
def test_an_error_says_what_and_what_next(
    here: Run, scripts: Path, words: tuple[str, ...], code: int, problem: str, hint: str
) -> None:
    before = sorted(path.name for path in scripts.iterdir())
    result = here(*words)
    assert problem in result.problem
    assert hint in result.hints
    assert code == result.code
    assert "" == result.stdout or "plan" in words or "--json" in words
    assert before == sorted(path.name for path in scripts.iterdir())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("plan", *ERRORS_CPU, ""), "SCRIPT"),
        (("plan", "--machine", "cpu", "--model", ""), "`--model`"),
        (("plan", *ERRORS_CPU, "--config="), "`--config`"),
        (("launch", *ERRORS_CPU, "--output-dir", "", "train.py"), "`--output-dir`"),
        (("check", "list.json", ""), "FILE"),
        (("template", ""), "FOLDER"),
        (("machine", *ERRORS_CPU[:2], "--save", ""), "`--save`"),
    ],
)
def test_an_empty_word_is_not_taken_for_this_folder(
    here: Run, scripts: Path, words: tuple[str, ...], named: str
) -> None:
    before = sorted(path.name for path in scripts.iterdir())
    result = here(*words)
    assert (2, f"{named} is empty") == (result.code, result.problem)
    assert before == sorted(path.name for path in scripts.iterdir())


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (("plan", "--json", "--bogus"), "usage", 2),
        (("plan", "--json", *ERRORS_CPU, "--seq-len", "0"), "usage", 2),
        (("plan", "--json", *ERRORS_CPU, "nope.py"), "preflight", 5),
        (("plan", "--json", "--machine", "nope.json", "--model", "7b"), "usage", 2),
        (("plan", "--json", "--machine", "cpu", "--model", "broken"), "usage", 2),
        (("launch", "--dry-run", "--json", *ERRORS_CPU, "unreachable.py"), "preflight", 5),
        (("init", "--json", "--machine", "cpu", "train.py"), "answer_needed", 3),
        (("doctor", "--json", *ERRORS_CPU, "--seq-len", "0", "train.py"), "usage", 2),
        (("measure", "--json", *ERRORS_CPU, "--steps", "-1"), "usage", 2),
        (("machine", "--json", "--machine", "nope.json"), "usage", 2),
        (("check", "--json"), "usage", 2),
        (("report", "--json"), "failed", 1),
    ],
)
@pytest.mark.usefixtures("scripts")
def test_with_json_an_error_is_the_object_on_stdout(
    here: Run, words: tuple[str, ...], kind: str, code: int
) -> None:
    result = here(*words)
    found = json.loads(result.stdout)
    assert {"schema_version": 1, "error": found["error"]} == found
    assert (code, kind, code) == (result.code, found["error"]["kind"], found["error"]["exit_code"])
    assert result.problem == found["error"]["message"]
    assert [f"hint: {hint}" for hint in found["error"]["hints"]] == [
        line for line in result.stderr.splitlines() if line.startswith("hint: ")
    ]


def test_with_json_an_error_of_the_system_is_the_object_too(process: Run) -> None:
    result = process("check", "--json", "a" * 300)
    message = json.loads(result.stdout)["error"]["message"]
    assert (2, result.problem) == (result.code, message)
    assert message.endswith("cannot be used: file name too long")


def test_a_plan_in_which_nothing_fits_stays_the_only_object(here: Run) -> None:
    result = here("plan", "--json", "--machine", "1xA100-40GB", "--model", "70b", "--yes")
    assert 4 == result.code
    assert "strategies" in json.loads(result.stdout)


@pytest.mark.usefixtures("scripts")
def test_an_error_of_the_script_s_own_json_is_not_in_json(here: Run) -> None:
    result = here("launch", *ERRORS_CPU, "unreachable.py", "--json")
    assert (5, "") == (result.code, result.stdout)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_config_with_a_number_of_any_length_is_planned(
    here: Run, scripts: Path, stage: int
) -> None:
    zero = {"stage": stage, "reduce_bucket_size": 10**400, "stage3_max_reuse_distance": 10**400}
    own = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    (scripts / "own.json").write_text(json.dumps(own))
    result = here("plan", "--machine", "4xA100-80GB", "--model", "7b", "--config", "own.json")
    assert 4 == result.code
    assert f"ZeRO-{stage} does not fit 7b" in result.problem


def test_a_loop_that_disagrees_with_a_config_is_planned_as_it_trains(
    here: Run, scripts: Path
) -> None:
    own = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    (scripts / "own.json").write_text(own)
    loop = CONFIG_ARGUMENTS.replace("--batch", "--micro_batch").replace("default=2", "default=4")
    (scripts / "loop.py").write_text(loop)
    words = (
        "plan",
        "--machine",
        "2xA100-80GB",
        "--model",
        "10m",
        "--config",
        "own.json",
        "loop.py",
    )
    for typed, source in ((("--micro_batch", "6"), "6 by `--micro_batch 6`"), ((), "4 by the")):
        result = here(*words, *typed).good
        assert f"(micro-batch 2 there, {source}" in " ".join(result.stderr.split())
        assert "adds after the script" not in result.stderr


def test_no_script_anywhere_is_a_preflight_failure(here: Run) -> None:
    result = here("launch", *ERRORS_CPU)
    assert 5 == result.code
    assert "no script to launch" in result.problem
    assert "to start from one: `zerowiz template`" in result.hints
    assert "zerowiz launch train.py" in result.hints


def test_no_nvml_is_a_preflight_failure_that_names_the_ways_on(
    here: Run, driver: Callable[[object], None]
) -> None:
    driver_not_loaded = 9
    driver(Replay({"nvmlInitWithFlags(0)": {"err": driver_not_loaded}}))
    for command in ("plan", "init", "measure", "machine"):
        result = here(command, *(() if command == "machine" else ("--model", "7b")))
        assert 5 == result.code
        assert (
            "the NVIDIA driver is installed, but its kernel module is not loaded"
        ) == result.problem
        # Not of the command itself: `measure` has no such option.
        assert "`zerowiz plan --machine 8xH100-80GB`" in result.hints
        assert "`--accelerator cpu`" in result.hints


def test_no_deepspeed_is_a_preflight_failure_and_nothing_is_written(
    here: Run, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(scripts / "bin" / "python"))
    monkeypatch.setenv("PATH", str(scripts))
    before = sorted(scripts.rglob("*"))
    result = here("launch", "--yes", *ERRORS_CPU, "train.py")
    assert 5 == result.code
    assert "no `deepspeed`" in result.problem
    assert "pip install" in result.hints
    assert before == sorted(scripts.rglob("*"))


@pytest.mark.usefixtures("folder")
def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "zerowiz", "plan", "--json", *ERRORS_CPU],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        said = child.stderr.read().decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert 141 == child.returncode


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_end_in_a_documented_code(folder: Path, closing: str) -> None:
    line = f'"{sys.executable}" -m zerowiz plan --machine cpu --model 10m {closing}'
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = 1 if ">" in closing.replace("2>", "") else 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert expected == done.returncode
    assert (closing == ">&-") == ("stdout is closed" in done.stderr)


def test_names_that_are_no_text_do_not_stop_an_error(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "launch", *ERRORS_CPU, b"tr\xffin.py"],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert 5 == done.returncode


def test_a_ctrl_c_while_it_is_loaded_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "plan"],
        env={**clean_environ(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        check=False,
    )
    assert (130, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_a_shell_script_that_is_not_there_is_taken_for_no_model(here: Run) -> None:
    missing = here("plan", *ERRORS_CPU, "run.sh")
    assert "there is no script `run.sh`" in missing.problem
    assert "--model" not in missing.hints
