"""`zerowiz launch` trains on two real ranks, and each rank is what the plan said."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec.yaml
import pytest
from paths import TEMPLATES, TESTS
from ranks.harness import CompletedRun, rank_environ, read_reports, run, run_loaded

END_TO_END_TEMPLATES = TESTS.parent / "templates"
MODEL = END_TO_END_TEMPLATES / "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A script, the options that launch it quickly, and the batch its ranks must report."""

    path: Path
    options: tuple[str, ...]
    args: tuple[str, ...]
    micro_batch: int
    accumulation_steps: int
    gradient_checkpointing: bool = False


SCRIPTS = {
    "raw": Script(
        path=END_TO_END_TEMPLATES / "train_deepspeed.py",
        options=("--model", str(MODEL), "--micro-batch", "2", "--grad-accum", "2"),
        args=("--steps", "6", "--output_dir", "out"),
        micro_batch=2,
        accumulation_steps=2,
    ),
    "trainer": Script(
        path=END_TO_END_TEMPLATES / "train_hf.py",
        options=("--model", str(MODEL)),
        args=("--use_cpu", "--bf16", "--max_steps", "6", "--per_device_train_batch_size", "2")
        + ("--gradient_accumulation_steps", "2", "--save_strategy", "no"),
        micro_batch=2,
        accumulation_steps=2,
    ),
    "no-parser": Script(
        path=TESTS / "scripts" / "hf_in_code.py",
        options=("--model", "1m"),
        args=(),
        micro_batch=2,
        accumulation_steps=2,
    ),
}


def launch(folder: Path, script: Script, *options: str) -> tuple[CompletedRun, list[Any]]:
    """Launch on two CPU ranks, and see that the job ended well."""
    reports = folder / "reports"
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "launch", "--yes"]
        + ["--accelerator", "cpu", "--gpus-per-node", "2", *script.options, *options]
        + [script.path, *script.args],
        env=rank_environ(reports),
        cwd=folder,
    ).good
    return done, read_reports(reports)


def _thorough_but(*sampled: tuple[str, int]) -> list[Any]:
    """Every script at every stage; the default tests run some."""
    return [
        pytest.param(*case, marks=() if case in sampled else pytest.mark.thorough)
        for case in product(SCRIPTS, range(4))
    ]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"),
    _thorough_but(("raw", 3), ("trainer", 2), ("no-parser", 0)),
)
def test_every_rank_runs_the_stage_that_was_planned(name: str, stage: int, tmp_path: Path) -> None:
    script = SCRIPTS[name]

    done, reports = launch(tmp_path, script, "--stage", str(stage))

    # The loop's precision is the config's, and so what this CPU computes.
    plan = json.loads((tmp_path / f"ds_config_zero{stage}.plan.json").read_text())
    dtype = {"bf16": "bfloat16", "fp32": "float32"}[plan["workload"]["precision"]]
    assert [0, 1] == [report["rank"] for report in reports]
    for report in reports:
        assert stage == report["stage"]
        assert 2 == report["world_size"]
        assert [dtype] == report["parameter_dtypes"]
        assert ["float32"] == report["master_dtypes"] == report["state_dtypes"]
        # At stage 3 a rank keeps whole between steps only what lies under the persistence threshold.
        whole, resident = report["parameters"], report["resident_parameters"]
        assert resident < whole / 10 if stage == 3 else resident == whole
        assert script.micro_batch == report["micro_batch"]
        assert script.accumulation_steps == report["accumulation_steps"]
        assert 2 * script.micro_batch * script.accumulation_steps == report["train_batch_size"]
        held = report["state_elements"]
        # Sharded moments are half of both whole ones, but for the padding of the shares.
        assert held == 2 * whole if stage == 0 else whole <= held < 1.04 * whole
    config = json.loads((tmp_path / f"ds_config_zero{stage}.json").read_text())
    assert stage == config["zero_optimization"]["stage"]
    [attempt] = json.loads((tmp_path / "zerowiz-run.json").read_text())["attempts"]
    measured = attempt["measured"]
    assert 2 == measured["ranks"]
    assert 0 < measured["step_seconds"] < 60
    # torch and DeepSpeed alone are 300 MiB of a process on this accelerator, and do not count.
    assert 300 * 2**20 < measured["outside_bytes"]
    assert 0 < measured["peak_bytes"]
    assert done.stderr.rstrip().endswith("`zerowiz report` shows this again")
    assert "Traceback" not in done.stderr
    assert () == done.shared_memory_left or script.path.parent != END_TO_END_TEMPLATES


