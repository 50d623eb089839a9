"""What is said of a job reaches its script, where the script leaves it open."""

import json
import shutil
from pathlib import Path

import pytest
from cli.harness import HF_IN_CODE, Result, Run
from paths import TEMPLATES

A100 = ("--machine", "4xA100-40GB")
MODEL = TEMPLATES / "model"


@pytest.fixture
def hf(folder: Path) -> Path:
    """The Trainer's template."""
    shutil.copy(TEMPLATES / "train_hf.py", folder / "train.py")
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")
    return folder


def dry(here: Run, *words: str) -> Result:
    return here("launch", "--dry-run", "--json", "--yes", *A100, *words)


def settled(result: Result) -> dict[str, list[str]]:
    assert 0 == result.code, result.stderr
    return {each["setting"]: each["words"] for each in json.loads(result.stdout)["settled"]}


def script_words(result: Result) -> list[str]:
    command: list[str] = json.loads(result.stdout)["command"]
    return command[command.index("train.py") + 1 :]


@pytest.mark.usefixtures("hf")
def test_a_default_of_the_parser_is_kept_where_nobody_says_otherwise(here: Run) -> None:
    result = dry(here, "--model", "1b", "train.py")
    assert {} == settled(result)
    assert 4 == json.loads(result.stdout)["workload"]["micro_batch"]


