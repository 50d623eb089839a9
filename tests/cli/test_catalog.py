"""Which machines a model fits, and what training costs there, as people ask it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_IN_CODE, Run
from recorded import Replay

PLAN = ("plan", "--model", "7b", "--gradient-checkpointing")
ON_FOUR = (*PLAN, "--machine", "4xA100-80GB")
ALL = (*PLAN, "--machine", "all")
NO_LIBRARY = Replay({"nvmlInitWithFlags(0)": {"err": 12}})


def machines(here: Run, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here(*ALL, "--json", *words).content["machines"]
    return found


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((*ALL, "--price", "2.50/gpu-hour"), "`--price 2.50/gpu-hour` is not a price"),
        ((*ON_FOUR, "--price", "2.50"), "`--price` is for many machines, and this plan is for one"),
        ((*ON_FOUR, "--tokens", "2B"), "no such option: --tokens"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_usage(
    here: Run, words: tuple[str, ...], problem: str
) -> None:
    result = here(*words)
    assert 2 == result.code
    assert problem in result.problem
    assert "" == result.stdout


def test_every_machine_is_asked_where_all_are(here: Run) -> None:
    result = here(*PLAN, "--machine", "All").good
    head, *rows = result.stdout.partition("machine ")[2].splitlines()
    columns = ["strategy", "verdict", "needs", "headroom", "step", "(step)", "tokens/s"]
    assert columns == head.split()
    assert [row for row in rows if row.startswith("2xH100-80GB ")]
    assert "more machines fit: list them all with `--json`." in result.stdout
    assert re.search(
        r"\nThe model does not fit \d+ of the \d+ GPUs of the table in any count", result.stdout
    )
    assert "assumed micro-batch 1" in result.stderr


def test_checkpointing_that_was_chosen_is_shown_and_not_assumed(here: Run) -> None:
    one = ("--gpus-per-node", "8", "--nodes", "1")
    words = ("plan", "--model", "7b", "--machine", "all", "--global-batch", "8", *one)
    result = here(*words)
    assert "checkpointing" not in result.stderr
    assert "bf16" in result.stderr
    assert re.search(r"^machine .* ckpt +step ", result.stdout, re.MULTILINE)
    listed = here(*words, "--json").content["machines"]
    assert {True, False} == {one["gradient_checkpointing"] for one in listed}
    rows = {line.partition(" ")[0]: line for line in result.stdout.splitlines()}
    shown = [one for one in listed if one["machine"] in rows]
    assert {True, False} == {one["gradient_checkpointing"] for one in shown}
    for one in shown:
        word = "yes" if one["gradient_checkpointing"] else "no"
        assert re.search(rf" {word} +[\d.]+ ", rows[one["machine"]])


def test_what_is_said_is_not_assumed(here: Run) -> None:
    words = ("--micro-batch", "2", "--seq-len", "512", "--precision", "bf16", "--grad-accum", "1")
    assert "" == here(*ALL, *words, "--gpus-per-node", "8").stderr


def test_a_machine_of_the_list_is_decided_as_it_is_alone(here: Run) -> None:
    """What the list says of a machine, `plan --machine` says of it too."""
    listed = machines(here)
    picked = {one["strategy"]: one for one in listed if not one["network"]["assumed"]}
    assert {"ddp", "zero2", "zero3", "zero2-offload"} <= set(picked)
    for one in picked.values():
        plan = here(*PLAN, "--json", "--machine", one["machine"]).content
        alone = next(e for e in plan["strategies"] if e["name"] == plan["chosen"])
        assert (one["strategy"], one["verdict"]) == (alone["name"], alone["verdict"])
        assert one["peak_bytes"] == alone["gpu"]["peak_bytes"]
        assert one["headroom_bytes"] == alone["gpu"]["headroom_bytes"]
        assert one["step_seconds"] == alone["step_seconds"]


def test_a_machine_alone_names_the_network_that_the_list_assumes_and_agrees_with_it(
    here: Run,
) -> None:
    listed = machines(here, "--nodes", "2")
    one = next(one for one in listed if one["machine"].startswith("2x8xA100-80GB"))
    assert one["network"]["assumed"]
    network = "infiniband:1600Gb/s"
    on_two = (*PLAN, "--machine", one["machine"])
    assert f"`--machine all` assumes `--interconnect {network}`" in here(*on_two).stderr
    stated = here(*on_two, "--json", "--interconnect", network)
    assert "--machine all" not in stated.stderr
    plan = stated.content
    chosen = next(each for each in plan["strategies"] if each["name"] == plan["chosen"])
    assert (one["strategy"], one["step_seconds"]) == (chosen["name"], chosen["step_seconds"])
    shown = re.search(
        r"alone, add its link: `--machine (\S+) --interconnect (\S+)`",
        here(*ALL, "--nodes", "2").stdout,
    )
    assert shown is not None
    first = next(one for one in listed if one["network"]["assumed"])
    plan = here(*PLAN, "--json", "--machine", shown[1], "--interconnect", shown[2]).content
    chosen = next(each for each in plan["strategies"] if each["name"] == plan["chosen"])
    assert (first["machine"], first["step_seconds"]) == (shown[1], chosen["step_seconds"])


@pytest.mark.parametrize(
    "words",
    [("--machine", "8xA100-80GB"), ("--machine", "p4d.24xlarge", "--nodes", "2")],
)
def test_one_node_and_a_known_network_have_no_note_of_it(here: Run, words: tuple[str, ...]) -> None:
    assert "--machine all" not in here(*PLAN, *words).stderr


def test_a_global_batch_is_the_same_on_every_machine(here: Run) -> None:
    words = ("--global-batch", "16", "--gpus-per-node", "8")
    found = machines(here, *words)
    ranks = [one["nodes"] * one["gpus_per_node"] for one in found]
    assert {16} == {
        one["micro_batch"] * one["accumulation_steps"] * count
        for one, count in zip(found, ranks, strict=True)
    }


def test_a_script_is_planned_for_all_machines_too(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE.replace(", use_cpu=True", ""))
    found = here("plan", "--model", "7b", "--machine", "all", "train.py")
    alone = here("plan", "--model", "7b", "--machine", "8xH200", "--json", "train.py")
    assert 4 == alone.content["workload"]["micro_batch"]
    assert 0 == found.code
    assert "micro-batch 1" not in found.stderr


def test_where_no_machine_fits_the_code_says_so(here: Run) -> None:
    words = ("plan", "--model", "1t", "--machine", "all", "--gpus-per-node", "1")
    result = here(*words)
    assert 4 == result.code
    assert "1t does not fit on any machine that zerowiz tried" in result.problem
    assert "zerowiz plan --machine" in result.hints
    listed = here(*words, "--json")
    assert 4 == listed.code
    assert [] == json.loads(listed.stdout)["machines"]


def test_without_a_driver_a_plan_is_for_the_machines_of_the_tables(
    here: Run, driver: Callable[[object], None]
) -> None:
    driver(NO_LIBRARY)
    result = here("plan", "--model", "7b").good
    assert "\nmachine " in result.stdout
    assert "no NVIDIA driver found" in result.stderr
    assert "comparing the machines of zerowiz's tables only" in result.stderr


@pytest.mark.parametrize(
    ("variable", "words", "said"),
    [
        ("SLURM_CONF", "launch train.py --lr 1", "srun --gpus=1 zerowiz launch train.py --lr 1"),
        (
            "SLURM_CONF",
            "launch --escalate --gpus-per-node 4 train.py",
            "srun --gpus=4 zerowiz launch --escalate --gpus-per-node 4 train.py",
        ),
        ("SLURM_CONF", "init", "srun --gpus=1 zerowiz init"),
        ("SLURM_CONF", "machine", "srun --gpus=1 zerowiz machine"),
        ("LSF_ENVDIR", "launch train.py", "bsub -Is -gpu num=1 zerowiz launch train.py"),
        ("PBS_SERVER", "launch train.py", "qsub -I -l select=1:ngpus=1"),
    ],
)
def test_on_a_login_node_the_hint_runs_the_same_command_inside_a_job(
    here: Run,
    folder: Path,
    driver: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    words: str,
    said: str,
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE.replace(", use_cpu=True", ""))
    driver(NO_LIBRARY)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv(variable, "/etc/scheduler")
    result = here(*words.split())
    assert 5 == result.code
    assert f"run zerowiz inside a job: `{said}`" in result.stderr + result.stdout
    is_of_a_job = variable == "SLURM_CONF" and words.split(maxsplit=1)[0] in {"launch", "init"}
    assert is_of_a_job == ("zerowiz init --slurm --machine 8xH100-80GB" in result.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--gpus", "0"),
        ("plan", "--accelerator", "cuda"),
        ("init",),
        ("launch", "train.py"),
        ("doctor",),
    ],
)
def test_without_a_driver_what_is_for_this_computer_still_fails(
    here: Run, folder: Path, driver: Callable[[object], None], words: tuple[str, ...]
) -> None:
    driver(NO_LIBRARY)
    (folder / "train.py").write_text(HF_IN_CODE)
    command, *rest = words
    result = here(command, "--model", "7b", *rest)
    assert 5 == result.code
    assert "no NVIDIA driver found" in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        *(
            (
                (command, "--model", "7b", "--machine", "all", *script),
                "`--machine all` works with `zerowiz plan` only",
            )
            for command, *script in (
                ("init", "train.py"),
                ("launch", "train.py"),
                ("doctor", "train.py"),
                ("measure",),
            )
        ),
        *(
            ((*ALL, *part), f"`{' '.join(part)}` is for one machine")
            for part in (
                ("--gpus", "0"),
                ("--hostfile", "hosts"),
                ("--accelerator", "cuda"),
                ("--explain",),
                ("--limits",),
            )
        ),
        ((*ALL, "--gpus-per-node", "73"), "a node has 1 to 72 GPUs"),
        ((*ALL, "--global-batch", "7", "--gpus-per-node", "8"), "`--global-batch 7`"),
    ],
)
def test_what_is_for_one_machine_is_refused_for_all(
    here: Run, folder: Path, words: tuple[str, ...], problem: str
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    (folder / "hosts").write_text("localhost slots=1\n")
    result = here(*words)
    assert (2, "") == (result.code, result.stdout)
    assert problem in result.problem