# Scripts whose step is open; their ranks must report the batch as the search splits it.
OPEN = {
    "raw": Script(
        path=END_TO_END_TEMPLATES / "train_deepspeed.py",
        options=("--global-batch", "8"),
        args=("--steps", "2", "--save_steps", "0"),
        micro_batch=4,
        accumulation_steps=1,
    ),
    "trainer": Script(
        path=END_TO_END_TEMPLATES / "train_hf.py",
        # Its own 4 sequences at a time do not fit.
        options=("--memory-budget", "700MiB"),
        args=("--max_steps", "2", "--save_strategy", "no", "--seq_len", "256"),
        micro_batch=2,
        accumulation_steps=2,
    ),
    # Sequences of which one alone does not fit without checkpointing.
    "raw checkpointed": Script(
        path=END_TO_END_TEMPLATES / "train_deepspeed.py",
        options=("--global-batch", "4", "--memory-budget", "600MiB", "--offload", "none")
        + ("--precision", "bf16"),
        args=("--steps", "2", "--save_steps", "0", "--seq_len", "1024"),
        micro_batch=2,
        accumulation_steps=1,
        gradient_checkpointing=True,
    ),
}


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("raw", "fastest"),
        pytest.param("raw", "flowchart", marks=pytest.mark.thorough),
        ("trainer", "flowchart"),
        pytest.param("trainer", "fastest", marks=pytest.mark.thorough),
        pytest.param("raw checkpointed", "flowchart", marks=pytest.mark.thorough),
        pytest.param("raw checkpointed", "fastest", marks=pytest.mark.thorough),
    ],
)
def test_every_rank_trains_what_was_chosen_of_what_is_open(
    name: str, objective: str, tmp_path: Path
) -> None:
    script = OPEN[name]

    done, reports = launch(tmp_path, script, "--model", str(MODEL), "--objective", objective)

    assert [0, 1] == [report["rank"] for report in reports]
    for report in reports:
        assert script.micro_batch == report["micro_batch"]
        assert script.accumulation_steps == report["accumulation_steps"]
        assert script.gradient_checkpointing is report["gradient_checkpointing"]
    assert "note: micro-batch" in done.stderr


