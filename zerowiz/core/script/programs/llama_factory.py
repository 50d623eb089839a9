"""What a file of LLaMA-Factory says of its job."""

from collections.abc import Mapping

from zerowiz.core.script.names import TRAINER_OPTIMIZERS
from zerowiz.core.script.programs.file import (
    Program,
    ProgramJob,
    Value,
    join_names,
    make_job,
    read_counts,
    read_word,
)

_COUNTS: Mapping[str, str] = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation_steps": "gradient_accumulation_steps",
    "sequence_tokens": "cutoff_len",
}
# llamafactory 0.9.5, launcher.py: without the first variable it starts no ranks for one GPU, and
# refuses DeepSpeed; without the second it takes all GPUs.
LLAMA_FACTORY = Program(
    name="LLaMA-Factory",
    train=("FORCE_TORCHRUN=1", "NPROC_PER_NODE={ranks}", "llamafactory-cli", "train"),
    without_default=frozenset({"lora_rank"}),
    keys={
        "model": "model_name_or_path",
        **_COUNTS,
        "optimizer": "optim",
        "lora_rank": "lora_rank",
        "lora_target_modules": "lora_target",
        "eval_batch": "per_device_eval_batch_size",
    },
    lines={
        ("precision", "bf16"): ("bf16: true", "fp16: false"),
        ("precision", "fp16"): ("fp16: true", "bf16: false"),
        ("precision", "fp32"): ("bf16: false", "fp16: false"),
        ("gradient_checkpointing", True): ("disable_gradient_checkpointing: false",),
        ("gradient_checkpointing", False): ("disable_gradient_checkpointing: true",),
        ("optimizer", "adamw"): ("optim: adamw_torch_fused",),
        ("optimizer", "adamw_8bit"): ("optim: adamw_bnb_8bit",),
        ("optimizer", "lion"): ("optim: lion_32bit",),
        ("method", "full"): ("finetuning_type: full", "quantization_bit: null"),
        ("method", "lora"): ("finetuning_type: lora", "quantization_bit: null"),
        ("method", "qlora"): ("finetuning_type: lora", "quantization_bit: 4"),
        ("lora_target_modules", "all-linear"): ("lora_target: all",),
        ("attention", "flash"): ("flash_attn: fa2",),
        ("attention", "sdpa"): ("flash_attn: sdpa",),
        ("attention", "eager"): ("flash_attn: disabled",),
        ("loss", "plain"): ("enable_liger_kernel: false",),
        ("loss", "liger"): ("enable_liger_kernel: true",),
    },
)
# llamafactory 0.9.5, hparams/: the keys that no other program has.
_OWN_KEYS = frozenset({"cutoff_len", "finetuning_type", "stage", "template"})
# Rule: LLaMA-Factory's keys that change memory in ways that zerowiz does not count.
_NOT_COUNTED = (
    "additional_target",
    "fp8",
    "mixture_of_depths",
    "neat_packing",
    "pure_bf16",
    "shift_attn",
    "upcast_layernorm",
    "use_adam_mini",
    "use_apollo",
    "use_badam",
    "use_dora",
    "use_galore",
    "use_kt",
    "use_llama_pro",
    "use_muon",
    "use_unsloth",
)
# llamafactory 0.9.5, hparams/finetuning_args.py, `stage`: those that train like a trainer of TRL.
_TRAINERS: Mapping[object, str] = {
    "pt": "sft",
    "sft": "sft",
    "rm": "reward",
    "dpo": "dpo",
    "kto": "kto",
}
_METHODS = frozenset({"full", "lora"})
# llamafactory 0.9.5, extras/constants.py, class AttentionFunction.
_ATTENTIONS: Mapping[object, str] = {
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
}
# llamafactory 0.9.5, hparams/finetuning_args.py, `use_ref_model`.
_WITHOUT_REFERENCE = frozenset({"orpo", "simpo"})
_QLORA_BITS = 4
# transformers 5.6, training_args.py; llamafactory 0.9.5, hparams/.
_DEFAULTS: Mapping[str, Value] = {
    "micro_batch": 8,
    "accumulation_steps": 1,
    "sequence_tokens": 2048,
}
_DEFAULT_LORA_RANK, _DEFAULT_EVAL_BATCH = 8, 8


