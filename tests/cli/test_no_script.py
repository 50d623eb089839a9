"""The wizard where there is no script: a template is copied, or a config is written alone."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.harness import CTRL_C, DOWN, ENTER, ESCAPE, HF_IN_CODE, Open, Run, Terminal, answers_of
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, read_reports

from zerowiz.core.strategies import STRATEGIES

MACHINE, SCRIPT, MODEL = "Plan for which machine?", "Which training script?", "Which model?"
LAUNCH = "Launch now?"
COPIED = {"train_hf.py", "corpus.txt", "model", "portable_checkpoint"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_template_lies_there_once_the_conversation_ends_in_files(
    terminal: Open, folder: Path
) -> None:
    person = terminal("init")
    person.finish(
        (MACHINE, ENTER),
        (SCRIPT, ENTER),
        (MODEL, ENTER),
        ("It runs on this machine, on 1 CPU rank", ""),
        (LAUNCH, "only write" + ENTER),
    )
    copied = "copied corpus.txt, model, portable_checkpoint, train_hf.py into this folder"
    assert copied in " ".join(person.text.split())
    for path in COPIED:
        for file in [TEMPLATES / path, *(TEMPLATES / path).rglob("*.*")]:
            if file.is_file() and file.suffix != ".pyc":
                assert file.read_bytes() == (folder / file.relative_to(TEMPLATES)).read_bytes()
    assert {"script": "train_hf.py", "model": "model"}.items() <= answers_of(folder).items()


@pytest.mark.parametrize(
    ("gpus", "precision"), [("4xA100-40GB", "bf16"), ("4xV100-SXM2-32GB", "fp16")]
)
def test_the_trainers_template_gets_the_precision_of_the_machine(
    terminal: Open, here: Run, folder: Path, gpus: str, precision: str
) -> None:
    person = terminal("init", "--machine", gpus, "--model", "350m", "--seq-len", "512")
    person.finish(
        (SCRIPT, ENTER),
        ("What is your goal?", ENTER),
        (f"> {precision}", ENTER),
        ("yes, write the files", ENTER),
    )
    assert precision == answers_of(folder)["precision"]
    (plan,) = folder.glob("*.plan.json")
    assert precision == json.loads(plan.read_text())["workload"]["precision"]
    launch = here("launch", "--dry-run", "--machine", gpus)
    assert f"--{precision}" in launch.stdout + launch.stderr


def test_a_template_is_taken_off_again_where_the_person_goes_back_or_leaves(
    terminal: Open, folder: Path
) -> None:
    person = terminal("init", "--machine", "cpu")
    person.reply(SCRIPT, ENTER)
    person.wait_for("> model")
    assert COPIED == names(folder)
    person.reply(MODEL, ESCAPE)
    # The menu points at what was answered before; the next template is another one.
    person.wait_for("> a template for the Trainer")
    person.settle()
    assert set() == names(folder)
    person.child.send(DOWN)
    person.reply("> a template without", ENTER)
    person.wait_for("> model")
    assert (COPIED - {"train_hf.py"}) | {"train_deepspeed.py"} == names(folder)
    # What the person edits meanwhile stays.
    (folder / "corpus.txt").write_text("mine\n")
    person.reply(MODEL, CTRL_C)
    assert 130 == person.end()
    assert "corpus.txt stays: it was edited" in person.text
    assert {"corpus.txt"} == names(folder)


def hang_up(person: Terminal) -> None:
    """Close the terminal, as a window that is closed does."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, person.child.fileno())
    os.close(nothing)


def terminate(person: Terminal) -> None:
    person.child.kill(signal.SIGTERM)


@pytest.mark.parametrize("end", [hang_up, terminate])
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_template_is_taken_off_again_where_the_terminal_is_closed(
    terminal: Open, folder: Path, term: str, end: Callable[[Terminal], None]
) -> None:
    person = terminal("init", "--machine", "cpu", TERM=term)
    person.reply(SCRIPT, ENTER)
    person.wait_for("> model" if term != "dumb" else "1) model")
    person.settle()
    assert COPIED == names(folder)
    end(person)
    until = time.monotonic() + 60
    while person.child.isalive():
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.05)
    assert set() == names(folder)


def test_no_file_of_a_person_is_overwritten_by_a_template(terminal: Open, folder: Path) -> None:
    (folder / "corpus.txt").write_text("mine\n")
    person = terminal("init", "--machine", "cpu", TERM="dumb")
    person.reply("answer (Enter: 1", "1" + ENTER)
    person.reply("`corpus.txt` already exists", "")
    assert {"corpus.txt"} == names(folder)
    # A path can be typed, and what is no script is asked again.
    (folder / "mine.py").write_text(HF_IN_CODE)
    person.finish(
        ("", "gone.py" + ENTER),
        ("there is no script `gone.py`", "mine.py" + ENTER),
        (MODEL, "10m" + ENTER),
        # It says its batch itself, and lacks nothing.
        ("How many tokens", "64" + ENTER),
        (LAUNCH, "stop" + ENTER),
    )
    assert {"corpus.txt", "mine.py"} == names(folder)


