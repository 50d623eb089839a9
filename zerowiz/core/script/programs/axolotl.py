"""What a file of axolotl says of its job."""

from collections.abc import Mapping

from zerowiz.core.script.names import ATTENTIONS, TRAINER_OPTIMIZERS
from zerowiz.core.script.options import Scalar
from zerowiz.core.script.programs.file import (
    Program,
    ProgramJob,
    Value,
    join_names,
    make_job,
    read_counts,
    read_word,
)
from zerowiz.core.workload.choices import Attention, Optimizer

_COUNTS: Mapping[str, str] = {
    "micro_batch": "micro_batch_size",
    "accumulation_steps": "gradient_accumulation_steps",
    "sequence_tokens": "sequence_len",
}
AXOLOTL = Program(
    name="axolotl",
    train=("axolotl", "train"),
    without_default=frozenset({"lora_rank", "micro_batch", "sequence_tokens"}),
    keys={
        "model": "base_model",
        **_COUNTS,
        "optimizer": "optimizer",
        "lora_rank": "lora_r",
        "lora_target_modules": "lora_target_modules",
        "eval_batch": "eval_batch_size",
    },
    lines={
        ("precision", "bf16"): ("bf16: true",),
        ("precision", "fp16"): ("fp16: true", "bf16: false"),
        ("precision", "fp32"): ("bf16: false", "fp16: false"),
        ("gradient_checkpointing", True): ("gradient_checkpointing: true",),
        ("gradient_checkpointing", False): ("gradient_checkpointing: false",),
        ("optimizer", "adamw"): ("optimizer: adamw_torch_fused",),
        ("optimizer", "adamw_8bit"): ("optimizer: adamw_bnb_8bit",),
        ("optimizer", "lion"): ("optimizer: lion_32bit",),
        ("method", "full"): ("adapter:", "load_in_4bit: false"),
        ("method", "lora"): ("adapter: lora", "load_in_4bit: false"),
        ("method", "qlora"): ("adapter: qlora", "load_in_4bit: true"),
        ("lora_target_modules", "all-linear"): ("lora_target_linear: true", "lora_target_modules:"),
        ("attention", "flash"): ("flash_attention: true",),
        ("attention", "sdpa"): ("flash_attention: false", "sdp_attention: true"),
        ("attention", "eager"): ("flash_attention: false", "eager_attention: true"),
        ("loss", "chunked"): ("chunked_cross_entropy: true",),
        ("loss", "liger"): (
            "plugins: [axolotl.integrations.liger.LigerPlugin]",
            "liger_fused_linear_cross_entropy: true",
        ),
    },
)
# Rule: axolotl's keys that change memory in ways that zerowiz does not count.
_NOT_COUNTED = (
    "context_parallel_size",
    "fp8",
    "lisa_layers",
    "load_in_8bit",
    "qat",
    "quantize_moe_experts",
    "relora",
    "reward_model",
    "sequence_parallel_degree",
    "tensor_parallel_size",
    "unfrozen_parameters",
)
# Those of transformers, and what axolotl has besides.
_OPTIMIZERS: Mapping[Scalar, Optimizer] = {
    **TRAINER_OPTIMIZERS,
    "adamw": Optimizer.ADAMW,
    "lion_pytorch": Optimizer.LION,
}
# The switches that a file may have instead of `attn_implementation`, the one that counts first.
_ATTENTION_SWITCHES: Mapping[str, str] = {
    "flash_attention": "flash",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
_ADAPTERS = frozenset({"lora", "qlora"})
_METHODS = frozenset({"full", *_ADAPTERS})
_TRAINERS = frozenset({"sft", "dpo", "kto", "grpo"})


def is_axolotl(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is axolotl's: no other program names its model so."""
    return isinstance(values.get("base_model"), str)


def read_axolotl(values: Mapping[str, object]) -> ProgramJob:
    """What a file says; a key that it lacks has axolotl's default.

    Args:
        values: Its keys and values; `is_axolotl`.

    Example:
        >>> read_axolotl({"base_model": "m", "adapter": "lora"}).settings["method"]
        'lora'
    """
    optimizer = _OPTIMIZERS.get(str(values.get("optimizer") or "adamw_torch"))
    adapter, trainer = read_word(values, "adapter") or "full", read_word(values, "rl") or "sft"
    unknown = {
        "optimizer": optimizer is None,
        "adapter": adapter not in _METHODS,
        "rl": trainer not in _TRAINERS,
    }
    found: dict[str, Value | None] = {
        "model": str(values["base_model"]),
        "accumulation_steps": 1,
        **read_counts(values, _COUNTS),
        "precision": _precision(values),
        "gradient_checkpointing": bool(values.get("gradient_checkpointing")),
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full" if unknown["adapter"] else str(adapter),
        "attention": _attention(values),
        "loss": _loss(values),
        "eval_batch": _eval_batch(values),
        "trainer": None if unknown["rl"] else str(trainer),
        **(_of_adapters(values) if adapter in _ADAPTERS else {}),
    }
    return make_job(
        values, found, unknown, not_counted=_NOT_COUNTED, excluding=("fsdp", "fsdp_config")
    )


def _attention(values: Mapping[str, object]) -> str | None:
    """By transformers' name, or by a switch; None where axolotl leaves it to transformers."""
    name = str(values.get("attn_implementation"))
    if "flash" in name:
        return Attention.FLASH.value
    if name in ATTENTIONS:
        return ATTENTIONS[name].value
    return next((kind for key, kind in _ATTENTION_SWITCHES.items() if values.get(key)), None)


def _eval_batch(values: Mapping[str, object]) -> int | None:
    """The sequences that are evaluated at a time; None where nothing is evaluated, or by default.

    By default they are those of a micro-batch, which need no more memory than to train them.
    """
    batch = values.get("eval_batch_size")
    has_rows = values.get("val_set_size") or values.get("test_datasets")
    # core/builders/base.py, _configure_save_and_eval_strategy. YAML reads `no` as false.
    is_off = read_word(values, "eval_strategy") in {None, False, "no"}
    is_due = values.get("eval_steps") or values.get("evals_per_epoch") or not is_off
    return batch if has_rows and is_due and isinstance(batch, int) else None


def _loss(values: Mapping[str, object]) -> str | None:
    if values.get("liger_fused_linear_cross_entropy"):
        return "liger"
    return "chunked" if values.get("chunked_cross_entropy") else None


def _of_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_r"), values.get("lora_target_modules")
    return {
        "lora_rank": rank if isinstance(rank, int) else None,
        "lora_target_modules": join_names(targets)
        if isinstance(targets, list) and targets
        else None,
    }


def _precision(values: Mapping[str, object]) -> str:
    if values.get("bf16") or values.get("bfloat16"):
        return "bf16"
    return "fp16" if values.get("fp16") or values.get("float16") else "fp32"
