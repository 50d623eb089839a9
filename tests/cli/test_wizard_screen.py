"""Whole conversations on a screen of 24 lines of 80 columns: each question is seen whole."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from cli.harness import (
    BACKSPACE,
    CTRL_C,
    DOWN,
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    HF_PARSER,
    UP,
    Terminal,
    answers_of,
    cpu_seconds,
)
from paths import TEMPLATES

A100 = ("--machine", "4xA100-40GB")
LONG = (
    *("--machine", "8xH100", "--host-memory", "2000GiB", "--model", "llama-3.1-8b"),
    *("--seq-len", "163840", "--precision", "bf16", "--loss", "liger"),
)
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
MODEL, LENGTH, WRITE = "? Which model?", "? How many tokens per sequence?", "? Write the files?"
STRATEGY, CHANGE = "? Which strategy?", "? Change which answer?"
CONFIG = {
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4}},
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}
LOOP = """\
import argparse

import deepspeed
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
engine, *_ = deepspeed.initialize(args=args, model=model)
"""
SPLIT = {
    "train.py": "from engine import build\nfrom options import get_parser\n\nbuild(get_parser())\n",
    "options.py": """\
import argparse

import deepspeed


def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    return deepspeed.add_config_arguments(parser)
""",
    "engine.py": """\
import deepspeed
from transformers import AutoModelForCausalLM


def build(parser):
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2")
    return deepspeed.initialize(args=args, model=model)
""",
}
OWN_MODEL = """\
import argparse

import deepspeed
from torch import nn


class GPT(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)


parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=12)
parser.add_argument("--n_layer", type=int, default=6)
parser.add_argument("--n_embd", type=int, default=384)
parser.add_argument("--lr", type=float, default=6e-4)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = GPT(50304, args.n_embd, args.n_layer)
engine, *_ = deepspeed.initialize(args=args, model=model)
"""
LITERAL_MODEL = """\
import argparse

import deepspeed
from torch import nn


class GPT(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wte = nn.Embedding(50304, width)
        self.wpe = nn.Embedding(128, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(6)])


parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=12)
parser.add_argument("--lr", type=float, default=6e-4)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = GPT(256)
engine, *_ = deepspeed.initialize(args=args, model=model)
"""
LIGHTNING = """\
import lightning as L
from model import Model

