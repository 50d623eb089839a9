"""Refuse combinations that DeepSpeed fails on, ignores, or trains differently."""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.workload import Integration, Optimizer, Precision, StateDtype
from zerowiz.errors import UsageError


class Effect(StrEnum):
    """What DeepSpeed does with a combination that is not refused."""

    RAISES = "raises"
    IGNORED = "ignored"
    """It trains as if this had not been set."""
    DIFFERS = "differs"
    """It trains something else."""


class Asked(Struct, frozen=True, kw_only=True):
    """A job with one strategy, and the integration that hands its config to DeepSpeed."""

    job: Job
    strategy: Strategy
    integration: Integration
    script_has_optimizer: bool

    @property
    def offloaded(self) -> bool:
        """Whether the optimizer's states leave the GPU."""
        own, offload = self.job.own_buffers, self.strategy.offload
        keeps = own is not None and own.keeps_optimizer and offload is Offload.ALL
        return offload is not Offload.NONE and not keeps

    @property
    def on_nvme(self) -> bool:
        """Whether a folder on NVMe is given."""
        return self.job.nvme_path is not None

    @property
    def half_states(self) -> bool:
        """Whether master weights and moments are asked for in bf16."""
        return self.job.state_dtype is StateDtype.BF16

    @property
    def swapped_optimizer(self) -> bool:
        """Whether the script's own optimizer steps, or the one that Accelerate replaces it by.

        The Trainer builds its optimizer after it has read the config, so a config can name one.
        """
        trainer = self.integration is Integration.HF
        return self.script_has_optimizer and not trainer


class Combination(Struct, frozen=True, kw_only=True):
    """One row; tests/core/decision/test_unsupported_really.py trains it."""

    name: str
    message: str
    """`{strategy}` stands for its name."""
    hints: tuple[str, ...]
    outcome: Effect
    is_asked: Callable[[Asked], bool]


