"""What a file of LLaMA-Factory says of a job, and what a plan changes in it."""

import pytest

from zerowiz.app.options import Options, with_plain
from zerowiz.core.script.programs import (
    is_llama_factory,
    list_changes,
    read_llama_factory,
    read_program,
)

# As examples/train_lora of its repository has it.
LORA = {
    "model_name_or_path": "m",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "lora_target": "all",
    "dataset": "identity",
    "template": "llama3",
    "cutoff_len": 1024,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "bf16": True,
}
FULL = LORA | {"finetuning_type": "full"}


def test_no_other_yaml_is_taken_for_a_file_of_llama_factory() -> None:
    assert is_llama_factory(LORA)
    assert is_llama_factory({"model_name_or_path": "m", "cutoff_len": 1024})
    # TRL's, and one without a model.
    assert not is_llama_factory({"model_name_or_path": "m", "dataset_name": "d"})
    assert not is_llama_factory({"stage": "sft", "template": "llama3"})


@pytest.mark.parametrize(
    ("values", "name", "wanted"),
    [
        ({}, "model", "m"),
        ({}, "micro_batch", 1),
        ({"per_device_train_batch_size": None}, "micro_batch", 8),
        ({}, "accumulation_steps", 4),
        ({"gradient_accumulation_steps": None}, "accumulation_steps", 1),
        ({}, "sequence_tokens", 1024),
        ({"cutoff_len": None}, "sequence_tokens", 2048),
        ({}, "precision", "bf16"),
        ({"bf16": False, "fp16": True}, "precision", "fp16"),
        ({"bf16": False}, "precision", "fp32"),
        ({}, "gradient_checkpointing", True),
        ({"disable_gradient_checkpointing": True}, "gradient_checkpointing", False),
        ({}, "method", "lora"),
        ({"quantization_bit": 4}, "method", "qlora"),
        ({"finetuning_type": "full"}, "method", "full"),
        ({}, "lora_rank", 8),
        ({"lora_rank": 64}, "lora_rank", 64),
        ({"finetuning_type": "full", "lora_rank": 64}, "lora_rank", None),
        ({}, "lora_target_modules", "all-linear"),
        ({"lora_target": "q_proj,v_proj"}, "lora_target_modules", "q_proj,v_proj"),
        ({"lora_target": ["q_proj", "v_proj"]}, "lora_target_modules", "q_proj,v_proj"),
        ({}, "optimizer", "adamw"),
        ({"optim": "paged_adamw_8bit"}, "optimizer", "adamw_8bit"),
        ({"optim": "adalomo"}, "optimizer", None),
        ({}, "attention", None),
        ({"flash_attn": "fa2"}, "attention", "flash"),
        ({"flash_attn": "disabled"}, "attention", "eager"),
        ({}, "loss", "plain"),
        ({"enable_liger_kernel": True}, "loss", "liger"),
        ({"enable_liger_kernel": True, "stage": "dpo"}, "loss", "plain"),
        ({"stage": "pt"}, "trainer", "sft"),
        ({"stage": "rm"}, "trainer", "reward"),
        ({"stage": "dpo"}, "trainer", "dpo"),
        ({"stage": "dpo"}, "reference", None),
        ({"stage": "dpo", "pref_loss": "simpo"}, "reference", "none"),
        ({"stage": "dpo", "ref_model": "r"}, "reference", "model"),
        ({"val_size": 0.1}, "eval_batch", None),
        ({"val_size": 0.1, "eval_strategy": False}, "eval_batch", None),
        ({"val_size": 0.1, "eval_strategy": "steps"}, "eval_batch", 8),
        ({"eval_dataset": "d", "do_eval": True, "per_device_eval_batch_size": 2}, "eval_batch", 2),
    ],
)
def test_each_key_is_read_as_a_setting(
    values: dict[str, object], name: str, wanted: object
) -> None:
    job = read_llama_factory(LORA | values)
    assert wanted == job.settings.get(name)
    # Each is a value that its option takes.
    typed = getattr(with_plain(Options(), job.settings), name)
    assert wanted in {None, typed}


def test_what_is_not_counted_is_named() -> None:
    values = LORA | {
        "use_dora": True,
        "quantization_bit": 8,
        "optim": "adalomo",
        "finetuning_type": "oft",
        "stage": "ppo",
    }
    expected = ("use_dora", "optim", "finetuning_type", "quantization_bit", "stage")
    assert expected == read_llama_factory(values).not_counted
    assert () == read_llama_factory(LORA).not_counted


def test_only_what_differs_is_to_be_set() -> None:
    file = read_program("a.yaml", FULL | {"fsdp": "full_shard", "fsdp_config": {}})
    assert file is not None
    planned = {
        **file.job.settings,
        "micro_batch": 2,
        "accumulation_steps": 2,
        "gradient_checkpointing": False,
        "method": "qlora",
        "lora_rank": 16,
    }
    assert [
        "deepspeed: ds.json",
        "per_device_train_batch_size: 2",
        "gradient_accumulation_steps: 2",
        "disable_gradient_checkpointing: true",
        "finetuning_type: lora",
        "quantization_bit: 4",
        "lora_rank: 16",
        "fsdp:",
    ] == list(list_changes(file, planned, "ds.json"))


def test_the_command_starts_a_rank_on_each_gpu_of_the_plan() -> None:
    file = read_program("my.yaml", LORA)
    assert file is not None
    expected = "FORCE_TORCHRUN=1 NPROC_PER_NODE=1 llamafactory-cli train my.yaml"
    assert expected.split() == list(file.command(1))
