"""The training step of one rank, and what each of its settings can be."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, get_args, get_origin, get_type_hints

from msgspec import Struct

from zerowiz.core.settings import Panel, SettingRow, Written, read_rows
from zerowiz.core.structs import Count, replace
from zerowiz.errors import UsageError
from zerowiz.translation import N_

MODEL_FOLDER = "model"
"""Where the config.json of its small model lies."""

# What a setting can be, where it is one of a few words.

FP32_BYTES = 4
HALF_BYTES = 2


class Precision(StrEnum):
    """The number format of weights and gradients on the GPU; PRECISIONS has a row of each."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def size_bytes(self) -> int:
        """Bytes of one value."""
        return PRECISIONS[self].size_bytes


class PrecisionRow(Struct, frozen=True, kw_only=True):
    """What a precision takes, and how others say it."""

    size_bytes: int
    """Of one value."""
    detail: str
    """What the wizard says of it."""
    dtype_names: tuple[str, ...]
    """Of torch's dtype, its own first, in a config (runtime/config.py, DtypeEnum)."""
    section: str
    """The section of DeepSpeed's config that is written for it."""
    enabled: bool
    """Whether that section enables it; else it is what is left without."""
    section_values: Mapping[str, object]
    """What the section has beside its switch."""
    mixed_precision: str | None
    """Accelerate's word (accelerate 1.x, utils/dataclasses.py, PrecisionType)."""
    lightning_names: tuple[str | int, ...]
    """Those of Lightning's Trainer; the first is written (lightning 2.6, _PRECISION_INPUT)."""
    program_lines: Mapping[str, tuple[str, ...]]
    """The lines of a file that ask for it, by the program that reads the file."""
    words: tuple[str, ...]
    """Other words that people have for it: torch's and numpy's names, and transformers' flags."""


