"""An error is one line, hints after an empty one, the cause's exit code, and never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.harness import (
    CONFIG_ARGUMENTS,
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    HF_PARSER,
    UNREACHABLE,
    UP,
    Open,
    Run,
    Terminal,
    answers_of,
    clean_environ,
)
from paths import ROOT
from recorded import Replay

# Nothing that refuses a job ends the wizard: the person says how it goes on, and keeps the
# answers.

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
SCRIPT, MODEL, LENGTH = "Which training script?", "Which model?", "How many tokens per sequence?"
REFUSED, CHANGE = "What do you want to do?", "Change which answer?"
NO_CPU = HF_IN_CODE.replace(", use_cpu=True", "")
WHY = "cannot train on CPU ranks: it does not set `use_cpu`"
STOPS = pytest.mark.parametrize("keys", [CTRL_C, CTRL_D], ids=["Ctrl-C", "EOF"])


@pytest.fixture
def script(folder: Path) -> Path:
    """A script that lacks what CPU ranks need."""
    path = folder / "train.py"
    path.write_text(NO_CPU)
    return path


def to_the_refusal(person: Terminal) -> None:
    """Answer all questions."""
    person.reply(MODEL, "10m" + ENTER)
    person.reply(LENGTH, "64" + ENTER)
    person.wait_for(REFUSED)
    person.settle()
    assert WHY in " ".join(person.text.split())


def recorded(folder: Path) -> dict[str, object]:
    """What was written of the job."""
    record = answers_of(folder)
    return {"script": record["script"], "model": record["model"], "length": record["seq-len"]}


def test_a_script_is_read_again_once_it_was_edited(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    assert "hint: " in person.text
    # As every error, and every hint, is coloured.
    for colour, word in ((b"31", b"error:"), (b"32", b"hint:")):
        assert b"\x1b[" + colour + b"m" + word + b"\x1b[0m" in person.received
    # Nothing was edited yet.
    person.reply(REFUSED, ENTER)
    person.wait_for(f"{REFUSED} try again")
    # What changed nothing is not the default any more.
    person.wait_for("> change something")
    script.write_text(HF_IN_CODE)
    person.reply("> change something", UP + ENTER)
    person.reply("Launch now?", "only write" + ENTER)
    assert 0 == person.end()
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


def test_a_script_that_cannot_be_read_any_more_loses_no_answer(
    terminal: Open, script: Path
) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    script.unlink()
    person.reply("> try again", ENTER)
    person.wait_for("there is no script")
    # What cannot be read has no answers that could be listed.
    assert "change something" not in person.text.rpartition("there is no script")[2]
    script.write_text(HF_IN_CODE)
    person.reply("> try again", ENTER)
    person.reply("Launch now?", "only write" + ENTER)
    assert 0 == person.end()
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


NEEDING = """\
import argparse
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--data_path", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int, default=2)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
deepspeed.initialize(args=args, model=build(), training_data=load(args, batch_size=args.batch))
"""


def test_the_arguments_that_a_script_requires_can_be_typed(terminal: Open, script: Path) -> None:
    script.write_text(NEEDING)
    tiny = ("--model", "10m", "--seq-len", "64", "--micro-batch", "2")
    person = terminal("init", *CPU, *tiny, "--no-gradient-checkpointing")
    person.reply("Launch now?", ENTER)
    person.reply("> type the missing arguments", ENTER)
    person.reply("Which arguments does train.py get?", "--data_path 'my texts'" + ENTER)
    # The question stays until nothing is missing.
    person.reply("! train.py also requires `--out`", "--out 'o" + ENTER)
    person.reply("! not words of a shell", "--data_path 'my texts' --out o" + ENTER)
    person.reply("> yes, launch it", "only write" + ENTER)
    assert 0 == person.end()
    assert ["--data_path", "my texts", "--out", "o"] == answers_of(script.parent)["script-args"]


def test_who_types_no_arguments_keeps_the_plan(terminal: Open, script: Path) -> None:
    script.write_text(NEEDING)
    tiny = ("--model", "10m", "--seq-len", "64", "--micro-batch", "2")
    person = terminal("init", *CPU, *tiny, "--no-gradient-checkpointing")
    person.reply("Launch now?", ENTER)
    person.reply("> type the missing arguments", ENTER)
    person.reply("Which arguments does train.py get?", ESCAPE)
    person.reply("> yes, launch it", ENTER)
    # What led nowhere is not the default any more.
    person.reply("> try again", "only write" + ENTER)
    assert 0 == person.end()
    assert "script-args" not in answers_of(script.parent)


def test_another_script_keeps_the_other_answers(terminal: Open, script: Path) -> None:
    (script.parent / "other.py").write_text(HF_IN_CODE)
    (script.parent / "raw.py").write_text(UNREACHABLE)
    person = terminal("init", *CPU, "train.py")
    to_the_refusal(person)
    person.reply(REFUSED, "another" + ENTER)
    # One that no config reaches is refused where it is named.
    person.reply(SCRIPT, "raw.py" + ENTER)
    person.reply("! ", "other.py" + ENTER)
    person.reply("Launch now?", "only write" + ENTER)
    assert 0 == person.end()
    assert {"script": "other.py", "model": "10m", "length": 64} == recorded(script.parent)


LONG = """\
from dataclasses import dataclass
from transformers import AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Arguments(TrainingArguments):
    use_cpu: bool = True
    model_max_length: int = 1024

