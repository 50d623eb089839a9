"""What the GPUs of a machine compute and move in a second, as far as a table says it."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.core.machine.names.gpus import GpuModel, match_models
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.workload.choices import Precision


class GpuRates(Struct, frozen=True, kw_only=True):
    """The nominal rates of one GPU: no job reaches them."""

    compute_capability: tuple[int, int]
    """Which part of them a job reaches depends on it."""
    bf16_flop_per_s: int | None
    """Dense; None where the GPU has no bf16 arithmetic."""
    fp16_flop_per_s: int
    fp32_flop_per_s: int
    """Outside the tensor cores, as torch computes unless a script allows TF32."""
    memory_bytes_per_s: int
    pcie_bytes_per_s: int
    """In one direction."""
    nvlink_bytes_per_s: int
    """In one direction, over all links of the GPU; 0 without NVLink."""

    def flop_per_s(self, precision: Precision) -> int | None:
        """Of products of matrices in this precision; None where it is not known."""
        return {
            Precision.BF16: self.bf16_flop_per_s,
            Precision.FP16: self.fp16_flop_per_s,
            Precision.FP32: self.fp32_flop_per_s,
        }[precision]


def find_rates(machine: Machine, table: Sequence[GpuModel]) -> GpuRates | None:
    """The rates of the GPUs of this machine.

    None where the table has no such GPU, for two kinds, and for slices: they have a part of each.
    """
    sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
    if machine.accelerator is not Accelerator.CUDA or not machine.is_uniform or sliced:
        return None
    matches = match_models(machine.gpus[0].name, table)
    if len(matches) != 1:
        return None
    (found,) = matches
    return GpuRates(
        compute_capability=found.compute_capability,
        bf16_flop_per_s=found.bf16_flop_per_s,
        fp16_flop_per_s=found.fp16_flop_per_s,
        fp32_flop_per_s=found.fp32_flop_per_s,
        memory_bytes_per_s=found.memory_bytes_per_s,
        pcie_bytes_per_s=found.pcie_bytes_per_s,
        nvlink_bytes_per_s=found.nvlink_bytes_per_s,
    )