def test_a_config_alone_needs_no_script_and_asks_for_the_method(
    terminal: Open, here: Run, folder: Path
) -> None:
    person = terminal("init", "--machine", "2xA100-80GB-SXM")
    person.finish(
        (SCRIPT, "no script" + ENTER),
        (MODEL, "7b" + ENTER),
        ("Which parameters does it train?", "lora"),
        ("-> DDP fits", ENTER),
        ("How many sequences", "2" + ENTER),
        ("How many tokens", ENTER),
        ("gradient checkpointing?", "yes" + ENTER),
        ("writes ds_config_zero0.json and says how to go on", ""),
        ("The job is for 2 x NVIDIA A100-SXM4-80GB", ""),
        ("Write the files?", ENTER),
    )
    for field in ("deepspeed='ds_config_zero0.json'", "gradient_checkpointing=True", "bf16=True"):
        assert field in person.text
    assert {"ds_config_zero0.json", "ds_config_zero0.plan.json", ".zerowiz"} == names(folder)
    assert not (folder / "zerowiz.toml").exists()
    # The command in the plan file writes the same.
    written = (folder / "ds_config_zero0.json").read_bytes()
    plan = json.loads((folder / "ds_config_zero0.plan.json").read_text())
    (folder / "ds_config_zero0.json").unlink()
    tool, *words = plan["reproduce"]["argv"]
    assert ("zerowiz", "--no-script") == (tool, words[-1])
    assert 0 == here(*words).code
    assert written == (folder / "ds_config_zero0.json").read_bytes()


@pytest.mark.parametrize("words", [("--launch",), ("--slurm",), ("train.py",)])
def test_what_needs_a_script_conflicts_with_having_none(here: Run, words: tuple[str, ...]) -> None:
    refused = here("init", "--yes", "--machine", "cpu", "--model", "10m", "--no-script", *words)
    assert 2 == refused.code
    assert f"`{words[0]}` conflicts with `--no-script`" in refused.problem


