"""The files of axolotl, LLaMA-Factory and ms-swift: what they say of a job.

Such a program has no script of the person's: it reads one YAML file, and hands the config under
`deepspeed` to the Trainer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from zerowiz.core.script.arguments import ATTENTIONS, TRAINER_OPTIMIZERS, Scalar
from zerowiz.core.settings import Change
from zerowiz.core.structs import replace
from zerowiz.core.workload import OPTIMIZERS, PRECISIONS, Attention, Optimizer

Value = int | str | bool


class ProgramJob(Struct, frozen=True, kw_only=True):
    """What a file says of a job, as far as a plan is concerned."""

    settings: Change
    """What it says of the step, by the fields of the options."""
    not_counted: tuple[str, ...] = ()
    """Its keys that change what a rank holds, and that no formula counts."""
    excluding: tuple[str, ...] = ()
    """Its keys that exclude DeepSpeed, such as those of FSDP."""


def make_job(
    values: Mapping[str, object],
    settings: Mapping[str, Value | None],
    unknown: Mapping[str, bool],
    *,
    not_counted: Iterable[str],
    excluding: Iterable[str],
) -> ProgramJob:
    """A job of what was read of a file.

    Args:
        values: The keys and values of the file.
        settings: Its settings; None where it decides none.
        unknown: Keys, and whether the file has a value for them that zerowiz does not know.
        not_counted: The keys of the program that no formula counts, if they are set.
        excluding: Its keys that exclude DeepSpeed, if they are set.
    """
    lost = (key for key in not_counted if values.get(key))
    return ProgramJob(
        settings={name: value for name, value in settings.items() if value is not None},
        not_counted=(*lost, *(key for key, is_unknown in unknown.items() if is_unknown)),
        excluding=tuple(key for key in excluding if values.get(key)),
    )


def join_names(names: object) -> str:
    """The modules of adapters, in the syntax of `--lora-target-modules`: a list, or one text."""
    return ",".join(map(str, names)) if isinstance(names, list) else str(names)


class Program(Struct, frozen=True, kw_only=True):
    """A program, and how its file says what a plan changes."""

    name: str
    train: tuple[str, ...]
    """The words before its file; `{ranks}` is the number of ranks on a node."""
    without_default: frozenset[str] = frozenset()
    """The settings that a file has to say: the program has no default for them, or its own."""
    keys: Mapping[str, str]
    """The key of each setting, whose values are the same words there."""
    lines: Mapping[tuple[str, Value], tuple[str, ...]]
    """The lines of a value that has other words there."""


class ProgramFile(Struct, frozen=True, kw_only=True):
    """A file, and the program that reads it."""

    path: str
    program: Program
    job: ProgramJob

    def takes(self, name: str, value: Value) -> bool:
        """Whether the file has a setting, or a line of it could say so.

        Args:
            name: The setting.
            value: What it is to be.
        """
        program = self.program
        is_said = self.job.settings.get(name) == value
        return is_said or name in program.keys or (name, value) in program.lines

    def command(self, ranks: int) -> tuple[str, ...]:
        """What trains with the file.

        Args:
            ranks: The ranks on a node.
        """
        return (*(word.format(ranks=ranks) for word in self.program.train), self.path)


def read_word(values: Mapping[str, object], key: str) -> Value | float | None:
    """A value to look up in a table; a list or a mapping, which no table has, is its text.

    Args:
        values: The keys and values of the file.
        key: The key.
    """
    value = values.get(key)
    return value if isinstance(value, str | int | float | None) else str(value)


def read_counts(values: Mapping[str, object], keys: Mapping[str, str]) -> dict[str, Value | None]:
    """The whole numbers of a file, by their settings.

    Args:
        values: The keys and values of the file.
        keys: The key of each setting.
    """
    pairs = ((name, values.get(key)) for name, key in keys.items())
    return {n: v for n, v in pairs if isinstance(v, int) and not isinstance(v, bool)}


def list_changes(file: ProgramFile, planned: Change, config_path: str) -> Iterator[str]:
    """The lines that the file is to have for a plan, and has not.

    Args:
        file: The file as it is.
        planned: The settings of the plan that are not the program's defaults, and all that the
            file says.
        config_path: The config that was written.
    """
    yield f"deepspeed: {config_path}"
    lines, keys = file.program.lines, file.program.keys
    for name, value in planned.items():
        if file.job.settings.get(name) == value:
            continue
        key = keys.get(name)
        yield from lines.get((name, value), () if key is None else (f"{key}: {value}",))
    for key in file.job.excluding:
        yield f"{key}:"


def _lines(program: str, key: str) -> dict[tuple[str, Value], tuple[str, ...]]:
    """The lines of each precision, and of each optimizer under the key that the program has."""
    return {
        **{
            ("precision", precision.value): row.program_lines[program]
            for precision, row in PRECISIONS.items()
        },
        **{
            ("optimizer", optimizer.value): (f"{key}: {row.program_name}",)
            for optimizer, row in OPTIMIZERS.items()
        },
    }


# What a file of axolotl says of its job.

_AXOLOTL_COUNTS: Mapping[str, str] = {
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
        **_AXOLOTL_COUNTS,
        "optimizer": "optimizer",
        "lora_rank": "lora_r",
        "lora_target_modules": "lora_target_modules",
        "eval_batch": "eval_batch_size",
    },
    lines={
        **_lines("axolotl", "optimizer"),
        ("gradient_checkpointing", True): ("gradient_checkpointing: true",),
        ("gradient_checkpointing", False): ("gradient_checkpointing: false",),
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
_AXOLOTL_NOT_COUNTED = (
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
    **{name: optimizer for optimizer, row in OPTIMIZERS.items() for name in row.axolotl_names},
}
# The switches that a file may have instead of `attn_implementation`, the one that counts first.
_ATTENTION_SWITCHES: Mapping[str, str] = {
    "flash_attention": "flash",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
_ADAPTERS = frozenset({"lora", "qlora"})
_AXOLOTL_METHODS = frozenset({"full", *_ADAPTERS})
_AXOLOTL_TRAINERS = frozenset({"sft", "dpo", "kto", "grpo"})


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
        "adapter": adapter not in _AXOLOTL_METHODS,
        "rl": trainer not in _AXOLOTL_TRAINERS,
    }
    settings: dict[str, Value | None] = {
        "model": str(values["base_model"]),
        "accumulation_steps": 1,
        **read_counts(values, _AXOLOTL_COUNTS),
        "precision": _axolotl_precision(values),
        "gradient_checkpointing": bool(values.get("gradient_checkpointing")),
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full" if unknown["adapter"] else str(adapter),
        "attention": _axolotl_attention(values),
        "loss": _axolotl_loss(values),
        "eval_batch": _axolotl_eval_batch(values),
        "trainer": None if unknown["rl"] else str(trainer),
        **(_axolotl_adapters(values) if adapter in _ADAPTERS else {}),
    }
    return make_job(
        values,
        settings,
        unknown,
        not_counted=_AXOLOTL_NOT_COUNTED,
        excluding=("fsdp", "fsdp_config"),
    )


def _axolotl_attention(values: Mapping[str, object]) -> str | None:
    """By transformers' name, or by a switch; None where axolotl leaves it to transformers."""
    name = str(values.get("attn_implementation"))
    if "flash" in name:
        return Attention.FLASH.value
    if name in ATTENTIONS:
        return ATTENTIONS[name].value
    return next((kind for key, kind in _ATTENTION_SWITCHES.items() if values.get(key)), None)


