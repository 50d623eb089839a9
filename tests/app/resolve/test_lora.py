"""A script that trains adapters: planned as what it is, and asked about nothing that it shows."""

import json
import re
import sys
from pathlib import Path

import pytest
from cli.harness import ENTER, Open, Result, Run, answers_of
from paths import TESTS
from probe.scripts import SCRIPTS
from ranks.harness import rank_environ, read_reports, run, run_loaded

MODEL = TESTS.parent / "templates" / "model"

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "4GiB")
A100 = ("--machine", "4xA100-40GB")


def write(folder: Path, name: str, old: str = "", new: str = "") -> None:
    """One of the scripts that the reading is held to, as `train.py` in this folder."""
    text = (SCRIPTS / f"{name}.py").read_text()
    assert old in text
    (folder / "train.py").write_text(text.replace(old, new) if old else text)


def tiny(folder: Path) -> None:
    write(folder, "lora_tiny", 'default="model"', f'default="{MODEL}"')


def adapters(result: Result) -> tuple[object, object, object]:
    planned = result.content["workload"]
    return planned["method"], planned["lora_rank"], planned["lora_target_modules"]


def dry(here: Run, *words: str) -> Result:
    return here("launch", "--dry-run", "--json", *CPU, *words)


LAYERS = ("--lora-target-modules", "all-linear")


@pytest.mark.parametrize(
    ("options", "given", "expected", "added"),
    [
        pytest.param((), (), ("lora", 4, "q_proj,v_proj"), (), id="as the script has them"),
        pytest.param((), ("--lora_r", "32"), ("lora", 32, "q_proj,v_proj"), (), id="its rank"),
        pytest.param(
            (),
            ("--lora_target_modules", "k_proj", "o_proj"),
            ("lora", 4, "k_proj,o_proj"),
            (),
            id="its layers",
        ),
        pytest.param(
            (
                *("--method", "lora", "--lora-rank", "4"),
                *("--lora-target-modules", "v_proj,q_proj"),
            ),
            (),
            ("lora", 4, "v_proj,q_proj"),
            (),
            id="an option that agrees",
        ),
        pytest.param(
            ("--lora-rank", "16", *LAYERS),
            (),
            ("lora", 16, "all-linear"),
            ("--lora_r", "16", "--lora_target_modules", "all-linear"),
            id="an option in place of a default",
        ),
    ],
)
def test_the_plan_takes_method_rank_and_layers_from_the_script_and_the_options(
    here: Run,
    folder: Path,
    options: tuple[str, ...],
    given: tuple[str, ...],
    expected: tuple[object, ...],
    added: tuple[str, ...],
) -> None:
    tiny(folder)
    result = dry(here, *options, "train.py", *given)
    assert expected == adapters(result)
    settled = [word for each in json.loads(result.stdout)["settled"] for word in each["words"]]
    assert [*added] == settled


@pytest.mark.parametrize(
    ("options", "given", "problem", "hint"),
    [
        (
            ("--method", "full"),
            (),
            "`--method full` conflicts with the script: `get_peft_model(...)` in train.py line 45",
            "edit train.py line 45",
        ),
        (
            ("--method", "qlora"),
            (),
            "`--method qlora` conflicts with the script: ",
            "edit train.py line 45",
        ),
        (
            ("--lora-rank", "16"),
            ("--lora_r", "8"),
            "`--lora-rank 16` conflicts with the script: `--lora_r 8` after the script says 8",
            "put `--lora_r 16` after train.py",
        ),
    ],
)
def test_an_option_that_contradicts_the_script_is_an_error_that_names_both(
    here: Run,
    folder: Path,
    options: tuple[str, ...],
    given: tuple[str, ...],
    problem: str,
    hint: str,
) -> None:
    tiny(folder)
    result = dry(here, *options, "train.py", *given)
    assert 2 == result.code
    assert result.problem.startswith(problem)
    assert hint in result.hints


def test_adapters_behind_a_switch_are_planned_where_it_is_on(here: Run, folder: Path) -> None:
    write(folder, "lora_optional", "Qwen/Qwen2.5-0.5B", str(MODEL))
    assert ("full", None, None) == adapters(here(*(*DRY_A100, "train.py")))
    on = here(*DRY_A100, "train.py", "--use_lora")
    assert ("lora", 16, "q_proj,v_proj") == adapters(on)
    assert "that `LoraConfig(modules_to_save=['lm_head'])` in line 27 has no effect" in on.stderr
    by_option = here(*DRY_A100, "--method", "lora", "train.py")
    assert adapters(on) == adapters(by_option)
    added = {"setting": "method", "value": "lora", "words": ["--use_lora", "True"]}
    assert added in json.loads(by_option.stdout)["settled"]


DRY_A100 = ("launch", "--dry-run", "--json", *A100)


def test_a_quantized_base_is_planned_as_qlora(here: Run, folder: Path) -> None:
    write(folder, "lora_dataclasses", "lmsys/vicuna-7b-v1.5", str(MODEL))
    assert "lora" == adapters(here(*DRY_A100, "train.py"))[0]
    assert "qlora" == adapters(here(*DRY_A100, "train.py", "--q_lora", "true"))[0]


