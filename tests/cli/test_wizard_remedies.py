"""A remedy that a person takes in the wizard reaches the script, by the line that it prints."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pyte
import pytest
from cli.harness import CTRL_C, ENTER, ESCAPE, HF_IN_CODE, HF_PARSER, Open, Run, Terminal
from drawing import as_svg
from paths import ROOT, TEMPLATES
from ranks.harness import rank_environ, read_reports, run_loaded

from zerowiz.core.machine.types import Host
from zerowiz.probe.files import Files
from zerowiz.probe.machine.host import with_number_formats

# The picture of the wizard in the README: its last screen, at a real pseudo-terminal.

PICTURE = ROOT / "docs" / "pictures" / "wizard.svg"
SCRIPT = """\
from transformers import Trainer, TrainingArguments

args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True, gradient_checkpointing=True)
Trainer(model=None, args=args).train()
"""
COLUMNS = 92
# The numbers of SGR for the colours that pyte names.
_NAMES = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
_COLOURS = {
    **{name: str(30 + number) for number, name in enumerate(_NAMES)},
    **{f"bright{name}": str(90 + number) for number, name in enumerate(_NAMES)},
}


def as_written(cell: pyte.screens.Char) -> str:
    """A character with the colours that it has on the screen."""
    codes = [code for on, code in ((cell.bold, "1"), (cell.reverse, "7")) if on]
    codes += [_COLOURS[cell.fg]] if cell.fg in _COLOURS else []
    return f"\x1b[{';'.join(codes)}m{cell.data}\x1b[0m" if codes else cell.data


def screen_of(person: Terminal) -> str:
    """The screen as a terminal was told to draw it."""
    rows = (
        "".join(as_written(person.screen.buffer[y][x]) for x in range(person.screen.columns))
        for y in range(len(person.text.splitlines()))
    )
    return "\n".join(row.rstrip() for row in rows)


def test_the_picture_of_the_wizard_is_current(folder: Path, request: pytest.FixtureRequest) -> None:
    (folder / "train.py").write_text(SCRIPT)
    person = Terminal(folder, ("init", "--machine", "4xA100-40GB-SXM"), {}, columns=COLUMNS)
    person.talk(
        ("Which model?", "7b" + ENTER),
        ("How many tokens per sequence?", ENTER),
        ("Write the files?", ""),
    )
    screen = f"$ zerowiz init --machine 4xA100-40GB-SXM\n{screen_of(person)}"
    person.reply("Write the files?", CTRL_C)
    person.end()
    made = as_svg("zerowiz init: the wizard with its flowchart", screen + "\n", COLUMNS)
    if request.config.getoption("--update-golden"):
        PICTURE.write_text(made, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == made, "`make golden` draws it again"


# What nobody says is chosen, and needs no remedy.
SAID = ("--micro-batch", "4", "--no-gradient-checkpointing")
A100 = ("--machine", "4xA100-40GB", "--model", "7b", *SAID)
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "model", *SAID)
# What is typed to find a remedy in the menu, and what it sets of the step.
A100_REMEDIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("--micro-batch", {"micro_batch": 2, "accumulation_steps": 2}),
    ("--precision", {"precision": "bf16"}),
)
HF = "train_hf.py"
LEAN_WORDS = ("--method", "full", "--micro-batch", "1", "--gradient-checkpointing")
LONG = ("--seq-len", "2048", *LEAN_WORDS)
# The sequences of a step stay.
LEAN: dict[str, object] = {
    "micro_batch": 1,
    "accumulation_steps": 4,
    "gradient_checkpointing": True,
}
# A script that can train adapters.
ADAPTING = """\
from dataclasses import dataclass

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments,
)


@dataclass
class Job:
    model: str = "model"
    use_lora: bool = False
    seq_len: int = 128


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "out"
    per_device_train_batch_size: int = 4
    report_to: str = "none"


args, job = HfArgumentParser((Arguments, Job)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job.model))
if job.use_lora:
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16))
ids = torch.arange(job.seq_len) % 256
Trainer(model=model, args=args, train_dataset=[{"input_ids": ids, "labels": ids}] * 256).train()
print("adapters", hasattr(model, "peft_config"), "tokens", len(ids))
"""
# What a person may make of theirs where its logits are too large.
CHUNKED = """\
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments,
)


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = "out"
    per_device_train_batch_size: int = 4
    gradient_checkpointing: bool = True
    report_to: str = "none"


def loss_of(head, hidden, targets):
    return cross_entropy(head(hidden).float(), targets, reduction="sum")


