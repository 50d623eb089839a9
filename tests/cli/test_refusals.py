"""Nothing that refuses a job ends the wizard: the person says how it goes on, and keeps the answers."""

from pathlib import Path

import pytest
from cli.harness import (
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    UNREACHABLE,
    UP,
    Open,
    Terminal,
    answers_of,
)

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
