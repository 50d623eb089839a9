"""What a script asks for against its plan stops `launch` with 5, unless it is forced."""

import json
import re
from pathlib import Path

import pytest
from cli.harness import CONFIG_ARGUMENTS, DOWN, ENTER, HF_IN_CODE, HF_PARSER, Open, Result, Run

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
PLAIN = """\
import argparse, json, deepspeed
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
config = json.load(open(args.ds_config))
loader = DataLoader(data, batch_size=args.batch)
deepspeed.initialize(model=build(), config=config)
"""
NEEDING = PLAIN.replace('"--ds_config"', '"--ds_config", required=True', 1).replace(
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
        (MAPPED, "2", (), None),
        (MAPPED, "3", (), "PF108 device-map"),
        (PLAIN, "2", (), None),
        (PLAIN, "2", ("--batch", "4"), None),
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


def test_a_plan_and_a_launch_say_the_same_of_an_argument_that_is_missing(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(NEEDING, encoding="utf-8")
    refused = here("launch", "--dry-run", "--yes", *CPU, "--stage", "2", "train.py")
    noted = here("plan", "--machine", "cpu", *CPU[2:], "--stage", "2", "train.py")
    said = "train.py requires `--data_path` (line 8), which you did not pass (PF116"
    assert (5, 0) == (refused.code, noted.code), refused.stderr + noted.stderr
    assert said in refused.stderr
    assert said in noted.stderr
    put = "put `--data_path DATA_PATH` after train.py"
    assert put in refused.stderr
    assert put in noted.stderr


def test_an_option_that_zerowiz_passes_itself_is_not_missing(here: Run, folder: Path) -> None:
    text = PLAIN.replace('"--batch", type=int, default=2', '"--batch", type=int, required=True')
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
        f"# No such flag at DeepSpeed's launcher.\n{PLAIN}".replace("--local_rank", "--local-rank"),
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


# The wizard with the file of a program, axolotl or LLaMA-Factory, instead of a script.

YAML = """\
base_model: 7b
datasets:
  - path: data.jsonl
    type: alpaca
sequence_len: 2048
micro_batch_size: 4
gradient_accumulation_steps: 2
optimizer: adamw_torch
bf16: auto
gradient_checkpointing: false
deepspeed: deepspeed_configs/zero1.json
"""
LLAMA_FACTORY = """\
model_name_or_path: 1b
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: identity
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
MACHINE = ("--machine", "4xA100-40GB")


@pytest.fixture
def yaml(folder: Path) -> Path:
    path = folder / "my.yml"
    path.write_text(YAML)
    return path


def test_a_conversation_ends_in_a_config_and_the_keys_to_set(
    terminal: Open, here: Run, yaml: Path
) -> None:
    person = terminal("init", *MACHINE, "my.yml")
    person.wait_for("Script   my.yml: a file of axolotl")
    # What it says is not asked; it does not fit.
    person.reply("What do you want to change?", "--gradient-checkpointing" + ENTER)
    person.wait_for("axolotl starts the ranks")
    person.reply("> yes, write the files", ENTER)
    assert 0 == person.end(), person.text
    config = next(yaml.parent.glob("ds_config_zero[0-9].json"))
    shown = person.text.partition("next: set in my.yml\n")[2]
    lines = [line.strip() for line in shown.partition("then train:")[0].splitlines()]
    assert f"deepspeed: {config.name}" == lines[0]
    assert "gradient_checkpointing: true" in lines
    assert "then train: axolotl train my.yml" in person.text
    # The file stays as it is, and once it is edited the same is planned.
    assert YAML == yaml.read_text()
    before = config.read_bytes()
    edited = {line.partition(":")[0]: line for line in lines}
    kept = [each for each in YAML.splitlines() if each.partition(":")[0] not in edited]
    yaml.write_text("\n".join([*kept, *lines]) + "\n")
    config.unlink()
    again = here("init", "--yes", *MACHINE, "my.yml")
    assert 0 == again.code, again.stderr
    assert before == config.read_bytes()
    assert f"next: set in my.yml\n  deepspeed: {config.name}\nthen train:" in again.stdout


def test_what_the_file_lacks_is_asked(terminal: Open, yaml: Path) -> None:
    yaml.write_text("base_model: 1b\nadapter: lora\nbf16: true\ngradient_checkpointing: true\n")
    person = terminal("init", *MACHINE, "my.yml")
    person.reply("How many sequences per rank at a time?", "2" + ENTER)
    person.reply("How many tokens per sequence?", "512" + ENTER)
    person.reply("> yes, write the files", ENTER)
    assert 0 == person.end(), person.text
    for line in ("micro_batch_size: 2", "sequence_len: 512"):
        assert f"\n  {line}\n" in person.text
    written = json.loads(next(yaml.parent.glob("*.plan.json")).read_text())
    assert ("lora", 2) == tuple(written["workload"][k] for k in ("method", "micro_batch"))


@pytest.mark.usefixtures("yaml")
def test_what_is_typed_is_set_in_the_file(here: Run) -> None:
    words = ("--model", "gpt2", "--seq-len", "512", "--micro-batch", "1")
    done = here("init", "--yes", *MACHINE, *words, "my.yml")
    assert 0 == done.code, done.stderr
    lines = ("base_model: openai-community/gpt2", "sequence_len: 512", "micro_batch_size: 1")
    for line in lines:
        assert f"\n  {line}\n" in done.stdout
    assert done.stdout.rstrip().endswith("in a copy of this folder")


@pytest.mark.usefixtures("yaml")
def test_a_size_names_no_model_that_the_file_could_load(here: Run) -> None:
    done = here("init", "--yes", *MACHINE, "--model", "1b", "my.yml")
    assert 0 == done.code, done.stderr
    assert "base_model" not in done.stdout


def test_a_file_of_llama_factory_says_its_job_and_how_to_start_it(here: Run, folder: Path) -> None:
    (folder / "my.yaml").write_text(LLAMA_FACTORY)
    words = ("--micro-batch", "1", "--lora-target-modules", "q_proj", "--gpus-per-node", "2")
    done = here("init", "--yes", *MACHINE, *words, "my.yaml")
    assert 0 == done.code, done.stderr
    config = next(folder.glob("ds_config_zero[0-9].json")).name
    assert (
        "next: set in my.yaml\n"
        f"  deepspeed: {config}\n"
        "  per_device_train_batch_size: 1\n"
        "  lora_target: q_proj\n"
        "then train: FORCE_TORCHRUN=1 NPROC_PER_NODE=2 llamafactory-cli train my.yaml\n"
    ) in done.stdout
    step = json.loads(next(folder.glob("*.plan.json")).read_text())["workload"]
    planned = ("lora", 1, 4, 1024, "bf16", True)
    keys = ("method", "micro_batch", "accumulation_steps", "sequence_tokens", "precision")
    assert planned == tuple(step[key] for key in (*keys, "gradient_checkpointing"))


@pytest.mark.parametrize(
    ("before", "method", "expected"),
    [
        ("lora", "full", ["finetuning_type: full", "quantization_bit: null"]),
        ("full", "lora", ["finetuning_type: lora", "quantization_bit: null", "lora_rank: 16"]),
    ],
)
def test_a_typed_method_leaves_no_setting_of_adapters_behind(
    here: Run, folder: Path, before: str, method: str, expected: list[str]
) -> None:
    text = LLAMA_FACTORY.replace("finetuning_type: lora", f"finetuning_type: {before}")
    (folder / "my.yaml").write_text(text)
    done = here("init", "--yes", *MACHINE, "--method", method, "my.yaml")
    assert 0 == done.code, done.stderr
    lines = done.stdout.partition("next: set in my.yaml\n")[2].partition("then train:")[0]
    assert expected == [line.strip() for line in lines.splitlines()][1:]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--loss", "chunked"), True),
        (("--trainer", "dpo"), True),
        (("--trainer", "sft"), False),
        (("--loss", "liger"), False),
        (("--optimizer-state-dtype", "bf16"), False),
    ],
)
def test_an_option_that_the_file_has_no_key_for_is_refused(
    here: Run, folder: Path, words: tuple[str, str], refused: bool
) -> None:
    (folder / "my.yaml").write_text(LLAMA_FACTORY)
    done = here("init", "--yes", *MACHINE, *words, "my.yaml")
    assert (2 if refused else 0) == done.code, done.stderr
    if refused:
        option = " ".join(words)
        assert f"zerowiz knows no key of LLaMA-Factory for `{option}`" == done.problem
        assert (
            f"remove `{option}`: the plan takes what `my.yaml` says"
            == done.hints.removeprefix("hint: ").strip()
        )


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_the_script_of_llama_factory_names_the_file_to_pass(
    here: Run, folder: Path, command: str
) -> None:
    (folder / "train.py").write_text("from llamafactory.train.tuner import run_exp\nrun_exp()\n")
    done = here(command, *MACHINE, "--model", "1b", "train.py", "my.yaml")
    assert "takes the config from its YAML file, by the key `deepspeed`" in done.stderr
    if command == "launch":
        assert 5 == done.code
        assert "pass that file instead: `zerowiz init my.yaml`" == done.hints.strip()


@pytest.mark.parametrize(
    ("text", "words", "code", "what"),
    [
        ("model_name_or_path: m\n", (), 2, "neither a training script nor a file of axolotl"),
        ("a: [\n", (), 2, "is not YAML"),
        (YAML, ("--learning-rate", "1"), 2, "after `my.yml` has no effect"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    here: Run, yaml: Path, text: str, words: tuple[str, ...], code: int, what: str
) -> None:
    yaml.write_text(text)
    refused = here("init", "--yes", *MACHINE, "my.yml", *words)
    assert code == refused.code
    assert what in refused.problem


@pytest.mark.parametrize("command", ["plan", "launch"])
@pytest.mark.parametrize("text", [YAML, LLAMA_FACTORY])
def test_what_takes_no_file_of_a_program_names_the_command_that_does(
    here: Run, yaml: Path, text: str, command: str
) -> None:
    yaml.write_text(text)
    refused = here(command, *MACHINE, "--model", "1b", "my.yml")
    assert 1 == refused.code
    assert "my.yml is a YAML file, and no training script" == refused.problem
    assert "`zerowiz init my.yml`" in refused.hints


def test_a_file_of_trl_names_the_module_to_launch(here: Run, yaml: Path) -> None:
    yaml.write_text("model_name_or_path: m\ndataset_name: d\n")
    refused = here("init", "--yes", *MACHINE, "my.yml")
    assert 2 == refused.code
    assert "`zerowiz launch -m trl.scripts.sft --config my.yml`" in refused.hints


def test_check_takes_no_file_of_a_program_for_a_config(here: Run, yaml: Path) -> None:
    yaml.write_text(LLAMA_FACTORY)
    refused = here("check", "my.yml")
    assert 1 == refused.code
    assert "there is no DeepSpeed config in `my.yml`: it has no `deepspeed`" == refused.problem
    assert "`zerowiz init my.yml`" in refused.hints


def test_a_launch_is_refused_before_anything_is_asked(here: Run, yaml: Path) -> None:
    refused = here("init", "--yes", "--launch", "--machine", "cpu", "my.yml")
    assert 2 == refused.code
    assert "axolotl starts its own ranks" in refused.problem
    assert ["my.yml"] == [path.name for path in yaml.parent.iterdir()]


# What changes what a model learns is said: values of zerowiz's own, and another global batch.

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
        (HF_IN_CODE, None),
        (BATCHES, None),
    ],
    ids=["own optimizer", "accelerate", "trainer", "parsed trainer"],
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
