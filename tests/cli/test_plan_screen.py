"""A plan at a terminal is one screen: counted with all that a person sees, at each size."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.harness import Run, Terminal
from ui.streams import TerminalStream

from zerowiz.cli.commands import main
from zerowiz.ui.text import cells

# A Trainer that saves by itself, which is right at some stages only, and what it is told.
SCRIPT = """\
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--bs", type=int, default=4)
p.add_argument("--ga", type=int, default=8)
p.add_argument("--max_len", type=int, default=2048)
p.add_argument("--ds", type=str, default=None)
a = p.parse_args()
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype="bfloat16")
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=a.bs, gradient_accumulation_steps=a.ga,
    learning_rate=2e-5, bf16=True, deepspeed=a.ds,
)
Trainer(model=model, args=args).train()
model.save_pretrained("out")
"""
PLANS: dict[str, tuple[str, ...]] = {
    "fits": ("--machine", "4xA100-80GB", "--model", "7b"),
    "nothing-fits": ("--machine", "4xA100-40GB", "--model", "7b"),
    "long": ("--machine", "8xH100", "--model", "llama-3.1-8b", "--seq-len", "131072"),
    "script": ("--machine", "4xA100-80GB", "--stage", "3", "sft.py"),
    "script-too-big": ("--machine", "4xA100-40GB", "sft.py"),
    "nodes": ("--machine", "2x8xA100-80GB", "--model", "70b", "--method", "lora"),
    "cpu": ("--machine", "cpu", "--gpus-per-node", "2", "--model", "10m", "--host-memory", "5GiB"),
}
# Columns, lines of the terminal, its kind, and the most lines of a plan: where it fits, and not.
SIZES = {
    "80": (80, 24, "xterm-256color", 18, 24),
    "120": (120, 40, "xterm-256color", 18, 24),
    "50": (50, 60, "xterm-256color", 40, 40),
    "dumb": (80, 60, "dumb", 40, 40),
}


JAPANESE = ("fits", "nothing-fits", "long", "script", "script-too-big")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "language"), [*((name, "en") for name in PLANS), *((name, "ja") for name in JAPANESE)]
)
def test_a_plan_is_one_screen(
    folder: Path,
    golden: Callable[[str, str], None],
    name: str,
    size: str,
    language: str,
) -> None:
    columns, lines, kind, fitting, refused = SIZES[size]
    (folder / "sft.py").write_text(SCRIPT)
    env = {"TERM": kind, "NO_COLOR": ""} | ({"ZEROWIZ_LANG": language} if language == "ja" else {})
    person = Terminal(folder, ("plan", *PLANS[name]), env, columns=columns, lines=lines)
    code = person.end()
    shown = [line.rstrip() for line in person.text.splitlines()]
    assert code in {0, 4}
    assert shown[0][0].isdigit()  # the first line has not scrolled away
    assert len(shown) <= (refused if code else fitting), person.text
    # The last that is seen can be pasted.
    command = next(n for n, line in enumerate(shown) if line.startswith(("next (", "次 (")))
    assert all(line.endswith("\\") for line in shown[command:-1])
    golden(f"plan/{name}-{size}-{language}.txt", "\n".join(shown) + "\n")


# Jobs of which one part or another is long: two lines of a machine, a doubt with its way out, a
# search, a host that decides, a command of three lines, a remedy with many options.
LONG = (
    "--machine 16x8xH100 --model 7b",
    "--machine 2x8xA100-80GB --objective fastest sft.py",
    "--machine 2xRTX3090 --model 100m --objective fastest sft.py",
    "--machine 8xV100 --model 1b --method full --host-memory 200GiB",
    "--machine 4xA100-40GB --seq-len 8192 --model 1b --trainer dpo",
    "--machine 4xA100-80GB --seq-len 8192 --model llama-3.1-8b --loss liger",
    "--machine 4xA100-80GB --model 13b --stage 3 --offload optimizer --host-memory 900GiB sft.py",
    "--machine 2xRTX3090 --seq-len 8192 --model mixtral-8x7b --method lora",
    "--machine 4xL40S --model 70b --seq-len 131072 --trainer grpo",
    "--machine 2xRTX3090 --seq-len 2048 --model 7b --host-memory 200GiB",
    "--machine 2x8xA100-80GB sft.py",
    "--machine 1xT4 --seq-len 8192 sft.py",
    "--machine 8xH200 --model 32b --global-batch 256 --gradient-checkpointing",
    "--machine 8xV100 sft.py",
    "--machine 2x8xA100-80GB --seq-len 512 --model 70b --trainer dpo",
)


@pytest.mark.parametrize("words", LONG)
def test_what_has_no_room_gives_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    (folder / "sft.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["zerowiz", "plan", *words.split()])
    for size in ("80", "50"):
        columns, _lines, kind, fitting, refused = SIZES[size]
        for name, value in (("COLUMNS", str(columns)), ("TERM", kind), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)
        screen = TerminalStream()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        with pytest.raises(SystemExit) as ended:
            main()
        # A code of a script may be longer than a line: it takes two.
        lines = screen.getvalue().splitlines()
        rows = sum(max(1, -(-cells(line) // columns)) for line in lines)
        # The prompt has one of 24.
        assert rows <= (refused - (refused == 24) if ended.value.code else fitting), "\n".join(
            lines
        )
        # What nobody said is said, or where it is.
        assert re.search(r"`-v`|--verbose|^assumed: ", screen.getvalue(), re.MULTILINE)
        # What to type, or what the first remedy asks of the script before.
        assert re.search(r"^next|\bfirst\b", screen.getvalue(), re.MULTILINE)
        split_by_script = re.search("micro-batch 4 x", screen.getvalue())
        if not ended.value.code and words.endswith("sft.py") and not split_by_script:
            assert "`--bs " in screen.getvalue()


def test_whether_offload_fits_is_unknown_where_the_host_is(here: Run) -> None:
    shown = here("plan", "-v", "--machine", "4xA100-40GB", "--model", "7b").stdout
    assert "● With everything offloaded?  unknown\n" in shown


def test_gpus_of_unknown_memory_have_a_table_too(folder: Path, here: Run) -> None:
    gpus = [{"index": index, "name": "NVIDIA Foo"} for index in range(2)]
    machine = {"schema_version": 1, "machine": {"gpus": gpus}}
    (folder / "node.json").write_text(json.dumps(machine))
    result = here("plan", "--machine", "node.json", "--model", "1b")
    assert 4 == result.code
    assert re.search(
        r"^  GiB of \? .*\n(.*\n)+?  ZeRO-2/3 offload +6-8 ", result.stdout, re.MULTILINE
    )
    assert "the free GPU memory is unknown" in result.stderr


def test_memory_that_nobody_has_checked_is_proposed_as_a_condition(folder: Path) -> None:
    words = ("--machine", "2xRTX4090", "--model", "13b", "--seq-len", "64", "--method", "full")
    person = Terminal(folder, ("plan", *words, "--gradient-checkpointing"), {}, lines=24)
    assert 4 == person.end()
    assert "next, if each node has 306GiB free: zerowiz init" in person.text
    assert "--host-memory 306GiB" in person.text
