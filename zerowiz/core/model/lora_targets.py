"""Tabulate the layers that peft adapts where a script names none."""

from collections.abc import Mapping

# peft 0.21, utils/constants.py, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING: the rows of the
# families that have formulas. peft refuses a model type that it has no row for.
_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "opt"),
        ("q_proj", "v_proj"),
    ),
    **dict.fromkeys(("gpt_neox", "falcon"), ("query_key_value",)),
    **dict.fromkeys(("bert", "roberta"), ("query", "value")),
    "gpt2": ("c_attn",),
    "t5": ("q", "v"),
}


def default_targets(model_type: str) -> tuple[str, ...]:
    """The layers with adapters by peft's own table; none, and so all linear ones, without a row."""
    return _TARGETS.get(model_type, ())
