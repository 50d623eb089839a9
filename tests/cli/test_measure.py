"""`zerowiz measure`: what it refuses, what it would run, and real steps on two ranks."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cli.harness import Run, run_process
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, run
from recorded import Install, library

from zerowiz import __version__
from zerowiz.app.measure import require_steps
from zerowiz.core.decision.evaluate import StrategyEstimate, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.job_end import Cause, JobEnd
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.measured_row import (
    KeptRun,
    MachineResults,
    ScriptMeasurement,
    formulas_of,
    machine_key,
)
from zerowiz.core.model.from_name import model_from_size, parse_size
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.preflight.facts import Op
from zerowiz.core.speed.costs import TermKind, find_rates
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import decode, encode
from zerowiz.core.workload import Workload
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.machine.machine_file import results_path
from zerowiz.probe.package_data import read_gpu_table
from zerowiz.ui.measure import script_run

MODEL = str(TEMPLATES / "model")
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}


def cases_file(folder: Path, *cases: dict[str, Any]) -> str:
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    return str(path)


def dry(here: Run, *words: str) -> list[dict[str, Any]]:
    done = here("measure", *CPU, *words, "--dry-run", "--quiet")
    assert 0 == done.code, done.stderr
    cases: list[dict[str, Any]] = json.loads(done.stdout)
    return cases


def test_a_dry_run_shows_the_case_and_its_config(here: Run) -> None:
    words = ("--model", MODEL, "--stage", "2", "--micro-batch", "3", "--seq-len", "64")
    [case] = dry(here, *words, "--steps", "2", "--timed-steps", "4")
    assert (2, 2, 3, 64, 2, 4) == (
        *(case["gpus"], case["stage"], case["micro_batch"], case["sequence_tokens"]),
        *(case["steps"], case["timed_steps"]),
    )
    assert 3 == case["ds_config"]["train_micro_batch_size_per_gpu"]
    assert "llama" == case["config"]["model_type"]


def test_the_memory_of_gpus_can_be_limited(here: Run, driver: Install) -> None:
    driver(library("h200-x4"))
    done = here("measure", "--model", MODEL, "--cap-bytes", "5000", "--dry-run", "--quiet")
    assert 0 == done.code, done.stderr
    assert [5000] == [case["memory_cap_bytes"] for case in json.loads(done.stdout)]


def test_what_a_dry_run_shows_is_a_cases_file(here: Run, folder: Path) -> None:
    first = dry(here, "--model", MODEL, "--stage", "3")
    assert first == dry(here, "--cases", cases_file(folder, *first))


def test_a_named_stage_is_measured_whether_or_not_it_fits(here: Run) -> None:
    words = ("--model", "1t", "--stage", "0")
    [case] = dry(here, *words)
    assert 0 == case["stage"]
    assert "llama" == case["config"]["model_type"]


def test_offload_steps_on_the_cpu(here: Run) -> None:
    [case] = dry(here, "--model", MODEL, "--stage", "2", "--offload", "optimizer")
    assert ("optimizer", "DeepSpeedCPUAdam") == (case["offload"], case["optimizer"])


def test_half_states_reach_the_config(here: Run) -> None:
    words = ("--stage", "2", "--precision", "bf16", "--optimizer-state-dtype", "bf16")
    [case] = dry(here, "--model", MODEL, *words)
    assert case["ds_config"]["bf16"]["bf16_optimizer_states"] is True


def test_the_trainer_takes_the_steps_where_it_is_asked_for(here: Run) -> None:
    """Its config leaves to it what it fills in, and its optimizer to Accelerate under offload."""
    words = ("--model", MODEL, "--stage", "2", "--offload", "optimizer")
    [by_engine], [by_trainer] = (
        dry(here, *words, "--loop", loop) for loop in ("engine", "trainer")
    )
    assert ("engine", "trainer") == (by_engine["kind"], by_trainer["kind"])
    assert "auto" == by_trainer["ds_config"]["gradient_clipping"]
    assert "zero_force_ds_cpu_optimizer" in by_engine["ds_config"]
    assert "zero_force_ds_cpu_optimizer" not in by_trainer["ds_config"]


def test_what_the_trainer_does_not_step_with_is_refused(here: Run, folder: Path) -> None:
    case = {"model": MODEL, "stage": 1, "kind": "trainer", "optimizer": "FusedLion"}
    done = here("measure", *CPU, "--cases", cases_file(folder, case))
    assert 2 == done.code
    assert "the Trainer cannot use `FusedLion`" in done.problem


def test_a_model_of_a_case_that_cannot_be_read_is_named(here: Run, folder: Path) -> None:
    with (folder / "huge.json").open("wb") as file:
        file.truncate(40 * 2**20)
    for name in ("~no-such-user/model", str(folder / "huge.json"), "m" * 5000):
        done = here("measure", *CPU, "--cases", cases_file(folder, {"model": name, "stage": 0}))
        assert 2 == done.code
        assert f"cannot read the model `{name[:50]}" in done.problem


def test_a_persons_own_config_is_run_as_it_is(here: Run, folder: Path) -> None:
    own = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    (folder / "own.json").write_text(json.dumps(own))
    [case] = dry(here, "--model", MODEL, "--config", "own.json")
    assert own == case["ds_config"]


def ids(cases: list[dict[str, Any]]) -> list[Any]:
    return [case["id"] for case in cases]


def test_all_runs_each_strategy_that_fits_the_chosen_one_first(here: Run) -> None:
    cases = dry(here, "--model", MODEL, "--all", "--offload", "none")
    assert ["ddp", "zero1", "zero2", "zero3"] == ids(cases)
    assert [0, 1, 2, 3] == [case["ds_config"]["zero_optimization"]["stage"] for case in cases]
    assert cases[2:3] == [
        {**case, "id": "zero2"} for case in dry(here, "--model", MODEL, "--stage", "2")
    ]
    # In bf16 whatever this CPU computes in: in fp32, DDP is the smallest.
    smallest = (
        "--model",
        MODEL,
        "--offload",
        "none",
        "--precision",
        "bf16",
        "--objective",
        "smallest",
    )
    [chosen] = dry(here, *smallest)
    first, *others = dry(here, *smallest, "--all")
    assert (2, chosen["ds_config"]) == (chosen["stage"], first["ds_config"])
    assert [0, 1, 3] == [case["stage"] for case in others]


def test_all_of_a_named_stage_are_those_that_are_left_open(here: Run) -> None:
    words = ("--model", MODEL, "--all", "--stage", "3", "--offload", "auto")
    cases = dry(here, *words)
    assert ["zero3", "zero3-offload", "zero3-offload-optimizer"] == ids(cases)
    assert {"DeepSpeedCPUAdam"} == {case["optimizer"] for case in cases[1:]}


def test_with_the_split_of_the_batch_open_each_strategy_has_its_own(here: Run) -> None:
    words = ("--model", MODEL, "--all", "--offload", "none", "--global-batch", "16")
    cases = dry(here, *words, "--no-gradient-checkpointing")
    assert {"ddp", "zero1", "zero2", "zero3"} == {name.partition("-")[0] for name in ids(cases)}
    assert {8} == {case["micro_batch"] * case["accumulation_steps"] for case in cases}
    assert {True} == {case["micro_batch"] > 1 for case in cases}


def test_what_does_not_fit_is_not_run(here: Run) -> None:
    words = ("--model", "100m", "--micro-batch", "1", "--seq-len", "64", "--offload", "none")
    # What is assumed depends on the CPU of this host.
    budget = ("--memory-budget", "1600MiB", "--precision", "bf16")
    assert {"zero1", "zero2", "zero3"} == set(ids(dry(here, *words, *budget, "--all")))


def test_what_deepspeed_does_not_train_is_left_out_and_named(here: Run) -> None:
    words = ("--model", MODEL, "--all", "--offload", "none", "--precision", "bf16")
    done = here("measure", *CPU, *words, "--optimizer-state-dtype", "bf16", "--dry-run")
    assert "ddp" not in ids(json.loads(done.stdout))
    assert "ddp is left out: " in done.stderr


def test_all_and_a_cases_file_contradict_each_other(here: Run) -> None:
    done = here("measure", *CPU, "--all", "--cases", "cases.json")
    assert 2 == done.code
    assert "`--all` and `--cases`" in done.problem


@pytest.mark.deepspeed
def test_all_candidates_are_run_one_after_the_other(tmp_path: Path) -> None:
    words = ("--model", MODEL, "--micro-batch", "1", "--seq-len", "32", "--offload", "none")
    done = run(
        [sys.executable, "-m", "zerowiz", "measure", *CPU, "--all", *words, "--precision", "fp32"]
        + ["--steps", "1", "--timed-steps", "3", "--output", "rows.jsonl"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(True, "ddp"), (True, "zero1"), (True, "zero2"), (True, "zero3")] == [
        (row["ok"], row["id"]) for row in rows
    ]
    assert "4 of 4: zero3 ran" in done.stderr
    heading, *table = done.stdout.splitlines()
    assert ["strategy", "peak", "step"] == [
        w for w in heading.split() if w in {"strategy", "peak", "step"}
    ]
    seconds = {row["id"]: row["steady_step_seconds"] for row in rows}
    names = [line.split()[0] for line in table[:4]]
    assert sorted(seconds, key=lambda name: seconds[name]) == names
    assert {"Bus"} == {line.split()[0] for line in table[4:]}
    [kept] = (tmp_path / "cache" / "zerowiz" / "measured").iterdir()
    runs = json.loads(kept.read_text())["runs"]
    assert seconds == {run["strategy"]: run["measured_seconds"] for run in runs}
    assert () == done.shared_memory_left


def test_cases_without_room_are_left_out_and_named(here: Run, folder: Path) -> None:
    cases = [{"id": f"on-{n}", "model": MODEL, "stage": 1, "gpus": n} for n in (1, 2, 4)]
    done = here("measure", *CPU, "--cases", cases_file(folder, *cases), "--dry-run")
    assert ["on-1", "on-2"] == [case["id"] for case in json.loads(done.stdout)]
    assert "on-4" in done.stderr


def test_as_many_cpu_ranks_are_started_as_the_largest_case_takes(here: Run, folder: Path) -> None:
    path = cases_file(folder, {"model": MODEL, "stage": 1, "gpus": 3})
    done = here("measure", "--accelerator", "cpu", "--cases", path, "--dry-run")
    assert 3 == json.loads(done.stdout)[0]["gpus"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--model", MODEL, "--machine", "4xH200"), "4xH200"),
        (("--model", MODEL, "--nodes", "2"), "this machine only"),
        (("--cases", "none.json"), "none.json"),
        (("--model", MODEL, "--cap-bytes", "9999"), "--cap-bytes"),
    ],
)
def test_what_cannot_be_measured_here_is_refused(
    here: Run, words: tuple[str, ...], named: str
) -> None:
    accelerator = () if "--machine" in words else ("--accelerator", "cpu")
    done = here("measure", *accelerator, *words)
    assert 2 == done.code
    assert named in done.problem


def test_more_gpus_than_there_are_for_every_case_is_an_error(here: Run, folder: Path) -> None:
    path = cases_file(folder, {"model": MODEL, "stage": 1, "gpus": 8})
    assert 2 == here("measure", *CPU, "--cases", path).code


def test_a_cases_file_that_is_no_json_names_the_place(here: Run, folder: Path) -> None:
    (folder / "cases.json").write_text("[{]")
    done = here("measure", *CPU, "--cases", "cases.json")
    assert 2 == done.code
    assert "line 1 column 3" in done.problem


def test_a_lock_that_ranks_would_wait_for_is_an_error_before_they_start(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed")
    asked: list[str] = []

    def refuse(_program: str, _environ: object, ops: Sequence[Op], _reporter: object) -> NoReturn:
        asked.extend(op.name for op in ops)
        raise PreflightError("it would wait")

    monkeypatch.setattr("zerowiz.app.measure.check_locks", refuse)
    case = {
        "model": MODEL,
        "stage": 2,
        "offload": "optimizer",
        "optimizer": "DeepSpeedCPUAdam",
        "gpus": 2,
    }
    path = cases_file(folder, case)
    done = here("measure", *CPU, "--cases", path)
    assert (5, ["deepspeed_shm_comm", "cpu_adam"]) == (done.code, asked)
    assert "it would wait" in done.problem


def assert_timed(row: dict[str, Any], *, least: int, most: int) -> None:
    """Every rank took the same number of steps, and as many as say enough."""
    (count,) = {len(each["timed_step_seconds"] or ()) for each in row["rank_times"]}
    assert least <= count <= most


@pytest.mark.slow
@pytest.mark.deepspeed
def test_real_ranks_are_measured_and_a_dead_case_ends_no_other(tmp_path: Path) -> None:
    common = {"model": MODEL, "sequence_tokens": 64, "gpus": 2}
    path = cases_file(
        tmp_path,
        {**common, "id": "broken", "stage": 2, "ds_config": {"train_batch_size": "none"}},
        {**common, "id": "sharded", "stage": 3, "gradient_checkpointing": True},
        {**common, "id": "encoder", "stage": 1, "config": BERT, "model": "tiny-bert"},
        {
            **common,
            "id": "alone",
            "stage": 0,
            "gpus": 1,
            "accumulation_steps": 2,
            "steps": 2,
            "timed_steps": 0,
        },
    )

    done = run(
        [sys.executable, "-m", "zerowiz", "measure", "--accelerator", "cpu", "--cases", path]
        + ["--output", "rows.jsonl", "--json", "--yes"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    )

    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert rows == [each["row"] for each in json.loads(done.stdout)["runs"]], done.stderr[-3000:]
    broken, sharded, encoder, alone = rows
    assert 1 == done.returncode
    assert (False, None) == (broken["ok"], broken["oom_phase"])
    assert "in init" in broken["error"]
    assert [True, True, True] == [row["ok"] for row in (sharded, encoder, alone)], rows
    assert ["DeepSpeedZeroOptimizer_Stage3", "AdamW"] == sharded["wrapper"]
    assert [0, 1] == [each["rank"] for each in sharded["rank_peaks"]]
    assert [0] == [each["rank"] for each in alone["rank_peaks"]]
    assert [3, 3, 2] == [len(row["step_seconds"]) for row in (sharded, encoder, alone)]
    assert 10_818_432 == sharded["params"]
    assert [8, 6, 0] == [row["timed_steps"] for row in (sharded, encoder, alone)]
    assert_timed(sharded, least=8, most=40)
    assert_timed(encoder, least=6, most=40)
    assert_timed(alone, least=0, most=0)
    assert sharded["steady_step_seconds"] > 0
    assert alone["steady_step_seconds"] is None
    measured = {each["collective"] for each in sharded["bus"]}
    assert {"all_reduce", "all_gather", "reduce_scatter"} == measured
    assert [None, None] == [encoder["bus"], alone["bus"]]
    assert all(row["case_seconds"] > 0 for row in rows)
    parts = ("forward", "backward", "step")
    phases = {"model", "init"} | {
        f"{when}_{part}" for when in ("first", "steady") for part in parts
    }
    assert [phases] * 3 == [set(row["phases"]) for row in (sharded, encoder, alone)]
    # Weights, masters and moments of a whole replica are more than a half of them.
    assert alone["phases"]["steady_step"]["allocated_bytes"] > 16 * alone["params"] // 2
    assert () == done.shared_memory_left


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_trainer_is_measured_on_real_ranks(tmp_path: Path) -> None:
    """At each kind of stage; its groups and its optimizer are its own."""
    common = {"model": MODEL, "sequence_tokens": 64, "gpus": 2, "kind": "trainer", "steps": 2}
    path = cases_file(
        tmp_path,
        {**common, "id": "replicas", "stage": 0, "precision": "fp32", "accumulation_steps": 2}
        | {"timed_steps": 3},
        {**common, "id": "divided", "stage": 2, "gradient_checkpointing": True},
        {**common, "id": "sharded", "stage": 3, "accumulation_steps": 2},
        {**common, "id": "built-whole", "stage": 3, "zero_init": False, "gpus": 1},
    )

    done = run(
        [sys.executable, "-m", "zerowiz", "measure", "--accelerator", "cpu", "--cases", path]
        + ["--output", "rows.jsonl", "--json", "--yes"],
        env=measuring_environ(tmp_path),
        cwd=tmp_path,
    )

    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(True, "trainer")] * 4 == [(r["ok"], r["kind"]) for r in rows], done.stderr[-3000:]
    wrappers = [row["wrapper"][0] for row in rows]
    assert ["AdamW", "DeepSpeedZeroOptimizer"] == wrappers[:2]
    assert ["DeepSpeedZeroOptimizer_Stage3"] * 2 == wrappers[2:]
    parts = ("forward", "backward", "step")
    phases = {"model", "init"} | {
        f"{when}_{part}" for when in ("first", "steady") for part in parts
    }
    assert [phases] * 4 == [set(row["phases"]) for row in rows]
    assert [2] * 4 == [len(row["step_seconds"]) for row in rows]
    for row, (least, most) in zip(rows, ((3, 3), (6, 40), (8, 40), (8, 40)), strict=True):
        assert_timed(row, least=least, most=most)
    assert [2, 2, 2, 1] == [len(row["rank_peaks"]) for row in rows]


VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "image_size": [32, 48],
    "patch_size": 8,
    "num_labels": 3,
}
# A family that only transformers knows, and one that nobody does.
STABLELM = {
    "model_type": "stablelm",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 200,
}
ABACUS = {**STABLELM, "model_type": "abacus"}


def test_the_sizes_of_an_unknown_family_are_guessed_for_each_case(here: Run, folder: Path) -> None:
    cases = [
        {"id": str(stage), "model": "odd", "config": ABACUS, "stage": stage} for stage in (1, 2)
    ]
    done = here("measure", *CPU, "--no-trace", "--cases", cases_file(folder, *cases), "--dry-run")
    assert 0 == done.code
    assert 1 == done.stderr.count("zerowiz does not know `abacus` yet, and estimates it")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.deepspeed
def test_encoders_images_and_what_only_a_trace_can_count_are_measured(tmp_path: Path) -> None:
    # Without `architectures`: the class that trains is the one that is counted.
    bare_bert = {key: value for key, value in BERT.items() if key != "architectures"}
    configs: dict[str, dict[str, Any]] = {
        "vit": VIT,
        "bert": bare_bert,
        "stablelm": STABLELM,
        "abacus": {"model_type": "a"},
    }
    common = {"sequence_tokens": 64, "gpus": 2, "stage": 2, "steps": 1}
    cases = [{**common, "id": id_, "model": id_, "config": c} for id_, c in configs.items()]
    (tmp_path / "stablelm").mkdir()
    (tmp_path / "stablelm" / "config.json").write_text(json.dumps(STABLELM))
    environ = measuring_environ(tmp_path)
    tool = [sys.executable, "-m", "zerowiz"]

    measured = run(
        [*tool, "measure", "--accelerator", "cpu", "--cases", cases_file(tmp_path, *cases)]
        + ["--json", "--yes"],
        env=environ,
        cwd=tmp_path,
    )
    planned = run(
        [*tool, "plan", *CPU, "--model", "stablelm", "--seq-len", "64", "--json", "--yes"],
        env=environ,
        cwd=tmp_path,
    )

    runs = {each["row"]["id"]: each for each in json.loads(measured.stdout)["runs"]}
    rows = {name: each["row"] for name, each in runs.items()}
    assert {"vit": True, "bert": True, "stablelm": True, "abacus": False} == {
        name: row["ok"] for name, row in rows.items()
    }, rows
    for name in ("vit", "bert"):
        assert model_from_config(name, configs[name]).params == rows[name]["params"]
        assert runs[name]["predicted"]["peak_bytes"] is not None
    assert "traced `StableLmForCausalLM` on the meta device" in measured.stderr
    plan = json.loads(planned.stdout)
    strategies = {
        strategy["name"]: strategy["gpu"]["peak_bytes"] for strategy in plan["strategies"]
    }
    assert "trace" == plan["model"]["source"]
    assert strategies["zero2"] == runs["stablelm"]["predicted"]["peak_bytes"]
    assert plan["model"]["params"] == rows["stablelm"]["params"]
    assert "`a` is not known yet" in runs["abacus"]["predicted"]["why_not"]


def measuring_environ(folder: Path) -> dict[str, str]:
    """Of ranks whose results are kept in this folder, and not in the cache of who runs the tests."""
    own = {"PYTHONPATH": python_path(), "XDG_CACHE_HOME": str(folder / "cache")}
    return rank_environ(folder / "reports") | own


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def test_what_is_said_of_the_job_is_measured_too(here: Run, folder: Path) -> None:
    drive = folder / "drive"
    drive.mkdir()
    words = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--stage", "3")
    asked = ("--offload", "all", "--nvme-path", str(drive), "--memory-budget", "3GiB", "--no-hpz")
    result = here("measure", "--dry-run", *words, *asked)
    assert 0 == result.code, result.stderr
    (case,) = json.loads(result.stdout)
    assert (str(drive), False, False, 3 * 2**30) == (
        case["nvme_path"],
        case["hpz"],
        case["quantized_weights"],
        case["memory_budget_bytes"],
    )
    assert str(drive) == case["ds_config"]["zero_optimization"]["offload_param"]["nvme_path"]


# `zerowiz measure SCRIPT`: a person's own script, run for some steps through the launcher.

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
    job = Job(
        machine=machine,
        model=model_from_size("1b", size),
        workload=Workload(),
        rates=find_rates(machine, table),
    )
    return evaluate(job, ZERO2)


def ran(*ranks: dict[str, object], **end: object) -> ScriptMeasurement:
    ended = decode(JobEnd, {"status": 0, "cause": Cause.FINISHED.value, **end}, "end")
    return ScriptMeasurement(planned=planned(), end=ended, ranks=ranks, wanted_steps=4)


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


# What `measure` kept of a machine reaches later plans for it, unless somebody says no.

SAID = "step times are scaled by"
WORDS = ("--model", "1b", "--micro-batch", "2", "--seq-len", "1024", "--gradient-checkpointing")


@pytest.fixture
def measured(tmp_path: Path) -> dict[str, str]:
    """An environment in whose cache two H200s took half as long again as predicted."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = KeptRun(
        setting={},
        strategy="zero2",
        formulas=formulas_of(__version__),
        measured_seconds=1.5,
        predicted_seconds={TermKind.MATRIX_PRODUCTS.value: 1.0},
    )
    path = results_path(machine_key(parse_spec("2xH200", read_gpu_table())), environ)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(encode(MachineResults(runs=(run,)))))
    return environ


