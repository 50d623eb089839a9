"""The wizard with the file of a program, axolotl or LLaMA-Factory, instead of a script."""

import json
from pathlib import Path

import pytest
from cli.harness import ENTER, Open, Run

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
