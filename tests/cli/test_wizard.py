"""The wizard, at a real pseudo-terminal of 80 columns: whole conversations, as a person has them."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from cli.harness import (
    BACKSPACE,
    COLUMNS,
    CTRL_C,
    CTRL_D,
    DOWN,
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
)

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
TINY = (*CPU, "--model", "10m", "--seq-len", "64")
FULL = (*TINY, "--micro-batch", "2", "--no-gradient-checkpointing")
A100 = ("--machine", "4xA100-40GB", "--precision", "bf16")
TOO_BIG = (*A100, "--model", "7b", "--seq-len", "2048")

MACHINE, SCRIPT, MODEL = "Plan for which machine?", "Which training script?", "Which model?"
GOAL, LENGTH = "What is your goal?", "How many tokens per sequence?"
# The last question itself stays on the screen once it is answered; its menu does not.
SHARED = "How many GPUs share each sequence?"
MICRO_BATCH, LAST = "How many sequences per rank at a time?", "yes, write the files"
REFUSED, CHANGE = "What do you want to do?", "Change which answer?"
REMEDY, LAUNCH = "What do you want to change?", "Launch now?"
ARGUMENTS, TOO_LONG = "Which arguments does train.py get?", "ile name too long"
# `Launch now?` offers the launch first, then the files alone.
WRITE, ERASE = "only write" + ENTER, "\x15"
WHY = "cannot train on CPU ranks: it does not set `use_cpu`"

# A raw script of which little can be seen, so that much is asked.
SILENT = """\
import argparse

import deepspeed
from loaders import build_loader, build_model

lr = 1e-3
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=build_model())
"""
# It recomputes no activations, and no option makes it.
RAW = """\
import deepspeed
from transformers import AutoModelForCausalLM

