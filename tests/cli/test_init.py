"""`zerowiz init` without a person, and what `launch` makes of its record."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.harness import ENTER, HF_IN_CODE, HF_LITERAL, HF_PARSER, Open, Run, answers_of
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, read_reports, run_loaded

CPU = ("--machine", "cpu", "--model", "10m")
H100 = ("--machine", "1xH100-80GB-SXM", "--model", "1b")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def done(here: Run, *words: str) -> str:
    """What an `init` that ends well says."""
    result = here("init", "--yes", *words).good
    return result.stdout


def launched(here: Run, *words: str) -> tuple[dict[str, Any], str]:
    """The plan of a dry run, and its notes."""
    result = here("launch", "--dry-run", "--json", *words).good
    return json.loads(result.stdout), " ".join(result.stderr.split())


def test_init_writes_the_config_and_the_answers_and_says_how_to_go_on(
    process: Run, script: Path
) -> None:
    result = process("init", "--yes", *CPU).good
    assert "wrote ds_config_zero0.json\nwrote zerowiz.toml\nnext: zerowiz launch\n" in result.stdout
    config = json.loads((script.parent / "ds_config_zero0.json").read_text())
    assert 0 == config["zero_optimization"]["stage"]
    assert {"script": "train.py", "machine": "cpu", "model": "10m"} == answers_of(script.parent)


@pytest.mark.usefixtures("script")
def test_without_a_terminal_nothing_is_asked(process: Run) -> None:
    result = process("init", "--machine", "cpu")
    assert 3 == result.code
    assert "`--model`" in result.hints


def test_a_dry_run_shows_the_config_and_writes_nothing(here: Run, script: Path) -> None:
    result = here("init", "--dry-run", "--yes", *CPU)
    files = "# writes ds_config_zero0.plan.json\n# writes ds_config_zero0.json\n"
    assert result.stdout.startswith(files + "{\n")
    assert [script] == list(script.parent.iterdir())


@pytest.mark.parametrize(
    ("files", "words", "problem"),
    [
        ({"ds_config_zero0.json": "{}"}, ("--dry-run", *CPU), "ds_config_zero0.json"),
        ({"ds_config_zero0.json": "{}"}, CPU, "ds_config_zero0.json"),
        ({"train.py": HF_LITERAL}, (*CPU, "--stage", "2"), "ds_config_zero0.json"),
        ({"job.sbatch": "mine\n"}, ("--slurm", *H100), "job.sbatch"),
    ],
    ids=["foreseen", "a config", "a config in the script", "a job script"],
)
@pytest.mark.usefixtures("script")
def test_what_is_in_the_way_stays_and_nothing_is_written(
    here: Run, folder: Path, files: Mapping[str, str], words: tuple[str, ...], problem: str
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    refused = here("init", "--yes", *words)
    assert (1, True) == (refused.code, problem in refused.problem), refused.stderr
    files = {"train.py": HF_PARSER, **files}
    assert files == {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("words", [(), ("other.py",)])
def test_a_script_is_found_by_name_or_by_habit(
    here: Run, script: Path, words: tuple[str, ...]
) -> None:
    (script.parent / "other.py").write_text(HF_IN_CODE)
    done(here, *CPU, *words)
    expected = words[0] if words else "train.py"
    assert expected == answers_of(script.parent)["script"]
    assert expected in launched(here)[0]["command"]


@pytest.mark.parametrize(
    ("words", "chosen", "noted"),
    [
        ((), "zero3", ""),
        (("--stage", "1"), "zero1", ""),
        (
            # The machine is said again.
            ("--machine", "cpu", "train.py", "--", "x"),
            "zero3",
            "note: from `zerowiz.toml`: `--model 10m --micro-batch 4 --seq-len 64 --stage 3`",
        ),
        (("--machine", "cpu", "--model", "10m", "other.py"), "ddp", ""),
        (("--stage", "2", "train.py"), "zero2", ""),
        # A job script reads the same file, unless it says otherwise.
        (("--yes", "--model", "10m", "train.py"), "zero3", ""),
        (("--yes", *CPU, "--isolated", "train.py"), "ddp", ""),
        # A config that is named decides what it says.
        (
            ("--config", "mine.json"),
            "zero1",
            "`--model 10m --machine cpu --seq-len 64 train.py`",
        ),
        (("--output-dir", "other"), "zero3", ""),
        (("--output-dir", "other", "train.py"), "zero3", ""),
    ],
)
def test_a_launch_uses_the_answers_unless_something_else_is_said(
    here: Run, script: Path, words: tuple[str, ...], chosen: str, noted: str
) -> None:
    (script.parent / "other.py").write_bytes(script.read_bytes())
    own = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}
    (script.parent / "mine.json").write_text(json.dumps(own))
    done(here, *CPU, "--stage", "3", "--micro-batch", "4", "--seq-len", "64")
    plan, notes = launched(here, *words)
    assert (chosen, "10m") == (plan["chosen"], plan["model"]["name"])
    assert noted in notes


def test_the_words_of_the_script_are_recorded_too(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "Trainer(args=args)\n"
    )
    # So little that it fits whatever is free of this host.
    step = ("--model", "10m", "--micro-batch", "2", "--seq-len", "64")
    words = ("--accelerator", "cpu", "--gpus-per-node", "2", *step)
    said = done(here, *words, "train.py", "--max_steps", "3")
    assert "train.py --max_steps 3" in " ".join(said.replace("\\\n", "").split())
    command = launched(here)[0]["command"]
    assert command[command.index("train.py") + 1 :] == [
        *("--max_steps", "3", "--per_device_train_batch_size", "2"),
        *("--gradient_accumulation_steps", "4", "--use_cpu", "True"),
        *("--deepspeed", "ds_config_zero0.json"),
    ]
    # A word that is said now takes the place of what was answered of the same setting.
    more, _ = launched(here, "train.py", "--per_device_train_batch_size", "4")
    assert 4 == more["workload"]["micro_batch"]


def test_the_answers_lie_in_the_output_folder(here: Run, script: Path) -> None:
    said = done(here, *CPU, "--output-dir", "runs/a b")
    assert "next: zerowiz launch --output-dir 'runs/a b'\n" in said
    assert {"train.py", "runs"} == names(script.parent)
    plan, _ = launched(here, "--output-dir", "runs/a b")
    assert "runs/a b/ds_config_zero0.json" == plan["config_path"]


@pytest.mark.usefixtures("script")
def test_answers_of_the_output_folder_count_more_than_those_of_this_one(here: Run) -> None:
    done(here, *CPU, "--stage", "3")
    done(here, *CPU, "--stage", "2", "--output-dir", "other")
    assert "zero2" == launched(here, "--output-dir", "other")[0]["chosen"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--stage", "2", "--seq-len", "64", "--attention", "sdpa"),
        ("--stage", "3", "--offload", "all", "--gpus-per-node", "2", "--output-dir", "a b"),
        ("--no-gradient-checkpointing", "--memory-budget", "8GiB", "--allow-slow"),
    ],
)
@pytest.mark.usefixtures("script")
def test_the_job_scripts_line_gives_the_same_config(here: Run, words: tuple[str, ...]) -> None:
    shown = done(here, *CPU, *words).splitlines()
    label = "the same in a job script: "
    (line,) = (line for line in shown if line.startswith(label))
    tool, command, *rest = shlex.split(line.removeprefix(label))
    assert ("zerowiz", "launch") == (tool, command)
    again = here("launch", "--dry-run", *rest).good
    _, heading, *config, _, _ = again.stdout.splitlines()
    written = Path(heading.removeprefix("# writes "))
    assert written.read_text() == "\n".join(config) + "\n"


def test_slurm_writes_a_job_script_for_the_nodes_of_the_plan(here: Run, script: Path) -> None:
    nodes = ("--machine", "4xH100-80GB-SXM", "--nodes", "2", "--interconnect", "infiniband:400Gb/s")
    said = done(here, "--slurm", *nodes, "--model", "1b", "--stage", "2", "train.py")
    assert "zerowiz launch" not in said
    assert "\n  sbatch job.sbatch\n" in said
    text = (script.parent / "job.sbatch").read_text()
    for line in ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=1"):
        assert line in text
    start = text.partition("srun ")[2]
    assert "zerowiz launch --stage 2 --yes" in start
    assert "--model 1b" in start
    # A job looks for its machine and its nodes by itself, and this script cannot resume.
    assert not {"--machine", "--nodes", "--gpus-per-node", "--resume"} & set(start.split())
    assert (script.parent / "ds_config_zero2.json").is_file()


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_job_script_of_an_uncertain_plan_says_so_last(
    here: Run, hf: Path, evaluates: bool
) -> None:
    words = ("--slurm", "--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
    evaluation = ("--do_eval",) if evaluates else ()
    result = here("init", "--yes", "--eval-batch", "0", *words, "train_hf.py", *evaluation).good
    last = result.stdout.splitlines()[-1]
    assert "The plan, in fp32, is uncertain: the job may run out of memory" == last
    assert (hf / "job.sbatch").is_file()
    said = "`--eval-batch 0` does not keep the job from evaluating: `--do_eval` after the script"
    assert evaluates is (said in result.stderr)


def test_a_job_script_for_cpus_says_how_many_ranks_a_node_has(here: Run, folder: Path) -> None:
    shutil.copy(TEMPLATES / "train_deepspeed.py", folder / "train.py")
    done(here, "--slurm", *CPU, "--gpus-per-node", "2", "--micro-batch", "2", "train.py")
    text = (folder / "job.sbatch").read_text()
    assert "--gpus-per-node=" not in text
    start = text.partition("srun ")[2].split()
    assert {"--accelerator", "--gpus-per-node", "--resume", "--save_on_signal"} <= set(start)
    assert "--stage auto --yes" in " ".join(start)


@pytest.mark.usefixtures("script")
def test_a_job_script_names_what_is_in_its_folder_as_a_copy_of_the_folder_has_it(
    here: Run, folder: Path, tmp_path: Path
) -> None:
    for model, left in ((folder, []), (tmp_path, [f"#   {tmp_path}/model"])):
        shutil.copytree(TEMPLATES / "model", model / "model")
        paths = ("--model", f"{model}/model", "--output-dir", str(folder / "out"))
        said = done(here, "--slurm", *H100[:2], *paths, str(folder / "train.py"))
        assert "\n  sbatch out/job.sbatch\n" in said
        text = (folder / "out" / "job.sbatch").read_text()
        assert str(folder) not in text
        assert left == [line for line in text.splitlines() if line.startswith("#   /")]


def test_a_recorded_script_that_is_gone_says_where_its_name_comes_from(
    here: Run, script: Path
) -> None:
    done(here, *CPU)
    script.unlink()
    result = here("launch", "--dry-run")
    assert (5, "there is no script `train.py`") == (result.code, result.problem)
    assert "`train.py` is named by zerowiz.toml line 3" in result.hints


@pytest.mark.usefixtures("script")
def test_where_something_lies_in_the_way_of_a_config_another_folder_is_named(here: Run) -> None:
    done(here, *CPU)
    config = Path("ds_config_zero0.json")
    config.write_text("{}")
    hint = "choose another folder with `--output-dir DIR`"
    assert hint in here("launch", "--dry-run").hints
    config.unlink()
    config.mkdir()
    assert hint == here("launch", "--dry-run").hints


@pytest.mark.parametrize("words", [("--dry-run",), ("--json",)])
@pytest.mark.usefixtures("script")
def test_nothing_is_launched_that_is_not_written(here: Run, words: tuple[str, ...]) -> None:
    refused = here("init", "--yes", "--launch", *words, *CPU)
    assert 2 == refused.code
    assert "`--launch`" in refused.stdout + refused.stderr


WORDS = ("train_hf.py", "--max_steps", "2")
RANKS = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "model", "--seq-len", "128")


@pytest.fixture
def hf(folder: Path) -> Path:
    """The Trainer's template, with all that it needs."""
    for name in ("model", "portable_checkpoint"):
        shutil.copytree(TEMPLATES / name, folder / name)
    for name in ("train_hf.py", "corpus.txt"):
        shutil.copy(TEMPLATES / name, folder / name)
    return folder