# Rule: a row says only what the library really does; what it trains as asked must not be refused
# (tests/core/decision/test_unsupported_really.py trains those, too: hpZ with offload or on one
# node, torch_autocast with offload and under the Trainer, SGD and Adafactor with offload where they
# are not swapped). A comment in a row says where DeepSpeed 0.19.8 decides it, below `runtime/`.
COMBINATIONS: tuple[Combination, ...] = (
    Combination(
        name="nvme-below-stage-3",
        message=(
            "`$nvme_path` has no effect with `{strategy}`: below stage 3, DeepSpeed offloads "
            "to host memory only"
        ),
        hints=("offload to NVMe with `$stage 3 $offload all`", "remove `$nvme_path`"),
        outcome=Effect.IGNORED,
        # engine.py, zero_use_cpu_optimizer; zero/stage_1_and_2.py, cpu_offload
        is_asked=lambda a: a.on_nvme and a.offloaded and not a.strategy.shards_weights,
    ),
    Combination(
        name="nvme-without-offload",
        message="`$nvme_path` has no effect with `{strategy}`, which offloads nothing",
        hints=("offload to NVMe with `$stage 3 $offload all`", "remove `$nvme_path`"),
        outcome=Effect.IGNORED,
        # zero/offload_config.py: `device` is none
        is_asked=lambda a: a.on_nvme and not a.offloaded,
    ),
    Combination(
        name="nvme-with-bf16-states",
        message=(
            "`$nvme_path` cannot be combined with `$optimizer_state_dtype bf16`: DeepSpeed "
            "swaps fp32 states only, and fails at the first step"
        ),
        hints=("remove `$optimizer_state_dtype bf16`", "remove `$nvme_path`"),
        outcome=Effect.RAISES,
        # What is released is an empty fp32 tensor from then on, and the swap buffers are bf16.
        # swap_tensor/optimizer_utils.py, SwapTensorContext.release_memory; swap_tensor/utils.py,
        # SwapBufferManager.allocate
        is_asked=lambda a: a.on_nvme and a.half_states and a.strategy.shards_weights,
    ),
    Combination(
        name="nvme-with-8-bit-adam",
        message=(
            "`$nvme_path` cannot be combined with `$optimizer adamw_8bit`: DeepSpeed swaps "
            "its 8-bit states as if they were fp32, and the training diverges"
        ),
        hints=("keep fp32 states on NVMe with `$optimizer adamw`", "remove `$nvme_path`"),
        outcome=Effect.DIFFERS,
        # swap_tensor/optimizer_utils.py, set_swap_buffers and is_swappable_tensor
        is_asked=lambda a: (
            a.on_nvme
            and a.strategy.shards_weights
            and a.job.workload.optimizer is Optimizer.ADAMW_8BIT
        ),
    ),
    Combination(
        name="nvme-parameters-with-hpz",
        message=(
            "`$nvme_path` cannot be combined with `$hpz` and `{strategy}`: DeepSpeed puts "
            "hpZ's copy of the weights on a device `nvme`, which torch does not have"
        ),
        hints=("`$no_hpz`", "keep the weights off NVMe with `$offload optimizer`"),
        outcome=Effect.RAISES,
        # zero/partition_parameters.py, _partition_param_sec: `device=self.remote_device`
        is_asked=lambda a: (
            a.on_nvme
            and a.strategy.shards_weights
            and a.strategy.offload is Offload.ALL
            and a.job.hpz is True
        ),
    ),
    Combination(
        name="hpz-below-stage-3",
        message="`$hpz` has no effect with `{strategy}`: below stage 3, ranks hold all weights",
        hints=("shard the weights with `$stage 3`", "remove `$hpz`"),
        outcome=Effect.IGNORED,
        # zero/stage3.py and zero/partition_parameters.py alone read zero_hpz_partition_size
        is_asked=lambda a: a.job.hpz is True and not a.strategy.shards_weights,
    ),
    Combination(
        name="quantized-weights-below-stage-3",
        message=(
            "`$quantized_weights` has no effect with `{strategy}`: below stage 3, no weights "
            "are gathered"
        ),
        hints=("gather the weights with `$stage 3`", "remove `$quantized_weights`"),
        outcome=Effect.IGNORED,
        # zero/partition_parameters.py alone reads zero_quantized_weights
        is_asked=lambda a: a.job.quantized_weights and not a.strategy.shards_weights,
    ),
    Combination(
        name="quantized-weights-with-autocast",
        message=(
            "`$quantized_weights` cannot be combined with `$torch_autocast`: DeepSpeed "
            "supports only one of them"
        ),
        hints=(
            "gather in int8 with `$precision bf16` instead",
            "remove `$quantized_weights`",
        ),
        outcome=Effect.RAISES,
        # torch_autocast.py, _validate_auto_cast_settings
        is_asked=lambda a: a.job.quantized_weights and a.job.workload.torch_autocast is not None,
    ),
    Combination(
        name="quantized-weights-on-cpu",
        message=(
            "`$quantized_weights` does not work on the CPU accelerator: DeepSpeed's quantizer "
            "needs CUDA"
        ),
        hints=("remove `$quantized_weights`",),
        outcome=Effect.RAISES,
        # zero/partition_parameters.py, CUDAQuantizer; ../ops/op_builder/cpu/no_impl.py
        is_asked=lambda a: a.job.quantized_weights and a.job.machine.accelerator is Accelerator.CPU,
    ),
    Combination(
        name="fp16-autocast-with-zero",
        message=(
            "`$torch_autocast fp16` does not train with `{strategy}`: ZeRO clips gradients "
            "before it removes the loss scale, so almost nothing is left of them"
        ),
        hints=(
            "use bf16, which has no loss scale: `$torch_autocast bf16`",
            "use fp16 weights, which are clipped correctly: `$precision fp16`",
            "or do without ZeRO: `$stage 0`",
        ),
        outcome=Effect.DIFFERS,
        # GradScaler scales the loss, but unscale_and_clip_grads divides by ZeRO's own scale, 1.
        # zero/stage_1_and_2.py and zero/stage3.py, unscale_and_clip_grads
        is_asked=lambda a: a.job.workload.torch_autocast is Precision.FP16 and a.strategy.stage > 0,
    ),
    Combination(
        name="bf16-states-without-zero",
        message=(
            "`$optimizer_state_dtype bf16` does not work with `{strategy}`: DeepSpeed keeps "
            "bf16 states at stages 1 to 3 only"
        ),
        hints=("use `$stage 1` or higher", "remove `$optimizer_state_dtype bf16`"),
        outcome=Effect.RAISES,
        # config.py, DeepSpeedConfig._do_error_check
        is_asked=lambda a: a.half_states and a.strategy.stage == 0,
    ),
    Combination(
        name="8-bit-adam-by-name",
        message=(
            "`$optimizer adamw_8bit` needs a script that builds it: DeepSpeed cannot build "
            "bitsandbytes' Adam"
        ),
        hints=(
            "build it in the script: `deepspeed.initialize(..., optimizer=...)`",
            "remove `$optimizer adamw_8bit`",
        ),
        outcome=Effect.RAISES,
        # engine.py, _configure_basic_optimizer: its own names, and those of torch.optim
        is_asked=lambda a: (
            a.job.workload.optimizer is Optimizer.ADAMW_8BIT
            and a.integration is Integration.DEEPSPEED
            and not a.script_has_optimizer
        ),
    ),
    Combination(
        name="bf16-states-with-offload-and-own-optimizer",
        message=(
            "`$optimizer_state_dtype bf16` does not work with `{strategy}` and the script's "
            "own optimizer: under offload, only DeepSpeed's CPU Adam keeps bf16 states"
        ),
        hints=(
            "remove `$optimizer_state_dtype bf16`",
            "or remove the optimizer from the script: zerowiz then writes AdamW into the config",
        ),
        outcome=Effect.RAISES,
        # DeepSpeedCPUAdam(fp32_optimizer_states=False) would do; Accelerate cannot build it.
        # base_optimizer.py, _configure_master_weights; zero/stage3.py, __init__
        is_asked=lambda a: a.half_states and a.offloaded and a.swapped_optimizer,
    ),
)


def refuse_unsupported(
    job: Job, strategy: Strategy, integration: Integration, *, script_has_optimizer: bool
) -> None:
    """Let only what DeepSpeed trains as asked reach the config.

    Raises:
        UsageError: A row of the table is asked for.
    """
    asked = Asked(
        job=job,
        strategy=strategy,
        integration=integration,
        script_has_optimizer=script_has_optimizer,
    )
    for combination in COMBINATIONS:
        if combination.is_asked(asked):
            raise UsageError(combination.message.format(strategy=strategy.name), *combination.hints)
