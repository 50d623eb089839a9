"""`zerowiz init` without a person, and what `launch` makes of its record."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE, HF_LITERAL, HF_PARSER, Run, answers_of
from paths import ROOT

TEMPLATES = ROOT / "templates"
CPU = ("--machine", "cpu", "--model", "10m")


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(HF_PARSER)
    return path


def test_init_writes_the_config_and_the_answers_and_says_how_to_go_on(
    process: Run, script: Path
) -> None:
    result = process("init", "--yes", *CPU)
    assert 0 == result.code
    assert "wrote ds_config_zero0.json\nwrote zerowiz.toml\nnext: zerowiz launch\n" in result.stdout
    assert (
        0
        == json.loads((script.parent / "ds_config_zero0.json").read_text())["zero_optimization"][
            "stage"
        ]
    )
    record = answers_of(script.parent)
    assert {"script": "train.py", "machine": "cpu", "model": "10m"} == record


def test_a_dry_run_shows_the_config_and_writes_nothing(here: Run, script: Path) -> None:
    result = here("init", "--dry-run", "--yes", *CPU)
    files = "# writes ds_config_zero0.plan.json\n# writes ds_config_zero0.json\n"
    assert result.stdout.startswith(files + "{\n")
    assert [script] == list(script.parent.iterdir())


def test_a_dry_run_foresees_the_file_that_is_in_the_way(here: Run, script: Path) -> None:
    config = script.parent / "ds_config_zero0.json"
    config.write_text("{}")
    said = [here("init", *words, "--yes", *CPU) for words in (("--dry-run",), ())]
    assert [1, 1] == [result.code for result in said]
    assert said[0].problem == said[1].problem
    assert "{}" == config.read_text()


@pytest.mark.usefixtures("script")
def test_without_a_terminal_nothing_is_asked(process: Run) -> None:
    result = process("init", "--machine", "cpu")
    assert 3 == result.code
    assert "`--model`" in result.hints


def test_a_script_is_found_by_name_or_by_habit(here: Run, script: Path) -> None:
    (script.parent / "other.py").write_text(HF_IN_CODE)
    for words, expected in (((), "train.py"), (("other.py",), "other.py")):
        assert 0 == here("init", "--yes", *CPU, *words).code
        record = answers_of(script.parent)
        assert expected == record["script"]


def test_a_launch_uses_the_answers(here: Run, script: Path) -> None:
    (script.parent / "other.py").write_text(HF_IN_CODE)
    assert 0 == here("init", "--yes", *CPU, "--stage", "3", "--allow-slow", "other.py").code
    content = json.loads(here("launch", "--dry-run", "--json").stdout)
    assert ("zero3", "10m") == (content["chosen"], content["model"]["name"])
    assert "other.py" == content["command"][-1]


@pytest.mark.usefixtures("script")
def test_what_is_said_at_the_launch_outweighs_the_answers(here: Run) -> None:
    here("init", "--yes", *CPU, "--stage", "3")
    content = json.loads(here("launch", "--dry-run", "--json", "--stage", "1").stdout)
    assert "zero1" == content["chosen"]


def test_a_script_that_is_named_at_the_launch_keeps_its_answers(here: Run, script: Path) -> None:
    (script.parent / "other.py").write_bytes(script.read_bytes())
    here("init", "--yes", *CPU, "--stage", "3")
    words = ("launch", "--dry-run", "--json", "--machine", "cpu")
    named = here(*words, "train.py", "--", "x")
    assert "zero3" == json.loads(named.stdout)["chosen"]
    # The machine was said again.
    recorded = "note: from `zerowiz.toml`: `--model 10m --stage 3`"
    assert recorded in " ".join(named.stderr.split())
    other = here(*words, "--model", "10m", "other.py")
    assert "ddp" == json.loads(other.stdout)["chosen"]


@pytest.mark.usefixtures("script")
def test_what_is_said_now_counts_more_than_what_is_recorded(here: Run) -> None:
    here("init", "--yes", *CPU, "--stage", "3")
    words = ("launch", "--dry-run", "--json", "--machine", "cpu")
    assert "zero2" == json.loads(here(*words, "--stage", "2", "train.py").stdout)["chosen"]
    # A job script reads the same file, unless it says otherwise.
    job_script = (*words, "--yes", "--model", "10m")
    assert "zero3" == json.loads(here(*job_script, "train.py").stdout)["chosen"]
    alone = here(*job_script, "--isolated", "train.py")
    assert "ddp" == json.loads(alone.stdout)["chosen"]


def test_the_words_of_the_script_are_recorded_too(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "Trainer(args=args)\n"
    )
    words = ("--model", "10m", "--accelerator", "cpu", "--gpus-per-node", "2", "--micro-batch", "2")
    result = here("init", "--yes", *words, "train.py", "--max_steps", "3")
    assert 0 == result.code, result.stderr
    again = " ".join(result.stdout.replace("\\\n", "").split())
    assert "train.py --max_steps 3" in again
    launched = json.loads(here("launch", "--dry-run", "--json").stdout)
    start = launched["command"].index("train.py")
    assert launched["command"][start + 1 :] == [
        *("--max_steps", "3", "--per_device_train_batch_size", "2", "--use_cpu", "True"),
        *("--deepspeed", "ds_config_zero0.json"),
    ]
    # A word that is said now takes the place of what was answered of the same setting.
    more = here("launch", "--dry-run", "--json", "train.py", "--per_device_train_batch_size", "4")
    assert 4 == json.loads(more.stdout)["workload"]["micro_batch"]


def test_the_answers_lie_in_the_output_folder(here: Run, script: Path) -> None:
    result = here("init", "--yes", *CPU, "--output-dir", "runs/a b")
    assert "next: zerowiz launch --output-dir 'runs/a b'\n" in result.stdout
    assert {"train.py", "runs"} == {path.name for path in script.parent.iterdir()}
    content = json.loads(here("launch", "--dry-run", "--json", "--output-dir", "runs/a b").stdout)
    assert "runs/a b/ds_config_zero0.json" == content["config_path"]


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
    done = here("init", "--yes", *CPU, *words)
    assert 0 == done.code, done.stderr
    line = done.stdout.splitlines()[-1].removeprefix("the same in a job script: ")
    tool, command, *rest = shlex.split(line)
    assert ("zerowiz", "launch") == (tool, command)
    again = here("launch", "--dry-run", *rest)
    assert 0 == again.code, again.stderr
    _, heading, *config, _, _ = again.stdout.splitlines()
    written = Path(heading.removeprefix("# writes "))
    assert written.read_text() == "\n".join(config) + "\n"


def test_a_config_that_was_changed_by_hand_is_left_alone(here: Run, script: Path) -> None:
    here("init", "--yes", *CPU)
    config = script.parent / "ds_config_zero0.json"
    config.write_text("{}\n")
    result = here("init", "--yes", *CPU)
    assert 1 == result.code
    assert "{}\n" == config.read_text()
    assert 0 == here("init", "--yes", "--force", *CPU).code
    assert "{}\n" != config.read_text()


def test_a_script_with_another_config_in_it_is_refused_before_anything_is_written(
    here: Run, script: Path
) -> None:
    script.write_text(HF_LITERAL)
    result = here("init", "--yes", *CPU, "--stage", "2")
    assert 1 == result.code
    assert "ds_config_zero0.json" in result.problem
    assert [script] == list(script.parent.iterdir())


def test_slurm_writes_a_job_script_for_the_nodes_of_the_plan(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = ("--machine", "4xH100-80GB-SXM", "--nodes", "2", "--interconnect", "infiniband:400Gb/s")
    result = here("init", "--yes", "--slurm", *words, "--model", "1b", "--stage", "2", "train.py")
    assert 0 == result.code, result.stderr
    assert "zerowiz launch" not in result.stdout
    assert "\n  sbatch job.sbatch\n" in result.stdout
    text = (folder / "job.sbatch").read_text()
    for line in ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=1"):
        assert line in text
    start = text.partition("srun ")[2]
    assert "zerowiz launch --stage 2 --yes" in start
    assert "--model 1b" in start
    # A job looks for its machine and its nodes by itself, and this script cannot resume.
    assert not {"--machine", "--nodes", "--gpus-per-node", "--resume"} & set(start.split())
    assert (folder / "ds_config_zero2.json").is_file()


def test_a_job_script_names_what_is_in_its_folder_as_a_copy_of_the_folder_has_it(
    here: Run, folder: Path, tmp_path: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    shutil.copytree(TEMPLATES / "model", folder / "model")
    shutil.copytree(TEMPLATES / "model", tmp_path / "model")
    for model, left in ((folder, []), (tmp_path, [f"#   {tmp_path}/model"])):
        paths = ("--model", f"{model}/model", "--output-dir", str(folder / "out"))
        words = ("--machine", "1xH100-80GB-SXM", *paths, str(folder / "train.py"))
        result = here("init", "--yes", "--slurm", *words)
        assert 0 == result.code, result.stderr
        assert "\n  sbatch out/job.sbatch\n" in result.stdout
        text = (folder / "out" / "job.sbatch").read_text()
        assert str(folder) not in text
        assert left == [line for line in text.splitlines() if line.startswith("#   /")]


def test_a_job_script_for_cpus_says_how_many_ranks_a_node_has(here: Run, folder: Path) -> None:
    shutil.copy(TEMPLATES / "train_deepspeed.py", folder / "train.py")
    words = ("--machine", "cpu", "--gpus-per-node", "2", "--micro-batch", "2", "--model", "10m")
    result = here("init", "--yes", "--slurm", *words, "train.py")
    assert 0 == result.code, result.stderr
    text = (folder / "job.sbatch").read_text()
    assert "--gpus-per-node=" not in text
    start = text.partition("srun ")[2].split()
    assert {"--accelerator", "--gpus-per-node", "--resume", "--save_on_signal"} <= set(start)
    assert "--stage auto --yes" in " ".join(start)


def test_a_job_script_that_somebody_changed_is_not_overwritten(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "job.sbatch").write_text("mine\n")
    result = here("init", "--yes", "--slurm", "--machine", "1xH100-80GB-SXM", "--model", "1b")
    assert 1 == result.code
    assert "job.sbatch" in result.problem
    assert ["job.sbatch", "train.py"] == sorted(path.name for path in folder.iterdir())


def test_a_config_that_is_named_at_the_launch_counts_more_than_the_answers(
    here: Run, script: Path
) -> None:
    own = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}
    (script.parent / "mine.json").write_text(json.dumps(own))
    said = ("--stage", "3", "--micro-batch", "4", "--seq-len", "64")
    assert 0 == here("init", "--yes", *CPU, *said).code
    result = here("launch", "--dry-run", "--json", "--config", "mine.json")
    assert 0 == result.code, result.stderr
    plan = json.loads(result.stdout)
    assert ("zero1", 2) == (plan["chosen"], plan["workload"]["micro_batch"])
    assert "`--model 10m --machine cpu --seq-len 64 train.py`" in " ".join(result.stderr.split())


def test_a_recorded_script_that_is_gone_says_where_its_name_comes_from(
    here: Run, script: Path
) -> None:
    assert 0 == here("init", "--yes", *CPU).code
    script.unlink()
    result = here("launch", "--dry-run")
    assert (5, "there is no script `train.py`") == (result.code, result.problem)
    assert "`train.py` is named by zerowiz.toml line 3" in result.hints


def test_what_was_said_here_counts_for_configs_that_are_written_elsewhere(
    here: Run, script: Path
) -> None:
    assert 0 == here("init", "--yes", *CPU, "--stage", "3", "--seq-len", "64").code
    (script.parent / "ds_config_zero3.json").write_text("{}")
    refused = here("launch", "--dry-run")
    assert "hint: choose another folder with `--output-dir DIR`" in refused.stderr
    (script.parent / "ds_config_zero3.json").unlink()
    (script.parent / "ds_config_zero3.json").mkdir()
    assert "choose another folder with `--output-dir DIR`" == here("launch", "--dry-run").hints
    words = ("launch", "--dry-run", "--json", "--output-dir", "other")
    for more in ((), ("train.py",)):
        result = here(*words, *more)
        assert 0 == result.code, result.stderr
        plan = json.loads(result.stdout)
        assert ("zero3", "other/ds_config_zero3.json") == (plan["chosen"], plan["config_path"])
    again = ("--stage", "2", "--seq-len", "64", "--output-dir", "other")
    assert 0 == here("init", "--yes", *CPU, *again).code
    assert "zero2" == json.loads(here(*words).stdout)["chosen"]