def _axolotl_eval_batch(values: Mapping[str, object]) -> int | None:
    """The sequences that are evaluated at a time; None where nothing is evaluated, or by default.

    By default they are those of a micro-batch, which need no more memory than to train them.
    """
    batch = values.get("eval_batch_size")
    has_rows = values.get("val_set_size") or values.get("test_datasets")
    # core/builders/base.py, _configure_save_and_eval_strategy. YAML reads `no` as false.
    is_off = read_word(values, "eval_strategy") in {None, False, "no"}
    is_due = values.get("eval_steps") or values.get("evals_per_epoch") or not is_off
    return batch if has_rows and is_due and isinstance(batch, int) else None


def _axolotl_loss(values: Mapping[str, object]) -> str | None:
    if values.get("liger_fused_linear_cross_entropy"):
        return "liger"
    return "chunked" if values.get("chunked_cross_entropy") else None


def _axolotl_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_r"), values.get("lora_target_modules")
    return {
        "lora_rank": rank if isinstance(rank, int) else None,
        "lora_target_modules": join_names(targets)
        if isinstance(targets, list) and targets
        else None,
    }


def _axolotl_precision(values: Mapping[str, object]) -> str:
    if values.get("bf16") or values.get("bfloat16"):
        return "bf16"
    return "fp16" if values.get("fp16") or values.get("float16") else "fp32"


# What a file of LLaMA-Factory says of its job.