def test_adapters_on_weights_of_unseen_bits_are_planned_as_adapters(
    here: Run, folder: Path
) -> None:
    old = "if model_args.use_lora:\n"
    new = f"{old}    model = prepare_model_for_kbit_training(model)\n"
    write(folder, "lora_optional", old, new)
    words = ("--model", "7b", "train.py")
    on = here(*DRY_A100, *words, "--use_lora")
    assert "lora" == adapters(on)[0]
    assert "adapters beside frozen 16-bit weights (`--method`)" in on.stderr
    assert "full" == adapters(here(*DRY_A100, *words))[0]
    assert "qlora" == adapters(here(*DRY_A100, "--method", "qlora", *words, "--use_lora"))[0]


def test_what_cannot_be_seen_is_said_in_one_line_with_its_flags(here: Run, folder: Path) -> None:
    write(folder, "lora_yaml")
    result = here(*DRY_A100, "--model", "7b", "--micro-batch", "2", "train.py")
    assert ("lora", 16, "all-linear") == adapters(result)
    (assumed,) = [line for line in result.stderr.splitlines() if "note: assumed" in line]
    assert (
        "note: assumed 2048 tokens per sequence (`--seq-len`), adapters of rank 16 (`--lora-rank`),"
        " adamw (`--optimizer`), adapters on all-linear (`--lora-target-modules`)"
    ) == assumed
    (ends,) = [line for line in result.stderr.splitlines() if line.startswith("Unseen")]
    assert "`LoraConfig(**...)` in train.py line 13" in ends


def test_where_all_is_seen_nothing_is_said(here: Run, folder: Path) -> None:
    tiny(folder)
    result = dry(here, "--seq-len", "32", "train.py").good
    assert "assumed" not in result.stderr
    assert "Unseen" not in result.stderr


def test_init_on_a_script_with_adapters_plans_them_unasked(terminal: Open, folder: Path) -> None:
    tiny(folder)
    person = terminal("init", *CPU)
    person.reply("How many tokens per sequence?", "32" + ENTER)
    person.reply("Launch now?", "write the files" + ENTER)
    assert 0 == person.end()
    assert 2 == len(re.findall(r"^\? ", person.text, re.MULTILINE))
    assert "lora, no gradient checkpointing, adapters of rank 4" in " ".join(person.text.split())
    record = answers_of(folder)
    assert {"method", "lora-rank", "model", "micro-batch"}.isdisjoint(record)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_ranks_train_the_adapters_that_were_planned_and_save_them_alone(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    reports = tmp_path / "reports"
    words = (*CPU, "--stage", "2", "--seq-len", "32")
    learning = ("--max_steps", "6", "--learning_rate", "2e-2", "--lr_scheduler_type", "constant")
    saving = ("--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "6")
    script = (SCRIPTS / "lora_tiny.py", "--model_config", MODEL, *learning, *saving)
    planned = run(
        [sys.executable, "-m", "zerowiz", "launch", "--dry-run", "--json", *words, *script],
        env=rank_environ(tmp_path / "planned"),
        cwd=tmp_path,
    )
    content = json.loads(planned.stdout)
    assert ("lora", 4) == (content["workload"]["method"], content["workload"]["lora_rank"])

    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", *words, *script],
        env=rank_environ(reports),
        cwd=tmp_path,
    )

    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    # Both moments of every trained weight, shared out over the two ranks.
    trained = content["model"]["trainable_params"]
    assert [(2, 2, trained), (2, 2, trained)] == [
        (report["stage"], report["micro_batch"], report["state_elements"])
        for report in read_reports(reports)
    ]
    [checkpoint] = (tmp_path / "out").glob("checkpoint-*")
    logged = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in logged if "loss" in entry]
    assert losses[-1] < losses[0] - 0.1
    from safetensors.torch import load_file

    tensors = load_file(checkpoint / "adapter_model.safetensors")
    assert trained == sum(tensor.numel() for tensor in tensors.values())
    assert all(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)
    assert not list(checkpoint.glob("model*.safetensors"))


def test_a_size_has_no_layers_of_another_family(here: Run, folder: Path) -> None:
    text = (
        "from peft import LoraConfig, get_peft_model\n"
        "from transformers import AutoModelForCausalLM, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('org/starcoder')\n"
        "model = get_peft_model(model, LoraConfig(target_modules=['c_attn', 'c_proj']))\n"
        "TrainingArguments('out')\n"
    )
    (folder / "train.py").write_text(text)
    words = ("launch", "--dry-run", "--machine", "4xA100-40GB", "--model", "1b", "--seq-len", "64")
    result = here(*words, "train.py").good
    assert "every linear layer, as a size has no layer names `c_attn,c_proj`" in result.stderr


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        (("--lora-rank", "8"), "all parameters are trained", "add `--method lora`"),
        (("--lora-target-modules", "q_proj"), "all parameters are trained", "add `--method lora`"),
        (("--completion-tokens", "64"), "`--trainer sft` generates nothing", "remove"),
        (("--generation-batch", "4", "--trainer", "dpo"), "`--trainer dpo` generates", "remove"),
    ],
)
def test_an_option_that_the_step_has_no_use_for_is_refused(
    here: Run, words: tuple[str, ...], why: str, hint: str
) -> None:
    result = here("plan", "--machine", "1xH200", "--model", "1b", *words)
    assert 2 == result.code
    said = " ".join(result.stderr.split())
    assert f"`{' '.join(words[:2])}` has no effect: {why}" in said
    assert f"{hint}" in said
    assert f"remove `{words[0]}`" in said
