"""Whole conversations with the wizard, as a person has them at a terminal."""

import json
import os
import re
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
    HF_PARSER,
    UP,
    Open,
    Run,
    Terminal,
    answers_of,
)
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, read_reports, run

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
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "model", "--seq-len", "128")


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
    person = terminal("init", *CPU, *WORDS, **environ)
    person.reply("Launch now?", ENTER)
    assert 0 == person.end(240), person.text
    assert [0, 1] == sorted(report["rank"] for report in read_reports(hf / "reports"))
    launched = written(hf)
    assert launched
    for name in launched:
        (hf / name).unlink()
    assert 0 == here("init", "--yes", *CPU, *WORDS).code
    assert launched == written(hf)


@pytest.mark.deepspeed
@pytest.mark.slow
def test_yes_and_launch_need_no_person(hf: Path) -> None:
    words = ("init", "--yes", "--launch", *CPU, *WORDS)
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
