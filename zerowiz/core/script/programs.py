"""The files of axolotl, LLaMA-Factory and ms-swift: what they say of a job.

Such a program has no script of the person's: it reads one YAML file, and hands the config under
`deepspeed` to the Trainer. A program is a row of PROGRAMS; what it calls a setting stands in the
row of the setting.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from zerowiz.core.settings import OTHER_SETTINGS, Change, not_planned
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    ALL_LINEAR,
    ATTENTION_NAMES,
    OPTIMIZERS,
    PRECISIONS,
    SETTINGS,
    TRAINER_OPTIMIZERS,
    Attention,
    Optimizer,
)
from zerowiz.errors import UsageError

Value = int | str | bool
_Values = Mapping[str, object]
_Reads = tuple[tuple[str, Value, _Values], ...]


class ProgramJob(Struct, frozen=True, kw_only=True):
    """What a file says of a job, as far as a plan is concerned."""

    settings: Change
    """What it says of the step, by the fields of the options."""
    not_counted: tuple[str, ...] = ()
    """Its keys that change what a rank holds, and that no formula counts."""
    without_effect: tuple[str, ...] = ()
    """Its keys that do nothing, as another one is not set."""
    excluding: tuple[str, ...] = ()
    """Its keys that exclude DeepSpeed, such as those of FSDP."""
    refused_sharded: tuple[str, ...] = ()
    """Its keys that the program refuses at stage 3."""
    loads_fp32: bool = False
    """Whether each GPU holds all weights in fp32 while they are loaded, but at stage 3."""


class Program(Struct, frozen=True, kw_only=True):
    """A program: how it is started, and what its file says of a job."""

    name: str
    train: tuple[str, ...]
    """The words before its file; `{ranks}` is the number of ranks on a node."""
    own_keys: frozenset[str]
    """The keys of which no other program has any, but for one with `other_keys`."""
    other_keys: frozenset[str] = frozenset()
    """Keys of Megatron-SWIFT, whose files have its own keys too."""
    aliases: Mapping[str, str] = {}
    """Other names of its keys."""
    without_default: frozenset[str] = frozenset()
    """The settings that a file has to say: the program has no default for them, or its own."""
    defaults: Mapping[str, Value]
    """The value of each setting that a file leaves out."""
    words: Mapping[str, tuple[str, Mapping[object, str]]]
    """The key of each setting whose values have other names there, and what each name means."""
    reads: _Reads
    """Settings that several keys decide: the setting, its value, and what the file has then. True
    and False stand for any value that is on or off, a set for any of its members. The first of a
    setting that holds counts."""
    lines: Mapping[tuple[str, Value], tuple[str, ...]]
    """The lines of a value that has other words there."""
    known: Mapping[str, frozenset[object]]
    """All values of a key that zerowiz knows."""
    eval_data: tuple[str, ...]
    """The keys that name what is evaluated."""
    eval_asked_by: tuple[str, ...] = ()
    """The keys that ask for an evaluation, beside `eval_strategy`."""
    evaluates_unasked: bool = False
    not_counted: tuple[str, ...]
    """Its keys that change memory in ways that zerowiz does not count."""
    needing: tuple[str, ...] = ()
    """A key, and those that do nothing without it."""
    excluding: tuple[str, ...] = ("fsdp", "fsdp_config")
    refused_sharded: tuple[str, ...] = ()
    """Its keys that it refuses at stage 3."""
    loading_fp32: Mapping[str, object] | None = None
    """What its file has where each GPU holds all weights in fp32 while they are loaded; as in
    `reads`."""
    parallel: Mapping[str, str]
    """Its keys by which ranks share more than data, and what that is called."""

    @property
    def keys(self) -> dict[str, str]:
        """The key of each setting that has one, by the field of the options."""
        rows = {**OTHER_SETTINGS, **SETTINGS}.items()
        keys = {name: row.program_keys.get(self.name) for name, row in rows}
        return {name: key for name, key in keys.items() if key is not None}


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


def read_program(path: str, values: Mapping[str, object]) -> ProgramFile | None:
    """What a YAML file says of a job; None where it is no file of these programs.

    Args:
        path: The file.
        values: Its keys and values.

    Raises:
        UsageError: It is a file of Megatron-SWIFT, which has no DeepSpeed, or ranks share more than
            data.

    Example:
        >>> file = read_program("my.yaml", {"base_model": "m", "adapter": "lora"})
        >>> file.job.settings["method"]
        'lora'
    """
    for program in PROGRAMS:
        is_named = isinstance(values.get(program.keys["model"]), str)
        if is_named and not program.own_keys.isdisjoint(values):
            if not program.other_keys.isdisjoint(values):
                raise UsageError(f"`{path}` is a file of {_MEGATRON}", _WITH_DEEPSPEED)
            for key, kind in program.parallel.items():
                size = values.get(key)
                if type(size) is int and size > 1:
                    raise not_planned(f"`{path}` has `{key}: {size}`", kind)
            older = {new: values.get(old) for old, new in program.aliases.items()}
            known = {key: values[key] for key in values if values[key] is not None}
            return ProgramFile(path=path, program=program, job=_read_job(program, older | known))
    return None


def _read_job(program: Program, values: _Values) -> ProgramJob:
    """What a file says; a key that it lacks has the program's default."""
    said: dict[str, Value] = {}
    for name, value, wanted in program.reads:
        if name not in said and _has(values, wanted):
            said[name] = value
    for name, (key, meanings) in program.words.items():
        meaning = _meaning(name, _word(values, key) or None, meanings)
        if meaning is not None:
            said[name] = meaning
    for name, key in program.keys.items():
        written = values.get(key)
        if name in _TEXTS and written:
            said[name] = _text(written)
        elif name not in program.words and type(written) is int:
            said[name] = written
    settings = {**program.defaults, **said}
    left_out = set() if _evaluates(program, values) else {"eval_batch"}
    if settings["method"] == "full":
        left_out |= {name for name, row in SETTINGS.items() if row.of_adapters}
    known: dict[str, Collection[object]] = {
        **{key: words for name, (key, words) in program.words.items() if name != "attention"},
        **program.known,
    }
    unknown = (key for key, words in known.items() if (_word(values, key) or None) not in words)
    return ProgramJob(
        settings={
            name: settings[name]
            for name in ("model", *SETTINGS)
            if name in settings and name not in left_out
        },
        not_counted=(*(key for key in program.not_counted if values.get(key)), *unknown),
        without_effect=tuple(
            f"`{key}` without `{program.needing[0]}`"
            for key in program.needing[1:]
            if values.get(key) and not values.get(program.needing[0])
        ),
        excluding=tuple(key for key in program.excluding if values.get(key)),
        refused_sharded=tuple(key for key in program.refused_sharded if values.get(key)),
        loads_fp32=program.loading_fp32 is not None and _has(values, program.loading_fp32),
    )


