"""`zerowiz init` without a person, and what `launch` makes of its record."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from cli.harness import (
    BACKSPACE,
    DOWN,
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    HF_LITERAL,
    HF_PARSER,
    UP,
    Open,
    Run,
    Terminal,
    answers_of,
)
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, read_reports, run

INIT_TEMPLATES = ROOT / "templates"
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
    shutil.copytree(INIT_TEMPLATES / "model", folder / "model")
    shutil.copytree(INIT_TEMPLATES / "model", tmp_path / "model")
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
    shutil.copy(INIT_TEMPLATES / "train_deepspeed.py", folder / "train.py")
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


# Whole conversations with the wizard, as a person has them at a terminal.

A100 = ("--machine", "4xA100-40GB")
SCRIPT, MODEL, LENGTH = "Which training script?", "Which model?", "How many tokens per sequence?"
# The last question itself stays on the screen once it is answered; its menu does not.
MICRO_BATCH = "How many sequences per rank at a time?"
CHANGED = {"bf16": "Which precision?", "64": "How many sequences per optimizer step"}
GOAL, LAST = "What is your goal?", "yes, write the files"
# An answer stands behind its question; an open question ends its line.
ANSWERED = re.compile(r"^\? .*[?)] +\S", re.MULTILINE)


@pytest.fixture
def scripts(folder: Path) -> Path:
    """Two scripts, one of which leaves all open."""
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "finetune.py").write_text(HF_IN_CODE)
    return folder


def answers(person: Terminal) -> list[str]:
    """The answers that stand on the screen."""
    joined = re.sub(r"\n  (?=\S)", " ", person.text)
    return [line.rpartition(" ")[2] for line in ANSWERED.findall(joined)]


def to_the_end(person: Terminal) -> None:
    """Answer all questions but the last."""
    person.reply(SCRIPT, ENTER)
    person.reply(MODEL, "1b" + ENTER)
    person.reply(GOAL, ENTER)
    person.reply(LENGTH, "512" + ENTER)
    person.wait_for(LAST)
    person.settle()


def test_a_hugging_face_script_takes_five_questions_at_most(terminal: Open, scripts: Path) -> None:
    person = terminal("init", *A100)
    person.wait_for(SCRIPT)
    assert ["Machine", "Script", "Python"] == [
        line.split()[0] for line in person.lines if re.match(r"[A-Z]\w+  ", line)
    ]
    to_the_end(person)
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    assert 5 == len(answers(person)), person.text
    record = answers_of(scripts)
    said = {"machine": "4xA100-40GB", "model": "1b", "seq-len": 512}
    assert {"script": "train.py", **said} == record


@pytest.mark.usefixtures("scripts")
def test_a_consequence_follows_what_is_typed(terminal: Open) -> None:
    person = terminal("init", *A100)
    person.reply(SCRIPT, ENTER)
    person.reply(MODEL, "1b")
    person.wait_for("-> ZeRO-")
    person.child.send(BACKSPACE * 2 + "700b")
    person.wait_for("-> nothing fits")
    person.child.send(BACKSPACE * 4 + "1b" + ENTER)
    person.reply(GOAL, DOWN)
    person.wait_for(" s a step")
    # Who wants a micro-batch sees what each one leads to.
    person.child.send(DOWN + ENTER)
    person.reply("How many sequences", BACKSPACE + "4096")
    person.wait_for("nothing fits")


def test_going_back_reopens_each_question_with_its_answer_and_leaves_no_trace(
    terminal: Open, scripts: Path
) -> None:
    person = terminal("init", *A100)
    to_the_end(person)
    assert "Chosen" in person.text
    person.child.send(ESCAPE)
    person.wait_for("(512)")
    person.settle()
    assert "Chosen" not in person.text
    assert LAST not in person.text
    person.child.send(ESCAPE)
    person.reply("> recommended", ESCAPE)
    person.wait_for("> 1b")
    person.settle()
    assert GOAL not in person.text
    assert LENGTH not in person.text
    person.child.send("2b" + ENTER)
    person.reply(GOAL, ENTER)
    # What was answered before it was taken back is the default.
    person.reply("(512)", ENTER)
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    record = answers_of(scripts)
    assert ("2b", 512) == (record["model"], record["seq-len"])


@pytest.mark.usefixtures("scripts")
def test_the_first_question_goes_nowhere(terminal: Open) -> None:
    person = terminal("init", *A100)
    person.reply(SCRIPT, ESCAPE)
    person.reply(SCRIPT, ENTER)
    person.wait_for(MODEL)


def test_one_answer_can_be_changed_at_the_end(terminal: Open, scripts: Path) -> None:
    person = terminal("init", *A100)
    to_the_end(person)
    person.child.send("change" + ENTER)
    person.wait_for("goal: recommended")
    person.reply("Change which answer?", "model" + ENTER)
    person.reply("> 1b", "2b" + ENTER)
    person.reply(LAST, "change" + ENTER)
    person.reply("Change which answer?", "goal" + ENTER)
    person.reply(GOAL, "my own" + ENTER)
    person.reply("How many sequences", "2" + ENTER)
    # What the last question stands below is what was decided now.
    person.wait_for("Step     2 x 512")
    person.reply("> yes, write the files", ENTER)
    assert 0 == person.end()
    assert {
        "script": "train.py",
        "machine": "4xA100-40GB",
        "model": "2b",
        "seq-len": 512,
        "micro-batch": 2,
    } == answers_of(scripts)


def test_another_script_asks_what_it_leaves_open(terminal: Open, scripts: Path) -> None:
    person = terminal("init", *A100)
    to_the_end(person)
    person.child.send("change" + ENTER)
    person.reply("Change which answer?", "script" + ENTER)
    person.reply(SCRIPT, UP + ENTER)
    # It says its batch itself, so that the goal does not matter.
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    record = answers_of(scripts)
    assert "finetune.py" == record["script"]
    assert "objective" not in record


def test_more_is_told_and_every_strategy_shown_where_it_is_asked_for(
    terminal: Open, scripts: Path
) -> None:
    person = terminal("init", *A100)
    person.reply(SCRIPT, ENTER)
    person.reply(MODEL, "1b" + ENTER)
    person.reply(GOAL, "?")
    person.wait_for("keep your global batch")
    person.child.send(ENTER)
    person.reply(LENGTH, ENTER)
    person.wait_for(LAST)
    assert "verdict" not in person.text
    person.reply(LAST, "show every" + ENTER)
    person.wait_for("verdict")
    person.wait_for("> yes, write the files")
    person.reply(LAST, "stop" + ENTER)
    assert 0 == person.end()
    assert "nothing was written" in person.text
    assert {"train.py", "finetune.py"} == {path.name for path in scripts.iterdir()}


@pytest.mark.usefixtures("scripts")
def test_a_terminal_may_change_its_size_at_any_question(terminal: Open) -> None:
    person = terminal("init", *A100)
    for question, keys, columns in (
        (SCRIPT, ENTER, 50),
        (MODEL, "1b" + ENTER, 120),
        (GOAL, ENTER, 40),
        (LENGTH, ENTER, 80),
    ):
        person.wait_for(question)
        person.settle()
        person.resize(columns, 120)
        person.settle()
        person.child.send(keys)
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    assert "wrote ds_config_zero" in person.text


def test_fifty_columns_are_enough(scripts: Path) -> None:
    person = Terminal(scripts, ("init", *A100), {}, columns=50)
    to_the_end(person)
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    assert "Chosen" in person.text
    assert all(len(line) <= 50 for line in person.lines)


def test_a_dumb_terminal_gets_the_same_questions_as_plain_lines(
    terminal: Open, scripts: Path
) -> None:
    person = terminal("init", *A100, TERM="dumb")
    person.reply(SCRIPT, "2" + ENTER)
    person.reply(MODEL, "1b" + ENTER)
    person.reply(GOAL, "<" + ENTER)
    person.wait_for("1) 1b")
    person.reply(MODEL, "2b" + ENTER)
    person.reply(GOAL, ENTER)
    person.reply(LENGTH, "512" + ENTER)
    person.reply(LAST, ENTER)
    assert 0 == person.end()
    assert b"\x1b" not in person.received
    record = answers_of(scripts)
    said = {"machine": "4xA100-40GB", "model": "2b", "seq-len": 512}
    assert {"script": "train.py", **said} == record


def test_the_questions_of_a_launch_go_back_too(terminal: Open, scripts: Path) -> None:
    person = terminal("launch", "--accelerator", "cpu", "--gpus-per-node", "2", "train.py")
    person.reply(MODEL, "1b" + ENTER)
    person.reply(LENGTH, ESCAPE)
    person.reply("(1b)", "10m" + ENTER)
    person.reply(LENGTH, "64" + ENTER)
    person.reply("Launch?", "no" + ENTER)
    assert 0 == person.end()
    assert "10m, " in person.text
    assert {"train.py", "finetune.py"} == {path.name for path in scripts.iterdir()}


@pytest.mark.parametrize("words", [("--dry-run",), ("--json",)])
@pytest.mark.usefixtures("scripts")
def test_nothing_is_launched_that_is_not_written(here: Run, words: tuple[str, ...]) -> None:
    refused = here("init", "--yes", "--launch", *words, "--machine", "cpu", "--model", "10m")
    assert 2 == refused.code
    assert "`--launch`" in refused.stdout + refused.stderr


def test_a_plan_for_another_machine_is_not_launched_and_nothing_is_written(
    here: Run, scripts: Path
) -> None:
    refused = here("init", "--yes", "--launch", *A100, "--model", "1b")
    assert 2 == refused.code
    assert "a job starts on its own machine" in refused.problem
    assert {"train.py", "finetune.py"} == {path.name for path in scripts.iterdir()}


WORDS = ("train_hf.py", "--max_steps", "2")
CONVERSATION_CPU = (
    "--accelerator",
    "cpu",
    "--gpus-per-node",
    "2",
    "--model",
    "model",
    "--seq-len",
    "128",
)


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
    person = terminal("init", *CONVERSATION_CPU, *WORDS, **environ)
    person.reply("Launch now?", ENTER)
    assert 0 == person.end(240), person.text
    assert [0, 1] == sorted(report["rank"] for report in read_reports(hf / "reports"))
    launched = written(hf)
    assert launched
    for name in launched:
        (hf / name).unlink()
    assert 0 == here("init", "--yes", *CONVERSATION_CPU, *WORDS).code
    assert launched == written(hf)


@pytest.mark.deepspeed
@pytest.mark.slow
def test_yes_and_launch_need_no_person(hf: Path) -> None:
    words = ("init", "--yes", "--launch", *CONVERSATION_CPU, *WORDS)
    environ = rank_environ(hf / "reports")
    done = run([sys.executable, "-m", "zerowiz", *words], env=environ, cwd=hf)
    assert 0 == done.returncode, done.stderr[-3000:]
    assert [0, 1] == sorted(report["rank"] for report in read_reports(hf / "reports"))
    assert (hf / "zerowiz.toml").is_file()


def test_what_the_plan_has_can_be_changed_and_reaches_the_script(
    terminal: Open, here: Run, scripts: Path
) -> None:
    person = terminal("init", *A100, "--model", "1b", "--seq-len", "512", "train.py")
    person.reply(GOAL, ENTER)
    for row, answer in (("precision: fp32", "bf16"), ("global batch: 32", "64")):
        person.reply(LAST, "change" + ENTER)
        person.wait_for(row)
        person.reply("Change which answer?", row + ENTER)
        person.reply(f"? {CHANGED[answer]}", answer + ENTER)
    person.reply(LAST, "change" + ENTER)
    person.wait_for("precision: bf16")
    person.reply("Change which answer?", "micro" + ENTER)
    # Who says a micro-batch has another goal.
    person.reply(MICRO_BATCH, "4" + ENTER)
    person.reply(LAST, "change" + ENTER)
    person.wait_for("goal: my own micro-batch")
    person.wait_for("micro-batch: 4")
    person.reply("Change which answer?", ESCAPE)
    person.reply(LAST, ENTER)
    assert 0 == person.end(), person.text
    said = {"precision": "bf16", "global-batch": 64, "micro-batch": 4}
    assert said.items() <= answers_of(scripts).items()
    launched = here("launch", "--dry-run", "--json", *A100)
    assert 0 == launched.code, launched.stderr
    plan = json.loads(launched.stdout)
    step = {name: plan["workload"][name] for name in ("precision", "micro_batch")}
    assert ({"precision": "bf16", "micro_batch": 4}, 64) == (step, plan["workload"]["global_batch"])
    words = " ".join(plan["command"])
    assert "--bf16 True" in words
    assert "--gradient_accumulation_steps 4" in words


def test_what_the_script_fixes_is_not_offered_as_a_change(terminal: Open, scripts: Path) -> None:
    assert scripts.is_dir()
    words = ("--model", "1b", "--seq-len", "512", "--no-gradient-checkpointing")
    person = terminal("init", *A100, *words, "finetune.py")
    person.reply(LAST, "change" + ENTER)
    person.wait_for("tokens per sequence: 512")
    person.settle()
    for name in ("precision:", "micro-batch:", "attention:"):
        assert name not in person.text