def planned_calibration(
    folder: Path, environ: dict[str, str], *words: str
) -> tuple[dict[str, Any], str]:
    done = run_process(folder, "plan", *WORDS, "--json", *words, env=environ)
    assert 0 == done.code, done.stderr
    strategies = json.loads(done.stdout)["strategies"]
    return {each["name"]: each for each in strategies}, done.stderr


def test_a_plan_is_calibrated_by_what_was_measured_on_its_machine(
    tmp_path: Path, measured: dict[str, str]
) -> None:
    calibrated, notes = planned_calibration(tmp_path, measured, "--machine", "2xH200")
    bare, silent = planned_calibration(
        tmp_path, measured, "--machine", "2xH200", "--no-calibration"
    )
    assert f"{SAID} 1 setting measured on this machine" in notes
    assert SAID not in silent
    times = [each["zero2"]["step_seconds"] for each in (calibrated, bare)]
    assert times[0] > 1.05 * times[1]
    marks = [each["zero2"]["step_seconds_interval"]["calibrated"] for each in (calibrated, bare)]
    assert [True, False] == marks


def test_another_machine_is_not_calibrated(tmp_path: Path, measured: dict[str, str]) -> None:
    for machine in ("4xH200", "2xH100-80GB"):
        bare, notes = planned_calibration(tmp_path, measured, "--machine", machine)
        assert SAID not in notes
        assert not bare["zero2"]["step_seconds_interval"]["calibrated"]


def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path, measured: dict[str, str]) -> None:
    [file] = Path(measured["XDG_CACHE_HOME"]).rglob("*.json")
    file.write_text('{"runs": [{')
    bare, notes = planned_calibration(tmp_path, measured, "--machine", "2xH200")
    assert SAID not in notes
    assert not bare["zero2"]["step_seconds_interval"]["calibrated"]