lr = 1e-3
model = AutoModelForCausalLM.from_pretrained("x")
engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
"""
NEEDING = """\
import argparse
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--data_path", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-3)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
deepspeed.initialize(args=args, model=build(), training_data=load(args, batch_size=args.batch))
"""
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
SMALL = {"n_layer": 2, "hidden_size": 256, "n_head": 4, "vocab_size": 1024}
TINY_MODEL = json.dumps({"model_type": "bloom", **SMALL})
UNHEARD_OF = json.dumps({"model_type": "unheard_of", **SMALL})
NONSENSE = json.dumps({"model_type": "unheard_of"})

PARSER, IN_CODE = {"train.py": HF_PARSER}, {"train.py": HF_IN_CODE}
# Two scripts, one of which leaves all open.
TWO = {**PARSER, "finetune.py": HF_IN_CODE}
NO_CPU = {"train.py": HF_IN_CODE.replace(", use_cpu=True", "")}
OWN_CONFIG = {**IN_CODE, "ds_config_zero0.json": "{}\n"}

Turn = Sequence[str] | Mapping[str, str | None]
"""A turn of `Terminal.talk`; or the files that the person edits meanwhile, `None` for one that goes."""


class Conversation(NamedTuple):
    """What a person types, and what is in the answers file; or the exit code, and nothing is written."""

    words: Sequence[str]
    turns: Sequence[Turn]
    ends: Mapping[str, object] | int
    files: Mapping[str, str] = PARSER
    env: Mapping[str, str] = {}


OPEN_END: Sequence[Turn] = [
    (SCRIPT, ENTER),
    (MODEL, "1b" + ENTER),
    (GOAL, ENTER),
    (LENGTH, "512" + ENTER),
]
READY: Sequence[Turn] = [(MODEL, "10m" + ENTER), (LENGTH, "64" + ENTER)]
REFUSAL: Sequence[Turn] = [*READY, (REFUSED, "")]
RECORDED = {"script": "train.py", "model": "10m", "seq-len": 64}
CONVERSATIONS = {
    "five questions": Conversation(
        ("init", *A100),
        [*OPEN_END, (LAST, ENTER)],
        {"script": "train.py", "machine": "4xA100-40GB", "model": "1b", "seq-len": 512},
        TWO,
    ),
    "going back reopens each question with its answer and leaves no trace": Conversation(
        ("init", *A100),
        [
            *OPEN_END,
            ("GiB of", ""),
            (LAST, ESCAPE),
            ("(512)", ESCAPE, "GiB of", LAST),
            ("> recommended", ESCAPE),
            ("> 1b", "2b" + ENTER, GOAL, LENGTH),
            (GOAL, ENTER),
            # What was answered before it was taken back is the default.
            ("(512)", ENTER),
            (LAST, ENTER),
        ],
        {"model": "2b", "seq-len": 512},
        TWO,
    ),
    "answers that are changed at the end": Conversation(
        ("init", *A100),
        [
            *OPEN_END,
            (LAST, "change" + ENTER),
            ("goal: recommended", ""),
            (CHANGE, "model" + ENTER),
            ("> 1b", "2b" + ENTER),
            (LAST, "change" + ENTER),
            (CHANGE, "goal" + ENTER),
            (GOAL, "my own" + ENTER),
            (MICRO_BATCH, "2" + ENTER),
            # What the last question stands below is what was decided now.
            ("micro-batch 2 x", ""),
            ("> " + LAST, ENTER),
        ],
        {"script": "train.py", "model": "2b", "seq-len": 512, "micro-batch": 2},
        TWO,
    ),
    "GPUs share each sequence": Conversation(
        ("init", *A100, "--model", "1b", "--seq-len", "512", "train.py"),
        [
            (GOAL, ENTER),
            (LAST, "change" + ENTER),
            (CHANGE, "GPUs for each sequence: 1" + ENTER),
            (SHARED, ERASE + "3" + ENTER),
            ("a node has 4 GPUs", ERASE + "2" + ENTER),
            ("2 groups of 2 GPUs", ""),
            ("> " + LAST, ENTER),
        ],
        {"seq-len": 512, "sequence-parallel": 2},
    ),
    "another script asks what it leaves open": Conversation(
        ("init", *A100),
        [
            *OPEN_END,
            (LAST, "change" + ENTER),
            (CHANGE, "script" + ENTER),
            (SCRIPT, UP + ENTER),
            # It says its batch itself, so that the goal does not matter.
            (LAST, ENTER),
        ],
        {"script": "finetune.py", "objective": None},
        TWO,
    ),
    "more is told where it is asked for": Conversation(
        ("init", *A100),
        [
            *OPEN_END[:2],
            (GOAL, "?"),
            ("keep your global batch", ENTER),
            (LENGTH, ENTER),
            (LAST, "stop" + ENTER),
        ],
        0,
        TWO,
    ),
    "plain lines": Conversation(
        ("init", *A100),
        [
            (SCRIPT, "2" + ENTER),
            (MODEL, "1b" + ENTER),
            (GOAL, "<" + ENTER),
            ("1) 1b", ""),
            (MODEL, "2b" + ENTER),
            (GOAL, ENTER),
            (LENGTH, "512" + ENTER),
            (LAST, ENTER),
        ],
        {"script": "train.py", "machine": "4xA100-40GB", "model": "2b", "seq-len": 512},
        TWO,
        {"TERM": "dumb"},
    ),
    "the questions of a launch go back too, and it can be declined": Conversation(
        ("launch", *CPU, "train.py"),
        [
            (MODEL, "1b" + ENTER),
            (LENGTH, ESCAPE),
            ("(1b)", "10m" + ENTER),
            (LENGTH, "64" + ENTER),
            ("10m, ", ""),
            ("Launch?", "no" + ENTER),
        ],
        0,
    ),
    "what the script fixes is not offered as a change": Conversation(
        ("init", *A100, "--model", "1b", "--seq-len", "512", "--no-gradient-checkpointing"),
        [
            (LAST, "change" + ENTER),
            ("tokens per sequence: 512", CTRL_C, "precision:", "micro-batch:", "attention:"),
        ],
        130,
        IN_CODE,
    ),
    "what a script does not show is asked": Conversation(
        ("init", *CPU),
        [
            (MODEL, "10m" + ENTER),
            (MICRO_BATCH, "4" + ENTER),
            (LENGTH, "64" + ENTER),
            ("Does the job use gradient checkpointing?", DOWN + ENTER),
            ("micro-batch 4 x accumulation 1 x 2 CPU ranks", ""),
            (LAUNCH, WRITE),
        ],
        {"micro-batch": 4, "seq-len": 64, "gradient-checkpointing": True},
        {"train.py": SILENT},
    ),
    "a wrong answer is asked again": Conversation(
        ("init", *CPU),
        [
            (MODEL, "no-such-model-7x" + ENTER),
            ("`no-such-model-7x`", "10m" + ENTER),
            (LENGTH, "many" + ENTER),
            ("a whole number from 1 on", ERASE + "64" + ENTER),
            ("stop here", "stop" + ENTER),
        ],
        0,
    ),
    "a name that no file can have is asked again": Conversation(
        ("init",),
        [
            (MACHINE, "x" * 300),
            ("", ENTER),
            (TOO_LONG, ERASE + "cpu" + ENTER),
            (SCRIPT, "x" * 300),
            ("", ENTER),
            (TOO_LONG, ERASE + "train.py" + ENTER),
            (MODEL, "x" * 300),
            ("", ENTER),
            (TOO_LONG, CTRL_C),
        ],
        130,
        TWO,
    ),
    "an unknown family is taken and guessed, and nonsense is not": Conversation(
        ("init", *CPU, "--seq-len", "64", "--no-trace"),
        [
            (MODEL, "nonsense" + ENTER),
            ("`hidden_size`", "odd" + ENTER),
            ("as a Llama of the same sizes", ""),
            (LAUNCH, WRITE),
        ],
        {"model": "odd"},
        {**PARSER, "odd/config.json": UNHEARD_OF, "nonsense/config.json": NONSENSE},
    ),
    "without a GPU the machine is asked for": Conversation(
        ("init", "--model", "10m", "--seq-len", "512"),
        [
            # Ranks on this CPU can train, and need no other machine.
            ("> cpu", ""),
            (MACHINE, "8xH900" + ENTER),
            ("similar names", ERASE + "8xH100-80GB-SXM" + ENTER),
            (GOAL, ENTER),
            # The Trainer trains in fp32 by itself, and these GPUs have better.
            ("> bf16", ENTER),
            ("The job is for 8 x NVIDIA H100 80GB HBM3", ""),
            (LAST, ENTER),
        ],
        {"machine": "8xH100-80GB-SXM", "precision": "bf16"},
    ),
    "a length that the model has no positions for is asked again": Conversation(
        ("init", *CPU, "--model", "openai-community/gpt2"),
        [
            ("(1024)", "2048" + ENTER),
            ("has only 1024 learned positions", ERASE),
            ("(1024)\n", ENTER),
            (LAUNCH, WRITE),
        ],
        {"seq-len": 1024},
    ),
    "the one script that trains is taken": Conversation(
        ("init", *TINY),
        [(LAUNCH, WRITE)],
        {"script": "finetune.py"},
        {"finetune.py": HF_PARSER, "plots.py": "print(1)\n"},
    ),
    "scripts and models nearby are menus, and others can be typed": Conversation(
        ("init", *CPU, "--seq-len", "64"),
        [
            ("finetune.py", ""),
            # train.py is where the menu starts; the other stands before it.
            (SCRIPT, UP + ENTER),
            ("folder here", ""),
            (MODEL, "10m" + ENTER),
            (LAUNCH, WRITE),
        ],
        {"script": "finetune.py", "model": "10m"},
        {**TWO, "tiny/config.json": TINY_MODEL},
    ),
    "stop at the remedies": Conversation(
        ("init", *TOO_BIG), [(REMEDY, "stop here" + ENTER)], 0, IN_CODE
    ),
    "stop a launch at the remedies": Conversation(
        ("launch", "--dry-run", *TOO_BIG), [(REMEDY, "stop here" + ENTER)], 0, IN_CODE
    ),
    # Nothing that refuses a job ends the wizard: the person says how it goes on, and keeps the
    # answers.
    "a script that cannot be read any more loses no answer": Conversation(
        ("init", *CPU),
        [
            *REFUSAL,
            {"train.py": None},
            ("> try again", ENTER),
            # What cannot be read has no answers that could be listed.
            ("there is no script", "", "change something"),
            IN_CODE,
            ("> try again", ENTER),
            (LAUNCH, WRITE),
        ],
        RECORDED,
        NO_CPU,
    ),
    "arguments that a script requires are typed": Conversation(
        ("init", *FULL),
        [
            (LAUNCH, ENTER),
            ("> type the missing arguments", ENTER),
            (ARGUMENTS, "--data_path 'my texts'" + ENTER),
            # The question stays until nothing is missing.
            ("! train.py also requires `--out`", " --out 'o" + ENTER),
            # What was typed stands there to be mended.
            ("! not words of a shell", "'" + ENTER),
            ("> yes, launch it", WRITE),
        ],
        {"script-args": ["--data_path", "my texts", "--out", "o"]},
        {"train.py": NEEDING},
    ),
    "who types no arguments keeps the plan": Conversation(
        ("init", *FULL),
        [
            (LAUNCH, ENTER),
            ("> type the missing arguments", ENTER),
            (ARGUMENTS, ESCAPE),
            ("> yes, launch it", ENTER),
            # What led nowhere is not the default any more.
            ("> try again", WRITE),
        ],
        {"script": "train.py", "script-args": None},
        {"train.py": NEEDING},
    ),
    "another script keeps the other answers": Conversation(
        ("init", *CPU, "train.py"),
        [
            *REFUSAL,
            (REFUSED, "another" + ENTER),
            # One that no config reaches is refused where it is named.
            (SCRIPT, "raw.py" + ENTER),
            ("! ", "other.py" + ENTER),
            (LAUNCH, WRITE),
        ],
        {**RECORDED, "script": "other.py"},
        {**NO_CPU, "other.py": HF_IN_CODE, "raw.py": UNREACHABLE},
    ),
    "it starts at a machine that the script trains on": Conversation(
        ("init", "--model", "10m", "--seq-len", "64"),
        [
            ("> 8xH100-80GB-SXM", ""),
            ("-> DDP fits", UP),
            (f"-> train.py {WHY}", CTRL_C),
        ],
        130,
        NO_CPU,
    ),
    "an answer is changed after a refusal": Conversation(
        ("init", "--seq-len", "64"),
        [
            (MACHINE, "cpu" + ENTER),
            (MODEL, "10m" + ENTER),
            (REFUSED, "change" + ENTER),
            (CHANGE, "machine" + ENTER),
            (MACHINE, ERASE + "4xA100-40GB" + ENTER),
            (LAST, ENTER),
        ],
        RECORDED,
        NO_CPU,
    ),
    "Esc goes back from a refusal to the last answer": Conversation(
        ("init", *CPU),
        [
            *REFUSAL,
            (REFUSED, ESCAPE),
            ("(64)", "", REFUSED),
            # Of the refusal is left what the answer leads to.
            (f"-> train.py {WHY}", CTRL_C, f"error: train.py {WHY}"),
        ],
        130,
        NO_CPU,
    ),
    "stop at a refusal": Conversation(
        ("init", *CPU), [*REFUSAL, (REFUSED, "stop" + ENTER)], 0, NO_CPU
    ),
    "plain lines go on from a refusal too": Conversation(
        ("init", *CPU),
        [*REFUSAL, IN_CODE, (REFUSED, ENTER), (LAUNCH, "2" + ENTER)],
        RECORDED,
        NO_CPU,
        {"TERM": "dumb"},
    ),
    "what is refused before any question is no end either": Conversation(
        ("init", *TINY),
        [(REFUSED, ""), IN_CODE, ("> try again", ENTER), (LAUNCH, WRITE)],
        RECORDED,
        NO_CPU,
    ),
    "a script that was found and cannot be used is no end": Conversation(
        ("init", *CPU),
        [
            (REFUSED, "another" + ENTER),
            (SCRIPT, "a template for" + ENTER),
            (MODEL, ENTER),
            (LAUNCH, "stop" + ENTER),
        ],
        0,
        {"train.py": UNREACHABLE},
    ),
    "what a refusal asks for is shown, and written on demand": Conversation(
        ("init", *CPU, "train.py"),
        [
            ("-args = TrainingArguments(", ""),
            (REFUSED, "write this" + ENTER),
            *READY,
            (LAUNCH, WRITE),
        ],
        RECORDED,
        {"train.py": HF_IN_CODE.replace("bf16=True", "deepspeed=make()")},
    ),
    "a launch that is refused leaves the files and the way back": Conversation(
        ("init", *CPU),
        [
            *READY,
            ("yes, launch it", ""),
            # What the launch needs goes away while the question is open.
            {"train.py": None},
            ("", ENTER),
            ("> try again", ESCAPE),
            ("> no, only write the files", "launch it" + ENTER),
            ("> try again", WRITE),
        ],
        RECORDED,
        IN_CODE,
    ),
    "what the preflight of a launch refuses is mended": Conversation(
        ("init", *CPU),
        [
            *READY,
            ("yes, launch it", ENTER),
            ("no_such_library", ""),
            ("> try again", ""),
            IN_CODE,
            ("> try again", ENTER),
            ("> yes, launch it", "stop" + ENTER),
        ],
        0,
        {"train.py": f"import no_such_library\n{HF_IN_CODE}"},
    ),
    "a script that was edited before the launch is planned again": Conversation(
        ("init", *CPU),
        [
            *READY,
            ("yes, launch it", ""),
            {"train.py": HF_IN_CODE.replace("batch_size=4", "batch_size=2")},
            ("", ENTER),
            ("was edited meanwhile", ""),
            ("micro-batch 2 x", ""),
            ("> yes, launch it", "stop" + ENTER),
        ],
        0,
        IN_CODE,
    ),
    # Whoever leaves it leaves nothing behind, wherever that is.
    "Ctrl-C at the model": Conversation(("init", *A100), [(MODEL, CTRL_C)], 130),
    "EOF at the goal": Conversation(("init", *A100), [(MODEL, "10m" + ENTER), (GOAL, CTRL_D)], 130),
    "Ctrl-C at the length": Conversation(
        ("init", *A100), [(MODEL, "10m" + ENTER), (GOAL, ENTER), (LENGTH, CTRL_C)], 130
    ),
    "EOF at the last question": Conversation(
        ("init", *A100),
        [(MODEL, "10m" + ENTER), (GOAL, ENTER), (LENGTH, ENTER), ("Write the files?", CTRL_D)],
        130,
    ),
    "EOF at the script": Conversation(("init", *CPU), [(SCRIPT, CTRL_D)], 130, TWO),
    "Ctrl-C at the machine": Conversation(("init",), [(MACHINE, CTRL_C)], 130),
    "Ctrl-C at the method": Conversation(
        ("init", *A100, "--model", "1b"),
        [("Which parameters does it train?", CTRL_C)],
        130,
        {"train.py": ADAPTERS},
    ),
    "EOF at a refusal": Conversation(("init", *CPU), [*REFUSAL, (REFUSED, CTRL_D)], 130, NO_CPU),
    "Ctrl-C at what to change": Conversation(
        ("init", *CPU), [*REFUSAL, (REFUSED, "change" + ENTER), (CHANGE, CTRL_C)], 130, NO_CPU
    ),
    "Ctrl-C at what would be lost": Conversation(
        ("init", *TINY), [(LAUNCH, WRITE), ("Overwrite it?", CTRL_C)], 130, OWN_CONFIG
    ),
    "EOF at another folder": Conversation(
        ("init", *TINY),
        [(LAUNCH, WRITE), ("> no, use another folder", ENTER), ("Which folder?", CTRL_D)],
        130,
        OWN_CONFIG,
    ),
}


def write(folder: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        if text is None:
            (folder / name).unlink()
            continue
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def script(folder: Path) -> Path:
    write(folder, PARSER)
    return folder / "train.py"


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_ends_in_what_was_answered_or_writes_nothing(
    terminal: Open, folder: Path, name: str
) -> None:
    words, turns, ends, files, env = CONVERSATIONS[name]
    write(folder, files)
    left = dict(files)
    person = terminal(*words, **env)
    for turn in turns:
        if isinstance(turn, Mapping):
            write(folder, turn)
            left |= {name: text for name, text in turn.items() if text is not None}
        else:
            person.talk(turn)
    assert (ends if isinstance(ends, int) else 0) == person.end(), person.text
    assert "Traceback" not in person.text
    assert "TERM" not in env or b"\x1b" not in person.received
    if isinstance(ends, int):
        assert "nothing was written" in person.text
        paths = [path for path in folder.rglob("*") if path.is_file()]
        assert left == {str(path.relative_to(folder)): path.read_text() for path in paths}
    else:
        record = answers_of(folder)
        assert ends == {name: record.get(name) for name in ends}


def test_enter_alone_leads_from_a_script_to_a_config(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU)
    person.finish((MODEL, "10m" + ENTER), (LENGTH, ENTER), (LAUNCH, WRITE))
    # How much of this host is free decides which.
    assert re.search(r"DDP [\d.]+ (yes|uncertain|tight)", person.text)
    assert "> DDP" in person.text
    assert "wrote ds_config_zero0.json\nwrote zerowiz.toml\nnext: zerowiz launch\n" in person.text
    written = {"ds_config_zero0.json", "ds_config_zero0.plan.json"}
    assert {"train.py", *written, "zerowiz.toml", ".zerowiz"} == {
        path.name for path in script.parent.iterdir()
    }
    said = {"accelerator": "cpu", "gpus-per-node": 2, "model": "10m", "seq-len": 2048}
    assert {"script": "train.py", **said} == answers_of(script.parent)


@pytest.mark.usefixtures("script")
def test_only_what_is_open_is_asked_and_a_launch_afterwards_asks_nothing(terminal: Open) -> None:
    person = terminal("init", *TINY)
    person.finish((LAUNCH, WRITE))
    assert 1 == len(re.findall(r"^\? ", person.text, re.MULTILINE))
    after = terminal("launch", "--dry-run")
    assert 0 == after.end()
    assert "--deepspeed ds_config_zero0.json" in " ".join(after.text.replace("\\\n", "").split())
    assert "?" not in {line[:1] for line in after.lines}


@pytest.mark.usefixtures("script")
def test_a_consequence_follows_what_is_typed(terminal: Open) -> None:
    person = terminal("init", *A100)
    person.talk((MODEL, "1b"), ("-> ZeRO-", BACKSPACE * 2 + "700b"))
    person.talk(("-> nothing fits", BACKSPACE * 4 + "1b" + ENTER), (GOAL, DOWN))
    # Who wants a micro-batch sees what each one leads to.
    person.talk((" s a step", DOWN + ENTER), (MICRO_BATCH, BACKSPACE + "2"))
    person.wait_for("micro-batch 2 x 4 steps")


def test_fifty_columns_are_enough(folder: Path) -> None:
    write(folder, TWO)
    person = Terminal(folder, ("init", *A100), {}, columns=50)
    person.finish(*(turn for turn in OPEN_END if not isinstance(turn, Mapping)), (LAST, ENTER))
    assert "GiB of" in person.text
    assert all(len(line) <= 50 for line in person.lines)


def test_a_script_is_read_again_once_it_was_edited(terminal: Open, folder: Path) -> None:
    write(folder, NO_CPU)
    person = terminal("init", *TINY)
    person.wait_for(REFUSED)
    assert WHY in " ".join(person.text.split())
    # As every error, and every hint, is coloured.
    for colour, word in ((b"31", b"error:"), (b"32", b"hint:")):
        assert b"\x1b[" + colour + b"m" + word + b"\x1b[0m" in person.received
    # Nothing was edited yet, and what changed nothing is not the default any more.
    person.talk((REFUSED, ENTER), (f"{REFUSED} try again", ""), ("> change something", ""))
    write(folder, IN_CODE)
    person.finish(("> change something", UP + ENTER), (LAUNCH, WRITE))
    assert RECORDED.items() <= answers_of(folder).items()


LIGHTNING = """\
import lightning as L
from model import Model

