"""What a file of axolotl says of a job, and what a plan changes in it."""

import pytest

from zerowiz.app.options import Options, with_plain
from zerowiz.core.script.programs import ProgramJob, list_changes, read_program
from zerowiz.core.settings import Change
from zerowiz.errors import UsageError


def read(values: dict[str, object]) -> ProgramJob:
    file = read_program("my.yaml", values)
    assert file is not None
    return file.job


FULL: dict[str, object] = {
    "base_model": "m",
    "sequence_len": 8192,
    "micro_batch_size": 1,
    "bf16": "auto",
}


# What a file of LLaMA-Factory says of a job, and what a plan changes in it.

# As examples/train_lora of its repository has it.
LORA: dict[str, object] = {
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


# What a file of ms-swift says of a job, and what a plan changes in it.

MS_SWIFT_LORA: dict[str, object] = {
    "model": "m",
    "tuner_type": "lora",
    "dataset": "d",
    "torch_dtype": "bfloat16",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_length": 2048,
}


@pytest.mark.parametrize(
    ("values", "program"),
    [
        (FULL, "axolotl"),
        ({"base_model": None}, None),
        (LORA, "LLaMA-Factory"),
        ({"model_name_or_path": "m", "cutoff_len": 1024}, "LLaMA-Factory"),
        # TRL's, and files without a model.
        ({"model_name_or_path": "m", "deepspeed": "ds.json"}, None),
        ({"model_name_or_path": "m", "dataset_name": "d"}, None),
        ({"stage": "sft", "template": "llama3"}, None),
        (MS_SWIFT_LORA, "ms-swift"),
        ({"model": "m", "train_type": "full"}, "ms-swift"),
        ({"model": "m", "learning_rate": 1}, None),
        ({"tuner_type": "lora"}, None),
        ({"train_batch_size": 1}, None),
    ],
)
def test_no_other_yaml_is_taken_for_a_file_of_a_program(
    values: dict[str, object], program: str | None
) -> None:
    file = read_program("my.yaml", values)
    assert program == (file and file.program.name)


@pytest.mark.parametrize(
    "key", ["micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "train_iters"]
)
def test_a_file_of_megatron_swift_is_none_of_ms_swift(key: str) -> None:
    with pytest.raises(UsageError, match=r"Megatron-SWIFT .*without DeepSpeed") as caught:
        read_program("sft.yaml", {"model": "m", "tuner_type": "lora", "lr": 1e-4, key: 2})
    assert "`swift sft`" in caught.value.hints[0]
    with pytest.raises(UsageError, match="Megatron-SWIFT"):
        read_program("dpo.yaml", {"model": "m", "rlhf_type": "dpo", key: 2})


@pytest.mark.parametrize(
    ("values", "planned", "expected"),
    [
        (
            FULL | {"fsdp": ["full_shard"]},
            {"accumulation_steps": 2, "gradient_checkpointing": True, "method": "qlora"},
            [
                "deepspeed: ds.json",
                "gradient_accumulation_steps: 2",
                "adapter: qlora",
                "load_in_4bit: true",
                "gradient_checkpointing: true",
                "fsdp:",
            ],
        ),
        (
            LORA | {"finetuning_type": "full", "fsdp": "full_shard", "fsdp_config": {}},
            {
                "micro_batch": 2,
                "accumulation_steps": 2,
                "gradient_checkpointing": False,
                "method": "qlora",
                "lora_rank": 16,
            },
            [
                "deepspeed: ds.json",
                "per_device_train_batch_size: 2",
                "gradient_accumulation_steps: 2",
                "finetuning_type: lora",
                "quantization_bit: 4",
                "disable_gradient_checkpointing: true",
                "lora_rank: 16",
                "fsdp:",
            ],
        ),
        (
            MS_SWIFT_LORA | {"fsdp": "fsdp2"},
            {"micro_batch": 1, "method": "qlora", "precision": "fp16"},
            [
                "deepspeed: ds.json",
                "per_device_train_batch_size: 1",
                "torch_dtype: float16",
                "tuner_type: lora",
                "quant_method: bnb",
                "quant_bits: 4",
                "fsdp:",
            ],
        ),
    ],
    ids=["axolotl", "LLaMA-Factory", "ms-swift"],
)
def test_only_what_differs_is_to_be_set(
    values: dict[str, object], planned: Change, expected: list[str]
) -> None:
    file = read_program("a.yaml", values)
    assert file is not None
    assert expected == list(list_changes(file, {**file.job.settings, **planned}, "ds.json"))


@pytest.mark.parametrize(
    ("values", "gpus", "expected"),
    [
        (LORA, 1, "FORCE_TORCHRUN=1 NPROC_PER_NODE=1 llamafactory-cli train my.yaml"),
        (MS_SWIFT_LORA, 4, "NPROC_PER_NODE=4 swift sft my.yaml"),
        (MS_SWIFT_LORA | {"rlhf_type": "dpo"}, 4, "NPROC_PER_NODE=4 swift rlhf my.yaml"),
    ],
)
def test_the_command_starts_a_rank_on_each_gpu_of_the_plan(
    values: dict[str, object], gpus: int, expected: str
) -> None:
    file = read_program("my.yaml", values)
    assert file is not None
    assert expected.split() == list(file.command(gpus))


# What each key of a file means, by the file that it stands in beside others.
KEYS_OF = (
    (
        FULL,
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
    ),
    (
        LORA,
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
            (
                {"eval_dataset": "d", "do_eval": True, "per_device_eval_batch_size": 2},
                "eval_batch",
                2,
            ),
        ],
    ),
    (
        MS_SWIFT_LORA,
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
            ({"tuner_type": None, "split_dataset_ratio": 0.0}, "method", "lora"),
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
    ),
)


@pytest.mark.parametrize(
    ("base", "values", "name", "wanted"), [(base, *row) for base, rows in KEYS_OF for row in rows]
)
def test_each_key_is_read_as_a_setting(
    base: dict[str, object], values: dict[str, object], name: str, wanted: object
) -> None:
    job = read(base | values)
    assert wanted == job.settings.get(name)
    # Each is a value that its option takes.
    assert wanted in {None, getattr(with_plain(Options(), job.settings), name)}


@pytest.mark.parametrize(
    ("base", "values", "expected"),
    [
        (
            FULL,
            {
                "load_in_8bit": True,
                "adapter": "llama-adapter",
                "optimizer": "muon",
                "rl": "simpo",
            },
            ("load_in_8bit", "optimizer", "rl", "adapter"),
        ),
        (
            LORA,
            {
                "use_dora": True,
                "quantization_bit": 8,
                "optim": "adalomo",
                "finetuning_type": "oft",
                "stage": "ppo",
            },
            ("use_dora", "optim", "stage", "finetuning_type", "quantization_bit"),
        ),
        (
            MS_SWIFT_LORA,
            {"use_dora": True, "tuner_type": "longlora", "rlhf_type": "grpo"},
            ("use_dora", "rlhf_type", "tuner_type"),
        ),
    ],
)
def test_what_is_not_counted_is_named(
    base: dict[str, object], values: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert expected == read(base | values).not_counted
    assert () == read(base).not_counted


# Which program reads a file, whatever is in it.

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
@pytest.mark.parametrize("value", [["a"], {"a": 1}, -1, 0.5, "x", True, None])
def test_a_file_is_read_whatever_a_key_holds(program: str, value: object) -> None:
    extra = {"val_size": 0.1, "val_set_size": 0.1, "split_dataset_ratio": 0.1, "lora_rank": 8}
    for key in KEYS:
        file = read_program("a.yml", extra | FILES[program] | {key: value})
        assert file is not None, key
        assert program == file.program.name, key
