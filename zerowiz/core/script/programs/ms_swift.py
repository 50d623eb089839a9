"""What a file of ms-swift says of its job."""

from collections.abc import Mapping

from zerowiz.core.script.names import ATTENTIONS, TRAINER_OPTIMIZERS
from zerowiz.core.script.programs.file import (
    Program,
    ProgramJob,
    Value,
    join_names,
    make_job,
    read_counts,
    read_word,
)
from zerowiz.core.values import replace

_COUNTS: Mapping[str, str] = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation_steps": "gradient_accumulation_steps",
    "sequence_tokens": "max_length",
}
# ms-swift 4.6, cli/main.py: without the variable it starts one rank.
MS_SWIFT = Program(
    name="ms-swift",
    train=("NPROC_PER_NODE={ranks}", "swift", "sft"),
    # It takes length and dtype from the model, and accumulates to 16 sequences of all ranks.
    without_default=frozenset({"accumulation_steps", "lora_rank", "precision", "sequence_tokens"}),
    keys={
        "model": "model",
        **_COUNTS,
        "optimizer": "optim",
        "lora_rank": "lora_rank",
        "lora_target_modules": "target_modules",
        "eval_batch": "per_device_eval_batch_size",
    },
    lines={
        ("precision", "bf16"): ("torch_dtype: bfloat16",),
        ("precision", "fp16"): ("torch_dtype: float16",),
        ("precision", "fp32"): ("torch_dtype: float32", "fp16: false"),
        ("gradient_checkpointing", True): ("gradient_checkpointing: true",),
        ("gradient_checkpointing", False): ("gradient_checkpointing: false",),
        ("optimizer", "adamw"): ("optim: adamw_torch_fused",),
        ("optimizer", "adamw_8bit"): ("optim: adamw_bnb_8bit",),
        ("optimizer", "lion"): ("optim: lion_32bit",),
        ("method", "full"): ("tuner_type: full",),
        ("method", "lora"): ("tuner_type: lora",),
        ("method", "qlora"): ("tuner_type: lora", "quant_method: bnb", "quant_bits: 4"),
        ("attention", "flash"): ("attn_impl: flash_attn",),
        ("attention", "sdpa"): ("attn_impl: sdpa",),
        ("attention", "eager"): ("attn_impl: eager",),
        ("loss", "plain"): ("use_liger_kernel: false",),
        ("loss", "liger"): ("use_liger_kernel: true",),
    },
)
MS_SWIFT_RLHF = replace(MS_SWIFT, train=("NPROC_PER_NODE={ranks}", "swift", "rlhf"))
# ms-swift 4.6, arguments/: keys that no other program has, by its names before 4 too.
_OWN_KEYS = frozenset({"rlhf_type", "split_dataset_ratio", "train_type", "tuner_type"})
# Rule: ms-swift's keys that change memory in ways that zerowiz does not count.
_NOT_COUNTED = (
    "deepspeed_autotp_size",
    "modules_to_save",
    "optimizer",
    "reward_model",
    "use_dora",
    "use_galore",
)
# ms-swift 4.6, arguments/rlhf_args.py, `rlhf_type`: those that train like a trainer of TRL.
_TRAINERS: Mapping[object, str] = {None: "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"}
_METHODS = frozenset({"full", "lora"})
# ms-swift 4.6, arguments/base_args/model_args.py, _init_mixed_precision: fp32 trains in fp16.
_PRECISIONS: Mapping[object, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
_QLORA_BITS = 4


def is_rlhf(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is one for `swift rlhf`."""
    return is_swift(values) and values.get("rlhf_type") is not None


def is_swift(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is ms-swift's: others too have a `model`."""
    return isinstance(values.get("model"), str) and not _OWN_KEYS.isdisjoint(values)


def read_swift(values: Mapping[str, object]) -> ProgramJob:
    """What a file says; a key that it lacks has ms-swift's default.

    Args:
        values: Its keys and values; `is_swift`.

    Example:
        >>> read_swift({"model": "m", "tuner_type": "full"}).settings["method"]
        'full'
    """
    optimizer = TRAINER_OPTIMIZERS.get(str(values.get("optim") or "adamw_torch"))
    tuner = read_word(values, "tuner_type") or read_word(values, "train_type") or "lora"
    bits, kind = read_word(values, "quant_bits"), read_word(values, "rlhf_type")
    unknown = {
        "optim": optimizer is None,
        "tuner_type": tuner not in _METHODS,
        "quant_bits": bits not in {None, _QLORA_BITS},
        "rlhf_type": kind not in _TRAINERS,
        "sequence_parallel_size": values.get("sequence_parallel_size", 1) != 1,
    }
    attention = str(values.get("attn_impl"))
    known = ATTENTIONS.get(attention)
    found: dict[str, Value | None] = {
        "model": str(values["model"]),
        "micro_batch": 1,
        **read_counts(values, _COUNTS),
        "precision": _precision(values),
        "gradient_checkpointing": values.get("gradient_checkpointing") is not False,
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full",
        **(_of_adapters(values) if tuner == "lora" else {}),
        "attention": "flash" if "flash" in attention else None if known is None else known.value,
        "loss": "liger" if values.get("use_liger_kernel") else "plain",
        "packing": True if values.get("padding_free") else None,
        "trainer": _TRAINERS.get(kind),
        "eval_batch": _eval_batch(values),
    }
    return make_job(values, found, unknown, not_counted=_NOT_COUNTED, excluding=("fsdp",))


def _precision(values: Mapping[str, object]) -> str | None:
    """None where the dtype of the model decides it."""
    if values.get("bf16"):
        return "bf16"
    if values.get("fp16"):
        return "fp16"
    dtype = read_word(values, "torch_dtype")
    is_off = dtype == "float32" and values.get("fp16") is False
    return "fp32" if is_off else _PRECISIONS.get(dtype)


def _of_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_rank"), values.get("target_modules") or "all-linear"
    return {
        "method": "qlora" if values.get("quant_bits") == _QLORA_BITS else "lora",
        "lora_rank": rank if isinstance(rank, int) else 8,
        "lora_target_modules": join_names(targets),
    }


def _eval_batch(values: Mapping[str, object]) -> int | None:
    """The sequences that are evaluated at a time; None where nothing is evaluated."""
    # YAML reads `no` as false.
    is_off = read_word(values, "eval_strategy") in {False, "no"}
    if is_off or not (values.get("val_dataset") or values.get("split_dataset_ratio")):
        return None
    batch = values.get("per_device_eval_batch_size")
    return batch if isinstance(batch, int) else 1
