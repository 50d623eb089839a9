"""The libraries' arguments classes, and the options that HfArgumentParser makes of their fields."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from zerowiz.core.script.options import Option, Reads, Scalar, Takes

Release: TypeAlias = tuple[int, int]

# peft 0.21, tuners/lora/config.py, `target_modules=None`: peft chooses by the model's type.
BY_ARCHITECTURE = "by-architecture"


class Field(NamedTuple):
    """A field of an arguments class."""

    reads: Reads
    default: Scalar
    """In the newest release; None for one that is not known."""
    older: tuple[tuple[Release, Scalar], ...] = ()
    """The defaults before some releases of trl, the oldest first."""

    def default_in(self, trl: Release) -> Scalar:
        """The default in a release of trl."""
        return next((value for before, value in self.older if trl < before), self.default)


# The fields of TrainingArguments that matter here, with their defaults; None is one that is not
# known. transformers 5.23, training_args.py, class TrainingArguments.
_TRAINING_ARGUMENTS: Mapping[str, Field] = {
    "per_device_train_batch_size": Field(Reads.INT, 8),
    "gradient_accumulation_steps": Field(Reads.INT, 1),
    "per_device_eval_batch_size": Field(Reads.INT, 8),
    "eval_strategy": Field(Reads.STR, "no"),
    "do_eval": Field(Reads.TRUTH, default=False),
    "bf16": Field(Reads.TRUTH, default=False),
    "fp16": Field(Reads.TRUTH, default=False),
    "gradient_checkpointing": Field(Reads.TRUTH, default=False),
    "gradient_checkpointing_kwargs": Field(Reads.STR, None),
    "optim": Field(Reads.STR, "adamw_torch_fused"),
    "deepspeed": Field(Reads.STR, None),
    "use_cpu": Field(Reads.TRUTH, default=False),
    "dataloader_num_workers": Field(Reads.INT, 0),
    "use_liger_kernel": Field(Reads.TRUTH, default=False),
    "output_dir": Field(Reads.STR, "trainer_output"),
    # It stands here for DeepSpeed's launcher, which adds the word.
    "local_rank": Field(Reads.INT, -1),
    "resume_from_checkpoint": Field(Reads.STR, None),
    "num_train_epochs": Field(Reads.FLOAT, 3.0),
    "max_steps": Field(Reads.INT, -1),
    "fsdp": Field(Reads.STR, None),
}
# sentence-transformers 5, base/training_args.py: it keeps what transformers has removed.
_SENTENCE_ARGUMENTS: Mapping[str, Field] = {
    **_TRAINING_ARGUMENTS,
    "warmup_ratio": Field(Reads.FLOAT, None),
}
# trl 1.16, trainer/base_config.py, class _BaseConfig: bf16 becomes true unless fp16 is. In older
# releases both were false, so the default is not known.
_TRL_CONFIG: Mapping[str, Field] = {
    **_TRAINING_ARGUMENTS,
    "bf16": Field(Reads.TRUTH, default=None),
    "gradient_checkpointing": Field(Reads.TRUTH, default=True, older=(((0, 22), False),)),
}
# trl 1.x, trainer/sft_config.py: max_length is 1024.
_SFT_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_length": Field(Reads.INT, 1024),
    "packing": Field(Reads.TRUTH, default=False),
    "padding_free": Field(Reads.TRUTH, default=False),
}
# trl 1.16, trainer/reward_config.py, dpo_config.py, kto_config.py.
_PAIRS_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_length": Field(Reads.INT, 1024, (((0, 14), None),)),
}
_REFERRING_CONFIG: Mapping[str, Field] = {
    **_PAIRS_CONFIG,
    "precompute_ref_log_probs": Field(Reads.TRUTH, default=False),
}
# trl 1.16, trainer/grpo_config.py, rloo_config.py; a prompt is cut in releases before 0.28 alone.
_GENERATING_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_prompt_length": Field(Reads.INT, None, (((0, 28), 512),)),
    "max_completion_length": Field(Reads.INT, 512, (((1, 10), 256),)),
    "num_generations": Field(Reads.INT, 8),
    "steps_per_generation": Field(Reads.INT, None),
    "generation_batch_size": Field(Reads.INT, None),
    "use_vllm": Field(Reads.TRUTH, default=False),
    # Before 0.18 it ran on a GPU of its own, or was a server: neither takes of those that train.
    "vllm_mode": Field(Reads.STR, "colocate", (((1, 0), "server"),)),
    "vllm_gpu_memory_utilization": Field(Reads.FLOAT, 0.3),
    "vllm_enable_sleep_mode": Field(Reads.TRUTH, default=False),
}

# An arguments class of a library that has no row here is not understood.
ARGUMENT_CLASSES: Mapping[str, Mapping[str, Field]] = {
    "TrainingArguments": _TRAINING_ARGUMENTS,
    "Seq2SeqTrainingArguments": _TRAINING_ARGUMENTS,
    # sentence-transformers 5, training_args.py, and those of its cross and sparse encoders.
    "SentenceTransformerTrainingArguments": _SENTENCE_ARGUMENTS,
    "CrossEncoderTrainingArguments": _SENTENCE_ARGUMENTS,
    "SparseEncoderTrainingArguments": _SENTENCE_ARGUMENTS,
    "SFTConfig": _SFT_CONFIG,
    # trl 1.16, experimental/gkd/gkd_config.py, gold/gold_config.py: subclasses of SFTConfig.
    "GKDConfig": _SFT_CONFIG,
    "GOLDConfig": _SFT_CONFIG,
    "DPOConfig": _REFERRING_CONFIG,
    "KTOConfig": _REFERRING_CONFIG,
    "RewardConfig": _PAIRS_CONFIG,
    # trl 1.16, experimental/.
    "ORPOConfig": _PAIRS_CONFIG,
    "CPOConfig": _PAIRS_CONFIG,
    "TPOConfig": _PAIRS_CONFIG,
    # trl 1.13, experimental/; these classes left trl after it.
    "BCOConfig": _REFERRING_CONFIG,
    "PRMConfig": _PAIRS_CONFIG,
    # They have the max_length of OnlineDPOConfig, but their trainers cut nothing to it.
    "NashMDConfig": _TRL_CONFIG,
    "XPOConfig": _TRL_CONFIG,
    # These generate: the length of a sequence is that of its prompt and of its completion.
    "GRPOConfig": {**_GENERATING_CONFIG, "beta": Field(Reads.FLOAT, 0.0, (((0, 19), 0.04),))},
    # Before 0.22 it was a class of another kind.
    "RLOOConfig": {
        **_GENERATING_CONFIG,
        "beta": Field(Reads.FLOAT, 0.05),
        "num_generations": Field(Reads.INT, 2),
        "max_prompt_length": Field(Reads.INT, None, (((0, 27), 512),)),
    },
    # trl 1.12, experimental/ppo/ppo_config.py; the class left trl after it.
    "PPOConfig": {**_TRL_CONFIG, "response_length": Field(Reads.INT, 53)},
    # trl 1.16, experimental/online_dpo/online_dpo_config.py: of a prompt and its completion.
    "OnlineDPOConfig": {**_TRL_CONFIG, "max_length": Field(Reads.INT, 512, (((0, 14), None),))},
    # trl 1.x, trainer/model_config.py and scripts/utils.py.
    "ModelConfig": {
        "model_name_or_path": Field(Reads.STR, None),
        "attn_implementation": Field(Reads.STR, None),
        "use_peft": Field(Reads.TRUTH, default=False),
        "lora_r": Field(Reads.INT, 16),
        "lora_target_modules": Field(Reads.WORDS, BY_ARCHITECTURE),
        "load_in_4bit": Field(Reads.TRUTH, default=False),
        "load_in_8bit": Field(Reads.TRUTH, default=False),
    },
    "ScriptArguments": {},
}
TRAINING_CLASSES = frozenset(name for name, row in ARGUMENT_CLASSES.items() if "deepspeed" in row)

# Other names of a field in other releases, the one that takes precedence first: transformers 5.23,
# training_args.py, and 4.40 for `evaluation_strategy`; trl 0.16, trainer/sft_config.py.
FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "gradient_checkpointing": ("activation_checkpointing",),
    "gradient_checkpointing_kwargs": ("activation_checkpointing_kwargs",),
    "eval_strategy": ("evaluation_strategy",),
    "max_length": ("max_seq_length",),
}


class Removed(NamedTuple):
    """A field that TrainingArguments no longer has."""

    since: Release
    """The first release of transformers without it."""
    instead: str = ""
    """The field that replaces it; empty for none."""


# training_args.py of transformers 4.34 to 5.24, with the fields that its warnings name instead.
REMOVED_FIELDS: Mapping[str, Removed] = {
    "sharded_ddp": Removed((4, 35), "fsdp"),
    "evaluation_strategy": Removed((4, 51), "eval_strategy"),
    "dispatch_batches": Removed((4, 51), "accelerator_config"),
    "split_batches": Removed((4, 51), "accelerator_config"),
    "tp_size": Removed((4, 52)),
    "use_ipex": Removed((4, 57)),
    "adafactor": Removed((5, 0), "optim"),
    "fp16_backend": Removed((5, 0)),
    "fp16_opt_level": Removed((5, 0)),
    "fsdp_min_num_params": Removed((5, 0), "fsdp_config"),
    "fsdp_transformer_layer_cls_to_wrap": Removed((5, 0), "fsdp_config"),
    "half_precision_backend": Removed((5, 0)),
    "include_inputs_for_metrics": Removed((5, 0), "include_for_metrics"),
    "include_tokens_per_second": Removed((5, 0)),
    "jit_mode_eval": Removed((5, 0)),
    "mp_parameters": Removed((5, 0)),
    "no_cuda": Removed((5, 0), "use_cpu"),
    "overwrite_output_dir": Removed((5, 0)),
    "past_index": Removed((5, 0)),
    "per_gpu_eval_batch_size": Removed((5, 0), "per_device_eval_batch_size"),
    "per_gpu_train_batch_size": Removed((5, 0), "per_device_train_batch_size"),
    "push_to_hub_model_id": Removed((5, 0), "hub_model_id"),
    "push_to_hub_organization": Removed((5, 0), "hub_model_id"),
    "push_to_hub_token": Removed((5, 0), "hub_token"),
    "ray_scope": Removed((5, 0)),
    "save_safetensors": Removed((5, 0)),
    "torchdynamo": Removed((5, 0), "torch_compile_backend"),
    "tpu_metrics_debug": Removed((5, 0), "debug"),
    "tpu_num_cores": Removed((5, 0)),
    "use_legacy_prediction_loop": Removed((5, 0)),
    "use_mps_device": Removed((5, 0)),
    "group_by_length": Removed((5, 2), "train_sampling_strategy"),
    "logging_dir": Removed((5, 15)),
    "warmup_ratio": Removed((5, 15), "warmup_steps"),
}


# transformers 5.23, training_args.py: `nargs="?"`, and True where no word follows.
_PERHAPS = frozenset({"fsdp"})
_TAKES: Mapping[Reads, Takes] = {Reads.TRUTH: Takes.PERHAPS, Reads.WORDS: Takes.WORDS}


def field_options(
    name: str, reads: Reads, default: Scalar, line: int | None = None
) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of a dataclass field, with `--no_x`.

    Args:
        name: The field.
        reads: How its word is parsed.
        default: None if there is none, or where it is not known.
        line: Where the script defines the field; None for a library's.
    """
    names = (name, *FIELD_ALIASES.get(name, ()))
    takes = Takes.PERHAPS if name in _PERHAPS else _TAKES.get(reads, Takes.VALUE)
    flags = dict.fromkeys(f"--{n}" for m in names for n in (m, m.replace("_", "-")))
    on = Option(flags=tuple(flags), dest=name, default=default, takes=takes, reads=reads, line=line)
    if default is not True:
        return (on,)
    off = (f"--no_{name}", f"--no-{name.replace('_', '-')}")
    return (on, Option(flags=off, dest=name, default=True, takes=Takes.STORE_FALSE, line=line))
