"""What a file of axolotl says of a job, and what a plan changes in it."""

import pytest

from zerowiz.app.options import Options, with_plain
from zerowiz.core.script.programs import is_axolotl, list_changes, read_axolotl, read_program

FULL = {"base_model": "m", "sequence_len": 8192, "micro_batch_size": 1, "bf16": "auto"}


def test_no_other_yaml_is_taken_for_a_file_of_axolotl() -> None:
    assert is_axolotl(FULL)
    assert not is_axolotl({"model_name_or_path": "m", "deepspeed": "ds.json"})
    assert not is_axolotl({"base_model": None})


@pytest.mark.parametrize(
    ("values", "name", "wanted"),
    [
        ({}, "model", "m"),
        ({}, "sequence_tokens", 8192),
        ({}, "micro_batch", 1),
        ({}, "accumulation_steps", 1),
        ({"gradient_accumulation_steps": 8}, "accumulation_steps", 8),
        ({}, "precision", "bf16"),
        ({"bf16": False, "fp16": True}, "precision", "fp16"),
        ({"bf16": None}, "precision", "fp32"),
        ({}, "gradient_checkpointing", False),
        ({"gradient_checkpointing": "unsloth"}, "gradient_checkpointing", True),
        ({}, "method", "full"),
        ({"adapter": "qlora"}, "method", "qlora"),
        ({"adapter": "lora", "lora_r": 32}, "lora_rank", 32),
        ({"adapter": "lora", "lora_target_modules": ["q", "v"]}, "lora_target_modules", "q,v"),
        ({"lora_r": 32}, "lora_rank", None),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer", "adamw_8bit"),
        ({"optimizer": "muon"}, "optimizer", None),
        ({"optimizer": "paged_adamw"}, "optimizer", "adamw"),
        ({"optimizer": "lion_pytorch"}, "optimizer", "lion"),
        ({"flash_attention": True}, "attention", "flash"),
        ({"attn_implementation": "flash_attention_2"}, "attention", "flash"),
        ({"sdp_attention": True}, "attention", "sdpa"),
        ({"eager_attention": True}, "attention", "eager"),
        ({"attn_implementation": "eager"}, "attention", "eager"),
        ({"flash_attention": False}, "attention", None),
        ({"liger_fused_linear_cross_entropy": True}, "loss", "liger"),
        ({"chunked_cross_entropy": True}, "loss", "chunked"),
        ({"rl": "dpo"}, "trainer", "dpo"),
        ({"eval_batch_size": 4}, "eval_batch", None),
        ({"eval_batch_size": 4, "val_set_size": 0.1}, "eval_batch", None),
        ({"eval_batch_size": 4, "val_set_size": 0.1, "evals_per_epoch": 2}, "eval_batch", 4),
        ({"val_set_size": 0.1, "evals_per_epoch": 2}, "eval_batch", None),
    ],
)
def test_each_key_is_read_as_a_setting(
    values: dict[str, object], name: str, wanted: object
) -> None:
    job = read_axolotl(FULL | values)
    assert wanted == job.settings.get(name)
    # Each is a value that its option takes.
    assert wanted == getattr(with_plain(Options(), job.settings), name) or wanted is None


def test_what_is_not_counted_is_named() -> None:
    values = FULL | {
        "load_in_8bit": True,
        "adapter": "llama-adapter",
        "optimizer": "muon",
        "rl": "simpo",
    }
    assert ("load_in_8bit", "optimizer", "adapter", "rl") == read_axolotl(values).not_counted
    assert () == read_axolotl(FULL).not_counted


def test_only_what_differs_is_to_be_set() -> None:
    file = read_program("a.yml", FULL | {"fsdp": ["full_shard"]})
    assert file is not None
    planned = {
        **file.job.settings,
        "accumulation_steps": 2,
        "gradient_checkpointing": True,
        "method": "qlora",
    }
    assert [
        "deepspeed: ds.json",
        "gradient_accumulation_steps: 2",
        "gradient_checkpointing: true",
        "adapter: qlora",
        "load_in_4bit: true",
        "fsdp:",
    ] == list(list_changes(file, planned, "ds.json"))