def is_llama_factory(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is LLaMA-Factory's: files of TRL name their model in the same way."""
    return isinstance(values.get("model_name_or_path"), str) and not _OWN_KEYS.isdisjoint(values)


def read_llama_factory(values: Mapping[str, object]) -> ProgramJob:
    """What a file says; a key that it lacks has LLaMA-Factory's default.

    Args:
        values: Its keys and values; `is_llama_factory`.

    Example:
        >>> read_llama_factory({"model_name_or_path": "m", "stage": "sft"}).settings["method"]
        'lora'
    """
    optimizer = TRAINER_OPTIMIZERS.get(str(values.get("optim") or "adamw_torch"))
    tuning = read_word(values, "finetuning_type") or "lora"
    bits, trainer = (
        read_word(values, "quantization_bit"),
        _TRAINERS.get(read_word(values, "stage") or "sft"),
    )
    unknown = {
        "optim": optimizer is None,
        "finetuning_type": tuning not in _METHODS,
        "quantization_bit": bits not in {None, _QLORA_BITS},
        "stage": trainer is None,
    }
    found: dict[str, Value | None] = {
        "model": str(values["model_name_or_path"]),
        **_DEFAULTS,
        **read_counts(values, _COUNTS),
        "precision": _precision(values),
        "gradient_checkpointing": not values.get("disable_gradient_checkpointing"),
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full",
        **(_of_adapters(values) if tuning == "lora" else {}),
        "attention": _ATTENTIONS.get(read_word(values, "flash_attn")),
        "loss": _loss(values, trainer),
        "trainer": trainer,
        "reference": _reference(values, trainer),
        "eval_batch": _eval_batch(values),
    }
    return make_job(
        values, found, unknown, not_counted=_NOT_COUNTED, excluding=("fsdp", "fsdp_config")
    )


def _precision(values: Mapping[str, object]) -> str:
    if values.get("bf16") or values.get("pure_bf16"):
        return "bf16"
    return "fp16" if values.get("fp16") else "fp32"


def _of_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_rank"), values.get("lora_target") or "all"
    names = join_names(targets)
    return {
        "method": "qlora" if values.get("quantization_bit") == _QLORA_BITS else "lora",
        "lora_rank": rank if isinstance(rank, int) else _DEFAULT_LORA_RANK,
        "lora_target_modules": "all-linear" if names == "all" else names,
    }


def _loss(values: Mapping[str, object], trainer: str | None) -> str:
    """Liger's where logits are not needed (model/loader.py, `require_logits`)."""
    return "liger" if values.get("enable_liger_kernel") and trainer == "sft" else "plain"


def _reference(values: Mapping[str, object], trainer: str | None) -> str | None:
    """None where it is that of TRL's trainer (train/trainer_utils.py, create_ref_model)."""
    if trainer == "dpo" and read_word(values, "pref_loss") in _WITHOUT_REFERENCE:
        return "none"
    return "model" if trainer in {"dpo", "kto"} and values.get("ref_model") else None


def _eval_batch(values: Mapping[str, object]) -> int | None:
    """The sequences that are evaluated at a time; None where nothing is evaluated."""
    # YAML reads `no` as false.
    is_asked = values.get("do_eval") or read_word(values, "eval_strategy") not in {
        None,
        False,
        "no",
    }
    if not is_asked or not (values.get("val_size") or values.get("eval_dataset")):
        return None
    batch = values.get("per_device_eval_batch_size")
    return batch if isinstance(batch, int) else _DEFAULT_EVAL_BATCH
