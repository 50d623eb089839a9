"""The names of options in texts, and other words that people have for a choice."""

import re
from collections.abc import Collection, Mapping
from functools import cache

from zerowiz.core import shell
from zerowiz.core.settings import OTHER_SETTINGS, Change
from zerowiz.core.workload import OPTIMIZERS, PRECISIONS, SETTINGS

# Rule: words of other tools and of speech, by the key of the setting, without case and punctuation.
# A choice answers to itself in any case and punctuation without a row.
SYNONYMS: Mapping[str, Mapping[str, str]] = {
    "stage": {
        **dict.fromkeys(("ddp", "none", "zero0", "stage0", "z0"), "0"),
        **dict.fromkeys(("zero1", "stage1", "z1"), "1"),
        **dict.fromkeys(("zero2", "stage2", "z2"), "2"),
        **dict.fromkeys(("zero3", "stage3", "z3"), "3"),
    },
    "precision": {word: name.value for name, row in PRECISIONS.items() for word in row.words},
    "optimizer_state_dtype": {
        **dict.fromkeys(("bfloat16", "torchbfloat16"), "bf16"),
        **dict.fromkeys(("float32", "torchfloat32", "float"), "fp32"),
    },
    "optimizer": {word: name.value for name, row in OPTIMIZERS.items() for word in row.words},
    "method": {
        **dict.fromkeys(("fullfinetune", "finetune", "fullfinetuning", "fft"), "full"),
        **dict.fromkeys(("peft", "adapter", "adapters"), "lora"),
        **dict.fromkeys(("qlora4bit", "4bit"), "qlora"),
    },
    # transformers, `attn_implementation`.
    "attention": dict.fromkeys(
        ("flashattention2", "flashattn", "flashattention", "flash2", "fa2"), "flash"
    ),
    "offload": {
        **dict.fromkeys(("no", "off", "false"), "none"),
        **dict.fromkeys(("cpu", "optim", "optimizerstate"), "optimizer"),
        **dict.fromkeys(("parameters", "params", "both", "full"), "all"),
    },
    "accelerator": dict.fromkeys(("gpu", "nvidia"), "cuda"),
    "integration": {
        **dict.fromkeys(("huggingface", "transformers", "trainer"), "hf"),
        **dict.fromkeys(("ds", "raw"), "deepspeed"),
    },
    "objective": {
        **dict.fromkeys(("speed", "fast", "throughput"), "fastest"),
        **dict.fromkeys(("memory", "small"), "smallest"),
        **dict.fromkeys(("auto", "recommended"), "flowchart"),
    },
    "loss": {"ligerkernel": "liger"},
}


def canonical_choice(key: str, text: str, choices: Collection[str]) -> str:
    """The choice that a word means; the word itself where it means none.

    Args:
        key: That of the setting's row.
        text: As a person wrote it: `zero3`, `BFloat16`.
        choices: The words that zerowiz has.
    """
    word = _plain(text)
    known = {_plain(choice): choice for choice in choices}
    return known.get(word) or SYNONYMS.get(key, {}).get(word) or text


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


# Spell the settings that a text names as options of the command line.
#
# Errors, findings and notes name a setting by its field, after a dollar sign: `$micro_batch 0`.
# What prints them spells it: `--micro-batch 0`. To Python, `str(error)` names the field.

_NAMED = re.compile(r"\$([a-z][a-z_]*)")


def spell(text: str) -> str:
    """The text with the option of each setting that it names; other words stay.

    Example:
        >>> spell("`$micro_batch 0`: `$no_hpz` helps nobody in $HOME")
        '`--micro-batch 0`: `--no-hpz` helps nobody in $HOME'
    """
    return _NAMED.sub(lambda match: flags().get(match[1], match[0]), text)


@cache
def flags() -> Mapping[str, str]:
    """The spelling of each setting by its name; `no_hpz` is the one that switches it off."""
    rows = {**SETTINGS, **OTHER_SETTINGS}
    off = {f"no_{name}": row.off for name, row in rows.items() if row.off}
    return {**{name: row.on for name, row in rows.items()}, **off}


def spell_change(change: Change) -> str:
    """A change as the options to type."""
    words = [
        flags()[name] if value is True else f"{flags()[name]} {shell.quote(value)}"
        for name, value in change.items()
        if (name, value) != ("offload", "none")
    ]
    return " ".join(words)