def test_a_folder_that_is_in_the_way_costs_no_answer(terminal: Open, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    # As a full disk, only that root cannot write there either.
    (folder / ".zerowiz").write_text("no folder\n")
    person = terminal("init", "--machine", "cpu", "--model", "10m")
    person.finish(
        ("How many tokens", "64" + ENTER),
        (LAUNCH, "only write" + ENTER),
        ("cannot write", ""),
        ("> try again", ENTER),
        (LAUNCH, "only write" + ENTER),
        # What changed nothing is not the default any more.
        ("> use another folder", ENTER),
        # Esc leads back to what can be done.
        ("Which folder?", ESCAPE),
        ("What do you want to do?\n", "use another" + ENTER),
        ("Which folder?", "../other" + ENTER),
    )
    other = folder.parent / "other"
    written = {"ds_config_zero0.json", "ds_config_zero0.plan.json", "zerowiz.toml"}
    assert {*written, ".zerowiz"} == names(other)
    assert {"model": "10m", "seq-len": 64}.items() <= answers_of(other).items()


@pytest.mark.deepspeed
@pytest.mark.slow
def test_enter_alone_leads_from_an_empty_folder_to_a_job_that_trains(
    terminal: Open, folder: Path
) -> None:
    environ = rank_environ(folder.parent / "reports")
    environ["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    # The environment names the accelerator.
    person = terminal("init", **environ)
    person.finish((SCRIPT, ENTER), (MODEL, ENTER), (LAUNCH, ENTER), patience_seconds=240)
    assert "step 30  loss" in person.text
    assert [0] == [report["rank"] for report in read_reports(folder.parent / "reports")]


# What `plan --objective` and `plan --limits` print for people.

JOB = ("plan", "--machine", "2xH200", "--model", "1b", "--global-batch", "64")


NAMES = {strategy.name: strategy.short_words for strategy in STRATEGIES}


def split_of(step: dict[str, object]) -> str:
    return f"{step['micro_batch']} x {step['accumulation_steps']}"


def table_below(text: str, words: str) -> list[list[str]]:
    """The rows of the table that follows a line with these words."""
    after = text[text.index(words) :].splitlines()
    head = next(place for place, line in enumerate(after) if line.startswith("strategy"))
    rows = []
    for line in after[head + 1 :]:
        if not line or line.startswith(("Why", "*")):
            break
        rows.append(re.split(r" {2,}", line.strip()))
    return rows


def test_the_front_and_the_reason_of_the_choice_are_shown(here: Run) -> None:
    assert "candidates compared" not in here(*JOB).stdout
    text = here(*JOB, "--objective", "fastest").stdout
    content = json.loads(here(*JOB, "--objective", "fastest", "--json").stdout)
    assert f"{content['candidates']['count']} candidates compared" in text
    rows = table_below(text, "candidates compared")
    chosen = [row for row in rows if row[-1] == "chosen"]
    choice = content["choice"]
    assert 1 == len(chosen)
    assert [NAMES[choice["strategy"]], split_of(choice)] == chosen[0][:2]
    assert re.search(r"^Why {6}\S", text, re.MULTILINE)
    front = content["candidates"]["pareto"]
    assert content["choice"] in front
    assert [[NAMES[each["strategy"]], split_of(each)] for each in front] == [
        row[:2] for row in rows
    ]
    assert len({tuple(row[:5]) for row in rows}) == len(rows)
    assert choice["step_seconds"] > front[0]["step_seconds"]
    reason = "its step is predicted to be within 5 % of the fastest that fits"
    assert reason in " ".join(text.split())
    assert [reason] == content["reasons"]


def test_the_smallest_says_what_it_takes(here: Run) -> None:
    text = here(*JOB, "--objective", "smallest").stdout
    rows = table_below(text, "candidates compared")
    assert len({tuple(row[:5]) for row in rows}) == len(rows)
    assert "chosen" in rows[-1]
    assert re.search(
        r"^Why {6}no candidate needs less than [\d.]+ GiB per device", text, re.MULTILINE
    )


ON_CPU = ("--machine", "cpu", "--model", "10m")
TIGHT = ("--machine", "8xH100-80GB", "--model", "1b", "--memory-budget", "9GiB")
ON_8 = ("--machine", "8xH100-80GB-SXM", "--model", "7b", "--gradient-checkpointing")
ON_4 = ("--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
OF_STAGE_2 = ("--machine", "8xH100-80GB-SXM", "--model", "8b", "--micro-batch", "3", "--stage", "2")
ON_ONE = ("--machine", "1xRTX4090", "--model", "7b", "--method", "qlora", "--global-batch", "32")
ON_ANY_HOST = (
    "--machine",
    "1xH200",
    "--model",
    "gpt2-medium",
    "--seq-len",
    "512",
    "--global-batch",
    "16",
)
NO_CANDIDATE = "no candidate is certain to fit"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (ON_CPU, "has no speeds for a CPU, so the flowchart chooses"),
        (TIGHT, f"{NO_CANDIDATE}, so the flowchart chooses"),
        # Where a stage was asked for, no flowchart is said to choose.
        ((*OF_STAGE_2, "--no-gradient-checkpointing"), f"Search {NO_CANDIDATE} next .config for"),
        (("--machine", "RTX4090", "--model", "70b"), rf"Chosen none: .*Search {NO_CANDIDATE}$"),
        (ON_8, r"Why it is the fastest of \d+ candidates that fit; the next, ZeRO-2, "),
        (ON_4, "Why it is the only candidate that is certain to fit next .config for"),
        (ON_ONE, "Why ZeRO-1 2 x 16 is as fast: within 5 % zerowiz takes the simplest"),
        (
            ON_ANY_HOST,
            r"Chosen DDP: zerowiz does not know how fast your host is, and this choice loses",
        ),
        (ON_ANY_HOST, r"Time 0.\d+ s per optimizer step expected, .*, 0.\d+ on a slow host;"),
        (
            ON_ANY_HOST,
            r"Why ZeRO-1 16 x 1 is .* % faster, but takes 0.1\d* s on a slow host, where the",
        ),
    ],
)
def test_the_fastest_says_why_it_was_chosen(here: Run, words: tuple[str, ...], shown: str) -> None:
    text = here("plan", "--verbose", *words, "--objective", "fastest").stdout
    assert re.search(shown, " ".join(text.split()))


@pytest.mark.parametrize(("model", "by_positions"), [("7b", False), ("gpt2", True)])
def test_the_limits_of_each_strategy_are_a_table(
    here: Run, model: str, *, by_positions: bool
) -> None:
    words = ("plan", "--machine", "4xA100-40GB", "--model", model, "--limits")
    text, content = here(*words).stdout, json.loads(here(*words, "--json").stdout)
    assert by_positions is any(limit["by_positions"] for limit in content["limits"])
    headings = ["strategy", "batch", "batch (ckpt)", "tokens", "tokens (ckpt)"]
    assert headings in [re.split(" {2,}", line) for line in text.splitlines()]
    rows = {row[0]: row[1:] for row in table_below(text, "The largest micro-batch")}
    for limit in content["limits"]:
        recomputes = limit["gradient_checkpointing"]
        batch, tokens = rows[NAMES[limit["strategy"]]][recomputes::2]
        assert str(limit["micro_batch"] or "-") == batch
        assert str(limit["sequence_tokens"] or "-") == tokens.removesuffix("*")
        assert limit["by_positions"] is tokens.endswith("*")