NAMED = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import argparse
p = argparse.ArgumentParser()
p.add_argument("--base", default="gpt2")
args = p.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.base)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=1)).train()
"""
LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture
def named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with an option for its model, and a hub that nobody asks."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "train.py").write_text(NAMED)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        ("llama-3.1-8b", (), ["--base", LLAMA]),
        (LLAMA, (), ["--base", LLAMA]),
        ("llama-3.1-8b", ("--base", LLAMA), ["--base", LLAMA]),
        ("openai-community/gpt2", (), []),
    ],
)
def test_a_well_known_name_reaches_the_script_as_what_the_hub_calls_it(
    here: Run, model: str, given: tuple[str, ...], words: list[str]
) -> None:
    result = dry(
        here, "--model", model, "--stage", "3", "--offload", "none", "--force", "train.py", *given
    )
    assert 0 == result.code, result.stderr
    assert words == script_words(result)


@pytest.mark.usefixtures("named")
def test_a_well_known_name_contradicts_another_model(here: Run) -> None:
    result = dry(here, "--model", "llama-3.1-8b", "train.py", "--base", "gpt2")
    problem = (
        "`--model llama-3.1-8b` conflicts with the script: `--base gpt2` after the script says gpt2"
    )
    assert problem == result.problem
    assert f"put `--base {LLAMA}` after train.py" in result.hints


@pytest.mark.usefixtures("hf")
def test_options_reach_the_script_as_its_own_words(here: Run) -> None:
    said = ("--micro-batch", "2", "--grad-accum", "4", "--gradient-checkpointing")
    result = dry(
        here, "--model", "1b", *said, "--precision", "bf16", "train.py", "--max_steps", "3"
    )
    assert {
        "micro_batch": ["--per_device_train_batch_size", "2"],
        "accumulation_steps": ["--gradient_accumulation_steps", "4"],
        "precision": ["--bf16", "True"],
        "gradient_checkpointing": ["--gradient_checkpointing", "True"],
    } == settled(result)
    words = script_words(result)
    assert ["--max_steps", "3", "--per_device_train_batch_size", "2"] == words[:4]
    assert ["--gradient_checkpointing", "True"] == words[words.index("--gradient_checkpointing") :][
        :2
    ]
    assert (
        "note: zerowiz adds arguments after the script, which does not set them: `" in result.stderr
    )


@pytest.mark.usefixtures("hf")
def test_a_global_batch_is_delivered_as_micro_steps(here: Run) -> None:
    words = ("--micro-batch", "4", "--global-batch", "64")
    result = dry(here, "--model", "1b", *words, "train.py")
    assert {"accumulation_steps": ["--gradient_accumulation_steps", "4"]} == settled(result)


@pytest.mark.usefixtures("hf")
def test_what_was_said_twice_and_differs_is_an_error(here: Run) -> None:
    result = dry(
        here,
        "--model",
        "1b",
        "--micro-batch",
        "4",
        "train.py",
        "--per_device_train_batch_size",
        "2",
    )
    assert 2 == result.code
    assert (
        "`--micro-batch 4` conflicts with the script: `--per_device_train_batch_size 2` after the"
        " script says 2"
    ) == result.problem


def test_what_the_code_fixes_is_named_and_not_changed(here: Run, hf: Path) -> None:
    (hf / "train.py").write_text(
        "from transformers import Trainer, TrainingArguments\n"
        'args = TrainingArguments("out", per_device_train_batch_size=2)\n'
        "Trainer(args=args)\n"
    )
    result = dry(here, "--model", "1b", "--micro-batch", "4", "train.py")
    assert 2 == result.code
    assert "set `per_device_train_batch_size=4` in train.py line 2" in result.hints
    left = dry(here, "--model", "1b", "--grad-accum", "4", "train.py")
    assert 2 == left.code
    assert "set `gradient_accumulation_steps=4` in train.py line 2" in left.hints


def test_a_model_that_can_be_loaded_reaches_the_script_and_a_size_does_not(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(
        "import argparse\n"
        "from accelerate import Accelerator\n"
        "from transformers import AutoModelForCausalLM\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--model_name", default="gpt2")\n'
        "args = parser.parse_args()\n"
        "accelerator = Accelerator()\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model_name)\n"
    )
    words = ("--micro-batch", "1", "train.py")
    assert {"model": ["--model_name", str(MODEL)]} == settled(
        dry(here, "--model", str(MODEL), *words)
    )
    by_size = dry(here, "--model", "1b", *words)
    assert {} == settled(by_size)
    size = "note: `--model 1b` is only a size; the script loads `gpt2`, the default of"
    assert size in by_size.stderr
    said = dry(here, "--model", "1b", *words, "--model_name", str(MODEL))
    assert 2 == said.code
    assert "remove `--model 1b`" in said.hints
    by_name = dry(here, "--model", "1b", *words, "--model_name", "org/on-a-hub")
    assert "`--model 1b` is only a size; the script loads `org/on-a-hub`" in by_name.stderr


def test_a_size_is_not_what_a_template_trains(here: Run, folder: Path) -> None:
    for name in ("model", "portable_checkpoint"):
        shutil.copytree(TEMPLATES / name, folder / name)
    shutil.copy(TEMPLATES / "train_hf.py", folder / "train.py")
    noted = "is only a size, and the script still loads its own model"
    assert f"`--model 1b` {noted}" in dry(here, "--model", "1b", "train.py").stderr
    assert noted not in dry(here, "--model", "model", "train.py").stderr


def test_a_size_says_how_large_a_model_in_the_code_is(here: Run, folder: Path) -> None:
    text = "from transformers import AutoModelForCausalLM, TrainingArguments\n"
    text += (
        "model = AutoModelForCausalLM.from_pretrained('org/on-a-hub')\nTrainingArguments('out')\n"
    )
    (folder / "train.py").write_text(text)
    result = dry(here, "--model", "10m", "train.py")
    assert 0 == result.code
    assert "the script loads `org/on-a-hub`" in result.stderr
    assert 2 == dry(here, "--model", str(MODEL), "train.py").code


@pytest.mark.usefixtures("hf")
def test_the_cpu_accelerator_is_told_to_a_trainer(here: Run) -> None:
    cpu = ("launch", "--dry-run", "--json", "--accelerator", "cpu", "--gpus-per-node", "2")
    result = here(*cpu, "--model", "10m", "train.py")
    assert ["--use_cpu", "True"] == settled(result)["use_cpu"]
    said = here(*cpu, "--model", "10m", "train.py", "--use_cpu", "False")
    assert 5 == said.code


def test_a_config_of_ones_own_reaches_the_script_too(here: Run, hf: Path) -> None:
    (hf / "own.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": 4,
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 2},
            }
        )
    )
    result = dry(here, "--model", "1b", "--config", "own.json", "train.py")
    assert ["accumulation_steps", "micro_batch", "precision"] == sorted(settled(result))


def test_a_batch_that_ones_own_config_leaves_open_is_chosen(here: Run, hf: Path) -> None:
    """It is delivered as words; the config stays as it is, and the global batch too."""
    (hf / "own.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "zero_optimization": {"stage": 2},
            }
        )
    )
    words = ("--model", "1b", "--global-batch", "64", "--config", "own.json", "train.py")
    result = dry(here, *words)
    found = json.loads(result.stdout)
    step = found["workload"]
    assert 64 == 4 * step["micro_batch"] * step["accumulation_steps"]
    assert ["--per_device_train_batch_size", "16"] == settled(result)["micro_batch"]
    assert ("zero2", 16) == (found["choice"]["strategy"], found["choice"]["micro_batch"])


def test_plan_takes_a_script_and_its_words(here: Run, hf: Path) -> None:
    assert {path.name for path in hf.iterdir()} == {"train.py", "portable_checkpoint"}
    words = ("plan", "--json", *A100, "--model", "1b", "--micro-batch", "2", "train.py")
    result = here(*words, "--seq_len", "512")
    assert {"micro_batch": ["--per_device_train_batch_size", "2"]} == settled(result)
    assert 512 == json.loads(result.stdout)["workload"]["sequence_tokens"]
    assert {path.name for path in hf.iterdir()} == {"train.py", "portable_checkpoint"}


def test_plan_decides_for_a_script_that_no_config_reaches(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text("import lightning\n")
    assert 0 == here("plan", *A100, "--model", "1b", "train.py").code


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (("--attention", "flash", "--packing"), "`--attention flash`, `--packing`"),
        (("--loss", "chunked"), "`--loss chunked`"),
        (("--attention", "sdpa"), None),
        ((), None),
    ],
)
def test_what_no_argument_can_pass_to_a_script_is_noted(
    here: Run, folder: Path, words: tuple[str, ...], noted: str | None
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    job = ("plan", "--machine", "2xA100-80GB-SXM", "--model", "1b", "--seq-len", "512")
    stderr = " ".join(here(*job, *words, "train.py").stderr.split())
    expected = f"note: zerowiz cannot pass {noted} to your script: the plan is right only if"
    assert (expected in stderr) is (noted is not None)
    assert noted is not None or "cannot pass" not in stderr


def test_adapters_of_a_model_that_is_built_elsewhere_are_up_to_the_script(
    here: Run, folder: Path
) -> None:
    text = HF_IN_CODE.replace("model=None", "model=model")
    (folder / "train.py").write_text(f"from mine import build\nmodel = build()\n{text}")
    job = ("plan", "--machine", "2xA100-80GB-SXM", "--model", "1b", "--seq-len", "512")
    stderr = here(*job, "--method", "lora", "train.py").stderr
    assert "zerowiz cannot pass `--method lora` to your script" in " ".join(stderr.split())
    assert "cannot pass" not in here(*job, "--method", "full", "train.py").stderr


def test_what_an_option_of_the_script_takes_is_passed_without_that_note(
    here: Run, folder: Path
) -> None:
    shutil.copy(TEMPLATES / "train_deepspeed.py", folder / "train.py")
    shutil.copytree(TEMPLATES / "portable_checkpoint", folder / "portable_checkpoint")
    job = ("launch", "--dry-run", "--accelerator", "cpu", "--model", "10m", "--seq-len", "64")
    result = here(*job, "--gradient-checkpointing", "train.py")
    assert "--gradient_checkpointing" in result.stdout
    assert "cannot pass" not in result.stderr
