"""What other programs read: `plan --json`, `launch --dry-run --json`, `init --json`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_PARSER, Run
from recorded import library

from zerowiz import __version__

Json = dict[str, Any]
FITS = ("plan", "--json", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")

TEXT, INT, BOOL = (str,), (int,), (bool,)
NUMBER = (int, float)
NUMBER_OR_NULL, OBJECT_OR_NULL, TEXT_OR_NULL, INT_OR_NULL = (
    (int, float, type(None)),
    (dict, type(None)),
    (str, type(None)),
    (int, type(None)),
)

# The object of `plan --json`: key by key, by type; a list holds the shape of each of its items.
GPU = {
    "index": INT,
    "name": TEXT,
    "uuid": TEXT_OR_NULL,
    "total_bytes": INT_OR_NULL,
    "free_bytes": INT_OR_NULL,
    "compute_capability": (list, type(None)),
}
LINE = {"part": TEXT, "phase": TEXT, "bytes": INT, "formula": TEXT}
STRATEGY = {
    "name": TEXT,
    "stage": INT,
    "offload": TEXT,
    "verdict": TEXT,
    "gpu": {
        "peak_bytes": INT,
        "device_bytes": INT,
        "budget_bytes": INT_OR_NULL,
        "headroom_bytes": INT_OR_NULL,
        "peak_phase": TEXT,
        "phases": dict.fromkeys(("model", "init", "forward", "backward", "step"), INT),
        "lines": [LINE],
    },
    "host": {"peak_bytes": INT, "budget_bytes": INT_OR_NULL},
    "step_seconds": NUMBER_OR_NULL,
    "step_seconds_interval": OBJECT_OR_NULL,
    "step_terms": (list, type(None)),
    "tokens_per_s": NUMBER_OR_NULL,
    "wire_bytes_per_step": INT,
}
STEP_INTERVAL = {
    "low_seconds": NUMBER,
    "expected_seconds": NUMBER,
    "high_seconds": NUMBER,
    "calibrated": BOOL,
}
STEP_TERM = {"part": TEXT, "seconds": NUMBER, "formula": TEXT}
SETTLED = [{"setting": TEXT, "value": (int, str, bool), "words": [TEXT]}]
PLAN = {
    "schema_version": INT,
    "zerowiz_version": TEXT,
    "machine": {
        "source": TEXT,
        "nodes": INT,
        "gpus": [GPU],
        "interconnect": {
            "class": TEXT,
            "bytes_per_s": INT_OR_NULL,
            "weakest_pair": (list, type(None)),
        },
        "host": {"total_bytes": INT_OR_NULL, "available_bytes": INT_OR_NULL},
    },
    "model": {"name": TEXT, "params": INT, "trainable_params": INT, "source": TEXT},
    "workload": {
        "micro_batch": INT,
        "sequence_tokens": INT,
        "accumulation_steps": INT,
        "precision": TEXT,
        "gradient_checkpointing": BOOL,
    },
    "flowchart": [
        {
            "question": TEXT,
            "answer": BOOL,
            "strategy": TEXT_OR_NULL,
            "need_bytes": INT_OR_NULL,
            "have_bytes": INT_OR_NULL,
        }
    ],
    "strategies": [STRATEGY],
    "chosen": TEXT_OR_NULL,
    "choice": OBJECT_OR_NULL,
    "candidates": OBJECT_OR_NULL,
    "limits": (list, type(None)),
    "reasons": [TEXT],
    "remedies": [{"change": (dict,), "strategy": TEXT, "frees_bytes": INT}],
    "settled": SETTLED,
    "config_path": TEXT_OR_NULL,
    "command": (list, type(None)),
    "env": (dict, type(None)),
}


def differences(shape: Any, value: Any, where: str = "") -> list[str]:
    """Where a value is not of this shape; a bool is no int here."""
    if isinstance(shape, tuple):
        return [] if type(value) in shape else [f"{where} is {value!r}"]
    if isinstance(shape, list):
        return [
            d for i, item in enumerate(value) for d in differences(shape[0], item, f"{where}[{i}]")
        ]
    missing = [f"{where}.{key} is missing" for key in shape if key not in value]
    inside = [
        d
        for key in shape
        if key in value
        for d in differences(shape[key], value[key], f"{where}.{key}")
    ]
    return missing + inside


def plan(run: Run, *words: str) -> Json:
    parsed: Json = json.loads(run(*words).stdout)
    return parsed


@pytest.mark.parametrize(
    "words",
    [
        FITS,
        ("plan", "--json", "--machine", "4xA100-40GB", "--model", "7b"),
        ("plan", "--json", "--machine", "cpu", "--model", "10m"),
        ("plan", "--json", "--machine", "2xRTX4090", "--model", "1b", "--method", "lora"),
        (*FITS, "--accounting", "textbook"),
        (*FITS, "--nodes", "2"),
    ],
    ids=["fits", "nothing fits", "cpu", "lora", "textbook", "nodes"],
)
def test_the_plan_has_every_key_of_the_contract_with_its_type(
    here: Run, words: tuple[str, ...]
) -> None:
    content = plan(here, *words, "--output-dir", "configs")
    assert [] == differences(PLAN, content)
    assert set(PLAN) == set(content)
    assert (1, __version__) == (content["schema_version"], content["zerowiz_version"])
    chosen = [each for each in content["strategies"] if each["name"] == content["chosen"]]
    paths: list[str | None] = [f"configs/ds_config_zero{each['stage']}.json" for each in chosen]
    assert (paths or [None]) == [content["config_path"]]
    assert "does_not_fit" not in {each["verdict"] for each in chosen}


def test_the_plan_says_how_long_a_step_takes_and_what_for(here: Run) -> None:
    for strategy in plan(here, *FITS)["strategies"]:
        interval, terms = strategy["step_seconds_interval"], strategy["step_terms"]
        assert [] == differences(STEP_INTERVAL, interval)
        assert [] == differences([STEP_TERM], terms)
        assert sum(term["seconds"] for term in terms) == pytest.approx(strategy["step_seconds"])
        assert interval["low_seconds"] < strategy["step_seconds"] < interval["high_seconds"]


@pytest.mark.parametrize(
    "words",
    [
        ("--machine", "cpu", "--model", "10m"),
        ("--machine", "1xH200", "--model", "1b", "--trainer", "grpo"),
    ],
    ids=["cpu", "sampled completions"],
)
def test_a_time_that_is_unknown_is_null(here: Run, words: tuple[str, ...]) -> None:
    names = ("step_seconds", "step_seconds_interval", "step_terms", "tokens_per_s")
    for strategy in plan(here, "plan", "--json", *words)["strategies"]:
        assert dict.fromkeys(names) == {name: strategy[name] for name in names}


CHOICE = {
    "strategy": TEXT,
    "offload": TEXT,
    "micro_batch": INT,
    "accumulation_steps": INT,
    "gradient_checkpointing": BOOL,
    "attention": TEXT,
    "loss": TEXT,
    "verdict": TEXT,
    "headroom_bytes": INT,
    "step_seconds": NUMBER,
    "step_seconds_interval": STEP_INTERVAL,
    "tokens_per_s": NUMBER,
}


@pytest.mark.parametrize("objective", ["flowchart", "fastest", "smallest"])
def test_a_plan_has_its_choice_and_what_it_was_chosen_among(here: Run, objective: str) -> None:
    words = ("plan", "--json", "--machine", "2xH200", "--model", "1b", "--global-batch", "16")
    content = plan(here, *words, "--objective", objective)
    choice, candidates = content["choice"], content["candidates"]
    assert [] == differences(CHOICE, choice)
    assert content["chosen"] == choice["strategy"]
    workload = content["workload"]
    for name in ("micro_batch", "accumulation_steps", "gradient_checkpointing"):
        assert workload[name] == choice[name]
    assert 8 == choice["micro_batch"] * choice["accumulation_steps"]
    assert objective == candidates["objective"]
    assert candidates["count"] > 100
    assert [] == differences([CHOICE], candidates["pareto"])
    assert candidates["clearly_faster"] is None or objective == "flowchart"


def test_the_plan_of_real_gpus_has_the_same_shape(
    here: Run, driver: Callable[[object], None]
) -> None:
    driver(library("h200-x4"))
    content = plan(here, "plan", "--json", "--model", "7b")
    assert [] == differences(PLAN, content)
    machine = content["machine"]
    assert "nvml" == machine["source"]
    assert ["NVIDIA H200"] * 4 == [gpu["name"] for gpu in machine["gpus"]]
    assert [9, 0] == machine["gpus"][0]["compute_capability"]
    assert "nvlink_all" == machine["interconnect"]["class"]


def test_stdout_holds_one_object_and_notes_go_to_stderr(process: Run) -> None:
    result = process(*FITS).good
    assert "}\n" == result.stdout[-2:]
    assert isinstance(json.loads(result.stdout), dict)
    assert "note: assumed micro-batch 1" in result.stderr


def test_a_plan_is_a_machine_file(here: Run, folder: Path) -> None:
    first = here(*FITS)
    (folder / "machine.json").write_text(first.stdout)
    content = plan(here, *FITS[:2], "--machine", "machine.json", *FITS[4:])
    assert "file" == content["machine"]["source"]
    assert json.loads(first.stdout)["strategies"] == content["strategies"]


def test_a_launch_that_is_shown_has_its_command_its_environment_and_its_file(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    result = here(
        *("launch", "--dry-run", "--json", "--machine", "cpu", "--seq-len", "128"),
        *("--model", "10m", "train.py", "--bf16"),
    )
    content = json.loads(result.stdout)
    assert [] == differences(PLAN, content)
    assert "deepspeed" == Path(content["command"][0]).name
    assert ["train.py", "--bf16", "--deepspeed", "ds_config_zero0.json"] == content["command"][-4:]
    assert "cpu" == content["env"]["DS_ACCELERATOR"]
    assert "ds_config_zero0.json" == content["config_path"]
    assert ["train.py"] == [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    "command", [("plan",), ("launch", "--dry-run"), ("init", "--dry-run"), ("init",)]
)
def test_a_script_that_nothing_fits_still_gets_its_object(
    here: Run, folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    result = here(*command, "--json", "--machine", "1xRTX4090", "--model", "70b", "train.py")
    assert 4 == result.code
    assert None is json.loads(result.stdout)["chosen"]
    assert ["train.py"] == [path.name for path in folder.iterdir()]


def test_the_json_of_init_is_alone_on_stdout(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    for extra, written in ((["--dry-run"], False), ([], True)):
        result = here("init", "--json", *extra, "--machine", "cpu", "--model", "10m")
        assert [] == differences(PLAN, json.loads(result.stdout))
        assert written == (folder / "ds_config_zero0.json").exists()