L.Trainer(strategy="deepspeed_stage_2", devices=4, precision="bf16-mixed").fit(Model())
"""


DECIDED = re.compile(r"> \S.* (recommended|chosen)|\+\+\+ ")


class Conversation(NamedTuple):
    files: Mapping[str, str]
    words: Sequence[str]
    turns: Sequence[tuple[str, str]]
    record: Mapping[str, object]


CONVERSATIONS = {
    "a script without a model": Conversation(
        {"train.py": HF_PARSER},
        A100,
        [
            (MODEL, "1b" + ENTER),
            ("? What is your goal?", ENTER),
            (LENGTH, "1k" + ENTER),
            ("> bf16", ENTER),
            (WRITE, ENTER),
        ],
        {"model": "1b", "seq-len": 1024, "precision": "bf16"},
    ),
    "another model": Conversation(
        {"train.py": HF_IN_CODE},
        (*A100, "--seq-len", "512"),
        [
            (MODEL, "1b" + ENTER),
            (WRITE, "change" + ENTER),
            (CHANGE, "model: 1b" + ENTER),
            ("> 1b", "2b" + ENTER),
            (WRITE, ENTER),
        ],
        {"model": "2b"},
    ),
    "a model of the script's own classes": Conversation(
        {"train.py": OWN_MODEL},
        (*A100, "--seq-len", "256", "--no-gradient-checkpointing"),
        [
            (WRITE, "change" + ENTER),
            (CHANGE, "zzz"),
            ("! no line has `zzz`", 3 * BACKSPACE + "model" + ENTER),
            ("> gpt-6x384-v50304", "?"),
            ("A folder has a config.json.", "?"),
            ("? for more", "30m" + ENTER),
            (WRITE, ENTER),
        ],
        {"model": "30m"},
    ),
    "a model of literal numbers": Conversation(
        {"train.py": LITERAL_MODEL},
        (*A100, "--no-gradient-checkpointing"),
        [
            ("`GPT(256)` in train.py line 20 makes it: zerowiz does not", "10m" + ENTER),
            (f"{LENGTH} (128)", ENTER),
            (WRITE, ENTER),
        ],
        {"model": "10m", "seq-len": 128},
    ),
    "another machine": Conversation(
        {"train.py": HF_IN_CODE},
        (*A100, "--model", "1b", "--seq-len", "512"),
        [
            (WRITE, "change" + ENTER),
            (CHANGE, "machine" + ENTER),
            ("? Plan for which machine?", "8xH100-80GB-SXM" + ENTER),
            (WRITE, ENTER),
        ],
        {"machine": "8xH100-80GB-SXM"},
    ),
    "another strategy": Conversation(
        {"train.py": HF_IN_CODE},
        (*A100, "--model", "1b", "--seq-len", "512"),
        [
            (WRITE, "another" + ENTER),
            ("recommended", DOWN),
            ("-> ", DOWN),
            ("> ZeRO-3", ""),
            ("-> ZeRO-3 fits", ENTER),
            (WRITE, ENTER),
        ],
        {"stage": "3", "offload": "none"},
    ),
    "the strategy as it was": Conversation(
        {"train.py": HF_IN_CODE},
        (*A100, "--model", "1b", "--seq-len", "512"),
        [
            (WRITE, "another" + ENTER),
            (STRATEGY, ESCAPE),
            ("> yes, write", "change" + ENTER),
            (CHANGE, UP + ENTER),
            ("> yes, write", ENTER),
        ],
        {"stage": None},
    ),
    "two scripts": Conversation(
        {"train.py": HF_PARSER, "finetune.py": HF_IN_CODE},
        (*A100, "--model", "1b", "--seq-len", "512"),
        [("? Which training script?", UP + ENTER), (WRITE, ENTER)],
        {"script": "finetune.py"},
    ),
    "a sequence that is too long": Conversation(
        {"train.py": HF_PARSER},
        LONG,
        [
            ("? What is your goal?", ENTER),
            (WRITE, "let GPUs share" + ENTER),
            ("? How many GPUs share each sequence?", DOWN),
            ("> 2", ""),
            ("-> ZeRO-2 fits", ENTER),
            ("4 groups of 2 GPUs = 64 sequences", ""),
            (WRITE, ENTER),
        ],
        {"sequence-parallel": 2},
    ),
    "a config of one's own": Conversation(
        {"train.py": LOOP, "ds_config.json": json.dumps(CONFIG)},
        (*A100, "--seq-len", "512", "--no-gradient-checkpointing"),
        [("> ds_config.json", ENTER), ("? How many sequences per rank", ENTER), (WRITE, ENTER)],
        {"config": "ds_config.json", "stage": "auto"},
    ),
    "Lightning": Conversation(
        {"pl.py": LIGHTNING},
        (*A100, "--model", "1b", "--seq-len", "512", "--micro-batch", "1"),
        [("? Does the job use gradient checkpointing?", ENTER), (WRITE, ENTER)],
        {"script": "pl.py"},
    ),
    "a script over several files": Conversation(
        SPLIT,
        (*A100, "--seq-len", "512", "--no-gradient-checkpointing"),
        [(WRITE, ENTER)],
        {"script": "train.py"},
    ),
}


def lay(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def talk(person: Terminal, turns: Sequence[tuple[str, str]]) -> None:
    for seen, keys in turns:
        person.wait_for(seen)
        person.settle()
        # From the question to its keys.
        assert any(line.startswith("? ") for line in person.lines), person.text
        last = " ".join(person.text.split())
        assert last.endswith(("Ctrl-C to stop", "Esc to go back")), person.text
        # The chosen row of the plan, whatever was asked since, or what changes in a config.
        is_last = any(line.startswith("  > yes, ") for line in person.lines)
        assert not is_last or any(map(DECIDED.match, person.lines)), person.text
        if keys:
            person.child.send(keys)
            person.quiet = False


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_each_question_is_seen_whole_and_the_answers_are_recorded(folder: Path, name: str) -> None:
    files, words, turns, record = CONVERSATIONS[name]
    lay(folder, files)
    person = Terminal(folder, ("init", *words), {}, lines=24)
    talk(person, turns)
    assert 0 == person.end(), person.text
    found = answers_of(folder)
    assert record == {name: found.get(name) for name in record}


def test_the_first_question_comes_at_once_and_an_arrow_too(folder: Path) -> None:
    """Half a second and 50 ms on a quiet machine (`tests/bench/wizard_speed.py`), of any core's time."""
    lay(folder, {"train.py": HF_PARSER, "finetune.py": HF_IN_CODE})
    # A Python of its own, which loads all that it needs.
    alone, words = ("-s", "-m", "zerowiz"), ("init", *A100, "--model", "7b")
    person = Terminal(folder, words, {}, program=alone, lines=24)
    person.wait_for("? Which training script?")
    assert cpu_seconds(person.child.pid) < 3
    person.settle()
    before_s = cpu_seconds(person.child.pid)
    person.child.send(UP)
    person.wait_for("> finetune.py")
    assert cpu_seconds(person.child.pid) - before_s < 1
    person.child.send(CTRL_C)
    assert 130 == person.end()


@pytest.mark.slow
@pytest.mark.deepspeed
def test_a_strategy_chosen_by_arrows_trains_and_its_steps_stand_beside_the_plan(
    folder: Path,
) -> None:
    for name in ("model", "portable_checkpoint"):
        shutil.copytree(TEMPLATES / name, folder / name)
    for name in ("train_deepspeed.py", "corpus.txt"):
        shutil.copy(TEMPLATES / name, folder / name)
    words = (*CPU, "--model", "model", "--micro-batch", "2", "--force")
    built = {k: v for k, v in os.environ.items() if k == "TORCH_EXTENSIONS_DIR"}
    typed = ("init", *words, "train_deepspeed.py", "--steps", "6")
    person = Terminal(folder, typed, built, lines=24)
    talk(
        person,
        [
            ("? Launch now?", "another" + ENTER),
            ("recommended", DOWN),
            ("> ZeRO-1", DOWN),
            ("> ZeRO-2", ENTER),
            ("? Launch now?", ENTER),
        ],
    )
    assert 0 == person.end(500), person.text
    seen = person.received.decode()
    for words_seen in ("starting DeepSpeed", "step 4 took"):
        assert f"zerowiz: {words_seen}" in seen
    # Whether an op is there already is up to the tests before.
    assert re.search("zerowiz: (loading the model|compiling )", seen)
    assert "[INFO]" not in seen
    assert "(planned " in seen
    assert "2" == answers_of(folder)["stage"]