FLOAT_LOOP = """\
import argparse

import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
lr = 1e-3
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
data = TensorDataset(torch.randn(16, 16), torch.randn(16, 1))
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
for x, y in DataLoader(data, batch_size=4):
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    engine.step()
print("trained")
"""


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--torch-autocast", "bf16"), marks=pytest.mark.thorough)],
)
def test_a_loop_of_floats_trains_in_the_precision_that_is_planned(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(FLOAT_LOOP, encoding="utf-8")
    said = ("--model", "1m", "--seq-len", "16", "--stage", "1", *options)
    script = Script(
        path=tmp_path / "train.py", options=said, args=(), micro_batch=4, accumulation_steps=1
    )

    done, reports = launch(tmp_path, script)

    assert 2 == done.stdout.count("trained")
    assert [["float32"]] * 2 == [report["parameter_dtypes"] for report in reports]


@pytest.mark.deepspeed
@pytest.mark.slow
def test_a_base_that_the_script_names_stays_and_the_ranks_run_what_is_built_on_it(
    tmp_path: Path,
) -> None:
    base = '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam", "params": {"lr": 7e-4, "torch_adam": true}}}'
    (tmp_path / "mine.json").write_text(base, encoding="utf-8")
    fixed = FLOAT_LOOP.replace("args=args", 'config="mine.json"')
    (tmp_path / "train.py").write_text(fixed, encoding="utf-8")
    said = ("--model", "1m", "--seq-len", "16", "--config", "mine.json", "--stage", "2")
    script = Script(
        path=tmp_path / "train.py", options=said, args=(), micro_batch=4, accumulation_steps=1
    )

    _, reports = launch(tmp_path, script)

    assert [2, 2] == [report["stage"] for report in reports]
    assert base == (tmp_path / "mine.json").read_text(encoding="utf-8")


ACCELERATE_YAML = """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: {steps}
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: {stage}
distributed_type: DEEPSPEED
mixed_precision: {precision}
num_machines: 1
num_processes: 2
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("path", "options", "args", "precision"),
    [
        # The Accelerator is told nothing: all of it is the file's.
        (TESTS / "scripts" / "accelerate_bare.py", ("--model", "1m"), (), "fp32"),
        pytest.param(
            END_TO_END_TEMPLATES / "train_hf.py",
            ("--model", str(MODEL)),
            ("--max_steps", "4", "--per_device_train_batch_size", "2", "--save_strategy", "no")
            # 12 sequences for a global batch of 16: a step has 3 of 4 micro-batches.
            + ("--corpus", "corpus.txt"),
            "bf16",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["accelerator", "trainer"],
)
def test_every_rank_is_what_a_file_of_accelerate_config_says(
    path: Path, options: tuple[str, ...], args: tuple[str, ...], precision: str, tmp_path: Path
) -> None:
    mixed = {"fp32": "'no'", "bf16": "bf16"}[precision]
    text = ACCELERATE_YAML.format(steps=4, stage=2, precision=mixed)
    (tmp_path / "acc.yaml").write_text(text)
    (tmp_path / "corpus.txt").write_text("a" * 128 * 15)
    reports, fewer = tmp_path / "reports", path.parent == END_TO_END_TEMPLATES

    # One of both as it is started for people.
    done = (run_loaded if fewer else run)(
        # How many ranks there are is said by the file too.
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu", *options]
        + ["--config", "acc.yaml", path, *args],
        env=rank_environ(reports),
        cwd=tmp_path,
    )

    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    ranks = read_reports(reports)
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    assert [(0, 2), (1, 2)] == [(each["rank"], each["world_size"]) for each in ranks]
    for each in ranks:
        assert (2, 2, 4) == (each["stage"], each["micro_batch"], each["accumulation_steps"])
        assert [dtype] == each["parameter_dtypes"]
    record = tmp_path / "zerowiz-run.json"
    assert 0o600 == record.stat().st_mode & 0o777, "words and variables may hold a secret"
    [attempt] = json.loads(record.read_text())["attempts"]
    assert 2 == attempt["measured"]["ranks"]


# What `launch` starts in each rank: a script whose parser knows no `--local_rank`, or a module.

SCRIPT = TESTS / "scripts" / "strict_loop.py"
# A launcher around zerowiz, such as `srun --mpi=pmi2`, leaves this to everything below it.
AROUND = {"PMI_RANK": "0", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "0"}


def told(folder: Path, *words: str, **env: str) -> list[Mapping[str, Any]]:
    """Launch on two CPU ranks, see that the job ended well, and what each rank told."""
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu", "--stage", "1"]
        + ["--model", "1m", "--seq-len", "16", "--precision", "fp32", *words],
        env={**rank_environ(folder / "reports"), **env},
        cwd=folder,
    )
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2)]


def _watched(folder: Path) -> Iterator[int]:
    for path in sorted(folder.glob(".zerowiz/runs/*/attempt-1/rank-*.end.json")):
        yield json.loads(path.read_text())["rank"]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    "supervised",
    # A module is started alone, below.
    [True, pytest.param(False, marks=pytest.mark.thorough)],
    ids=["supervised", "alone"],
)
def test_a_parser_without_local_rank_trains_and_each_rank_is_itself(
    supervised: bool, tmp_path: Path
) -> None:
    watch = "--supervise" if supervised else "--no-supervise"
    ranks = told(tmp_path, "--gpus-per-node", "2", watch, str(SCRIPT), "--batch", "4", **AROUND)
    words = ["--batch", "4", "--ds_config", "ds_config_zero1.json"]
    for number, rank in enumerate(ranks):
        assert {
            "rank": number,
            "local_rank": number,
            "ranks": 2,
            "stage": 1,
            "micro_batch": 4,
            "words": words,
            "name": None,
        } == rank
    assert ([0, 1] if supervised else []) == [*_watched(tmp_path)]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    "supervised",
    [pytest.param(True, marks=pytest.mark.thorough), False],
    ids=["supervised", "alone"],
)
def test_a_module_trains(supervised: bool, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_bytes(SCRIPT.read_bytes())
    watch = "--supervise" if supervised else "--no-supervise"
    ranks = told(tmp_path, watch, "--gpus-per-node", "2", "-m", "pkg.train", "--batch", "4")
    assert [(0, 2, "pkg.train"), (1, 2, "pkg.train")] == [
        (rank["rank"], rank["ranks"], rank["name"]) for rank in ranks
    ]
    assert ([0, 1] if supervised else []) == [*_watched(tmp_path)]


# What is committed is enough: a clone of the repository launches the same job, asking nothing.

ZEROWIZ = (sys.executable, "-m", "zerowiz")
# What is free of the host changes from one run to the next, so the budget is said.
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "2GB")
JOB = (*CPU, "--model", "model", "--stage", "2", "--micro-batch", "2", "--seq-len", "64")
CONFIG, PLAN = "ds_config_zero2.json", "ds_config_zero2.plan.json"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository in which somebody ran the wizard, and committed what it wrote."""
    origin, cloned = tmp_path / "origin", tmp_path / "clone"
    shutil.copytree(TEMPLATES, origin, ignore=shutil.ignore_patterns("__pycache__", "ds_config*"))
    (origin / "train_deepspeed.py").rename(origin / "train.py")
    words = (*JOB, "train.py", "--steps", "2")
    environ = rank_environ(tmp_path / "unused")
    done = run([*ZEROWIZ, "init", "--yes", *words], env=environ, cwd=origin)
    assert 0 == done.returncode, done.stderr
    (origin / ".gitignore").write_text(".zerowiz/\n")
    git(origin, "init", "--quiet")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--message", "a job")
    git(tmp_path, "clone", "--quiet", str(origin), str(cloned))
    return cloned


@pytest.mark.deepspeed
@pytest.mark.slow
def test_a_fresh_clone_is_launched_and_a_file_that_is_edited_then_is_kept(
    clone: Path, tmp_path: Path
) -> None:
    assert not (clone / ".zerowiz").exists()
    environ = rank_environ(tmp_path / "reports")
    launch = [*ZEROWIZ, "launch", "--yes"]
    # Longer sequences: both files are written anew.
    done = run_loaded([*launch, "--seq-len", "32"], env=environ, cwd=clone).good
    assert "from `zerowiz.toml`: " in done.stderr
    reports = read_reports(tmp_path / "reports")
    assert [(0, 2, 2), (1, 2, 2)] == [
        (report["rank"], report["stage"], report["micro_batch"]) for report in reports
    ]
    plan = json.loads((clone / PLAN).read_text())
    assert 32 == plan["workload"]["sequence_tokens"]

    shutil.rmtree(clone / ".zerowiz")
    edited = (clone / CONFIG).read_text().replace('"stage": 2', '"stage": 1')
    (clone / CONFIG).write_text(edited)
    refused = run(launch, env=environ, cwd=clone)
    assert 1 == refused.returncode, refused.stderr
    assert f"you edited what the plan decides: `{CONFIG}`" in refused.stderr
    assert edited == (clone / CONFIG).read_text()


# A script that takes all its arguments from one file trains as planned, by a copy of that file.

SETTINGS_FILE_SCRIPT = TESTS / "scripts" / "hf_settings_file.py"
VALUES = {
    "output_dir": "out",
    "block_size": 32,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-05,
    "max_steps": 2,
    "save_strategy": "no",
    "report_to": "none",
}


def launch_settings_file(folder: Path, *words: str | Path, **env: str) -> CompletedRun:
    """Launch on two CPU ranks, and see that the job ended well."""
    return run(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
        + ["--gpus-per-node", "2", "--model", "1m", *words],
        env={**rank_environ(folder / "reports"), **env},
        cwd=folder,
    ).good


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "suffix",
    [".json", pytest.param(".yaml", marks=[pytest.mark.slow, pytest.mark.thorough])],
    ids=["json", "yaml"],
)
def test_a_settings_file_trains_as_settled_and_after_an_out_of_memory_names_the_checkpoint(
    suffix: str, tmp_path: Path
) -> None:
    yaml = suffix == ".yaml"
    values = {**VALUES, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    text = msgspec.yaml.encode(values).decode() if yaml else json.dumps(values)
    own = tmp_path / f"args{suffix}"
    own.write_text(text)
    own.chmod(0o600)
    died = {"ZEROWIZ_RANK_RUNS_OUT": "1,3,1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = ("--stage", "1", "--escalate", "--grad-accum", "3", "--gradient-checkpointing")
    done = launch_settings_file(tmp_path, *said, SETTINGS_FILE_SCRIPT, own.name, **died)

    assert "goes on from the checkpoint out/checkpoint-2" in done.stderr
    assert text == own.read_text()
    settled = {"gradient_accumulation_steps": 3, "gradient_checkpointing": True, "use_cpu": True}
    resumed = {"resume_from_checkpoint": "out/checkpoint-2"}
    for stage, more in ((1, {}), (2, resumed)):
        copy = tmp_path / f"args.ds_config_zero{stage}{suffix}"
        written = (msgspec.yaml.decode if yaml else json.loads)(copy.read_bytes())
        assert {**values, **settled, "deepspeed": f"ds_config_zero{stage}.json", **more} == written
        assert 0o600 == stat.S_IMODE(copy.stat().st_mode)
    assert (tmp_path / "out" / "checkpoint-4").is_dir()
    reports = read_reports(tmp_path / "reports")
    assert [(rank, 2, 2, 3) for rank in (0, 1)] == [
        (each["rank"], each["stage"], each["micro_batch"], each["accumulation_steps"])
        for each in reports
    ]


BASE_LOOP = """\
import argparse
import json
import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
deepspeed.init_distributed()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
losses = []
for _ in range(40):
    x = torch.randn(4, 16)
    loss = (engine(x) - x.flip(1)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
group = engine.optimizer.param_groups[0]
learns = {
    "betas": list(group["betas"]),
    "weight_decay": group["weight_decay"],
    "lr": group["lr"],
    "scheduler": [type(engine.lr_scheduler).__name__, engine.lr_scheduler.warmup_num_steps],
    "clipping": engine.gradient_clipping(),
    "batch": [engine.train_batch_size(), engine.gradient_accumulation_steps()],
}
with open(f"rank{engine.global_rank}.json", "w") as file:
    json.dump([engine.zero_optimization_stage(), learns, losses], file)
"""
LEARNING: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {
        "type": "AdamW",
        # Torch's own: another is compiled first.
        "params": {"lr": 6e-3, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": True},
    },
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 6e-3, "warmup_num_steps": 10}},
    "zero_optimization": {"stage": 1},
}