_MEGATRON = "Megatron-SWIFT (`megatron sft`), which trains without DeepSpeed"
_WITH_DEEPSPEED = (
    "to train with DeepSpeed, write one for `swift sft`, which has `per_device_train_batch_size`"
    " and `gradient_accumulation_steps` in place of `micro_batch_size` and `global_batch_size`"
)

# The settings whose values are names of a model or of its layers, and no words of a program.
_TEXTS = frozenset({"model", "lora_target_modules"})


def _text(written: object) -> str:
    """A name, or names in the syntax of `--lora-target-modules`."""
    text = ",".join(map(str, written)) if isinstance(written, list) else str(written)
    return ALL_LINEAR if text == "all" else text


def _word(values: _Values, key: str) -> Value | float | None:
    """A value to look up in a table; a list or a mapping, which no table has, is its text."""
    value = values.get(key)
    return value if isinstance(value, str | int | float | None) else str(value)


def _has(values: _Values, wanted: Mapping[str, object]) -> bool:
    return all(_is(_word(values, key), want) for key, want in wanted.items())


def _is(word: object, wanted: object) -> bool:
    if isinstance(wanted, bool):
        return bool(word) is wanted
    return word in wanted if isinstance(wanted, frozenset) else word == wanted


def _meaning(name: str, word: object, meanings: Mapping[object, str]) -> str | None:
    # Such as `flash_attention_2` and `kernels-community/flash-attn`.
    is_flash = name == "attention" and "flash" in str(word)
    return Attention.FLASH.value if is_flash else meanings.get(word)


