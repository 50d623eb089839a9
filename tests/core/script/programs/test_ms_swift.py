"""What a file of ms-swift says of a job, and what a plan changes in it."""

import pytest

from zerowiz.app.options import Options, with_plain
from zerowiz.core.script.programs import is_swift, list_changes, read_program, read_swift

LORA = {
    "model": "m",
    "tuner_type": "lora",
    "dataset": "d",
    "torch_dtype": "bfloat16",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_length": 2048,
}


def test_no_other_yaml_is_taken_for_a_file_of_ms_swift() -> None:
    assert is_swift(LORA)
    assert is_swift({"model": "m", "train_type": "full"})
    assert not is_swift({"model": "m", "learning_rate": 1})
    assert not is_swift({"tuner_type": "lora"})


@pytest.mark.parametrize(
    ("values", "name", "wanted"),
    [
        ({}, "model", "m"),
        ({}, "micro_batch", 2),
        ({"per_device_train_batch_size": None}, "micro_batch", 1),
        ({}, "accumulation_steps", 4),
        ({"gradient_accumulation_steps": None}, "accumulation_steps", None),
        ({}, "sequence_tokens", 2048),
        ({"max_length": None}, "sequence_tokens", None),
        ({}, "precision", "bf16"),
        ({"torch_dtype": None}, "precision", None),
        ({"torch_dtype": None, "bf16": True}, "precision", "bf16"),
        ({"torch_dtype": "float32"}, "precision", "fp16"),
        ({"torch_dtype": "float32", "fp16": False}, "precision", "fp32"),
        ({}, "gradient_checkpointing", True),
        ({"gradient_checkpointing": False}, "gradient_checkpointing", False),
        ({}, "method", "lora"),
        ({"tuner_type": None}, "method", "lora"),
        ({"tuner_type": "full"}, "method", "full"),
        ({"tuner_type": None, "train_type": "full"}, "method", "full"),
        ({"quant_method": "bnb", "quant_bits": 4}, "method", "qlora"),
        ({}, "lora_rank", 8),
        ({"lora_rank": 64}, "lora_rank", 64),
        ({}, "lora_target_modules", "all-linear"),
        ({"target_modules": ["q_proj", "v_proj"]}, "lora_target_modules", "q_proj,v_proj"),
        ({"optim": "adamw_8bit"}, "optimizer", "adamw_8bit"),
        ({"attn_impl": "flash_attn"}, "attention", "flash"),
        ({"attn_impl": "eager"}, "attention", "eager"),
        ({}, "attention", None),
        ({"use_liger_kernel": True}, "loss", "liger"),
        ({"padding_free": True}, "packing", True),
        ({}, "trainer", "sft"),
        ({"rlhf_type": "rm"}, "trainer", "reward"),
        ({}, "eval_batch", None),
        ({"split_dataset_ratio": 0.01}, "eval_batch", 1),
        ({"split_dataset_ratio": 0.01, "eval_strategy": False}, "eval_batch", None),
        ({"val_dataset": "d", "per_device_eval_batch_size": 4}, "eval_batch", 4),
    ],
)
def test_each_key_is_read_as_a_setting(
    values: dict[str, object], name: str, wanted: object
) -> None:
    job = read_swift(LORA | values)
    assert wanted == job.settings.get(name)
    # Each is a value that its option takes.
    typed = getattr(with_plain(Options(), job.settings), name)
    assert wanted in {None, typed}


def test_what_is_not_counted_is_named() -> None:
    values = LORA | {"use_dora": True, "tuner_type": "longlora", "rlhf_type": "grpo"}
    assert ("use_dora", "tuner_type", "rlhf_type") == read_swift(values).not_counted
    assert () == read_swift(LORA).not_counted


def test_only_what_differs_is_to_be_set() -> None:
    file = read_program("a.yaml", LORA | {"fsdp": "fsdp2"})
    assert file is not None
    planned = {**file.job.settings, "micro_batch": 1, "method": "qlora", "precision": "fp16"}
    assert [
        "deepspeed: ds.json",
        "per_device_train_batch_size: 1",
        "torch_dtype: float16",
        "tuner_type: lora",
        "quant_method: bnb",
        "quant_bits: 4",
        "fsdp:",
    ] == list(list_changes(file, planned, "ds.json"))


@pytest.mark.parametrize(("values", "command"), [({}, "sft"), ({"rlhf_type": "dpo"}, "rlhf")])
def test_the_command_is_the_one_for_the_kind_of_training(
    values: dict[str, object], command: str
) -> None:
    file = read_program("my.yaml", LORA | values)
    assert file is not None
    assert ["NPROC_PER_NODE=4", "swift", command, "my.yaml"] == list(file.command(4))