@pytest.mark.deepspeed
@pytest.mark.slow
def test_both_ranks_learn_on_a_base_as_they_do_without_zerowiz(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BASE_LOOP)
    (tmp_path / "ds_config.json").write_text(json.dumps(LEARNING))
    deepspeed = str(Path(sys.executable).with_name("deepspeed"))
    found = []
    commands = (
        [deepspeed, "--num_gpus", "2", "--master_port", "29713", "train.py", "--deepspeed"]
        + ["--deepspeed_config", "ds_config.json"],
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
        + ["--gpus-per-node", "2", "--model", "1m", "--seq-len", "16"]
        + ["--config", "ds_config.json", "--stage", "3", "train.py"],
    )
    for command in commands:
        done = run_loaded(command, env=rank_environ(tmp_path / "reports"), cwd=tmp_path)
        assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        found.append([json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)])
    for plain, launched in zip(*found, strict=True):
        assert (1, 3) == (plain[0], launched[0])
        assert plain[1] == launched[1]
        assert [0.5, 0.1] == [launched[1]["clipping"], launched[1]["weight_decay"]]
        assert plain[2] == pytest.approx(launched[2], rel=1e-4)
        assert plain[2][-1] < plain[2][0]


# A plain loop that leaves its optimizer to the config learns as it was told, and no other way.

