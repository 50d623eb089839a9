"""The libraries' arguments classes, and the options that HfArgumentParser makes of their fields."""

from collections.abc import Mapping

from zerowiz.core.script.options import Option, Reads, Scalar, Takes

# peft 0.21, tuners/lora/config.py, `target_modules=None`: peft chooses by the model's type.
BY_ARCHITECTURE = "by-architecture"

# The fields of TrainingArguments that matter here, with their defaults; None is one that is not
# known. transformers 5.23, training_args.py, class TrainingArguments.
_TRAINING_ARGUMENTS: Mapping[str, tuple[Reads, Scalar]] = {
    "per_device_train_batch_size": (Reads.INT, 8),
    "gradient_accumulation_steps": (Reads.INT, 1),
    "bf16": (Reads.TRUTH, False),
    "fp16": (Reads.TRUTH, False),
    "gradient_checkpointing": (Reads.TRUTH, False),
    "optim": (Reads.STR, "adamw_torch_fused"),
    "deepspeed": (Reads.STR, None),
    "use_cpu": (Reads.TRUTH, False),
    "dataloader_num_workers": (Reads.INT, 0),
    "use_liger_kernel": (Reads.TRUTH, False),
    "output_dir": (Reads.STR, "trainer_output"),
    # It stands here for DeepSpeed's launcher, which adds the word.
    "local_rank": (Reads.INT, -1),
    "resume_from_checkpoint": (Reads.STR, None),
    "fsdp": (Reads.STR, None),
}
# trl 1.x, trainer/base_config.py, class _BaseConfig: bf16 becomes true unless fp16 is. In older
# releases both were false, so the default is not known.
_TRL_CONFIG: Mapping[str, tuple[Reads, Scalar]] = {
    **_TRAINING_ARGUMENTS,
    "bf16": (Reads.TRUTH, None),
    "gradient_checkpointing": (Reads.TRUTH, True),
}
# The default changed between releases of trl.
_PREFERENCE_CONFIG: Mapping[str, tuple[Reads, Scalar]] = {
    **_TRL_CONFIG,
    "max_length": (Reads.INT, None),
}

# An arguments class of a library that has no row here is not understood.
ARGUMENT_CLASSES: Mapping[str, Mapping[str, tuple[Reads, Scalar]]] = {
    "TrainingArguments": _TRAINING_ARGUMENTS,
    "Seq2SeqTrainingArguments": _TRAINING_ARGUMENTS,
    # sentence-transformers 5, training_args.py, and those of its cross and sparse encoders.
    "SentenceTransformerTrainingArguments": _TRAINING_ARGUMENTS,
    "CrossEncoderTrainingArguments": _TRAINING_ARGUMENTS,
    "SparseEncoderTrainingArguments": _TRAINING_ARGUMENTS,
    # trl 1.x, trainer/sft_config.py: max_length is 1024.
    "SFTConfig": {
        **_TRL_CONFIG,
        "max_length": (Reads.INT, 1024),
        "packing": (Reads.TRUTH, False),
        "padding_free": (Reads.TRUTH, False),
    },
    "DPOConfig": _PREFERENCE_CONFIG,
    "KTOConfig": _PREFERENCE_CONFIG,
    "RewardConfig": _PREFERENCE_CONFIG,
    "ORPOConfig": _PREFERENCE_CONFIG,
    "CPOConfig": _PREFERENCE_CONFIG,
    # These generate, so they have no single sequence length.
    "GRPOConfig": _TRL_CONFIG,
    "RLOOConfig": _TRL_CONFIG,
    "GKDConfig": _TRL_CONFIG,
    "OnlineDPOConfig": _TRL_CONFIG,
    # trl 1.x, trainer/model_config.py and scripts/utils.py.
    "ModelConfig": {
        "model_name_or_path": (Reads.STR, None),
        "attn_implementation": (Reads.STR, None),
        "use_peft": (Reads.TRUTH, False),
        "lora_r": (Reads.INT, 16),
        "lora_target_modules": (Reads.WORDS, BY_ARCHITECTURE),
        "load_in_4bit": (Reads.TRUTH, False),
        "load_in_8bit": (Reads.TRUTH, False),
    },
    "ScriptArguments": {},
}
TRAINING_CLASSES = frozenset(name for name, row in ARGUMENT_CLASSES.items() if "deepspeed" in row)

# Other names of a field in other releases, the one that takes precedence first: transformers 5.23,
# training_args.py; trl 0.16, trainer/sft_config.py.
FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "gradient_checkpointing": ("activation_checkpointing",),
    "max_length": ("max_seq_length",),
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
