"""What a script asks for against its plan stops `launch` with 5, unless it is forced."""

import re
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE, HF_PARSER, Run

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
EDITED = """\
import argparse, json, deepspeed
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--warmup", action="store_true")
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
config = json.load(open(args.ds_config))
config["train_micro_batch_size_per_gpu"] = args.batch
config["zero_optimization"]["stage"] = args.stage
if args.warmup:
    config["scheduler"]["params"]["warmup_num_steps"] = 10
deepspeed.initialize(model=build(), config=config)
"""
NEEDING = EDITED.replace('"--ds_config"', '"--ds_config", required=True', 1).replace(
    "args =", 'parser.add_argument("--data_path", required=True)\nargs =', 1
)
MAPPED = HF_PARSER.replace(
    "Trainer(model=None",
    'model = AutoModelForCausalLM.from_pretrained("gpt2", device_map="cpu")\nTrainer(model=model',
).replace("import Hf", "import AutoModelForCausalLM, Hf")
SAVING = f"{HF_PARSER}trainer = Trainer(model=net)\ntrainer.train()\nnet.save_pretrained('o')\n"
HANDING = f"{HF_PARSER}Trainer(model=net, optimizers=(mine, None))\n"
ESCALATE = ("--supervise", "--escalate")


@pytest.mark.parametrize(
    ("text", "stage", "words", "expected"),
    [
        (HF_PARSER, "2", (), None),
        (HF_PARSER, "2", ("--fsdp", "full_shard"), "PF109 fsdp"),
        (HF_PARSER, "2", ("--evaluation_strategy", "steps"), "PF113 removed-option"),
        (HF_IN_CODE.replace("use_cpu", "no_cuda=True, use_cpu"), "2", (), "PF113 removed-option"),
        (MAPPED, "2", (), None),
        (MAPPED, "3", (), "PF108 device-map"),
        (EDITED, "2", (), None),
        (EDITED, "2", ("--batch", "4"), None),
        (EDITED, "2", ("--stage", "3"), "PF107 config-key-changed"),
        (EDITED, "3", ("--stage", "3"), None),
        (EDITED, "2", ("--warmup",), "PF106 config-key-missing"),
        (SAVING, "2", (), None),
        (SAVING, "3", (), "PF117 shards-saved"),
        (SAVING.replace("net.save_pretrained", "trainer.save_model"), "3", (), None),
        (NEEDING, "2", (), "PF116 missing-argument"),
        (NEEDING, "2", ("--data", "texts"), None),
    ],
)
def test_what_a_script_asks_against_its_plan_stops_a_launch_unless_forced(
    here: Run, folder: Path, text: str, stage: str, words: tuple[str, ...], expected: str | None
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    launch = ("launch", "--dry-run", "--yes", *CPU, "--stage", stage)
    result = here(*launch, "train.py", *words)
    assert (0 if expected is None else 5) == result.code, result.stderr
    assert expected is None or expected in result.stderr
    forced = here(*launch, "--force", "train.py", *words)
    assert 0 == forced.code, forced.stderr
    notes = [line for line in forced.stderr.splitlines() if line.startswith("note: ")]
    assert expected is None or any(expected in note for note in notes)


@pytest.mark.parametrize(
    ("stage", "more", "text", "noted"),
    [
        ("2", ESCALATE, SAVING, "PF117"),
        ("2", (), SAVING, None),
        ("0", (), HANDING, "PF118"),
        ("3", (), HANDING, "PF118"),
    ],
)
@pytest.mark.parametrize("where", [CPU, ("--machine", "4xA100-40GB-SXM", *CPU[4:])])
def test_a_launch_notes_what_a_script_may_lose(
    here: Run,
    folder: Path,
    stage: str,
    more: tuple[str, ...],
    text: str,
    noted: str | None,
    where: tuple[str, ...],
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    launch = ("launch", "--dry-run", "--yes", *where, "--stage", stage, *more)
    result = here(*launch, "train.py", "--bf16")
    assert 0 == result.code, result.stderr
    assert (noted is None) == ("PF11" not in result.stderr)
    assert noted is None or noted in result.stderr


def test_a_plan_that_takes_stage_3_notes_a_save_of_shards(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(SAVING, encoding="utf-8")
    job = ("plan", "--machine", "8xA100-40GB", "--model", "13b", "--seq-len", "64", "train.py")
    result = here(*job, "--bf16")
    assert "Chosen   ZeRO-3" in result.stdout, result.stdout
    call = f"`net.save_pretrained('o')` (line {SAVING.count(chr(10))}) (PF117 shards-saved)"
    assert f"train.py saves empty weights at stage 3: {call}" in result.stderr, result.stderr
    assert "`trainer.save_model(...)`" in result.stderr
    assert "PF117" not in here(*job[:-1], "--stage", "2", "train.py", "--bf16").stderr


def test_a_dry_run_for_another_machine_says_what_would_stop_the_launch_there(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER, encoding="utf-8")
    launch = ("launch", "--dry-run", "--machine", "4xA100-40GB-SXM", "--model", "100m")
    words = ("train.py", "--bf16", "--fsdp", "full_shard")
    result = here(*launch, *words)
    assert (5, True) == (result.code, "PF109 fsdp" in result.stderr), result.stderr
    assert (0, True) == (
        (forced := here(*launch, "--force", *words)).code,
        "PF109" in forced.stderr,
    )
    assert 0 == here(*launch, *words[:2]).code


def test_a_plan_notes_what_its_script_asks_against_it(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(EDITED, encoding="utf-8")
    asked = ("plan", "--machine", "cpu", "--gpus-per-node", "2", "--model", "10m", "--stage", "1")
    result = here(*asked, "--seq-len", "64", "train.py")
    assert 0 == result.code, result.stderr
    assert "overwrites `zero_optimization.stage` of the config (PF107" in result.stderr
    assert "; put `--stage 1` after train.py" in result.stderr
    kept = here(*asked, "--seq-len", "64", "train.py", "--stage", "1")
    assert (0, False) == (kept.code, "PF107" in kept.stderr)


def test_a_plan_and_a_launch_say_the_same_of_an_argument_that_is_missing(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(NEEDING, encoding="utf-8")
    refused = here("launch", "--dry-run", "--yes", *CPU, "--stage", "2", "train.py")
    noted = here("plan", "--machine", "cpu", *CPU[2:], "--stage", "2", "train.py")
    said = "train.py requires `--data_path` (line 10), which you did not pass (PF116"
    assert (5, 0) == (refused.code, noted.code), refused.stderr + noted.stderr
    assert said in refused.stderr
    assert said in noted.stderr
    put = "put `--data_path DATA_PATH` after train.py"
    assert put in refused.stderr
    assert put in noted.stderr


def test_an_option_that_zerowiz_passes_itself_is_not_missing(here: Run, folder: Path) -> None:
    text = EDITED.replace('"--batch", type=int, default=2', '"--batch", type=int, required=True')
    (folder / "train.py").write_text(text, encoding="utf-8")
    launch = ("launch", "--dry-run", "--yes", *CPU, "--stage", "2")
    result = here(*launch, "--micro-batch", "4", "train.py")
    assert (0, True) == (result.code, "--batch 4" in result.stdout), result.stderr


@pytest.mark.parametrize(
    ("where", "model", "code"),
    [("2xA100-40GB-SXM", "1b", 0), ("1xRTX-4090", "30b", 4), ("all", "1b", 0)],
)
@pytest.mark.parametrize(
    "text",
    [
        "import torch\nmodel = torch.nn.Linear(4, 4)\ntorch.optim.AdamW(model.parameters())\n",
        "import deepspeed\ndeepspeed.initialize(model=build(), config=make_config())\n",
        f"# No such flag at DeepSpeed's launcher.\n{EDITED}".replace(
            "--local_rank", "--local-rank"
        ),
    ],
)
def test_a_plan_says_that_a_launch_refuses_its_script(
    here: Run, folder: Path, text: str, where: str, model: str, code: int
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    job = ("--model", model, "--micro-batch", "1", "train.py")
    planned = here("plan", "--machine", where, *job)
    launched = here("launch", "--dry-run", "--machine", "2xA100-40GB-SXM", *job)
    refusal = launched.stderr.partition("error: ")[2].splitlines()[0]
    assert 5 == launched.code, launched.stderr
    assert f"note: {refusal}; `zerowiz launch` refuses it" in planned.stderr
    assert code == planned.code, planned.stderr


def test_a_plan_says_so_before_it_asks_for_the_model(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text("import torch\nmodel = torch.nn.Linear(4, 4)\n")
    result = here("plan", "--machine", "2xA100-40GB-SXM", "train.py")
    refused = "`Accelerator()`; `zerowiz launch` refuses it, and says what to change"
    assert (3, 1) == (result.code, result.stderr.count(refused)), result.stderr


def test_a_plan_says_that_the_code_names_another_config(here: Run, folder: Path) -> None:
    literal = HF_IN_CODE.replace("bf16=True", 'bf16=True, deepspeed="ds_config_zero3.json"')
    (folder / "train.py").write_text(literal, encoding="utf-8")
    job = ("plan", "--machine", "2xA100-40GB-SXM", "--model", "100m", "--stage")
    assert "names `ds_config_zero3.json`, but zerowiz writes" in here(*job, "2", "train.py").stderr
    assert "refuses it" not in here(*job, "3", "train.py").stderr


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        (HF_IN_CODE, "4xA100-40GB-SXM", None),
        (
            HF_IN_CODE.replace("bf16=True, ", ""),
            "4xA100-40GB-SXM",
            "set `bf16=True` in train.py line 3",
        ),
        (HF_IN_CODE.replace("bf16=True", "bf16=False"), "4xA100-40GB-SXM", None),
        (HF_IN_CODE.replace("bf16=True, ", ""), "8xV100-32GB", None),
        (HF_IN_CODE.replace("bf16=True, ", ""), "cpu", None),
        (HF_PARSER, "4xA100-40GB-SXM", "put `--bf16` after train.py"),
    ],
)
def test_a_plan_notes_that_its_script_leaves_the_precision_at_fp32(
    here: Run, folder: Path, text: str, machine: str, expected: str | None
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    result = here("plan", "--machine", machine, "--model", "100m", "--micro-batch", "4", "train.py")
    assert 0 == result.code, result.stderr
    said = "your script trains in fp32" in result.stderr
    assert (expected is not None) == said
    assert expected is None or expected in result.stderr


LOADED = """\
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=torch.bfloat16)
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("text", "words", "noted"),
    [
        (LOADED, (), True),
        (LOADED.replace("torch_dtype=torch.bfloat16", 'dtype="float16"'), (), True),
        (LOADED.replace("torch_dtype=torch.bfloat16", "dtype=torch.float32"), (), False),
        (LOADED.replace(", torch_dtype=torch.bfloat16", ""), (), False),
        (LOADED, ("--bf16", "True"), False),
    ],
)
def test_a_plan_says_that_16_bit_weights_are_counted_as_fp32(
    here: Run, folder: Path, text: str, words: tuple[str, ...], *, noted: bool
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    job = ("--machine", "4xA100-40GB-SXM", "--model", "100m", "--micro-batch", "4", "train.py")
    result = here("plan", *job, *words)
    assert 0 == result.code, result.stderr
    assert noted is ("in train.py line 4 loads 16-bit weights" in result.stderr), result.stderr
    assert bool(words) is ("accumulation 1, bf16, fp32 optimizer states" in result.stdout)
    assert bool(words) is not ("put `--bf16` after train.py" in result.stderr)


def test_ranks_on_the_cpu_are_counted_as_such(here: Run) -> None:
    one = here("plan", "--machine", "cpu", "--model", "10m", "--seq-len", "64")
    two = here(
        "plan", "--machine", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64"
    )
    assert "Machine  1 CPU rank (this host); one rank, no link" in one.stdout
    assert "Machine  2 CPU ranks (this host)" in two.stdout
    # A small model is not "0.1 GiB, 0.1 to 0.1".
    assert re.search(r"torch allocates \d+ MiB, \d+ to \d+ on any rank", two.stdout)


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        (HF_IN_CODE, True),
        (HF_PARSER, False),
        (f"import sys\nlr = sys.argv[2]\n{HF_IN_CODE}", False),
        (f"from click import command\n{HF_IN_CODE}", False),
        (f"from .settings import lr\n{HF_IN_CODE}", False),
        (f"from settings import lr\n{HF_IN_CODE}", False),
    ],
)
@pytest.mark.parametrize("command", [("plan",), ("launch", "--dry-run", "--yes")])
def test_words_after_a_script_that_surely_reads_none_are_noted(
    here: Run, folder: Path, command: tuple[str, ...], text: str, *, noted: bool
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    result = here(*command, *CPU, "train.py", "--lr", "3", "--hub_token", "hf_abc")
    assert noted is ("after train.py has no effect" in result.stderr), result.stderr
    assert "hf_abc" not in "".join(line for line in result.stderr.splitlines() if "effect" in line)
    if noted:
        assert "note: `--lr 3 --hub_token" in result.stderr
        assert "no effect" not in here(*command, *CPU, "train.py").stderr
