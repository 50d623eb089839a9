"""What a setting can be, where it is one of a few words."""

from enum import StrEnum

FP32_BYTES = 4
HALF_BYTES = 2


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
    def generates(self) -> bool:
        """Whether it samples the completions that it trains on."""
        return self in {Trainer.GRPO, Trainer.RLOO, Trainer.PPO}

    @property
    def averages(self) -> bool:
        """Whether its loss is a mean over sequences, however micro-steps share them.

        What KTO compares, and GRPO, RLOO and PPO generate, is that of a micro-batch (trl 1.16).
        """
        return self in {Trainer.SFT, Trainer.DPO, Trainer.REWARD}

    @property
    def compares(self) -> bool:
        """Whether its loss can compare the model with a frozen reference."""
        return self not in {Trainer.SFT, Trainer.REWARD}


class Reference(StrEnum):
    """Where the log-probabilities of the reference come from."""

    MODEL = "model"
    """A frozen copy of the model, held while it trains."""
    NONE = "none"
    """No copy: the loss needs none, or the model itself runs without its adapters."""
    PRECOMPUTED = "precomputed"
    """They were computed before training."""


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


class Accounting(StrEnum):
    """Whose arithmetic: what DeepSpeed allocates, or what the rule of thumb counts."""

    REAL = "real"
    TEXTBOOK = "textbook"
