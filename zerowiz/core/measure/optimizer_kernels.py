"""Name what takes the step, as measured rows do, and say what the ledger counts it as."""

from collections.abc import Mapping
from enum import StrEnum

from zerowiz.core.strategy import Offload
from zerowiz.core.workload import Optimizer


class Stepper(StrEnum):
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


_COUNTED_AS: Mapping[Stepper, Optimizer] = {
    Stepper.ADAMW_FUSED: Optimizer.ADAMW,
    Stepper.ADAMW_FOREACH: Optimizer.ADAMW,
    Stepper.ADAMW_CONFIG: Optimizer.ADAMW,
    Stepper.FUSED_ADAM: Optimizer.ADAMW,
    Stepper.CPU_ADAM: Optimizer.ADAMW,
    Stepper.ADAMW_8BIT: Optimizer.ADAMW_8BIT,
    Stepper.ADAFACTOR: Optimizer.ADAFACTOR,
    Stepper.FUSED_LION: Optimizer.LION,
    Stepper.CPU_LION: Optimizer.LION,
    Stepper.SGD: Optimizer.SGD,
}

# What DeepSpeed compiles at first use (deepspeed/ops/op_builder).
OPS: Mapping[Stepper, str] = {
    Stepper.FUSED_ADAM: "FusedAdamBuilder",
    Stepper.CPU_ADAM: "CPUAdamBuilder",
    Stepper.FUSED_LION: "FusedLionBuilder",
    Stepper.CPU_LION: "CPULionBuilder",
}


def counted_as(stepper: Stepper) -> Optimizer:
    """The optimizer whose states the ledger counts."""
    return _COUNTED_AS[stepper]


def stepper_for(optimizer: Optimizer, offload: Offload) -> Stepper:
    """What a launch would step with; DeepSpeed steps on the CPU under offload."""
    if offload is not Offload.NONE:
        return Stepper.CPU_LION if optimizer is Optimizer.LION else Stepper.CPU_ADAM
    return next(stepper for stepper, counted in _COUNTED_AS.items() if counted is optimizer)