class Chunked(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        targets = inputs.pop("labels")[:, 1:].flatten()
        hidden = model.module.model(**inputs).last_hidden_state[:, :-1].flatten(0, 1)
        chunks = list(zip(hidden.split(128), targets.split(128)))
        print("chunks", len(chunks))
        head = model.module.lm_head
        losses = [checkpoint(loss_of, head, *each, use_reentrant=False) for each in chunks]
        return sum(losses) / targets.numel()


(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
ids = torch.arange(512) % 256
Chunked(model=model, args=args, train_dataset=[{"input_ids": ids, "labels": ids}] * 64).train()
"""
# Besides, the script, the options that make it fit nowhere, and the stage that it trains at then.
CPU_REMEDIES: tuple[tuple[str, str, tuple[str, ...], dict[str, object], int], ...] = (
    ("--micro-batch", HF, ("--memory-budget", "0.5GiB"), A100_REMEDIES[0][1], 2),
    (
        "--gradient-checkpointing",
        HF,
        ("--memory-budget", "0.5GiB"),
        {"gradient_checkpointing": True},
        2,
    ),
    ("--precision", HF, ("--memory-budget", "0.5GiB"), {"precision": "bf16"}, 2),
    ("--memory-budget", HF, ("--memory-budget", "0.3GiB"), {}, 2),
    ("--stage", HF, ("--memory-budget", "0.6GiB", "--stage", "1"), {}, 2),
    (
        "--precision bf16 --micro-batch",
        HF,
        ("--memory-budget", "0.45GiB"),
        {"precision": "bf16", **A100_REMEDIES[0][1]},
        2,
    ),
    ("--offload", HF, ("--memory-budget", "0.56GiB", "--offload", "none"), {}, 2),
    (
        "--seq-len 512",
        "adapting.py",
        ("--memory-budget", "0.56GiB", "--offload", "none", "--stage", "2", *LONG),
        {"sequence_tokens": 512, **LEAN},
        2,
    ),
    (
        "--method lora",
        "adapting.py",
        ("--memory-budget", "0.46GiB", "--stage", "1", *LEAN_WORDS),
        {"method": "lora", **LEAN},
        1,
    ),
    (
        "--eval-batch",
        HF,
        ("--memory-budget", "0.75GiB", "--eval-batch", "256", "--offload", "none"),
        {},
        1,
    ),
    (
        "--model 100m",
        HF,
        ("--memory-budget", "4GiB", "--offload", "none", "--model", "500m"),
        {},
        0,
    ),
)
# One that reaches the ranks by the Trainer's arguments, and one by the script itself.
SAMPLED = {"--offload", "--method lora"}
STEP: dict[str, object] = {
    "micro_batch": 4,
    "accumulation_steps": 1,
    "precision": "fp32",
    "gradient_checkpointing": False,
    "sequence_tokens": 128,
    "method": "full",
}


@pytest.fixture
def hf(folder: Path) -> Path:
    """The Trainer's template, with all that it needs."""
    for name in ("model", "portable_checkpoint"):
        shutil.copytree(TEMPLATES / name, folder / name)
    for name in ("train_hf.py", "corpus.txt"):
        shutil.copy(TEMPLATES / name, folder / name)
    (folder / "adapting.py").write_text(ADAPTING)
    return folder


REMEDY, CHANGE = "What do you want to change?", "Change which answer?"
LAST = "> yes, write the files"
# As the template trains by itself.
FP32 = ("Which precision?", "fp32" + ENTER)


def take(terminal: Open, typed: str, *words: str) -> list[str]:
    """Take one of the remedies in the wizard; the command that it prints to go on."""
    person = terminal("init", *words)
    last = "Launch now?" if "cpu" in words else "Write the files?"
    if "cpu" not in words:
        person.talk(FP32)
    person.finish((REMEDY, typed + ENTER), ("stop here", ""), (last, "write the files" + ENTER))
    then = "next" if "cpu" in words else "next, on the other machine"
    _, _, rest = person.text.partition(f"{then}: ")
    return shlex.split(rest.partition("\nthe same")[0].replace("\\\n", " "))


def plan_of(folder: Path) -> Any:
    """The plan that was written."""
    return json.loads(next(folder.glob("*.plan.json")).read_text())


def step(plan: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: plan["workload"][name] for name in STEP}


@pytest.mark.parametrize(("typed", "remedy"), A100_REMEDIES)
def test_the_printed_line_launches_what_was_taken(
    terminal: Open, here: Run, hf: Path, typed: str, remedy: dict[str, object]
) -> None:
    zerowiz, *command = take(terminal, typed, *A100, "train_hf.py", "--max_steps", "3")
    assert ("zerowiz", ["launch"]) == (zerowiz, command)
    written = plan_of(hf)
    plan = here(*command, "--dry-run", "--json", "--machine", "4xA100-40GB").content
    assert STEP | remedy == step(plan) == step(written)
    assert plan["chosen"] == written["chosen"] == "zero3"
    added = [word for each in plan["settled"] for word in each["words"]]
    launched = plan["command"][plan["command"].index("train_hf.py") + 1 :]
    assert ["--max_steps", "3", *added] == launched[: 2 + len(added)]
    assert {each["setting"] for each in plan["settled"]} == remedy.keys()


def test_esc_undoes_a_remedy_and_another_machine_is_named_with_what_is_written(
    terminal: Open, hf: Path
) -> None:
    person = terminal("init", *A100, HF)
    first = "> --micro-batch 2"
    person.finish(
        FP32,
        (first, "--precision" + ENTER),
        ("Write the files?", ESCAPE),
        (first, "--host-memory" + ENTER),
        ("Write the files?", ESCAPE),
        (first, "--machine 4x" + ENTER),
        ("Write the files?", ENTER),
    )
    assert "Run it on 4 x NVIDIA A100-SXM4-80GB, in a copy of this folder" in person.text
    written = plan_of(hf)
    assert STEP == step(written)
    assert (4, "zero2") == (len(written["machine"]["gpus"]), written["chosen"])
    # What was undone leaves no trace.
    assert 1 == person.text.count(REMEDY)


def test_a_remedy_stays_when_something_else_is_changed_until_it_is_taken_back(
    terminal: Open, hf: Path
) -> None:
    (hf / "other.py").write_bytes((hf / HF).read_bytes())
    words = tuple(word for word in A100 if word not in {"--model", "7b"})
    person = terminal("init", *words)
    person.finish(
        ("Which training script?", HF + ENTER),
        ("Which model?", "7b" + ENTER),
        FP32,
        (REMEDY, "--micro-batch" + ENTER),
        (LAST, "change" + ENTER),
        ("you chose this change; Enter undoes it", ""),
        (CHANGE, "model" + ENTER),
        ("Which model?", "6.9b" + ENTER),
        ("micro-batch 2 x", ""),
        (LAST, "change" + ENTER),
        (CHANGE, "--micro-batch 2" + ENTER),
        # Without it nothing fits again.
        (REMEDY, "--precision" + ENTER),
        (LAST, ENTER),
    )
    written = plan_of(hf)
    assert STEP | {"precision": "bf16"} == step(written)


def test_what_may_not_fit_is_made_to_fit_by_a_change_that_can_be_undone(
    terminal: Open, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = ("--seq-len", "2048", "--objective", "fastest")
    person = terminal("init", *A100[:4], *words)
    sure, remedy = (LAST, "make it fit for sure" + ENTER), "> --precision"
    person.finish(
        FP32,
        sure,
        (remedy, "nothing" + ENTER),
        sure,
        (remedy, ENTER),
        ("--bf16 True", ""),
        (LAST, ESCAPE),
        ("make it fit for sure  lists what would", ""),
        sure,
        (remedy, ENTER),
        (LAST, "change" + ENTER),
        ("you chose this change; Enter undoes it", ""),
        (CHANGE, ESCAPE),
        (LAST, ENTER),
    )
    written = plan_of(folder)
    assert "bf16" == written["workload"]["precision"]
    verdicts = {each["name"]: each["verdict"] for each in written["strategies"]}
    assert "fits" == verdicts[written["chosen"]]


def test_a_script_that_was_edited_for_a_remedy_is_read_again(terminal: Open, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(HF_IN_CODE)
    person = terminal("init", "--machine", "4xA100-40GB", "--model", "7b", "--seq-len", "2048")
    again = "read my script again"
    person.talk(
        ("Not in the menu below, as it changes your script or this machine:", ""),
        # Nothing was edited yet.
        (REMEDY, again + ENTER),
        ("zerowiz still reads the same settings from train.py", ""),
    )
    script.write_text(HF_IN_CODE.replace("bf16=True", "bf16=True, gradient_checkpointing=True"))
    person.finish(("> --", again + ENTER), (LAST, ENTER))
    written = plan_of(folder)
    assert written["workload"]["gradient_checkpointing"]


def test_a_network_that_a_person_states_is_in_the_plan_and_in_the_line_that_repeats_it(
    terminal: Open, here: Run, hf: Path
) -> None:
    nodes = ("--machine", "8xH100-80GB-SXM", "--nodes", "16", "--model", "405b")
    person = terminal("init", *nodes, "train_hf.py")
    person.finish(
        ("What is your goal?", ENTER),
        FP32,
        (REMEDY, "infiniband:400" + ENTER),
        ("Write the files?", ENTER),
    )
    written = plan_of(hf)
    assert ("zero3", True) == (written["chosen"], written["workload"]["gradient_checkpointing"])
    assert ["infiniband", 50_000_000_000] == [
        written["machine"]["network"][name] for name in ("kind", "bytes_per_s")
    ]
    line = person.text.partition("the same in a job script: ")[2].replace("\\\n", " ")
    zerowiz, *command = shlex.split(line)
    assert "infiniband:400Gb/s" == command[command.index("--interconnect") + 1]
    script = command.index("train_hf.py")
    assert ["launch", "--yes"] == command[:2]
    result = here("plan", *command[2:script], *nodes[:2], "--json", *command[script:])
    assert ("zerowiz", 0) == (zerowiz, result.code), result.stderr
    plan = json.loads(result.stdout)
    for name in ("chosen", "workload", "strategies"):
        assert written[name] == plan[name]
    assert written["machine"]["network"] == plan["machine"]["network"]


def assert_not_offered(person: Terminal, typed: str) -> None:
    person.reply(REMEDY, typed + ENTER)
    person.wait_for(f"no line has `{typed}`")


@pytest.mark.usefixtures("hf")
def test_bf16_is_not_offered_where_no_cpu_computes_it(terminal: Open) -> None:
    person = terminal("init", *CPU, "--memory-budget", "0.5GiB", HF, ONEDNN_MAX_CPU_ISA="AVX2")
    assert_not_offered(person, "--precision")


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "script", "words", "remedy", "stage"),
    [
        pytest.param(*each, marks=() if each[0] in SAMPLED else pytest.mark.thorough)
        for each in CPU_REMEDIES
    ],
)
def test_the_ranks_train_what_was_taken(
    terminal: Open,
    hf: Path,
    typed: str,
    script: str,
    words: tuple[str, ...],
    remedy: dict[str, object],
    stage: int,
) -> None:
    here = with_number_formats(Host(), Files(), os.environ)
    if remedy.get("precision") == "bf16" and here.computes_bf16 is False:
        assert_not_offered(terminal("init", *CPU, *words, script), typed)
        return
    _, *command = take(terminal, typed, *CPU, *words, script, "--max_steps", "3")
    reports = hf / "reports"
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", *command, "--yes"], env=rank_environ(reports), cwd=hf
    ).good
    wanted = STEP | remedy
    if script == "adapting.py":
        adapters, tokens = wanted["method"] == "lora", wanted["sequence_tokens"]
        assert 2 == done.stdout.count(f"adapters {adapters} tokens {tokens}\n")
    seen = {name for name in STEP if name not in {"precision", "sequence_tokens", "method"}}
    assert [(0, wanted), (1, wanted)] == [
        (
            report["rank"],
            {
                **wanted,
                **{name: report[name] for name in seen},
                "precision": "bf16" if report["bf16_enabled"] else "fp32",
            },
        )
        for report in read_reports(reports)
    ]
    chosen = json.loads(next(hf.glob("*.plan.json")).read_text())["chosen"]
    offloads = chosen.endswith("offload")
    assert offloads or typed != "--offload"
    assert [(stage, offloads), (stage, offloads)] == [
        (report["stage"], report["offload_optimizer"] == "cpu") for report in read_reports(reports)
    ]


@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_ranks_train_a_script_that_was_edited_for_a_loss_in_chunks(
    terminal: Open, hf: Path
) -> None:
    config = hf / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 32_000}))
    (hf / "chunked.py").write_text(CHUNKED)
    words = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "model", "--seq-len", "512")
    said = (*words, "--memory-budget", "0.9GiB")
    person = terminal("init", *said, "--micro-batch", "4", "chunked.py")
    person.reply(REMEDY, ESCAPE)
    assert "`--loss chunked`: ZeRO-2" in person.text
    assert "compute the loss in chunks in `chunked.py`" in " ".join(person.text.split())
    launch = [sys.executable, "-m", "zerowiz", "launch", "--yes", *said, "--loss", "chunked"]
    reports = hf / "reports"
    done = run_loaded(
        [*launch, "chunked.py", "--max_steps", "1"], env=rank_environ(reports), cwd=hf
    ).good
    assert 2 == done.stdout.count("chunks 16\n")
    assert [2, 2] == [report["stage"] for report in read_reports(reports)]