_LLAMA_COUNTS: Mapping[str, str] = {
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
        **_LLAMA_COUNTS,
        "optimizer": "optim",
        "lora_rank": "lora_rank",
        "lora_target_modules": "lora_target",
        "eval_batch": "per_device_eval_batch_size",
    },
    lines={
        **_lines("LLaMA-Factory", "optim"),
        ("gradient_checkpointing", True): ("disable_gradient_checkpointing: false",),
        ("gradient_checkpointing", False): ("disable_gradient_checkpointing: true",),
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
_LLAMA_OWN_KEYS = frozenset({"cutoff_len", "finetuning_type", "stage", "template"})
# Rule: LLaMA-Factory's keys that change memory in ways that zerowiz does not count.
_LLAMA_NOT_COUNTED = (
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
_LLAMA_TRAINERS: Mapping[object, str] = {
    "pt": "sft",
    "sft": "sft",
    "rm": "reward",
    "dpo": "dpo",
    "kto": "kto",
}
_LLAMA_METHODS = frozenset({"full", "lora"})
# llamafactory 0.9.5, extras/constants.py, class AttentionFunction.
_LLAMA_ATTENTIONS: Mapping[object, str] = {
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
}
# llamafactory 0.9.5, hparams/finetuning_args.py, `use_ref_model`.
_WITHOUT_REFERENCE = frozenset({"orpo", "simpo"})
_LLAMA_QLORA_BITS = 4
# transformers 5.6, training_args.py; llamafactory 0.9.5, hparams/.
_LLAMA_DEFAULTS: Mapping[str, Value] = {
    "micro_batch": 8,
    "accumulation_steps": 1,
    "sequence_tokens": 2048,
}
_DEFAULT_LORA_RANK, _DEFAULT_EVAL_BATCH = 8, 8


def is_llama_factory(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is LLaMA-Factory's: files of TRL name their model in the same way."""
    return isinstance(values.get("model_name_or_path"), str) and not _LLAMA_OWN_KEYS.isdisjoint(
        values
    )


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
        _LLAMA_TRAINERS.get(read_word(values, "stage") or "sft"),
    )
    unknown = {
        "optim": optimizer is None,
        "finetuning_type": tuning not in _LLAMA_METHODS,
        "quantization_bit": bits not in {None, _LLAMA_QLORA_BITS},
        "stage": trainer is None,
    }
    settings: dict[str, Value | None] = {
        "model": str(values["model_name_or_path"]),
        **_LLAMA_DEFAULTS,
        **read_counts(values, _LLAMA_COUNTS),
        "precision": _llama_precision(values),
        "gradient_checkpointing": not values.get("disable_gradient_checkpointing"),
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full",
        **(_llama_adapters(values) if tuning == "lora" else {}),
        "attention": _LLAMA_ATTENTIONS.get(read_word(values, "flash_attn")),
        # Liger's where logits are not needed (model/loader.py, `require_logits`).
        "loss": "liger" if values.get("enable_liger_kernel") and trainer == "sft" else "plain",
        "trainer": trainer,
        "reference": _llama_reference(values, trainer),
        "eval_batch": _llama_eval_batch(values),
    }
    return make_job(
        values, settings, unknown, not_counted=_LLAMA_NOT_COUNTED, excluding=("fsdp", "fsdp_config")
    )


def _llama_precision(values: Mapping[str, object]) -> str:
    if values.get("bf16") or values.get("pure_bf16"):
        return "bf16"
    return "fp16" if values.get("fp16") else "fp32"


def _llama_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_rank"), values.get("lora_target") or "all"
    names = join_names(targets)
    return {
        "method": "qlora" if values.get("quantization_bit") == _LLAMA_QLORA_BITS else "lora",
        "lora_rank": rank if isinstance(rank, int) else _DEFAULT_LORA_RANK,
        "lora_target_modules": "all-linear" if names == "all" else names,
    }


def _llama_reference(values: Mapping[str, object], trainer: str | None) -> str | None:
    """None where it is that of TRL's trainer (train/trainer_utils.py, create_ref_model)."""
    if trainer == "dpo" and read_word(values, "pref_loss") in _WITHOUT_REFERENCE:
        return "none"
    return "model" if trainer in {"dpo", "kto"} and values.get("ref_model") else None


def _llama_eval_batch(values: Mapping[str, object]) -> int | None:
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


# What a file of ms-swift says of its job.

_SWIFT_COUNTS: Mapping[str, str] = {
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
        **_SWIFT_COUNTS,
        "optimizer": "optim",
        "lora_rank": "lora_rank",
        "lora_target_modules": "target_modules",
        "eval_batch": "per_device_eval_batch_size",
    },
    lines={
        **_lines("ms-swift", "optim"),
        ("gradient_checkpointing", True): ("gradient_checkpointing: true",),
        ("gradient_checkpointing", False): ("gradient_checkpointing: false",),
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
_SWIFT_OWN_KEYS = frozenset({"rlhf_type", "split_dataset_ratio", "train_type", "tuner_type"})
# Rule: ms-swift's keys that change memory in ways that zerowiz does not count.
_SWIFT_NOT_COUNTED = (
    "deepspeed_autotp_size",
    "modules_to_save",
    "optimizer",
    "reward_model",
    "use_dora",
    "use_galore",
)
# ms-swift 4.6, arguments/rlhf_args.py, `rlhf_type`: those that train like a trainer of TRL.
_SWIFT_TRAINERS: Mapping[object, str] = {None: "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"}
_SWIFT_METHODS = frozenset({"full", "lora"})
# ms-swift 4.6, arguments/base_args/model_args.py, _init_mixed_precision: fp32 trains in fp16.
_SWIFT_PRECISIONS: Mapping[object, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}
_SWIFT_QLORA_BITS = 4


def is_rlhf(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is one for `swift rlhf`."""
    return is_swift(values) and values.get("rlhf_type") is not None


def is_swift(values: Mapping[str, object]) -> bool:
    """Whether a YAML file is ms-swift's: others too have a `model`."""
    return isinstance(values.get("model"), str) and not _SWIFT_OWN_KEYS.isdisjoint(values)


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
        "tuner_type": tuner not in _SWIFT_METHODS,
        "quant_bits": bits not in {None, _SWIFT_QLORA_BITS},
        "rlhf_type": kind not in _SWIFT_TRAINERS,
        "sequence_parallel_size": values.get("sequence_parallel_size", 1) != 1,
    }
    attention = str(values.get("attn_impl"))
    known = ATTENTIONS.get(attention)
    settings: dict[str, Value | None] = {
        "model": str(values["model"]),
        "micro_batch": 1,
        **read_counts(values, _SWIFT_COUNTS),
        "precision": _swift_precision(values),
        "gradient_checkpointing": values.get("gradient_checkpointing") is not False,
        "optimizer": None if optimizer is None else optimizer.value,
        "method": "full",
        **(_swift_adapters(values) if tuner == "lora" else {}),
        "attention": "flash" if "flash" in attention else None if known is None else known.value,
        "loss": "liger" if values.get("use_liger_kernel") else "plain",
        "packing": True if values.get("padding_free") else None,
        "trainer": _SWIFT_TRAINERS.get(kind),
        "eval_batch": _swift_eval_batch(values),
    }
    return make_job(values, settings, unknown, not_counted=_SWIFT_NOT_COUNTED, excluding=("fsdp",))


def _swift_precision(values: Mapping[str, object]) -> str | None:
    """None where the dtype of the model decides it."""
    if values.get("bf16"):
        return "bf16"
    if values.get("fp16"):
        return "fp16"
    dtype = read_word(values, "torch_dtype")
    is_off = dtype == "float32" and values.get("fp16") is False
    return "fp32" if is_off else _SWIFT_PRECISIONS.get(dtype)


def _swift_adapters(values: Mapping[str, object]) -> dict[str, Value | None]:
    rank, targets = values.get("lora_rank"), values.get("target_modules") or "all-linear"
    return {
        "method": "qlora" if values.get("quant_bits") == _SWIFT_QLORA_BITS else "lora",
        "lora_rank": rank if isinstance(rank, int) else 8,
        "lora_target_modules": join_names(targets),
    }


def _swift_eval_batch(values: Mapping[str, object]) -> int | None:
    """The sequences that are evaluated at a time; None where nothing is evaluated."""
    # YAML reads `no` as false.
    is_off = read_word(values, "eval_strategy") in {False, "no"}
    if is_off or not (values.get("val_dataset") or values.get("split_dataset_ratio")):
        return None
    batch = values.get("per_device_eval_batch_size")
    return batch if isinstance(batch, int) else 1


# The programs whose files zerowiz plans for.

_Values = Mapping[str, object]
_READERS: tuple[tuple[Program, Callable[[_Values], bool], Callable[[_Values], ProgramJob]], ...] = (
    (AXOLOTL, is_axolotl, read_axolotl),
    (LLAMA_FACTORY, is_llama_factory, read_llama_factory),
    (MS_SWIFT_RLHF, is_rlhf, read_swift),
    (MS_SWIFT, is_swift, read_swift),
)


def read_program(path: str, values: Mapping[str, object]) -> ProgramFile | None:
    """What a YAML file says of a job; None where it is no file of these programs.

    Args:
        path: The file.
        values: Its keys and values.
    """
    for program, is_its, read in _READERS:
        if is_its(values):
            return ProgramFile(path=path, program=program, job=read(values))
    return None