def written(folder: Path) -> dict[str, bytes]:
    """The configs."""
    return {path.name: path.read_bytes() for path in folder.glob("ds_config_*[0-9d].json")}


@pytest.mark.deepspeed
@pytest.mark.slow
def test_launch_now_trains_and_writes_what_the_files_alone_would_be(
    terminal: Open, here: Run, hf: Path
) -> None:
    environ = rank_environ(hf / "reports")
    environ["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    person = terminal("init", *RANKS, *WORDS, **environ)
    person.finish(("Launch now?", ENTER), patience_seconds=240)
    assert [0, 1] == sorted(report["rank"] for report in read_reports(hf / "reports"))
    launched = written(hf)
    assert launched
    for name in launched:
        (hf / name).unlink()
    done(here, *RANKS, *WORDS)
    assert launched == written(hf)


@pytest.mark.deepspeed
@pytest.mark.slow
def test_yes_and_launch_need_no_person(hf: Path) -> None:
    words = ("init", "--yes", "--launch", *RANKS, *WORDS)
    environ = rank_environ(hf / "reports")
    ended = run_loaded([sys.executable, "-m", "zerowiz", *words], env=environ, cwd=hf)
    assert 0 == ended.returncode, ended.stderr[-3000:]
    assert [0, 1] == sorted(report["rank"] for report in read_reports(hf / "reports"))
    assert (hf / "zerowiz.toml").is_file()
