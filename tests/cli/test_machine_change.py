"""A machine that is not what it was when the job was planned: said, with what follows."""

import json
from pathlib import Path

import pytest
from cli.harness import ENTER, HF_IN_CODE, HF_PARSER, Result, Run, Terminal
from recorded import Install, library, recording

from zerowiz.errors import ExitCode
from zerowiz.probe.recording import Replay

JOB = ("--model", "1b", "--micro-batch", "8", "--force", "train.py")
CPU = ("--machine", "cpu", "--model", "10m", "--seq-len", "64", "--micro-batch", "8")


@pytest.fixture
def planned(here: Run, folder: Path, driver: Install) -> None:
    """The files of a job on four GPUs."""
    (folder / "train.py").write_text(HF_PARSER)
    driver(library("h200-x4"))
    done = here("init", "--yes", *JOB)
    assert done.code == 0, done.stderr


def note(result: Result) -> str:
    assert result.code == 0, result.stderr
    text = " ".join(result.stderr.split())
    return text.partition("the machine has changed")[2].partition(" note: ")[0]


@pytest.mark.usefixtures("planned")
def test_half_of_the_gpus_halve_the_batch_and_the_hint_keeps_it(here: Run, driver: Install) -> None:
    assert not note(here("launch", "--dry-run", *JOB)), "nothing has changed yet"
    driver(library("h200-x2"))
    said = note(here("launch", "--dry-run", *JOB))
    assert "4 -> 2 GPUs per node" in said
    assert "falls from 32 to 16; keep it with `--grad-accum 2`" in said
    kept = note(here("launch", "--dry-run", "--grad-accum", "2", *JOB))
    assert "4 -> 2 GPUs per node" in kept
    assert "batch" not in kept
    stated = note(here("plan", "--global-batch", "16", *JOB))
    assert "4 -> 2 GPUs per node" in stated
    assert "batch" not in stated


@pytest.mark.usefixtures("planned")
def test_a_gpu_that_is_lost_changes_the_machine_and_all_of_them_end_the_launch(
    here: Run, driver: Install
) -> None:
    calls = recording("h200-x4")["nvml"]
    driver(Replay({**calls, "nvmlDeviceGetHandleByIndex_v2(1)": {"err": 15}}))
    said = note(here("launch", "--dry-run", *JOB))
    assert "4 -> 3 GPUs per node" in said
    assert said.strip().endswith("falls from 32 to 24")
    lost = {f"nvmlDeviceGetHandleByIndex_v2({gpu})": {"err": 15} for gpu in range(4)}
    driver(Replay({**calls, **lost}))
    gone = here("launch", "--dry-run", *JOB)
    assert gone.code == ExitCode.PREFLIGHT
    assert gone.problem == "this machine has no usable GPU"
    assert "GPU 3: the driver has lost it" in gone.hints


@pytest.mark.usefixtures("planned")
def test_plan_and_launch_have_it_as_json(here: Run, driver: Install) -> None:
    driver(library("h200-x2"))
    for words in (("plan", "--json"), ("launch", "--dry-run", "--json")):
        change = json.loads(here(*words, *JOB).stdout)["machine_change"]
        assert change["facts"] == [{"fact": "gpus_per_node", "before": 4, "now": 2}]
        assert change["global_batch"] == {
            "before": 32,
            "now": 16,
            "keep_with_accumulation_steps": 2,
        }
    for of_another in (("--machine", "8xH100-80GB", *JOB), JOB[:-1]):
        assert "machine_change" not in json.loads(here("plan", "--json", *of_another).stdout)


@pytest.mark.usefixtures("planned")
def test_memory_that_others_took_is_said(here: Run, driver: Install) -> None:
    driver(library("h200-x4-busy"))
    said = note(here("plan", *JOB))
    assert "free per GPU" in said
    assert "batch" not in said


def test_it_is_said_of_gpus_that_were_planned_for_by_name_and_where_nothing_fits(
    here: Run, folder: Path, driver: Install
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    driver(library("h200-x4"))
    assert here("init", "--yes", "--machine", "8xH100-80GB", *JOB).code == 0
    said = note(here("launch", "--dry-run", *JOB))
    assert "8 -> 4 GPUs per node, NVIDIA H100 80GB HBM3 -> NVIDIA H200; " in said
    assert "falls from 64 to 32; keep it with `--grad-accum 2`" in said
    refused = here("launch", "--dry-run", "--memory-budget", "2GiB", *JOB)
    assert refused.code == ExitCode.NOTHING_FITS
    assert "the machine has changed" in refused.stderr


def test_another_strategy_and_a_batch_that_the_script_fixes(
    here: Run, folder: Path, driver: Install
) -> None:
    """Another stage has a config of another name; a number in the code cannot be typed."""
    fixed = HF_IN_CODE.replace("=4,", "=8, gradient_accumulation_steps=1,")
    (folder / "train.py").write_text(fixed)
    driver(library("h200-x4"))
    assert here("init", "--yes", "--stage", "2", *JOB).code == 0
    driver(library("h200-x2"))
    said = note(here("plan", "--stage", "3", *JOB))
    assert "falls from 32 to 16" in said
    assert "an accumulation of 2 in your script keeps it" in said


def save_states(folder: Path, ranks: int) -> None:
    """A checkpoint as DeepSpeed saves it, without what is in its files."""
    states = folder / "out" / "checkpoint-500" / "global_step500"
    states.mkdir(parents=True)
    (states.parent / "latest").write_text("global_step500")
    for rank in range(ranks):
        (states / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()


def test_a_checkpoint_of_other_ranks_is_refused_with_the_way_out(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    save_states(folder, 4)
    resume = ("--resume_from_checkpoint", "out/checkpoint-500")

    def launch(ranks: int, stage: int = 2, *words: str) -> Result:
        job = (*CPU, "--gpus-per-node", str(ranks), "--stage", str(stage), *words, "train.py")
        return here("launch", "--dry-run", "--yes", *job, *resume)

    refused = launch(2)
    assert refused.code == ExitCode.PREFLIGHT
    assert (
        "4 ranks saved the checkpoint `out/checkpoint-500`, and this job has 2" in refused.problem
    )
    assert (
        "ds_to_universal --inject_missing_state --input_folder out/checkpoint-500" in refused.hints
    )
    assert "is of stage 1/2, and this job trains at stage 0" in launch(2, 0).problem
    for taken in (launch(4), launch(2, 2, "--force")):
        assert taken.code == 0, taken.stderr


def test_a_portable_checkpoint_continues_on_fewer_ranks(here: Run) -> None:
    assert here("template", ".").code == 0
    job = ("--machine", "cpu", "--model", "model", "train_hf.py", "--resume")
    assert here("init", "--yes", "--gpus-per-node", "2", *job).code == 0
    words = ("launch", "--dry-run", "--yes", "--gpus-per-node")
    resumed, anew = here(*words, "1", *job), here(*words, "1", *job[:-1])
    assert "`--resume` continues on any number of ranks" in " ".join(resumed.stderr.split())
    assert note(anew)
    assert "continues on any number" not in " ".join(anew.stderr.split())


def test_a_person_keeps_the_batch_by_enter(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    assert here("init", "--yes", "--gpus-per-node", "2", *CPU, "train.py").code == 0
    words = ("launch", "--dry-run", "--gpus-per-node", "1", *CPU, "train.py")
    terminal = Terminal(folder, words, {})
    terminal.reply("Keep the global batch of 16, with `--grad-accum 2`?", ENTER)
    assert terminal.end() == 0
    assert "--gradient_accumulation_steps 2" in terminal.text
