"""Name what takes the step, as measured rows do, and say what the ledger counts it as."""

from collections.abc import Mapping
from enum import StrEnum

from zerowiz.core.strategy import Offload
from zerowiz.core.workload.choices import Optimizer


class OptimizerKernel(StrEnum):
    """What takes the step, by the names that measured rows have."""

    ADAMW_FUSED = "torch AdamW fused=True"
    ADAMW_FOREACH = "torch AdamW foreach=True"
    ADAMW_CONFIG = "torch AdamW via config (torch_adam)"
    FUSED_ADAM = "FusedAdam"
    CPU_ADAM = "DeepSpeedCPUAdam"
    ADAMW_8BIT = "AdamW8bit"
    ADAFACTOR = "Adafactor"
    FUSED_LION = "FusedLion"
    CPU_LION = "DeepSpeedCPULion"
    SGD = "torch SGD"


_COUNTED_AS: Mapping[OptimizerKernel, Optimizer] = {
    OptimizerKernel.ADAMW_FUSED: Optimizer.ADAMW,
    OptimizerKernel.ADAMW_FOREACH: Optimizer.ADAMW,
    OptimizerKernel.ADAMW_CONFIG: Optimizer.ADAMW,
    OptimizerKernel.FUSED_ADAM: Optimizer.ADAMW,
    OptimizerKernel.CPU_ADAM: Optimizer.ADAMW,
    OptimizerKernel.ADAMW_8BIT: Optimizer.ADAMW_8BIT,
    OptimizerKernel.ADAFACTOR: Optimizer.ADAFACTOR,
    OptimizerKernel.FUSED_LION: Optimizer.LION,
    OptimizerKernel.CPU_LION: Optimizer.LION,
    OptimizerKernel.SGD: Optimizer.SGD,
}

# What DeepSpeed compiles at first use (deepspeed/ops/op_builder).
OPS: Mapping[OptimizerKernel, str] = {
    OptimizerKernel.FUSED_ADAM: "FusedAdamBuilder",
    OptimizerKernel.CPU_ADAM: "CPUAdamBuilder",
    OptimizerKernel.FUSED_LION: "FusedLionBuilder",
    OptimizerKernel.CPU_LION: "CPULionBuilder",
}


def counted_as(stepper: OptimizerKernel) -> Optimizer:
    """The optimizer whose states the ledger counts."""
    return _COUNTED_AS[stepper]


def stepper_for(optimizer: Optimizer, offload: Offload) -> OptimizerKernel:
    """What a launch would step with; DeepSpeed steps on the CPU under offload."""
    if offload is not Offload.NONE:
        return OptimizerKernel.CPU_LION if optimizer is Optimizer.LION else OptimizerKernel.CPU_ADAM
    return next(stepper for stepper, counted in _COUNTED_AS.items() if counted is optimizer)