UNTOLD_LOOP = """\
import argparse, json, os, sys

import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
deepspeed.init_distributed()
model = torch.nn.Linear(16, 16)
engine, optimizer, _, scheduler = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters()
)
for _ in range(4):
    engine.backward(engine(torch.ones(2, 16)).mean())
    engine.step()
[group] = optimizer.param_groups
seen = {name: group[name] for name in ("lr", "weight_decay", "betas", "eps")}
schedule = None if scheduler is None else [type(scheduler).__name__, scheduler.warmup_num_steps]
seen |= {"clipping": engine.gradient_clipping(), "schedule": schedule}
with open(f"learning-{os.environ['RANK']}.json", "w") as file:
    json.dump(seen, file)
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""
TOLD = ("--lr", "6e-4", "--weight-decay", "0.1", "--warmup-steps", "20", "--max-grad-norm", "0.5")
# Three twentieths of the way: DeepSpeed's first two steps are at 0.
AS_TOLD = {"lr": 9e-5, "weight_decay": 0.1, "clipping": 0.5, "schedule": ["WarmupLR", 20]}
ALONE = {"lr": 6e-4, "weight_decay": 0.0, "clipping": 0.0, "schedule": None}


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "stage", "expected"),
    [
        (TOLD, 2, AS_TOLD),
        pytest.param(TOLD, 0, AS_TOLD, marks=pytest.mark.thorough),
        (TOLD[:2], 1, ALONE),
    ],
)
def test_the_engine_learns_as_it_was_told(
    tmp_path: Path, options: tuple[str, ...], stage: int, expected: dict[str, Any]
) -> None:
    (tmp_path / "train.py").write_text(UNTOLD_LOOP)
    script = Script(
        path=Path("train.py"),
        options=("--model", "1m", "--micro-batch", "2", "--precision", "fp32", *options),
        args=(),
        micro_batch=2,
        accumulation_steps=1,
    )
    launch(tmp_path, script, "--stage", str(stage))
    for rank in range(2):
        seen = json.loads((tmp_path / f"learning-{rank}.json").read_text())
        seen["lr"] = round(seen["lr"], 9)
        assert {"betas": [0.9, 0.999], "eps": 1e-8, **expected} == seen