PRECISIONS: Mapping[Precision, PrecisionRow] = {
    Precision.BF16: PrecisionRow(
        size_bytes=HALF_BYTES,
        detail=N_("2 bytes, for Ampere GPUs and newer ones"),
        dtype_names=("bfloat16", "bf16"),
        section="bf16",
        enabled=True,
        section_values={},
        mixed_precision="bf16",
        lightning_names=("bf16-mixed", "bf16-true", "bf16"),
        program_lines={
            "axolotl": ("bf16: true",),
            "LLaMA-Factory": ("bf16: true", "fp16: false"),
            "ms-swift": ("torch_dtype: bfloat16",),
        },
        words=("bfloat16", "torchbfloat16", "bfloat"),
    ),
    Precision.FP16: PrecisionRow(
        size_bytes=HALF_BYTES,
        detail=N_("2 bytes, with loss scaling"),
        dtype_names=("float16", "fp16", "half"),
        section="fp16",
        enabled=True,
        # fp16/loss_scaler.py and runtime/precision_config.py, 0.19.8: 0 is a scale that adapts,
        # from 2^16, doubled after 1000 good steps, halved at the second overflow, never below 1.
        section_values={
            "loss_scale": 0,
            "loss_scale_window": 1000,
            "initial_scale_power": 16,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        mixed_precision="fp16",
        lightning_names=("16-mixed", "16-true", "16", 16),
        program_lines={
            "axolotl": ("fp16: true", "bf16: false"),
            "LLaMA-Factory": ("fp16: true", "bf16: false"),
            "ms-swift": ("torch_dtype: float16",),
        },
        words=("float16", "torchfloat16", "half", "amp"),
    ),
    Precision.FP32: PrecisionRow(
        size_bytes=FP32_BYTES,
        detail=N_("4 bytes, several times slower on GPUs"),
        dtype_names=("float32",),
        section="bf16",
        enabled=False,
        section_values={},
        # With `no` DeepSpeed trains as its config says (DeepSpeedPlugin.set_mixed_precision), and
        # the config says what the script does.
        mixed_precision="no",
        lightning_names=("32-true", "32", 32),
        program_lines={
            "axolotl": ("bf16: false", "fp16: false"),
            "LLaMA-Factory": ("bf16: false", "fp16: false"),
            "ms-swift": ("torch_dtype: float32", "fp16: false"),
        },
        words=("float32", "torchfloat32", "float", "single", "no"),
    ),
}
SWITCHED = tuple(precision for precision, row in PRECISIONS.items() if row.enabled)
"""Those that a section of DeepSpeed's config enables, which has their name."""


class StateDtype(StrEnum):
    """The number format of the optimizer's master weights and moments."""

    FP32 = "fp32"
    BF16 = "bf16"


class Optimizer(StrEnum):
    """The optimizers whose states the ledger knows; OPTIMIZERS has a row of each."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    SGD = "sgd"


class OptimizerRow(Struct, frozen=True, kw_only=True):
    """What an optimizer keeps, who makes it, and what others call it."""

    title: str
    detail: str
    """What the wizard says of it."""
    state_bytes: Mapping[StateDtype, int]
    """Of one trainable parameter, without the master weights."""
    flat_state_bytes: Mapping[StateDtype, int]
    """The same under ZeRO, which hands the optimizer one flat vector."""
    scales_bytes: int
    """Of the scales that 256 parameters share, where states have 8 bits."""
    stepping_bytes: int
    """Of one parameter, allocated while it steps, without the gradients."""
    ds_type: str | None
    """The name by which DeepSpeed makes it; None where DeepSpeed cannot."""
    params: Mapping[str, object]
    """What it is made with then, beside its learning rate and its weight decay."""
    tested: bool
    """Whether DeepSpeed takes it under ZeRO unasked."""
    measured: bool
    """Whether it is in tests/measured, five times at least."""
    trainer_names: tuple[str, ...]
    """The `optim` of transformers' TrainingArguments; the first is written."""
    classes: Mapping[str, tuple[str, ...]]
    """The classes that a script builds in its own loop, by their library."""
    axolotl_names: tuple[str, ...]
    """Those that axolotl has beside transformers' ones."""
    program_name: str
    """What is written into a file of axolotl, LLaMA-Factory or ms-swift."""
    words: tuple[str, ...]
    """Other words that people have for it, without case and punctuation."""


ADAMW_PARAMS: Mapping[str, object] = {
    "betas": [0.9, 0.999],
    "eps": 1e-8,
}
"""The arguments of torch's and DeepSpeed's Adam beside those in `Hyperparameters`: transformers'
arguments have the same defaults."""

# States: torch/optim/adamw.py: two moments; torch/optim/sgd.py: none without momentum; Chen et al.
# 2023 (Lion): one; Dettmers et al. 2022: two of one byte; Shazeer and Stern 2018: rows plus
# columns, which a flat vector has not. Scales: bitsandbytes/optim/optimizer.py, Optimizer2State.
# init_state: a fp32 scale a block and moment; the fp32 moments of tensors below `min_8bit_size`,
# 4096 elements, are too few to count. Stepping: transformers Adafactor.step: the squared gradient
# and the update (f3-022). Sections: runtime/engine.py, _configure_basic_optimizer: DeepSpeed's own,
# and classes of torch.optim; torch's fused AdamW needs no compiler. Tested: runtime/zero/utils.py,
# ZERO_SUPPORTED_OPTIMIZERS, 0.19.8. Names: transformers 5.23, training_args.py, OptimizerNames;
# bitsandbytes' paged states are as large: that some are moved to the host is not counted.
OPTIMIZERS: Mapping[Optimizer, OptimizerRow] = {
    Optimizer.ADAMW: OptimizerRow(
        title="AdamW",
        detail=N_("two states for each parameter"),
        state_bytes={StateDtype.FP32: 8, StateDtype.BF16: 4},
        flat_state_bytes={StateDtype.FP32: 8, StateDtype.BF16: 4},
        scales_bytes=0,
        stepping_bytes=0,
        ds_type="AdamW",
        params={**ADAMW_PARAMS, "torch_adam": True, "fused": True},
        tested=True,
        measured=True,
        trainer_names=(
            *("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"),
            "adamw_hf",  # before transformers 5
            *("adamw_apex_fused", "paged_adamw_32bit", "paged_adamw"),
        ),
        classes={
            "torch": ("Adam", "AdamW"),
            "deepspeed": ("FusedAdam", "DeepSpeedCPUAdam"),
            "bitsandbytes": ("PagedAdamW32bit",),
        },
        axolotl_names=("adamw",),
        program_name="adamw_torch_fused",
        words=("adam", "adamwtorch", "adamwtorchfused", "fusedadam"),
    ),
    Optimizer.ADAMW_8BIT: OptimizerRow(
        title=N_("AdamW in 8 bits"),
        detail=N_("needs bitsandbytes"),
        state_bytes={StateDtype.FP32: 2, StateDtype.BF16: 2},
        flat_state_bytes={StateDtype.FP32: 2, StateDtype.BF16: 2},
        scales_bytes=8,
        stepping_bytes=0,
        ds_type=None,
        params={},
        tested=False,
        measured=True,
        trainer_names=("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit"),
        classes={"bitsandbytes": ("Adam8bit", "AdamW8bit", "PagedAdamW8bit")},
        axolotl_names=(),
        program_name="adamw_bnb_8bit",
        words=("adam8bit", "adamwbnb8bit", "pagedadamw8bit", "8bitadam"),
    ),
    Optimizer.ADAFACTOR: OptimizerRow(
        title="Adafactor",
        detail=N_("a row and a column per matrix"),
        state_bytes={StateDtype.FP32: 0, StateDtype.BF16: 0},
        flat_state_bytes={StateDtype.FP32: 4, StateDtype.BF16: 2},
        scales_bytes=0,
        stepping_bytes=8,
        ds_type="Adafactor",
        params={},
        tested=False,
        measured=False,
        trainer_names=("adafactor",),
        classes={"transformers": ("Adafactor",)},
        axolotl_names=(),
        program_name="adafactor",
        words=(),
    ),
    Optimizer.LION: OptimizerRow(
        title="Lion",
        detail=N_("one state for each parameter"),
        state_bytes={StateDtype.FP32: 4, StateDtype.BF16: 2},
        flat_state_bytes={StateDtype.FP32: 4, StateDtype.BF16: 2},
        scales_bytes=0,
        stepping_bytes=0,
        ds_type="Lion",
        params={"betas": [0.9, 0.99]},
        tested=True,
        measured=False,
        trainer_names=("lion_32bit", "lion", "paged_lion_32bit"),
        classes={"lion_pytorch": ("Lion",), "deepspeed": ("FusedLion", "DeepSpeedCPULion")},
        axolotl_names=("lion_pytorch",),
        program_name="lion_32bit",
        words=(),
    ),
    Optimizer.SGD: OptimizerRow(
        title="SGD",
        detail=N_("no state, without momentum"),
        state_bytes={StateDtype.FP32: 0, StateDtype.BF16: 0},
        flat_state_bytes={StateDtype.FP32: 0, StateDtype.BF16: 0},
        scales_bytes=0,
        stepping_bytes=0,
        ds_type="SGD",
        params={},
        tested=False,
        measured=False,
        trainer_names=("sgd",),
        classes={"torch": ("SGD",)},
        axolotl_names=(),
        program_name="sgd",
        words=(),
    ),
}
TRAINER_OPTIMIZERS: Mapping[Written, Optimizer] = {
    name: optimizer for optimizer, row in OPTIMIZERS.items() for name in row.trainer_names
}
OPTIMIZER_NAMES: Mapping[Written, Optimizer] = {
    **TRAINER_OPTIMIZERS,
    **{
        name: optimizer
        for optimizer, row in OPTIMIZERS.items()
        for names in row.classes.values()
        for name in names
    },
}


class Method(StrEnum):
    """Which parameters train."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Attention(StrEnum):
    """Which attention kernel transformers is asked for."""

    SDPA = "sdpa"
    FLASH = "flash"
    EAGER = "eager"

    @property
    def row(self) -> "AttentionRow":
        """What is known of it."""
        return ATTENTION_ROWS[self]


class AttentionRow(Struct, frozen=True, kw_only=True):
    """What is known of an attention kernel."""

    names: tuple[str, ...]
    """What `attn_implementation` of transformers calls it (5.23, modeling_utils.py)."""
    detail: str
    """What a person reads beside its name."""
    keeps_scores: bool
    """Whether the scores of all pairs of tokens are kept for backward."""
    takes_masks: bool
    """Whether it is given a mask where causality would not do; torch may run plain matmuls then."""
    traced_as: tuple[str, ...]
    """What a model is built with to trace it; the next where it does not support one."""


# Without "flash" in the name: transformers would take that for a package to load.
TRACED_FLASH = "zerowiz_fused"
ATTENTION_ROWS: Mapping[Attention, AttentionRow] = {
    Attention.SDPA: AttentionRow(
        names=("sdpa",),
        detail=N_("that of torch"),
        keeps_scores=False,
        takes_masks=True,
        traced_as=("sdpa", "eager"),
    ),
    Attention.FLASH: AttentionRow(
        names=("flash_attention_2", "flash_attention_3"),
        detail=N_("needs flash-attn"),
        keeps_scores=False,
        takes_masks=False,
        traced_as=(TRACED_FLASH, "sdpa", "eager"),
    ),
    Attention.EAGER: AttentionRow(
        names=("eager",),
        detail=N_("keeps the scores of all pairs"),
        keeps_scores=True,
        takes_masks=False,
        traced_as=("eager",),
    ),
}
ATTENTION_NAMES: Mapping[Written, Attention] = {
    name: attention for attention, row in ATTENTION_ROWS.items() for name in row.names
}


class Loss(StrEnum):
    """How the logits become a loss."""

    PLAIN = "plain"
    """All logits at once, upcast to fp32, as transformers does it."""
    CHUNKED = "chunked"
    """Some tokens at a time, computed again in backward."""
    LIGER = "liger"
    """Liger's kernels: loss and its gradients in one, and its norms and MLPs with them."""


class Trainer(StrEnum):
    """What a step trains for: TRL's trainers by their names, and what trains like them."""

    SFT = "sft"
    """Also pretraining and any other loss of one sequence at a time."""
    DPO = "dpo"
    REWARD = "reward"
    KTO = "kto"
    GRPO = "grpo"
    RLOO = "rloo"
    PPO = "ppo"

    @property
    def row(self) -> "TrainerRow":
        """What is known of it."""
        return TRAINER_ROWS[self]


class Reference(StrEnum):
    """Where the log-probabilities of the reference come from."""

    MODEL = "model"
    """A frozen copy of the model, held while it trains."""
    NONE = "none"
    """No copy: the loss needs none, or the model itself runs without its adapters."""
    PRECOMPUTED = "precomputed"
    """They were computed before training."""


class Head(StrEnum):
    """What a trainer makes of the last hidden states."""

    LOSS = "loss"
    """A loss, in the way that `Loss` says."""
    LOG_PROBABILITIES = "log_probabilities"
    """The log-probability of each token."""
    VALUE = "value"
    """One value for each token: a score has the head's place."""


class TrainerRow(Struct, frozen=True, kw_only=True):
    """What is known of a trainer."""

    runs: str
    """What it runs, in words; `{engine}` generates `{count}` completions. Empty: the model once."""
    in_pairs: bool
    """Whether chosen and rejected of each pair run together."""
    head: Head
    generates: bool
    """Whether it samples the completions that it trains on."""
    averages: bool
    """Whether its loss is a mean over sequences, however micro-steps share them.

    What KTO compares, and GRPO, RLOO and PPO generate, is that of a micro-batch (trl 1.16).
    """
    compares: bool
    """Whether its loss can compare the model with a frozen reference."""
    reference: Reference
    """The reference by default, where no adapters train."""
    in_groups: bool
    """Whether several completions of a prompt are compared, and `beta` alone wants a reference."""
    takes_vllm: bool
    has_value_model: bool
    """Whether a value model trains beside it, and a reward model scores."""
    measured: bool
    """Whether a run of tests/measured trains so; the bounds of a prediction ask."""


_GENERATED = N_("completions generated by {engine}, {count} at a time on each GPU")
_PAIRS = N_("2 sequences of each pair at once, chosen and rejected")
# trl 1.16, DataCollatorForPreference of dpo_trainer.py and reward_trainer.py: pairs. DPOTrainer,
# KTOTrainer, RLOOTrainer (`beta` 0.05): a copy of the model; GRPOTrainer: none, as `beta` is 0.0.
# grpo_config.py, rloo_config.py: groups. trl 0.24, PPOTrainer: a value model and a reward model.
TRAINER_ROWS: Mapping[Trainer, TrainerRow] = {
    Trainer.SFT: TrainerRow(
        runs="",
        in_pairs=False,
        head=Head.LOSS,
        generates=False,
        averages=True,
        compares=False,
        reference=Reference.NONE,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=True,
    ),
    Trainer.DPO: TrainerRow(
        runs=_PAIRS,
        in_pairs=True,
        head=Head.LOG_PROBABILITIES,
        generates=False,
        averages=True,
        compares=True,
        reference=Reference.MODEL,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=True,
    ),
    Trainer.REWARD: TrainerRow(
        runs=_PAIRS,
        in_pairs=True,
        head=Head.VALUE,
        generates=False,
        averages=True,
        compares=False,
        reference=Reference.NONE,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=True,
    ),
    Trainer.KTO: TrainerRow(
        runs=N_("each sequence, and one of another prompt beside it without gradients"),
        in_pairs=False,
        head=Head.LOG_PROBABILITIES,
        generates=False,
        averages=False,
        compares=True,
        reference=Reference.MODEL,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=True,
    ),
    Trainer.GRPO: TrainerRow(
        runs=_GENERATED,
        in_pairs=False,
        head=Head.LOG_PROBABILITIES,
        generates=True,
        averages=False,
        compares=True,
        reference=Reference.NONE,
        in_groups=True,
        takes_vllm=True,
        has_value_model=False,
        measured=True,
    ),
    Trainer.RLOO: TrainerRow(
        runs=_GENERATED,
        in_pairs=False,
        head=Head.LOG_PROBABILITIES,
        generates=True,
        averages=False,
        compares=True,
        reference=Reference.MODEL,
        in_groups=True,
        takes_vllm=True,
        has_value_model=False,
        measured=True,
    ),
    Trainer.PPO: TrainerRow(
        runs=N_(
            "completions generated by {engine}, {count} at a time on each GPU; a value model"
            " trains too, and a reward model scores"
        ),
        in_pairs=False,
        head=Head.LOSS,
        generates=True,
        averages=False,
        compares=True,
        reference=Reference.MODEL,
        in_groups=False,
        takes_vllm=False,
        has_value_model=True,
        measured=False,
    ),
}


class Loop(StrEnum):
    """What takes the steps."""

    ENGINE = "engine"
    """A plain loop over the engine of `deepspeed.initialize`."""
    TRAINER = "trainer"
    """The Trainer of transformers, with its own optimizer."""


class Integration(StrEnum):
    """Who hands the config to DeepSpeed."""

    HF = "hf"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"

    @property
    def row(self) -> "IntegrationRow":
        """What is known of it."""
        return INTEGRATION_ROWS[self]


class IntegrationRow(Struct, frozen=True, kw_only=True):
    """What is known of an integration."""

    as_written: bool
    """Whether DeepSpeed reads the config as it is written: as hjson, with no `"auto"` filled."""
    libraries: Mapping[str, str]
    """What has to be installed, each with who needs it."""
    gathers: str
    """How it saves weights that stage 3 has in shards."""


# What gathers the weights first: transformers 5.23, trainer.py, save_model; accelerate 1.15,
# accelerator.py, get_state_dict; deepspeed 0.19.8, runtime/engine.py, save_16bit_model.
INTEGRATION_ROWS: Mapping[Integration, IntegrationRow] = {
    Integration.HF: IntegrationRow(
        as_written=False,
        libraries={
            "transformers": N_("the script uses its Trainer"),
            "accelerate": N_("the Trainer needs it"),
        },
        gathers=N_("call `trainer.save_model(...)` on all ranks instead"),
    ),
    Integration.DEEPSPEED: IntegrationRow(
        as_written=True,
        libraries={},
        gathers=N_(
            "call `engine.save_16bit_model(...)` or `engine.save_checkpoint(...)` on all ranks"
            " instead"
        ),
    ),
    Integration.ACCELERATE: IntegrationRow(
        as_written=False,
        libraries={"accelerate": N_("the script imports it")},
        gathers=N_(
            "call this on all ranks instead: `unwrapped.save_pretrained(...,"
            " is_main_process=accelerator.is_main_process,"
            " state_dict=accelerator.get_state_dict(model))`"
        ),
    ),
    Integration.LIGHTNING: IntegrationRow(
        as_written=True,
        libraries={},
        gathers=N_("call `trainer.save_checkpoint(...)` on all ranks instead"),
    ),
}


class Accounting(StrEnum):
    """Whose arithmetic: what DeepSpeed allocates, or what the rule of thumb counts."""

    REAL = "real"
    TEXTBOOK = "textbook"


# Describe what one optimizer step trains, and in which number formats.

# What is taken where none is installed.
NEWEST_TRANSFORMERS = (5, 23)
NEWEST_TRL = (1, 16)
# peft/utils/constants.py, INCLUDE_LINEAR_LAYERS_SHORTHAND.
ALL_LINEAR = "all-linear"


def parse_modules(text: str | None) -> tuple[str, ...]:
    """The names of `q_proj,v_proj`; none for `all-linear`, and where nothing was said.

    Raises:
        UsageError: The text names nothing.
    """
    if text is None or text.strip().lower() == ALL_LINEAR:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(
            f"`$lora_target_modules {text}` is not a list of names",
            f"use `{ALL_LINEAR}`, or names separated by commas: `q_proj,v_proj`",
        )
    return tuple(dict.fromkeys(names))


class Workload(Struct, frozen=True, kw_only=True):
    """One optimizer step of one rank."""

    micro_batch: Annotated[
        Count,
        SettingRow(
            flag="--micro-batch",
            help="Sequences per GPU in one forward pass",
            panel=Panel.JOB,
            script_names=frozenset(
                {
                    "micro_batch",
                    "micro_batch_size",
                    "per_device_train_batch_size",
                    "per_device_training_batch_size",
                    "train_micro_batch_size_per_gpu",
                }
            ),
            trainer_fields=("per_device_train_batch_size",),
            config_key="train_micro_batch_size_per_gpu",
            program_keys={
                "axolotl": "micro_batch_size",
                "LLaMA-Factory": "per_device_train_batch_size",
                "ms-swift": "per_device_train_batch_size",
            },
            assumed=N_("micro-batch {value}"),
            assumed_always=True,
        ),
    ] = 1
    """Sequences per GPU in one forward pass."""
    sequence_tokens: Annotated[
        Count,
        SettingRow(
            flag="--seq-len",
            help="Tokens per sequence",
            panel=Panel.JOB,
            script_names=frozenset(
                {
                    "block_size",
                    "context_length",
                    "cutoff_len",
                    "max_len",
                    "max_length",
                    "max_seq_len",
                    "max_seq_length",
                    "max_sequence_length",
                    "max_source_length",
                    "model_max_length",
                    "seq_len",
                    "seq_length",
                    "sequence_length",
                }
            ),
            trainer_fields=("max_length",),
            program_keys={
                "axolotl": "sequence_len",
                "LLaMA-Factory": "cutoff_len",
                "ms-swift": "max_length",
            },
            assumed=N_("{value} tokens per sequence"),
            assumed_always=True,
        ),
    ] = 2048
    accumulation_steps: Annotated[
        Count,
        SettingRow(
            flag="--grad-accum",
            help="Micro-steps per optimizer step",
            panel=Panel.JOB,
            trainer_fields=("gradient_accumulation_steps",),
            config_key="gradient_accumulation_steps",
            program_keys={
                "axolotl": "gradient_accumulation_steps",
                "LLaMA-Factory": "gradient_accumulation_steps",
                "ms-swift": "gradient_accumulation_steps",
            },
            assumed=N_("accumulation {value}"),
            assumed_always=True,
        ),
    ] = 1
    """Micro-steps per optimizer step."""
    precision: Annotated[
        Precision,
        SettingRow(
            flag="--precision",
            help="Weights and gradients",
            default="your script's, else bf16 if the hardware supports it",
            panel=Panel.JOB,
            assumed="{value}",
            assumed_always=True,
        ),
    ] = Precision.BF16
    torch_autocast: Annotated[
        Precision | None,
        SettingRow(
            flag="--torch-autocast",
            help="Compute in bf16 or fp16, weights in fp32",
            default="off",
            panel=Panel.JOB,
            shown=N_("{value} autocast"),
        ),
    ] = None
    """The 16-bit format that forward computes in where the weights stay fp32."""
    optimizer: Annotated[
        Optimizer,
        SettingRow(
            flag="--optimizer",
            help="Optimizer; its states take memory",
            panel=Panel.JOB,
            trainer_fields=("optim",),
            program_keys={"axolotl": "optimizer", "LLaMA-Factory": "optim", "ms-swift": "optim"},
            names=OPTIMIZER_NAMES,
            assumed="{value}",
        ),
    ] = Optimizer.ADAMW
    optimizer_fused: bool = True
    """Whether torch's Adam steps with its fused kernel; foreach copies every list of tensors."""
    optimizer_state_dtype: Annotated[
        StateDtype,
        SettingRow(
            flag="--optimizer-state-dtype",
            help="Precision of master weights and Adam moments",
            panel=Panel.JOB,
        ),
    ] = StateDtype.FP32
    method: Annotated[
        Method,
        SettingRow(
            flag="--method",
            help="What to train: all parameters, or adapters",
            panel=Panel.MODEL,
            assumed=N_("every parameter trains"),
        ),
    ] = Method.FULL
    lora_rank: Annotated[
        Count,
        SettingRow(
            flag="--lora-rank",
            help="Rank of the adapters",
            panel=Panel.MODEL,
            program_keys={
                "axolotl": "lora_r",
                "LLaMA-Factory": "lora_rank",
                "ms-swift": "lora_rank",
            },
            shown=N_("adapters of rank {value}"),
            assumed=N_("adapters of rank {value}"),
            assumed_always=True,
            of_adapters=True,
        ),
    ] = 16
    lora_target_modules: Annotated[
        tuple[str, ...],
        SettingRow(
            flag="--lora-target-modules",
            help="Layers with adapters: all-linear, or q_proj,v_proj",
            value="<names>",
            panel=Panel.MODEL,
            program_keys={
                "axolotl": "lora_target_modules",
                "LLaMA-Factory": "lora_target",
                "ms-swift": "target_modules",
            },
            shown=N_("adapters on {value}"),
            assumed=N_("adapters on {value}"),
            of_adapters=True,
        ),
    ] = ()
    """Which linear layers have adapters, by peft's names; none named: all of them."""
    gradient_checkpointing: Annotated[
        bool,
        SettingRow(
            flag="--gradient-checkpointing/--no-gradient-checkpointing",
            help="Recompute activations in backward",
            panel=Panel.JOB,
            trainer_fields=("gradient_checkpointing",),
            assumed=N_("no gradient checkpointing"),
            assumed_always=True,
        ),
    ] = False
    every_n_layers: Count = 1
    """Each such layer alone is checkpointed, the first one too (transformers 5.23)."""
    attention: Annotated[
        Attention,
        SettingRow(
            flag="--attention",
            help="Attention kernel",
            panel=Panel.JOB,
            script_names=frozenset({"attn_implementation"}),
            names=ATTENTION_NAMES,
        ),
    ] = Attention.SDPA
    loss: Annotated[
        Loss,
        SettingRow(
            flag="--loss",
            help="How to compute the loss from logits",
            panel=Panel.JOB,
            trainer_fields=("use_liger_kernel",),
            names={True: Loss.LIGER, False: Loss.PLAIN},
            shown=N_("{value} loss"),
        ),
    ] = Loss.PLAIN
    transformers_version: tuple[Count, Count] = NEWEST_TRANSFORMERS
    """Major and minor: what runs the model decides what its attention keeps."""
    trl_version: tuple[Count, Count] = NEWEST_TRL
    """Major and minor: how its trainers make log-probabilities."""
    packing: Annotated[
        bool,
        SettingRow(
            flag="--packing/--no-packing",
            help="Pack all sequences of a micro-batch into one row",
            panel=Panel.JOB,
            trainer_fields=("packing",),
            shown="packed",
        ),
    ] = False
    """Whether the sequences of a micro-batch stand in one row, without padding."""
    trainer: Annotated[
        Trainer,
        SettingRow(
            flag="--trainer",
            help="Trainer, by its TRL name",
            panel=Panel.JOB,
            shown="{value}",
        ),
    ] = Trainer.SFT
    reference: Annotated[
        Reference | None,
        SettingRow(
            flag="--reference",
            help="Reference model of DPO, KTO, GRPO, ...",
            default="your script's, else that of its trainer",
            panel=Panel.JOB,
            assumed=N_("reference {value}"),
            shown=N_("reference {value}"),
        ),
    ] = None
    """None: as the trainer does by default, which `resolved_reference` says."""
    completion_tokens: Annotated[
        Count,
        SettingRow(
            flag="--completion-tokens",
            help="Maximum number of tokens generated per sequence (GRPO, RLOO, PPO)",
            panel=Panel.JOB,
            trainer_fields=("max_completion_length", "response_length"),
            assumed=N_("{value} tokens generated"),
            assumed_always=True,
            shown=N_("{value} tokens generated"),
            of_generation=True,
        ),
    ] = 512
    """Of `sequence_tokens`, those that follow the prompt (trl 1.16, max_completion_length)."""
    generation_batch: Annotated[
        Count | None,
        SettingRow(
            flag="--generation-batch",
            help="Completions per GPU generated at once (GRPO, RLOO, PPO)",
            default="your script's, else those of all micro-steps",
            panel=Panel.JOB,
            shown=N_("{value} generated at a time"),
            of_generation=True,
        ),
    ] = None
    """None: those of all micro-steps of an optimizer step, as `resolved_generation_batch` says."""
    vllm_memory_fraction: Annotated[
        float | None,
        SettingRow(
            flag="--vllm-memory-fraction",
            help="Fraction of each GPU for a vLLM on it; 0: vLLM has its own GPUs",
            default="your script's, else no vLLM",
            panel=Panel.JOB,
            trainer_fields=("vllm_gpu_memory_utilization",),
            assumed=N_("vLLM in {value} of each GPU"),
            shown=N_("vLLM in {value} of each GPU"),
            of_generation=True,
        ),
    ] = None
    """None: no vLLM generates. 0: one does, on GPUs that do not train."""
    vllm_sleeps: Annotated[
        bool,
        SettingRow(
            flag="--vllm-sleeps/--no-vllm-sleeps",
            help="vLLM frees its memory during training steps (sleep mode)",
            panel=Panel.JOB,
            trainer_fields=("vllm_enable_sleep_mode",),
            shown=N_("vLLM asleep while it trains"),
            of_generation=True,
        ),
    ] = False
    """`vllm_enable_sleep_mode` of trl."""
    eval_batch: Annotated[
        Count,
        SettingRow(
            flag="--eval-batch",
            help="Sequences that a GPU evaluates at a time; 0: no evaluation",
            default="your script's, else no evaluation",
            panel=Panel.JOB,
            trainer_fields=("per_device_eval_batch_size",),
            program_keys={
                "axolotl": "eval_batch_size",
                "LLaMA-Factory": "per_device_eval_batch_size",
                "ms-swift": "per_device_eval_batch_size",
            },
            shown=N_("{value} evaluated at a time"),
            least=0,
        ),
    ] = 0
    """As long as those that train (transformers, `per_device_eval_batch_size`); 0: none are."""
    sequence_parallel: Annotated[
        Count,
        SettingRow(
            flag="--sequence-parallel",
            help="GPUs of a node that share each sequence (Ulysses); auto: if it helps",
            default="your script's, else 1",
            panel=Panel.JOB,
            value="<int|auto>",
            least=0,
            has_auto=True,
            program_keys={"ms-swift": "sequence_parallel_size"},
        ),
    ] = 1
    """Ranks that train each sequence together, a part of its tokens each, and all of it in an
    evaluation (accelerate 1.15, accelerator.py, `disable_in_eval`)."""
    tensor_parallel: Count = 1
    """Ranks that cut linear layers between them, and train the same sequences (AutoTP)."""
    expert_parallel: Count = 1
    """Ranks among which the experts of a mixture are dealt out (AutoEP)."""
    zero_init: bool = True
    """Whether stage 3 builds the model in shards, and not whole on each GPU."""

    def __post_init__(self) -> None:
        """Refuse a step that nobody can take."""
        for name, count in (
            ("micro_batch", self.micro_batch),
            ("sequence_tokens", self.sequence_tokens),
            ("accumulation_steps", self.accumulation_steps),
            ("lora_rank", self.lora_rank),
            ("completion_tokens", self.completion_tokens),
            ("generation_batch", self.resolved_generation_batch),
            ("sequence_parallel", self.sequence_parallel),
        ):
            if count < 1:
                raise UsageError(f"`${name}` must be at least 1, not {count}")
        if self.torch_autocast not in {None, *SWITCHED}:
            raise UsageError(
                (
                    f"`$torch_autocast {self.torch_autocast}` does not exist: autocast "
                    "computes in 16 bits"
                ),
                "use bf16 or fp16",
            )
        if self.torch_autocast is not None and self.precision is not Precision.FP32:
            raise UsageError(
                (
                    f"`$torch_autocast {self.torch_autocast}` keeps the weights in fp32, but "
                    f"`$precision {self.precision}` does not"
                ),
                "remove one of the two: `$precision` alone casts the weights too",
            )
        if self.torch_autocast is not None and self.optimizer_state_dtype is StateDtype.BF16:
            raise UsageError(
                "`$torch_autocast` keeps fp32 weights, `$optimizer_state_dtype bf16` needs bf16",
                "remove one of the two",
            )
        if self.optimizer_state_dtype is StateDtype.BF16 and self.precision is not Precision.BF16:
            raise UsageError(
                f"`$optimizer_state_dtype bf16` needs `$precision bf16`, not `{self.precision}`",
                "DeepSpeed supports bf16 states only with bf16 weights",
            )
        self._check_trainer()

    def _check_trainer(self) -> None:
        """Refuse what the trainer does not have."""
        if self.eval_batch and self.trainer.row.generates:
            raise UsageError(
                (
                    f"`$eval_batch {self.eval_batch}`: `$trainer {self.trainer}` is planned "
                    "without it"
                ),
                f"remove `$eval_batch {self.eval_batch}`",
            )
        if self.reference not in {None, Reference.NONE} and not self.trainer.row.compares:
            raise UsageError(
                f"`$trainer {self.trainer}` has no reference",
                f"remove `$reference {self.reference}`",
            )
        if self.reference is Reference.PRECOMPUTED and self.trainer.row.generates:
            raise UsageError(
                (
                    f"`$trainer {self.trainer}` trains on completions that it generates, so "
                    "it cannot precompute its reference"
                ),
                f"remove `$reference {self.reference}`",
            )
        fraction = self.vllm_memory_fraction
        if fraction is None:
            if self.vllm_sleeps:
                raise UsageError(
                    "`$vllm_sleeps` needs a vLLM on the same GPUs",
                    "set its share of each GPU, such as `$vllm_memory_fraction 0.3`",
                )
            return
        if not 0 <= fraction <= 1:
            raise UsageError(
                f"`$vllm_memory_fraction {fraction}` is not a fraction of a GPU's memory",
                "use a number from 0 to 1, such as `$vllm_memory_fraction 0.3`",
            )
        if not self.trainer.row.takes_vllm:
            raise UsageError(
                f"`$trainer {self.trainer}` does not generate with vLLM",
                f"remove `$vllm_memory_fraction {fraction}`",
            )

    @property
    def lora_targets(self) -> str:
        """The same in one word, as the option takes it."""
        return ",".join(self.lora_target_modules) or ALL_LINEAR

    @property
    def resolved_reference(self) -> Reference:
        """Where the reference comes from, by default as the trainer does."""
        if self.reference is not None:
            return self.reference
        return self.trainer.row.reference if self.method is Method.FULL else Reference.NONE

    @property
    def is_own_reference(self) -> bool:
        """Whether each micro-step runs the model once more without its adapters, to compare."""
        adapted = self.method is not Method.FULL
        compared = self.trainer.row.compares and not self.trainer.row.generates
        return adapted and compared and self.resolved_reference is Reference.NONE

    @property
    def runs_reference(self) -> bool:
        """Whether each micro-step runs a pass without gradients more, to compare its loss with.

        A trainer that generates asks its reference before the micro-steps.
        """
        compares = self.trainer.row.compares and not self.trainer.row.generates
        by_copy = self.resolved_reference is Reference.MODEL
        return compares and (by_copy or self.is_own_reference)

    @property
    def resolved_zero_init(self) -> bool:
        """Whether stage 3 builds the model in shards: one in 4 bits is always built whole.

        Source:
            transformers, modeling_utils.py, get_init_context; measured: m1-021.
        """
        return self.zero_init and self.method is not Method.QLORA

    @property
    def resolved_generation_batch(self) -> int:
        """Completions that a GPU generates at a time.

        trl 1.16, GRPOConfig: `steps_per_generation` is the number of micro-steps by default.
        """
        return self.generation_batch or self.micro_batch * self.accumulation_steps

    @property
    def rows(self) -> int:
        """Sequences in one forward pass: of a pair, chosen and rejected run together."""
        return self.micro_batch * (2 if self.trainer.row.in_pairs else 1)

    @property
    def checkpointed_each(self) -> int:
        """Each such layer is computed again in backward; 0 for none."""
        return self.every_n_layers if self.gradient_checkpointing else 0

    @property
    def recomputed_fraction(self) -> float:
        """Of the layers, what is computed again in backward."""
        return 1 / self.checkpointed_each if self.checkpointed_each else 0

    @property
    def tokens(self) -> int:
        """Tokens of one micro-step on one rank."""
        return self.rows * self.sequence_tokens

    @property
    def of_one_rank(self) -> "Workload":
        """The same with the tokens that one rank holds of each sequence."""
        return replace(self, sequence_tokens=-(-self.sequence_tokens // self.sequence_parallel))

    def replicas(self, ranks: int) -> int:
        """How many of these ranks train sequences of their own.

        Example:
            >>> Workload(sequence_parallel=4).replicas(8)
            2
        """
        return max(1, ranks // (self.sequence_parallel * self.tensor_parallel))

    @property
    def shares_weights(self) -> bool:
        """Whether ranks have other weights than their neighbours, before ZeRO shards them."""
        return self.tensor_parallel * self.expert_parallel > 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a sequence before what is generated."""
        return max(0, self.sequence_tokens - self.completion_tokens)

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults, by the field's name.

        Example:
            >>> Workload(micro_batch=4).changed()
            {'micro_batch': 4}
        """
        values = {name: (getattr(self, name), getattr(_DEFAULTS, name)) for name in SETTINGS}
        return {name: value for name, (value, default) in values.items() if value != default}

    def settings(self) -> dict[str, object]:
        """Each setting as JSON and people read it; None for one that this method does not have.

        Example:
            >>> Workload(micro_batch=4).settings()["micro_batch"]
            4
        """
        adapters, trainer = self.method is not Method.FULL, self.trainer.row
        resolved = {
            "lora_target_modules": self.lora_targets,
            "reference": self.resolved_reference if trainer.compares else self.reference,
            "generation_batch": self.resolved_generation_batch,
        }
        return {
            name: resolved.get(name, getattr(self, name))
            if (adapters or not row.of_adapters) and (trainer.generates or not row.of_generation)
            else None
            for name, row in SETTINGS.items()
        }


SETTINGS: Mapping[str, SettingRow] = read_rows(Workload)
"""The row of each setting of a training step, in the order of the fields."""
_DEFAULTS = Workload()


@cache
def setting_kinds() -> Mapping[str, type]:
    """The type of each setting's values, None aside, by the field's name.

    Example:
        >>> setting_kinds()["micro_batch"]
        <class 'int'>
    """
    hints = get_type_hints(Workload)
    return {name: _kind(hints[name]) for name in SETTINGS}


def _kind(hint: object) -> type:
    kind = tuple if get_origin(hint) is tuple else next(iter(get_args(hint)), hint)
    return kind if isinstance(kind, type) else object


class Uncounted(StrEnum):
    """What a job holds besides, which no formula counts; other programs read these names."""

    WRAPPED_MODEL = "wrapped_model_alone"
    """The towers of a multimodal model whose language model alone is counted."""
    TRAINER_OF_ANOTHER_MODEL = "trainer_of_another_model"
    """What a trainer of preferences or rewards adds to a model that is no known causal one."""
    PPO_ROLLOUT = "ppo_rollout"
    """The logits of all completions that PPO keeps while it samples them."""
    TRAINER = "trainer"
    """What the script's trainer holds that the trainer it is counted as does not."""
    OWN_LOSS = "own_loss"
    """A loss that the script computes itself."""
    JUDGE = "reward_model"
    """A model that judges what is generated."""
    COPY = "other_model"
    """A copy of the model, or another one, in the script's own loop."""
    ENGINE = "generation_engine"
    """What generates, where it is not seen whether it runs in the same GPUs."""
    VLLM = "vllm_in_the_same_gpus"
    """vLLM's part of each GPU, which is counted by its fraction and was never measured."""
    CONFIG = "keys_of_config"
    """What other keys of a person's config change."""
    ADAPTERS = "adapters_of_script"
    """What an argument of LoraConfig, or weights that train beside it, add to the adapters."""
    PLAIN_LAYERS = "layers_not_checkpointed"
    """What the layers keep that an `every_n_layers` leaves out whose value is not seen."""
