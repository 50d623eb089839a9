"""What changes what a model learns is said: values of zerowiz's own, and another global batch."""

import json
from pathlib import Path

import pytest
from cli.harness import (
    CONFIG_ARGUMENTS,
    DOWN,
    ENTER,
    HF_IN_CODE,
    HF_PARSER,
    Open,
    Result,
    Run,
)

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
ON_GPUS = ("--machine", "4xA100-80GB", "--model", "125m", "--seq-len", "64")
OWN = json.dumps({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW"}})
PASSING = CONFIG_ARGUMENTS.replace(
    "model=None", "model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)"
)
ACCELERATE = """\
from accelerate import Accelerator

accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
EDITING = """\
import argparse, json, deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config")
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
config = json.load(open(args.ds_config))
config["optimizer"]["params"]["lr"] = 6e-4
config["gradient_clipping"] = 0.5
deepspeed.initialize(model=build(), config=config)
"""
# A Trainer behind a parser of its own, which has the batch as its options.
BATCHES = """\
import argparse
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--ga", type=int, default=8)
a = parser.parse_args()
args = TrainingArguments(
    "out", per_device_train_batch_size=a.bs, gradient_accumulation_steps=a.ga, bf16=True, use_cpu=True
)
Trainer(model=None, args=args).train()
"""
FIXED_STEPS = BATCHES.replace("gradient_accumulation_steps=a.ga", "gradient_accumulation_steps=8")


def said(result: Result) -> str:
    assert result.code == 0, result.stderr
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command",
    [("plan",), ("plan", "--json"), ("launch", "--dry-run", "--yes"), ("init", "--yes")],
    ids=" ".join,
)
def test_the_optimizer_that_nobody_made_is_said_with_the_config_that_has_another(
    here: Run, folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    (folder / "ds_config.json").write_text(OWN)
    words = said(here(*command, "--stage", "1", *CPU, "--micro-batch", "2", "train.py"))
    assert "`ds_config_zero1.json` sets AdamW with `lr` 5e-05, `betas` [0.9, 0.999]," in words
    assert "`weight_decay` 0.0, `gradient_clipping` 1.0: these are zerowiz's own" in words
    assert "`ds_config.json` is not used; `--config ds_config.json` runs with it" in words


def test_a_config_that_is_used_or_is_zerowizs_own_is_not_named(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    job = (*CPU, "--micro-batch", "2", "train.py")
    assert here("init", "--yes", "--stage", "2", *job).code == 0
    (folder / "ds_notes.json").write_text("[1, 2")
    (folder / "ds_data.json").write_text('{"rows": 3}')
    assert "not used" not in said(here("plan", "--stage", "1", *job))
    changed = (folder / "ds_config_zero2.json").read_text().replace("5e-05", "6e-04")
    (folder / "ds_config_zero2.json").write_text(changed)
    (folder / "ds_mine.json").write_text(OWN)
    both = said(here("plan", "--stage", "1", *job))
    assert "`ds_config_zero2.json`, `ds_mine.json` are not used; `--config FILE`" in both
    own = said(here("plan", *CPU, "--config", "ds_config_zero2.json", "train.py"))
    assert "own default" not in own
    assert "not used" not in own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PASSING,
            "`ds_config_zero1.json` sets `gradient_clipping` 1.0, a default of zerowiz's own",
        ),
        (ACCELERATE, "`ds_config_zero1.json` sets `gradient_clipping` 1.0, a default of"),
        (EDITING, "sets AdamW with `betas` [0.9, 0.999], `eps` 1e-08, `weight_decay` 0.0: these"),
        (HF_IN_CODE, None),
        (BATCHES, None),
    ],
    ids=["own optimizer", "accelerate", "sets some later", "trainer", "parsed trainer"],
)
def test_what_else_is_of_zerowiz_alone(
    here: Run, folder: Path, text: str, expected: str | None
) -> None:
    (folder / "train.py").write_text(text)
    words = said(here("plan", "--stage", "1", *ON_GPUS, "train.py"))
    assert ("own" in words) is (expected is not None), words
    assert expected is None or expected in words


def test_a_script_that_gets_no_config_is_told_no_values_of_it(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    words = ("--config-via", "none", "--micro-batch", "2", "train.py")
    assert "own default" not in said(here("plan", *ON_GPUS, *words))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (BATCHES, "--micro-batch 1", "falls from 128 to 32; keep it with `--grad-accum 32`"),
        (BATCHES, "--grad-accum 2", "falls from 128 to 32; keep it with `--grad-accum 8`"),
        (BATCHES, "--micro-batch 8", "rises from 128 to 256; keep it with `--grad-accum 4`"),
        (BATCHES, "--micro-batch 3", "falls from 128 to 96"),
        (FIXED_STEPS, "--micro-batch 1", "falls from 128 to 32; an accumulation of 32 in your"),
        (HF_PARSER, "--micro-batch 1", "falls from 32 to 4; keep it with `--grad-accum 8`"),
        (BATCHES, "--micro-batch 1 --grad-accum 32", None),
        (BATCHES, "--micro-batch 4", None),
        (BATCHES, "--global-batch 64", None),
        (BATCHES, "--micro-batch 1 --global-batch 64", None),
        (BATCHES, "", None),
        (CONFIG_ARGUMENTS, "--micro-batch 8 --grad-accum 2", None),
    ],
)
def test_options_that_change_the_global_batch_are_said(
    here: Run, folder: Path, text: str, options: str, expected: str | None
) -> None:
    (folder / "train.py").write_text(text)
    words = said(here("plan", *ON_GPUS, *options.split(), "train.py"))
    assert ("your script's batch changes" in words) is (expected is not None), words
    if expected is not None:
        assert f"changes with `{options}`: the global batch {expected}" in words
        assert ("keep" in expected) or not words.partition(expected)[2].startswith(";")


def test_words_after_the_script_are_its_own_batch(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(BATCHES)
    words = said(here("plan", *ON_GPUS, "--micro-batch", "1", "train.py", "--ga", "2"))
    assert "the global batch falls from 32 to 8; " in words


def test_the_wizard_says_it_and_starts_from_the_scripts_own(terminal: Open, folder: Path) -> None:
    (folder / "train.py").write_text(BATCHES)
    person = terminal("init", *ON_GPUS, "train.py")
    person.reply("What is your goal?", DOWN * 2 + ENTER)
    person.wait_for("How many sequences per rank at a time?")
    person.wait_for("(4)")
    person.reply("How many sequences per rank at a time?", "1" + ENTER)
    person.wait_for("the global batch falls from")
    assert "128 to 32; keep it with `--grad-accum 32`" in " ".join(person.text.split())
