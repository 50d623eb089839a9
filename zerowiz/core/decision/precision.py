"""Choose the number format of a step by what the machine computes natively."""

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.workload.choices import Precision
from zerowiz.core.workload.workload import Workload
from zerowiz.words import _

BF16_IS_EMULATED = _("this CPU has no bf16 instructions: torch emulates bf16, many times slower")
"""What becomes of a bf16 that was asked for on such a CPU."""


def native_precision(machine: Machine, torch_autocast: Precision | None = None) -> Precision:
    """The precision of a job that names none: bf16, or what the machine computes in its place.

    A GPU without bf16 has fp16, which DeepSpeed refuses on most CPUs.

    Args:
        machine: What the job runs on.
        torch_autocast: What forward computes in, where that was asked for; weights stay in fp32.
    """
    if torch_autocast is not None:
        return Precision.FP32
    if machine.takes_bf16:
        return Precision.BF16
    return Precision.FP32 if machine.accelerator is Accelerator.CPU else Precision.FP16


def why_no_bf16(machine: Machine, workload: Workload) -> str:
    """What to add to a default precision that is fp32 because of the CPU; else nothing."""
    lacks = machine.accelerator is Accelerator.CPU and not machine.takes_bf16
    chosen = workload.precision is Precision.FP32 and workload.torch_autocast is None
    return _(", as this CPU has no bf16 instructions") if lacks and chosen else ""


def emulates_bf16(machine: Machine, workload: Workload) -> bool:
    """Whether a CPU would have to emulate the bf16 of this step."""
    on_cpu = machine.accelerator is Accelerator.CPU
    formats = {workload.precision, workload.torch_autocast}
    return on_cpu and not machine.takes_bf16 and Precision.BF16 in formats