trainer = L.Trainer(devices=4, precision="bf16-mixed", accumulate_grad_batches=4)
trainer.fit(Model(lr=1e-4))
"""


def test_a_script_of_lightning_is_found_with_the_words_that_it_lacks(
    terminal: Open, folder: Path
) -> None:
    (folder / "pl.py").write_text(LIGHTNING)
    person = terminal("init", *A100[:2], "--model", "1b", "--seq-len", "64")
    person.wait_for(REFUSED)
    shown = " ".join(person.text.split())
    assert 'write `strategy="deepspeed"` in pl.py line 4: zerowiz then passes its file' in shown
    person.talk((REFUSED, "another" + ENTER), ("> pl.py", ""))
    shown = " ".join(person.text.split())
    assert 'Lightning without DeepSpeed: write `strategy="deepspeed"` in line 4 first' in shown
    (folder / "pl.py").write_text(LIGHTNING.replace("devices", 'strategy="deepspeed", devices'))
    person.talk(("> pl.py", ENTER), (MICRO_BATCH, CTRL_C))
    person.end()


def test_a_default_of_the_script_that_is_refused_can_be_changed(
    terminal: Open, folder: Path
) -> None:
    """Nobody was asked for the length: the script decides it, and the model has fewer positions."""
    write(folder, {"train.py": LONG, "short/config.json": SHORT})
    person = terminal("init", *CPU, "--method", "full", "--model", "short")
    person.reply(REFUSED, "change" + ENTER)
    shown = " ".join(person.text.split())
    assert "the default of `--model_max_length` in train.py line 7 says 1024" in shown
    assert "`short` has only 256 learned positions" in shown
    assert "hint: put `--model_max_length 256` after train.py" in shown
    person.finish(
        (CHANGE, "tokens per sequence: 1024" + ENTER),
        (LENGTH, ERASE + "256" + ENTER),
        (LAUNCH, WRITE),
    )
    assert 256 == answers_of(folder)["seq-len"]


def test_what_the_plan_has_can_be_changed_and_reaches_the_script(
    terminal: Open, here: Run, script: Path
) -> None:
    person = terminal("init", *A100, "--model", "1b", "--seq-len", "512", "train.py")
    change = (LAST, "change" + ENTER)
    person.finish(
        (GOAL, ENTER),
        change,
        (CHANGE, "precision: bf16" + ENTER),
        ("? Which precision?", "fp32" + ENTER),
        change,
        (CHANGE, "global batch: 32" + ENTER),
        ("? How many sequences per optimizer step", "64" + ENTER),
        change,
        ("precision: fp32", ""),
        (CHANGE, "micro" + ENTER),
        # Who says a micro-batch has another goal.
        (MICRO_BATCH, "4" + ENTER),
        change,
        ("goal: my own micro-batch", ""),
        ("micro-batch: 4", ""),
        (CHANGE, ESCAPE),
        (LAST, ENTER),
    )
    said = {"precision": "fp32", "global-batch": 64, "micro-batch": 4}
    assert said.items() <= answers_of(script.parent).items()
    plan = here("launch", "--dry-run", "--json", *A100[:2]).content
    step = {"precision": "fp32", "micro_batch": 4, "global_batch": 64}
    assert step == {name: plan["workload"][name] for name in step}
    words = " ".join(plan["command"])
    assert "--bf16 True" not in words
    assert "--gradient_accumulation_steps 4" in words


@pytest.mark.parametrize(
    ("typed", "code"), [(("--quiet", "--model", "./gone", "train.py"), 2), (("gone.py",), 5)]
)
@pytest.mark.usefixtures("script")
def test_what_was_typed_and_cannot_be_used_is_refused_before_any_question(
    terminal: Open, folder: Path, typed: tuple[str, ...], code: int
) -> None:
    write(folder, {"gone/config.json": "{"})
    person = terminal("init", *CPU, *typed)
    assert code == person.end(20)
    assert "gone" in person.text
    assert "?" not in person.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "then"),
    [
        (TINY_MODEL, ("on the meta device", "")),
        ('{"model_type": "clip"}', ("on the meta device", "")),
        (NONSENSE, ("`hidden_size`", "10m" + ENTER)),
    ],
    ids=["bloom", "clip", "nonsense"],
)
def test_what_can_be_traced_is_taken_and_traced_once_and_nonsense_is_refused(
    terminal: Open, script: Path, model: str, then: tuple[str, str]
) -> None:
    pytest.importorskip("transformers")
    write(script.parent, {"odd/config.json": model})
    cache = script.parent.parent / "cache"
    person = terminal("init", *CPU, "--seq-len", "64", XDG_CACHE_HOME=str(cache))
    person.finish((MODEL, "odd" + ENTER), then, (LAUNCH, WRITE))
    traced = int(model != NONSENSE)
    assert traced == " ".join(person.text.split()).count("on the meta device")
    assert traced == len(list(cache.glob("zerowiz/trace/*")))


def test_a_changed_file_is_kept_unless_the_person_says_otherwise(
    terminal: Open, folder: Path
) -> None:
    write(folder, OWN_CONFIG)
    config = folder / "ds_config_zero0.json"
    person = terminal("init", *TINY)
    person.finish(
        (LAUNCH, WRITE),
        ("not written by zerowiz. Overwrite it?", ESCAPE),
        ("> no, only write the files", ENTER),
        ("> no, use another folder", ENTER),
        ("Which folder? (zerowiz)", ENTER),
    )
    assert "{}\n" == config.read_text()
    assert {"train.py", config.name, "zerowiz"} == {path.name for path in folder.iterdir()}
    assert "next: zerowiz launch --output-dir zerowiz\n" in person.text
    terminal("init", *TINY).finish((LAUNCH, WRITE), ("Overwrite it?", "yes" + ENTER))
    assert (folder / "zerowiz" / config.name).read_bytes() == config.read_bytes()


@pytest.mark.parametrize(
    ("words", "env"), [(("--yes",), {}), ((), {"CI": "1"}), ((), {"ZEROWIZ_NO_INPUT": "1"})]
)
@pytest.mark.usefixtures("script")
def test_who_wants_no_questions_gets_none(
    terminal: Open, words: tuple[str, ...], env: dict[str, str]
) -> None:
    person = terminal("init", *CPU, *words, **env)
    assert 3 == person.end()
    assert "? " not in {line[:2] for line in person.lines}


def test_enter_alone_states_no_hardware_that_nobody_checked(terminal: Open, folder: Path) -> None:
    write(folder, {"train.py": RAW})
    words = (*A100, "--model", "13b", "--seq-len", "2048")
    person = terminal("init", *words, "--micro-batch", "1", "--precision", "bf16")
    person.wait_for("stop here")
    menu = person.text.rpartition(REMEDY)[2]
    [preselected] = re.findall(r"^ +> (.+)", menu, re.MULTILINE)
    stated = {"--machine", "--host-memory", "--interconnect", "--optimizer-state-dtype"}
    assert not stated & set(preselected.split())
    assert re.search(r"^ +--host-memory 310GiB", menu, re.MULTILINE)
    assert "only if each node has that much free" in " ".join(menu.split())


def test_what_only_the_script_can_change_is_shown_and_is_no_choice(
    terminal: Open, folder: Path
) -> None:
    write(folder, IN_CODE)
    person = terminal("init", *TOO_BIG)
    person.wait_for("stop here")
    before, _, menu = person.text.partition(REMEDY)
    assert "set `gradient_checkpointing=True` in train.py" in " ".join(before.split())
    assert "--machine" in menu
    assert "--gradient-checkpointing" not in menu


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--machine", "4xA100-80GB", "--model", "7b", "-v"),
        ("plan", "--machine", "4xA100-80GB", "--model", "7b", "-v", "--accounting", "textbook"),
        ("machine", "--machine", "4xA100-40GB"),
        ("launch", "--dry-run", *TINY, "train.py"),
        ("launch", "--dry-run", *TINY, "--bogus", "train.py"),
    ],
)
@pytest.mark.usefixtures("script")
def test_no_line_is_cut_inside_a_word_at_80_columns(
    terminal: Open, here: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    # No folder of this host, however long, stands in what is shown.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    person = terminal(*words)
    person.end()
    piped = here(*words)
    whole = {word.rstrip(";") for word in (piped.stdout + piped.stderr).split()}
    # A bar is as long as the terminal lets it be.
    lines = [line for line in person.lines if "│" not in line]
    shown = [word.rstrip(";") for line in lines for word in line.split() if word != "\\"]
    # The port, temporary names and what is free just now differ from run to run.
    broken = [word for word in shown if word not in whole and not re.search(r"\d", word)]
    assert [] == broken
    assert all(len(line) <= COLUMNS for line in person.lines)
    assert "…" not in person.text


@pytest.mark.usefixtures("script")
def test_a_folded_command_can_be_copied(terminal: Open) -> None:
    person = terminal("launch", "--dry-run", "--quiet", *TINY, "train.py", "a b", "$x")
    assert 0 == person.end()
    command = person.text.rpartition("\n}\n")[2]
    words = shlex.split(command.replace("\\\n", " "))
    assert ["train.py", "a b", "$x", "--deepspeed", "ds_config_zero0.json"] == words[-5:]