(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
tokenizer = AutoTokenizer.from_pretrained("bert", model_max_length=args.model_max_length)
Trainer(model=None, args=args).train()
"""
SHORT = (
    '{"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64,'
    ' "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,'
    ' "vocab_size": 512, "max_position_embeddings": 256}'
)


def test_a_default_of_the_script_that_is_refused_can_be_changed(
    terminal: Open, folder: Path
) -> None:
    """Nobody was asked for the length: the script decides it, and the model has fewer positions."""
    (folder / "train.py").write_text(LONG)
    (folder / "short").mkdir()
    (folder / "short" / "config.json").write_text(SHORT)
    person = terminal("init", *CPU, "--method", "full", "--model", "short")
    person.reply(REFUSED, "change" + ENTER)
    shown = " ".join(person.text.split())
    assert "the default of `--model_max_length` in train.py line 7 says 1024" in shown
    assert "`short` has only 256 learned positions" in shown
    assert "hint: put `--model_max_length 256` after train.py" in shown
    person.reply(CHANGE, "tokens per sequence: 1024" + ENTER)
    person.reply(LENGTH, "\x15" + "256" + ENTER)
    person.reply("Launch now?", "only write" + ENTER)
    assert 0 == person.end()
    assert 256 == answers_of(folder)["seq-len"]


@pytest.mark.usefixtures("script")
def test_the_wizard_starts_at_a_machine_that_the_script_trains_on(terminal: Open) -> None:
    person = terminal("init", "--model", "10m", "--seq-len", "64")
    person.wait_for("> 8xH100-80GB-SXM")
    person.reply("-> DDP fits", UP)
    person.wait_for(f"-> train.py {WHY}")


def test_an_answer_can_be_changed_after_a_refusal(terminal: Open, script: Path) -> None:
    person = terminal("init", "--seq-len", "64")
    person.reply("Plan for which machine?", "cpu" + ENTER)
    person.reply(MODEL, "10m" + ENTER)
    person.reply(REFUSED, "change" + ENTER)
    person.reply(CHANGE, "machine" + ENTER)
    person.reply("Plan for which machine?", "\x15" + "4xA100-40GB" + ENTER)
    person.reply("yes, write the files", ENTER)
    assert 0 == person.end()
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


@pytest.mark.usefixtures("script")
def test_esc_goes_back_from_a_refusal_to_the_last_answer(terminal: Open) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    person.reply(REFUSED, ESCAPE)
    person.wait_for("(64)")
    person.settle()
    shown = " ".join(person.text.split())
    assert REFUSED not in shown
    # Of the refusal is left what the answer leads to.
    assert f"error: train.py {WHY}" not in shown
    assert f"-> train.py {WHY}" in shown


def test_stopping_at_a_refusal_is_no_error_and_writes_nothing(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    person.reply(REFUSED, "stop" + ENTER)
    assert 0 == person.end()
    assert "nothing was written" in person.text
    assert ["train.py"] == [path.name for path in script.parent.iterdir()]


def test_a_dumb_terminal_goes_on_from_a_refusal_too(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU, TERM="dumb")
    to_the_refusal(person)
    script.write_text(HF_IN_CODE)
    person.reply(REFUSED, ENTER)
    person.reply("Launch now?", "2" + ENTER)
    assert 0 == person.end()
    assert b"\x1b" not in person.received
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


def test_what_is_refused_before_any_question_is_no_end_either(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU, "--model", "10m", "--seq-len", "64")
    person.wait_for(REFUSED)
    person.settle()
    script.write_text(HF_IN_CODE)
    person.reply("> try again", ENTER)
    person.reply("Launch now?", "only write" + ENTER)
    assert 0 == person.end()
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


def test_a_script_that_was_found_and_cannot_be_used_is_no_end(terminal: Open, script: Path) -> None:
    script.write_text(UNREACHABLE)
    person = terminal("init", *CPU)
    person.reply(REFUSED, "another" + ENTER)
    person.reply(SCRIPT, "a template for" + ENTER)
    person.reply(MODEL, ENTER)
    person.reply("Launch now?", "stop" + ENTER)
    assert 0 == person.end()
    assert ["train.py"] == [path.name for path in script.parent.iterdir()]
    typed = terminal("init", *CPU, "gone.py")
    assert 5 == typed.end()


def to_the_launch(person: Terminal) -> None:
    """Answer all questions of a job that can be launched."""
    person.reply(MODEL, "10m" + ENTER)
    person.reply(LENGTH, "64" + ENTER)
    person.wait_for("yes, launch it")
    person.settle()


def test_a_launch_that_is_refused_leaves_the_files_and_the_way_back(
    terminal: Open, script: Path
) -> None:
    script.write_text(HF_IN_CODE)
    person = terminal("init", *CPU)
    to_the_launch(person)
    # What the launch needs goes away while the question is open.
    script.unlink()
    person.child.send(ENTER)
    person.reply("> try again", ESCAPE)
    person.reply("> no, only write the files", "launch it" + ENTER)
    person.reply("> try again", "only write" + ENTER)
    assert 0 == person.end()
    assert {"script": "train.py", "model": "10m", "length": 64} == recorded(script.parent)


def test_what_the_preflight_of_a_launch_refuses_can_be_mended(terminal: Open, script: Path) -> None:
    script.write_text(f"import no_such_library\n{HF_IN_CODE}")
    person = terminal("init", *CPU)
    to_the_launch(person)
    person.child.send(ENTER)
    person.wait_for("> try again")
    assert "no_such_library" in person.text
    assert not (script.parent / "ds_config_zero0.json").exists()
    script.write_text(HF_IN_CODE)
    person.reply("> try again", ENTER)
    person.reply("> yes, launch it", "stop" + ENTER)
    assert 0 == person.end()
    assert ["train.py"] == [path.name for path in script.parent.iterdir()]


def test_a_script_that_was_edited_before_the_launch_is_planned_again(
    terminal: Open, script: Path
) -> None:
    script.write_text(HF_IN_CODE)
    person = terminal("init", *CPU)
    to_the_launch(person)
    script.write_text(HF_IN_CODE.replace("batch_size=4", "batch_size=2"))
    person.child.send(ENTER)
    person.wait_for("was edited meanwhile")
    person.wait_for("Step     2 x 64")
    person.reply("> yes, launch it", "stop" + ENTER)
    assert 0 == person.end()
    assert ["train.py"] == [path.name for path in script.parent.iterdir()]


@STOPS
def test_ctrl_c_at_a_refusal_writes_nothing(terminal: Open, script: Path, keys: str) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    assert_stops(person, REFUSED, keys, script.parent, {"train.py": NO_CPU})


def assert_stops(
    person: Terminal, question: str, keys: str, folder: Path, files: dict[str, str]
) -> None:
    """The key at this question ends it, and the folder is as it was."""
    person.reply(question, keys)
    assert 130 == person.end()
    assert "interrupted; nothing was written" in person.text
    assert "Traceback" not in person.text
    assert files == {path.name: path.read_text() for path in folder.iterdir()}


@STOPS
def test_ctrl_c_at_the_script_writes_nothing(terminal: Open, script: Path, keys: str) -> None:
    (script.parent / "other.py").write_text(HF_IN_CODE)
    person = terminal("init", *CPU)
    both = {"train.py": NO_CPU, "other.py": HF_IN_CODE}
    assert_stops(person, SCRIPT, keys, script.parent, both)


@STOPS
def test_ctrl_c_at_the_machine_writes_nothing(terminal: Open, script: Path, keys: str) -> None:
    person = terminal("init")
    assert_stops(person, "Plan for which machine?", keys, script.parent, {"train.py": NO_CPU})


# It reads whether it trains adapters from a word that nobody typed.
ADAPTERS = """\
from dataclasses import dataclass

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Own:
    use_lora: bool = False

own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("model")
if own.use_lora:
    model = get_peft_model(model, LoraConfig())
Trainer(model=model, args=args).train()
"""


@STOPS
def test_ctrl_c_at_the_method_writes_nothing(terminal: Open, script: Path, keys: str) -> None:
    script.write_text(ADAPTERS)
    person = terminal("init", "--machine", "4xA100-40GB", "--model", "1b")
    question = "Which parameters does it train?"
    assert_stops(person, question, keys, script.parent, {"train.py": ADAPTERS})


@STOPS
def test_ctrl_c_at_what_to_change_writes_nothing(terminal: Open, script: Path, keys: str) -> None:
    person = terminal("init", *CPU)
    to_the_refusal(person)
    person.reply(REFUSED, "change" + ENTER)
    assert_stops(person, CHANGE, keys, script.parent, {"train.py": NO_CPU})


@pytest.mark.parametrize("keys", [(CTRL_C,), (ENTER, CTRL_D)], ids=["overwrite", "folder"])
def test_leaving_at_what_would_be_lost_writes_nothing(
    terminal: Open, script: Path, keys: tuple[str, ...]
) -> None:
    script.write_text(HF_IN_CODE)
    (script.parent / "ds_config_zero0.json").write_text("{}\n")
    person = terminal("init", *CPU, "--model", "10m", "--seq-len", "64")
    person.reply("Launch now?", "only write" + ENTER)
    *before, last = keys
    for key in before:
        person.reply("> no, use another folder", key)
    files = {"train.py": HF_IN_CODE, "ds_config_zero0.json": "{}\n"}
    question = "Which folder?" if before else "Overwrite it?"
    assert_stops(person, question, last, script.parent, files)


ERRORS_CPU = ("--machine", "cpu", "--model", "10m")


@pytest.fixture
def scripts(folder: Path) -> Path:
    """A folder with one script of each kind that matters here."""
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "in_code.py").write_text(HF_IN_CODE)
    (folder / "unreachable.py").write_text(UNREACHABLE)
    (folder / "shell.py").write_text("set -e\npython train.py\n")
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": ')
    (folder / "list.json").write_text("[]")
    (folder / "hosts").write_text("node1 slots=four\n")
    return folder


@pytest.mark.parametrize(
    ("words", "code", "problem", "hint"),
    [
        (("plan", "--bogus"), 2, "no such option: --bogus", "zerowiz plan --help"),
        (("plan", "--modle", "7b"), 2, "no such option: --modle", "did you mean `--model`?"),
        (
            ("plan", "--gradient_checkpointing"),
            2,
            "no such option: --gradient_checkpointing",
            "did you mean `--gradient-checkpointing`?",
        ),
        (
            ("plan", "--seq-len", "128k"),
            2,
            "'128k' is not a valid int",
            "--help",
        ),
        (("check", "--list"), 2, "no such option: --list", "did you mean `--explain=all`?"),
        (("doctor", "--rules"), 2, "no such option: --rules", "did you mean `--explain=all`?"),
        (("plan", "--list"), 2, "no such option: --list", "did you mean `--limits`?"),
        (
            ("plan", "--micro-bach"),
            2,
            "no such option: --micro-bach",
            "did you mean `--micro-batch`?",
        ),
        (
            ("launch", "--my opt"),
            2,
            "no such option: --my opt",
            "`zerowiz launch train.py '--my opt'`",
        ),
        (
            ("launch", "--resume"),
            2,
            "no such option: --resume",
            "`zerowiz launch train.py --resume`",
        ),
        (
            ("plan", *ERRORS_CPU[2:], "--hostfile", "no"),
            2,
            "hostfile `no` cannot be read",
            "`host slots=N`",
        ),
        (("machine", *ERRORS_CPU[:2], "--save", "."), 1, "cannot write `.`", "`--save FILE`"),
        (("plan", *ERRORS_CPU, "--html", "."), 1, "cannot write `.`", "`--html FILE`"),
        (
            ("plan", *ERRORS_CPU, "--svg", "list.json/plan.svg"),
            1,
            "cannot write `list",
            "`--svg FILE`",
        ),
        (("plan", "--bf16"), 2, "no such option: --bf16", "`--precision=bf16`"),
        (("plan", "--max_length", "9"), 2, "no such option: --max_length", "`--seq-len`"),
        (("plan", *ERRORS_CPU, "llama-3.1-8b"), 5, "there is no script", "`--model llama-3.1-8b`"),
        (
            ("launch", "--dry-run", "--machine", "2x8xH100", "--model", "7b", "train.py"),
            2,
            "`--machine 2x8xH100`: zerowiz does not know the hosts of these 2 nodes",
            "zerowiz init --slurm",
        ),
        (("plna",), 2, "no such command 'plna'", "zerowiz --help"),
        (("plan", "--model"), 2, "option '--model' requires an argument", "zerowiz plan --help"),
        (("plan", "--stage", "7"), 2, "'--stage': '7' is not one of 'auto', '0'", "--help"),
        (("plan", "--offload", "gpu"), 2, "'--offload': 'gpu' is not one of 'auto'", "--help"),
        (
            ("plan", "--vllm-memory-fraction", "x"),
            2,
            "'x' is not a valid float",
            "",
        ),
        (("plan", *ERRORS_CPU, "--seq-len", "0"), 2, "`--seq-len 0`", ""),
        (("measure", "--steps", "0"), 2, "'--steps': 0 is not in the range x>=1", "--help"),
        (("plan", *ERRORS_CPU, "--nodes", "-1"), 2, "`--nodes -1`", ""),
        (("plan", "--machine", "cpu", "--gpus-per-node", "0"), 2, "`--gpus-per-node 0`", ""),
        (("plan", *ERRORS_CPU, "nope.py"), 5, "there is no script `nope.py`", ""),
        (("machine", "train.py"), 2, "unexpected extra argument", "zerowiz machine --help"),
        (("plan", "--machine", "4xA100-60G", "--model", "7b"), 2, "`A100-60G`", "`4xA100-40GB`"),
        (("plan", "--machine", "nope.json", "--model", "7b"), 2, "`nope.json`", "machine --save"),
        (("plan", "--machine", "list.json", "--model", "7b"), 2, "`list.json`", ""),
        (("plan", "--machine", "a" * 300, "--model", "7b"), 2, "file name too long", ""),
        (("report", "train.py"), 2, "`train.py` is a file", "`zerowiz report .`"),
        (("plan", *ERRORS_CPU, "--memory-budget", "lots"), 2, "lots", ""),
        (("plan", *ERRORS_CPU, "--host-memory", "512"), 2, "512", "1TiB"),
        (("plan", *ERRORS_CPU, "--hostfile", "hosts"), 2, "line 1", "host slots=N"),
        (("plan", *ERRORS_CPU, "--hostfile", "none"), 2, "`none`", ""),
        (("plan", *ERRORS_CPU, "--config", "none.json"), 2, "`none.json` does not exist", ""),
        (("plan", *ERRORS_CPU, "--stage", "1", "--offload", "all"), 2, "`--stage 1`", "stage 3"),
        (("plan", "--machine", "cpu"), 3, "an answer is missing", "`--model`"),
        (("launch", "--machine", "cpu", "--dry-run"), 3, "an answer is missing", "`--model`"),
        (("init", "--yes", "--machine", "cpu"), 3, "an answer is missing", "`--model`"),
        (("plan", "--machine", "cpu", "--model", "broken"), 2, "broken", "download the file again"),
        (("plan", "--machine", "cpu", "--model", "empty"), 2, "empty", ""),
        (("plan", "--machine", "1xRTX4090", "--model", "70b"), 4, "nothing fits 70b", "--m"),
        (("launch", *ERRORS_CPU, "nope.py"), 5, "there is no script `nope.py`", ""),
        (("launch", *ERRORS_CPU, "trian.py"), 5, "`trian.py`", "did you mean `train.py`?"),
        (("init", *ERRORS_CPU, "--yes", "trian.py"), 5, "`trian.py`", "did you mean `train.py`?"),
        (("launch", *ERRORS_CPU, "empty"), 5, "`empty` is a folder", ""),
        (("launch", *ERRORS_CPU, "shell.py"), 1, "shell.py line 2 is not Python", ""),
        (("launch", *ERRORS_CPU, "--dry-run", "unreachable.py"), 5, "unreachable.py", ""),
        (
            ("init", *ERRORS_CPU, "--yes", "--micro-batch", "1", "unreachable.py"),
            5,
            "unreachable.py",
            "",
        ),
        (("launch", *ERRORS_CPU, "--json", "train.py"), 2, "`--dry-run`", "plan --json"),
        (
            ("launch", "--machine", "4xA100-40GB", "--model", "1b", "train.py"),
            2,
            "another",
            "dry-run",
        ),
        (
            ("launch", *ERRORS_CPU, "--micro-batch", "2", "in_code.py"),
            2,
            "`--micro-batch 2`",
            "or remove",
        ),
        (
            ("launch", *ERRORS_CPU, "--nodes", "2", "--dry-run", "train.py"),
            2,
            "zerowiz does not know the hosts of these",
            "--hostfile",
        ),
        (("init", *ERRORS_CPU, "--output-dir", "hosts/below"), 1, "`hosts/below/", "--output-dir"),
        (("init", *ERRORS_CPU, "--output-dir", "/proc/none"), 1, "`/proc/none/", "--output-dir"),
        (("machine", "--machine", "cpu", "--save", "hosts/m.json"), 2, "`hosts/m.json`", ""),
    ],
)
def test_an_error_says_what_and_what_next(
    here: Run, scripts: Path, words: tuple[str, ...], code: int, problem: str, hint: str
) -> None:
    before = sorted(path.name for path in scripts.iterdir())
    result = here(*words)
    assert problem in result.problem
    assert hint in result.hints
    assert code == result.code
    assert "" == result.stdout or "plan" in words or "--json" in words
    assert before == sorted(path.name for path in scripts.iterdir())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("plan", *ERRORS_CPU, ""), "SCRIPT"),
        (("plan", "--machine", "cpu", "--model", ""), "`--model`"),
        (("plan", *ERRORS_CPU, "--config="), "`--config`"),
        (("launch", *ERRORS_CPU, "--output-dir", "", "train.py"), "`--output-dir`"),
        (("check", "list.json", ""), "FILE"),
        (("template", ""), "FOLDER"),
        (("machine", *ERRORS_CPU[:2], "--save", ""), "`--save`"),
    ],
)
def test_an_empty_word_is_not_taken_for_this_folder(
    here: Run, scripts: Path, words: tuple[str, ...], named: str
) -> None:
    before = sorted(path.name for path in scripts.iterdir())
    result = here(*words)
    assert (2, f"{named} is empty") == (result.code, result.problem)
    assert before == sorted(path.name for path in scripts.iterdir())


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (("plan", "--json", "--bogus"), "usage", 2),
        (("plan", "--json", *ERRORS_CPU, "--seq-len", "0"), "usage", 2),
        (("plan", "--json", *ERRORS_CPU, "nope.py"), "preflight", 5),
        (("plan", "--json", "--machine", "nope.json", "--model", "7b"), "usage", 2),
        (("plan", "--json", "--machine", "cpu", "--model", "broken"), "usage", 2),
        (("launch", "--dry-run", "--json", *ERRORS_CPU, "unreachable.py"), "preflight", 5),
        (("init", "--json", "--machine", "cpu", "train.py"), "answer_needed", 3),
        (("doctor", "--json", *ERRORS_CPU, "--seq-len", "0", "train.py"), "usage", 2),
        (("measure", "--json", *ERRORS_CPU, "--steps", "-1"), "usage", 2),
        (("machine", "--json", "--machine", "nope.json"), "usage", 2),
        (("check", "--json"), "usage", 2),
        (("report", "--json"), "failed", 1),
    ],
)
@pytest.mark.usefixtures("scripts")
def test_with_json_an_error_is_the_object_on_stdout(
    here: Run, words: tuple[str, ...], kind: str, code: int
) -> None:
    result = here(*words)
    found = json.loads(result.stdout)
    assert {"schema_version": 1, "error": found["error"]} == found
    assert (code, kind, code) == (result.code, found["error"]["kind"], found["error"]["exit_code"])
    assert result.problem == found["error"]["message"]
    assert [f"hint: {hint}" for hint in found["error"]["hints"]] == [
        line for line in result.stderr.splitlines() if line.startswith("hint: ")
    ]


def test_with_json_an_error_of_the_system_is_the_object_too(process: Run) -> None:
    result = process("check", "--json", "a" * 300)
    message = json.loads(result.stdout)["error"]["message"]
    assert (2, result.problem) == (result.code, message)
    assert message.endswith("cannot be used: file name too long")


def test_a_plan_in_which_nothing_fits_stays_the_only_object(here: Run) -> None:
    result = here("plan", "--json", "--machine", "1xA100-40GB", "--model", "70b", "--yes")
    assert 4 == result.code
    assert "strategies" in json.loads(result.stdout)


@pytest.mark.usefixtures("scripts")
def test_an_error_of_the_script_s_own_json_is_not_in_json(here: Run) -> None:
    result = here("launch", *ERRORS_CPU, "unreachable.py", "--json")
    assert (5, "") == (result.code, result.stdout)


@pytest.mark.usefixtures("scripts")
def test_a_disagreement_names_both_sides(here: Run) -> None:
    result = here("launch", *ERRORS_CPU, "--micro-batch", "2", "in_code.py")
    assert (
        "`--micro-batch 2` conflicts with the script:"
        " `TrainingArguments(per_device_train_batch_size=4)` in in_code.py line 3 says 4"
    ) == result.problem


@pytest.mark.parametrize("stage", [2, 3])
def test_a_config_with_a_number_of_any_length_is_planned(
    here: Run, scripts: Path, stage: int
) -> None:
    zero = {"stage": stage, "reduce_bucket_size": 10**400, "stage3_max_reuse_distance": 10**400}
    own = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    (scripts / "own.json").write_text(json.dumps(own))
    result = here("plan", "--machine", "4xA100-80GB", "--model", "7b", "--config", "own.json")
    assert 4 == result.code
    assert f"ZeRO-{stage} does not fit 7b" in result.problem


def test_a_script_that_disagrees_with_a_config_is_named(here: Run, scripts: Path) -> None:
    own = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    (scripts / "own.json").write_text(own)
    loop = CONFIG_ARGUMENTS.replace("--batch", "--micro_batch").replace("default=2", "default=4")
    (scripts / "loop.py").write_text(loop)
    words = ("launch", "--dry-run", *ERRORS_CPU, "--config", "own.json", "loop.py")
    result = here(*words, "--micro_batch", "4")
    assert 2 == result.code
    assert "the script conflicts with `own.json`" in result.problem
    assert "`--micro_batch 4` after the script says 4, the config 2" in result.problem
    assert "`--micro_batch 2`" in result.hints
    # A default of its parser takes the config's value.
    by_default = here(*words)
    assert 0 == by_default.code
    assert "loop.py --micro_batch 2 " in " ".join(by_default.stdout.replace("\\\n", "").split())


@pytest.mark.parametrize("stage", ["3", "auto"])
def test_a_stage_that_disagrees_with_a_config_is_named(here: Run, stage: str) -> None:
    Path("own.json").write_text('{"zero_optimization": {"stage": 2}}')
    words = ("plan", *ERRORS_CPU, "--model", "10m", "--config", "own.json", "--stage")
    assert 0 == here(*words, "2").code
    result = here(*words, stage)
    assert 2 == result.code
    assert f"`--stage {stage}` conflicts with `own.json`, which says 2" in result.problem


def test_a_loss_that_no_argument_tells_is_taken_at_its_word(here: Run, scripts: Path) -> None:
    """A Trainer's own `compute_loss` may work in chunks; Liger's kernels are its argument's."""
    (scripts / "liger.py").write_text(
        HF_IN_CODE.replace("bf16=True", "bf16=True, use_liger_kernel=True")
    )
    words = ("launch", "--dry-run", *ERRORS_CPU, "--loss")
    assert 0 == here(*words, "chunked", "in_code.py").code
    for script, loss in (("in_code.py", "liger"), ("liger.py", "plain"), ("liger.py", "chunked")):
        result = here(*words, loss, script)
        assert 2 == result.code
        assert f"`--loss {loss}` conflicts with the script" in result.problem


def test_no_script_anywhere_is_a_preflight_failure(here: Run) -> None:
    result = here("launch", *ERRORS_CPU)
    assert 5 == result.code
    assert "no script to launch" in result.problem
    assert "to start from one: `zerowiz template`" in result.hints
    assert "zerowiz launch train.py" in result.hints


def test_no_nvml_is_a_preflight_failure_that_names_the_ways_on(
    here: Run, driver: Callable[[object], None]
) -> None:
    driver_not_loaded = 9
    driver(Replay({"nvmlInitWithFlags(0)": {"err": driver_not_loaded}}))
    for command in ("plan", "init", "measure", "machine"):
        result = here(command, *(() if command == "machine" else ("--model", "7b")))
        assert 5 == result.code
        assert (
            "the NVIDIA driver is installed, but its kernel module is not loaded"
        ) == result.problem
        # Not of the command itself: `measure` has no such option.
        assert "`zerowiz plan --machine 8xH100-80GB`" in result.hints
        assert "`--accelerator cpu`" in result.hints


def test_no_deepspeed_is_a_preflight_failure_and_nothing_is_written(
    here: Run, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(scripts / "bin" / "python"))
    monkeypatch.setenv("PATH", str(scripts))
    before = sorted(scripts.rglob("*"))
    result = here("launch", "--yes", *ERRORS_CPU, "train.py")
    assert 5 == result.code
    assert "no `deepspeed`" in result.problem
    assert "pip install" in result.hints
    assert before == sorted(scripts.rglob("*"))


@pytest.mark.usefixtures("folder")
def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "zerowiz", "plan", "--json", *ERRORS_CPU],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        said = child.stderr.read().decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert 1 == child.returncode


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_end_in_a_documented_code(folder: Path, closing: str) -> None:
    line = f'"{sys.executable}" -m zerowiz plan --machine cpu --model 10m {closing}'
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = 1 if "full" in closing else 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert expected == done.returncode


