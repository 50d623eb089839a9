"""Which program reads a file, whatever is in it."""

import pytest

from zerowiz.core.script.programs import read_program

FILES = {
    "axolotl": {"base_model": "m"},
    "LLaMA-Factory": {"model_name_or_path": "m", "stage": "sft"},
    "ms-swift": {"model": "m", "tuner_type": "lora"},
}
# All keys by which a reader decides.
KEYS = (
    *("adapter", "rl", "optimizer", "eval_strategy", "val_set_size", "attn_implementation"),
    *("stage", "finetuning_type", "optim", "quantization_bit", "flash_attn", "pref_loss"),
    *("lora_target", "lora_rank", "val_size", "per_device_train_batch_size", "cutoff_len"),
    *("tuner_type", "train_type", "quant_bits", "rlhf_type", "torch_dtype", "target_modules"),
    *("split_dataset_ratio", "attn_impl", "sequence_parallel_size", "fsdp", "deepspeed"),
)


@pytest.mark.parametrize("program", FILES)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [["a"], {"a": 1}, -1, 0.5, "x", True, None])
def test_a_file_is_read_whatever_a_key_holds(program: str, key: str, value: object) -> None:
    extra = {"val_size": 0.1, "val_set_size": 0.1, "split_dataset_ratio": 0.1, "lora_rank": 8}
    file = read_program("a.yml", extra | FILES[program] | {key: value})
    assert file is not None
    assert program == file.program.name


def test_a_file_of_no_program_is_none() -> None:
    assert read_program("a.yml", {"train_batch_size": 1}) is None
