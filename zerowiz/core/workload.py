"""Describe what one optimizer step trains, and in which number formats."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from zerowiz.core.settings import Panel, SettingRow, read_rows
from zerowiz.core.values import Count
from zerowiz.errors import UsageError

FP32_BYTES = 4
# What is taken where none is installed.
NEWEST_TRANSFORMERS = (5, 23)
# peft/utils/constants.py, INCLUDE_LINEAR_LAYERS_SHORTHAND.
ALL_LINEAR = "all-linear"


class Precision(StrEnum):
    """The number format of weights and gradients on the GPU."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def size_bytes(self) -> int:
        """Bytes of one value."""
        return FP32_BYTES if self is Precision.FP32 else 2


class StateDtype(StrEnum):
    """The number format of the optimizer's master weights and moments."""

    FP32 = "fp32"
    BF16 = "bf16"


class Optimizer(StrEnum):
    """The optimizers whose states the ledger knows."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    SGD = "sgd"


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


class Loss(StrEnum):
    """How the logits become a loss."""

    PLAIN = "plain"
    """All logits at once, upcast to fp32, as transformers does it."""
    CHUNKED = "chunked"
    """Some tokens at a time, computed again in backward."""
    LIGER = "liger"
    """Liger's kernels: loss and its gradients in one, and its norms and MLPs with them."""


class Integration(StrEnum):
    """Who hands the config to DeepSpeed."""

    HF = "hf"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"


class Accounting(StrEnum):
    """Whose arithmetic: what DeepSpeed allocates, or what is usually told."""

    REAL = "real"
    TEXTBOOK = "textbook"


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
            f"`$lora_target_modules {text}` is no list of names",
            f"write `{ALL_LINEAR}`, or names with commas between them: `q_proj,v_proj`",
        )
    return tuple(dict.fromkeys(names))


class Workload(Struct, frozen=True, kw_only=True):
    """One optimizer step of one rank."""

    micro_batch: Annotated[
        Count,
        SettingRow(
            flag="--micro-batch",
            help="Sequences per GPU at a time",
            panel=Panel.JOB,
            assumed="micro-batch {value}",
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
            assumed="{value} tokens a sequence",
            assumed_always=True,
        ),
    ] = 2048
    accumulation_steps: Annotated[
        Count,
        SettingRow(
            flag="--grad-accum",
            help="Micro-steps per optimizer step",
            panel=Panel.JOB,
            assumed="accumulation {value}",
        ),
    ] = 1
    """Micro-steps per optimizer step."""
    precision: Annotated[
        Precision,
        SettingRow(
            flag="--precision",
            help="Weights and gradients",
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
            panel=Panel.JOB,
            shown="{value} autocast",
        ),
    ] = None
    """The 16-bit format that forward computes in where the weights stay fp32."""
    optimizer: Annotated[
        Optimizer,
        SettingRow(
            flag="--optimizer",
            help="Whose states are counted",
            panel=Panel.JOB,
            assumed="{value}",
        ),
    ] = Optimizer.ADAMW
    optimizer_fused: bool = True
    """Whether torch's Adam steps with its fused kernel; foreach copies every list of tensors."""
    optimizer_state_dtype: Annotated[
        StateDtype,
        SettingRow(
            flag="--optimizer-state-dtype", help="Master weights and moments", panel=Panel.JOB
        ),
    ] = StateDtype.FP32
    method: Annotated[
        Method,
        SettingRow(
            flag="--method",
            help="Which parameters train",
            panel=Panel.MODEL,
            assumed="every parameter trains",
        ),
    ] = Method.FULL
    lora_rank: Annotated[
        Count,
        SettingRow(
            flag="--lora-rank",
            help="Rank of the adapters",
            panel=Panel.MODEL,
            assumed="adapters of rank {value}",
            of_adapters=True,
        ),
    ] = 16
    lora_target_modules: Annotated[
        tuple[str, ...],
        SettingRow(
            flag="--lora-target-modules",
            help="Layers with adapters: all-linear, or q_proj,v_proj",
            panel=Panel.MODEL,
            assumed="adapters on {value}",
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
            assumed="no gradient checkpointing",
            assumed_always=True,
        ),
    ] = False
    attention: Annotated[
        Attention, SettingRow(flag="--attention", help="Attention kernel", panel=Panel.JOB)
    ] = Attention.SDPA
    loss: Annotated[
        Loss,
        SettingRow(
            flag="--loss",
            help="How the logits become a loss",
            panel=Panel.JOB,
            shown="{value} loss",
        ),
    ] = Loss.PLAIN
    transformers_version: tuple[Count, Count] = NEWEST_TRANSFORMERS
    """Major and minor: what runs the model decides what its attention keeps."""
    packing: Annotated[
        bool,
        SettingRow(
            flag="--packing/--no-packing",
            help="All sequences of a micro-batch in one row",
            panel=Panel.JOB,
            shown="packed",
        ),
    ] = False
    """Whether the sequences of a micro-batch stand in one row, without padding."""
    zero_init: bool = True
    """Whether stage 3 builds the model in shards, and not whole on each GPU."""

    def __post_init__(self) -> None:
        """Refuse a step that nobody can take."""
        for name, count in (
            ("micro_batch", self.micro_batch),
            ("sequence_tokens", self.sequence_tokens),
            ("accumulation_steps", self.accumulation_steps),
            ("lora_rank", self.lora_rank),
        ):
            if count < 1:
                raise UsageError(f"`${name}` must be at least 1, not {count}")
        if self.torch_autocast is Precision.FP32:
            raise UsageError(
                "`$torch_autocast fp32`: autocast computes in 16 bits", "choose bf16 or fp16"
            )
        if self.torch_autocast is not None and self.precision is not Precision.FP32:
            raise UsageError(
                f"`$torch_autocast {self.torch_autocast}` keeps the weights in fp32, and"
                f" `$precision {self.precision}` does not",
                "drop one of the two: `$precision` alone casts the weights too",
            )
        if self.optimizer_state_dtype is StateDtype.BF16 and self.precision is not Precision.BF16:
            raise UsageError(
                f"`$optimizer_state_dtype bf16` needs `$precision bf16`, not `{self.precision}`",
                "DeepSpeed's switch for it lives in the config's `bf16` section",
            )

    @property
    def lora_targets(self) -> str:
        """The same in one word, as the option takes it."""
        return ",".join(self.lora_target_modules) or ALL_LINEAR

    @property
    def tokens(self) -> int:
        """Tokens of one micro-step on one rank."""
        return self.micro_batch * self.sequence_tokens

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
        adapters = self.method is not Method.FULL
        shown = {
            name: getattr(self, name) if adapters or not row.of_adapters else None
            for name, row in SETTINGS.items()
        }
        return shown | ({"lora_target_modules": self.lora_targets} if adapters else {})


SETTINGS: Mapping[str, SettingRow] = read_rows(Workload)
"""The row of each setting of a training step, in the order of the fields."""
_DEFAULTS = Workload()