def _evaluates(program: Program, values: _Values) -> bool:
    # YAML reads `no` as false.
    never = {False, "no"} if program.evaluates_unasked else {None, False, "no"}
    is_asked = any(map(values.get, program.eval_asked_by))
    is_due = is_asked or _word(values, "eval_strategy") not in never
    return is_due and any(map(values.get, program.eval_data))


# The programs whose files zerowiz plans for.


def _lines(program: str, optimizer_key: str) -> Mapping[tuple[str, Value], tuple[str, ...]]:
    """The lines of each precision, and of each optimizer under the key that the program has."""
    return {
        **{("precision", p.value): row.program_lines[program] for p, row in PRECISIONS.items()},
        **{
            ("optimizer", optimizer.value): (f"{optimizer_key}: {row.program_name}",)
            for optimizer, row in OPTIMIZERS.items()
        },
    }


_OPTIMIZERS: Mapping[object, str] = {
    **{name: optimizer.value for name, optimizer in TRAINER_OPTIMIZERS.items()},
    None: Optimizer.ADAMW.value,
}
_ATTENTIONS: Mapping[object, str] = {name: kind.value for name, kind in ATTENTION_NAMES.items()}
_LORA = frozenset({None, "lora"})

AXOLOTL = Program(
    name="axolotl",
    train=("axolotl", "train"),
    own_keys=frozenset({"base_model"}),
    without_default=frozenset({"lora_rank", "micro_batch", "sequence_tokens"}),
    defaults={
        "accumulation_steps": 1,
        "precision": "fp32",
        "gradient_checkpointing": False,
        "method": "full",
    },
    words={
        # Those of transformers, and what axolotl has besides.
        "optimizer": (
            "optimizer",
            {
                **{n: o.value for o, row in OPTIMIZERS.items() for n in row.axolotl_names},
                **_OPTIMIZERS,
            },
        ),
        "attention": ("attn_implementation", _ATTENTIONS),
        "trainer": (
            "rl",
            {None: "sft", **{name: name for name in ("sft", "dpo", "kto", "grpo")}},
        ),
    },
    reads=(
        ("precision", "bf16", {"bf16": True}),
        ("precision", "bf16", {"bfloat16": True}),
        ("precision", "fp16", {"fp16": True}),
        ("precision", "fp16", {"float16": True}),
        ("gradient_checkpointing", True, {"gradient_checkpointing": True}),
        ("method", "lora", {"adapter": "lora"}),
        ("method", "qlora", {"adapter": "qlora"}),
        ("attention", "flash", {"flash_attention": True}),
        ("attention", "sdpa", {"sdp_attention": True}),
        ("attention", "eager", {"eager_attention": True}),
        ("loss", "liger", {"liger_fused_linear_cross_entropy": True}),
        ("loss", "chunked", {"chunked_cross_entropy": True}),
    ),
    lines={
        **_lines("axolotl", "optimizer"),
        ("gradient_checkpointing", True): ("gradient_checkpointing: true",),
        ("gradient_checkpointing", False): ("gradient_checkpointing: false",),
        ("method", "full"): ("adapter:", "load_in_4bit: false"),
        ("method", "lora"): ("adapter: lora", "load_in_4bit: false"),
        ("method", "qlora"): ("adapter: qlora", "load_in_4bit: true"),
        ("lora_target_modules", ALL_LINEAR): ("lora_target_linear: true", "lora_target_modules:"),
        ("attention", "flash"): ("flash_attention: true",),
        ("attention", "sdpa"): ("flash_attention: false", "sdp_attention: true"),
        ("attention", "eager"): ("flash_attention: false", "eager_attention: true"),
        ("loss", "chunked"): ("chunked_cross_entropy: true",),
        ("loss", "liger"): (
            "plugins: [axolotl.integrations.liger.LigerPlugin]",
            "liger_fused_linear_cross_entropy: true",
        ),
    },
    known={"adapter": frozenset({None, "full", "lora", "qlora"})},
    # core/builders/base.py, _configure_save_and_eval_strategy. Without a batch of its own it is
    # that of training, which needs no more memory than to train it.
    eval_data=("val_set_size", "test_datasets"),
    eval_asked_by=("eval_steps", "evals_per_epoch"),
    not_counted=(
        "fp8",
        "lisa_layers",
        "load_in_8bit",
        "qat",
        "quantize_moe_experts",
        "relora",
        "reward_model",
        "unfrozen_parameters",
    ),
    parallel={
        "context_parallel_size": "context parallelism",
        "expert_parallel_size": "expert parallelism",
        "sequence_parallel_degree": "sequence parallelism",
        "tensor_parallel_size": "tensor parallelism",
    },
)
# llamafactory 0.9.5. launcher.py: without the first variable it starts no ranks for one GPU, and
# refuses DeepSpeed; without the second it takes all GPUs. hparams/, extras/constants.py
# (AttentionFunction), model/loader.py (`require_logits`: Liger's loss where logits are not needed),
# train/trainer_utils.py (create_ref_model: else the reference is that of TRL's trainer).
LLAMA_FACTORY = Program(
    name="LLaMA-Factory",
    train=("FORCE_TORCHRUN=1", "NPROC_PER_NODE={ranks}", "llamafactory-cli", "train"),
    own_keys=frozenset({"cutoff_len", "finetuning_type", "stage", "template"}),
    without_default=frozenset({"lora_rank"}),
    defaults={
        "micro_batch": 8,
        "accumulation_steps": 1,
        "sequence_tokens": 2048,
        "precision": "fp32",
        "gradient_checkpointing": True,
        "method": "full",
        "lora_rank": 8,
        "lora_target_modules": ALL_LINEAR,
        "loss": "plain",
        "eval_batch": 8,
    },
    words={
        "optimizer": ("optim", _OPTIMIZERS),
        "attention": (
            "flash_attn",
            {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash", "fa3": "flash"},
        ),
        "trainer": (
            "stage",
            {None: "sft", "pt": "sft", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"},
        ),
    },
    reads=(
        ("precision", "bf16", {"bf16": True}),
        ("precision", "bf16", {"pure_bf16": True}),
        ("precision", "fp16", {"fp16": True}),
        ("gradient_checkpointing", False, {"disable_gradient_checkpointing": True}),
        ("method", "qlora", {"finetuning_type": _LORA, "quantization_bit": 4}),
        ("method", "lora", {"finetuning_type": _LORA}),
        ("loss", "liger", {"enable_liger_kernel": True, "stage": frozenset({None, "pt", "sft"})}),
        ("reference", "none", {"stage": "dpo", "pref_loss": frozenset({"orpo", "simpo"})}),
        ("reference", "model", {"stage": frozenset({"dpo", "kto"}), "ref_model": True}),
    ),
    lines={
        **_lines("LLaMA-Factory", "optim"),
        ("gradient_checkpointing", True): ("disable_gradient_checkpointing: false",),
        ("gradient_checkpointing", False): ("disable_gradient_checkpointing: true",),
        ("method", "full"): ("finetuning_type: full", "quantization_bit: null"),
        ("method", "lora"): ("finetuning_type: lora", "quantization_bit: null"),
        ("method", "qlora"): ("finetuning_type: lora", "quantization_bit: 4"),
        ("lora_target_modules", ALL_LINEAR): ("lora_target: all",),
        ("attention", "flash"): ("flash_attn: fa2",),
        ("attention", "sdpa"): ("flash_attn: sdpa",),
        ("attention", "eager"): ("flash_attn: disabled",),
        ("loss", "plain"): ("enable_liger_kernel: false",),
        ("loss", "liger"): ("enable_liger_kernel: true",),
    },
    known={
        "finetuning_type": frozenset({None, "full", "lora"}),
        "quantization_bit": frozenset({None, 4}),
    },
    eval_data=("val_size", "eval_dataset"),
    eval_asked_by=("do_eval",),
    not_counted=(
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
    ),
    parallel={},
    # model/model_utils/quantization.py, configure_quantization.
    needing=("quantization_bit", "quantization_method", "quantization_type", "double_quantization"),
    # hparams/parser.py, get_train_args.
    refused_sharded=("predict_with_generate", "pissa_init", "pure_bf16"),
    # model/adapter.py, init_adapter. model/patcher.py: they are on a GPU by `low_cpu_mem_usage`.
    loading_fp32={
        "finetuning_type": "full",
        "pure_bf16": False,
        "use_badam": False,
        "low_cpu_mem_usage": frozenset({None, True}),
    },
)
# ms-swift 4.6, megatron/arguments/megatron_args.py: keys of `megatron sft`, which trains without
# DeepSpeed. `swift sft` has none of them.
_MEGATRON_KEYS = frozenset(
    {
        *("global_batch_size", "micro_batch_size", "min_lr", "recompute_granularity"),
        *("pipeline_model_parallel_size", "tensor_model_parallel_size", "train_iters"),
    }
)
# ms-swift 4.6. cli/main.py: without the variable it starts one rank. arguments/rlhf_args.py:
# `rlhf_type`. arguments/base_args/model_args.py, _init_mixed_precision: fp32 trains in fp16, and
# the dtype of the model decides where nothing else does.
MS_SWIFT = Program(
    name="ms-swift",
    train=("NPROC_PER_NODE={ranks}", "swift", "sft"),
    own_keys=frozenset({"split_dataset_ratio", "train_type", "tuner_type"}),
    other_keys=_MEGATRON_KEYS,
    # The other one is of before ms-swift 4.
    aliases={"train_type": "tuner_type"},
    # It takes length and dtype from the model, and accumulates to 16 sequences of all ranks.
    without_default=frozenset({"accumulation_steps", "lora_rank", "precision", "sequence_tokens"}),
    defaults={
        "micro_batch": 1,
        "gradient_checkpointing": True,
        "method": "full",
        "lora_rank": 8,
        "lora_target_modules": ALL_LINEAR,
        "loss": "plain",
        "eval_batch": 1,
    },
    words={
        "optimizer": ("optim", _OPTIMIZERS),
        "attention": ("attn_impl", _ATTENTIONS),
        "trainer": ("rlhf_type", {None: "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"}),
    },
    reads=(
        ("precision", "bf16", {"bf16": True}),
        ("precision", "fp16", {"fp16": True}),
        ("precision", "fp32", {"torch_dtype": "float32", "fp16": frozenset({False})}),
        ("precision", "bf16", {"torch_dtype": "bfloat16"}),
        ("precision", "fp16", {"torch_dtype": frozenset({"float16", "float32"})}),
        ("gradient_checkpointing", False, {"gradient_checkpointing": frozenset({False})}),
        ("method", "qlora", {"tuner_type": _LORA, "quant_bits": 4}),
        ("method", "lora", {"tuner_type": _LORA}),
        ("loss", "liger", {"use_liger_kernel": True}),
        ("packing", True, {"padding_free": True}),
    ),
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
    known={
        "tuner_type": frozenset({None, "full", "lora"}),
        "quant_bits": frozenset({None, 4}),
    },
    eval_data=("val_dataset", "split_dataset_ratio"),
    evaluates_unasked=True,
    not_counted=(
        "modules_to_save",
        "optimizer",
        "reward_model",
        "use_dora",
        "use_galore",
    ),
    parallel={"deepspeed_autotp_size": "tensor parallelism"},
    excluding=("fsdp",),
)
PROGRAMS = (
    AXOLOTL,
    LLAMA_FACTORY,
    replace(
        MS_SWIFT,
        train=("NPROC_PER_NODE={ranks}", "swift", "rlhf"),
        own_keys=frozenset({"rlhf_type"}),
    ),
    MS_SWIFT,
)