def test_names_that_are_no_text_do_not_stop_an_error(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "launch", *ERRORS_CPU, b"tr\xffin.py"],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert 5 == done.returncode


def test_a_ctrl_c_while_it_is_loaded_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "plan"],
        env={**clean_environ(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        check=False,
    )
    assert (130, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_an_option_with_underscores_has_one_suggestion(here: Run) -> None:
    wrong = here("plan", "--gradient_checkpointing")
    assert wrong.hints.count("did you mean") == 1


@pytest.mark.usefixtures("scripts")
def test_a_launch_for_another_machine_is_refused_with_what_init_can_do(here: Run) -> None:
    words = ("init", "--yes", "--machine", "4xA100-80GB", "--model", "1b", "--launch", "train.py")
    refused = here(*words, "--output_dir", "out")
    assert (2, "remove `--launch` to write the files") == (refused.code, refused.hints[:36])
    assert "`--launch` conflicts with `--machine 4xA100-80GB`" in refused.problem


def test_a_shell_script_that_is_not_there_is_taken_for_no_model(here: Run) -> None:
    missing = here("plan", *ERRORS_CPU, "run.sh")
    assert "there is no script `run.sh`" in missing.problem
    assert "--model" not in missing.hints


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    "words", [("plan",), ("launch", "--accelerator", "cpu", "--dry-run"), ("init", "--yes")]
)
def test_a_model_that_nobody_sees_can_be_written_by_its_script(
    here: Run, words: tuple[str, ...]
) -> None:
    missing = here(*words, *ERRORS_CPU[:2], "in_code.py")
    assert 3 == missing.code
    assert "`model.config.save_pretrained" in missing.hints


def test_without_a_script_nothing_is_said_of_a_model_in_one(here: Run) -> None:
    missing = here("plan", *ERRORS_CPU[:2])
    assert (3, "set it with `--model`") == (missing.code, missing.hints)
