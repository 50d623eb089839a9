"""Count what a vLLM takes of the GPUs that train, by arithmetic: no run of it was measured."""

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.estimate import Estimate
from zerowiz.core.memory.ledger import Phase, moment_bytes
from zerowiz.core.memory.trainers import OF_A_MICRO_STEP
from zerowiz.core.workload.workload import Workload


class VllmShare(Struct, frozen=True, kw_only=True):
    """What vLLM takes of each GPU, and what is there beside it."""

    share_bytes: int
    sleeps: bool
    """Whether it holds that while it generates alone."""
    resting_bytes: int
    """What the rank holds between two steps, while vLLM generates."""

    def with_training(self, training_bytes: int) -> int:
        """The most of the GPU that is held, where training alone holds so much of it."""
        if self.sleeps:
            return max(training_bytes, self.resting_bytes + self.share_bytes)
        return training_bytes + self.share_bytes


def vllm_share(machine: Machine, workload: Workload, predicted: Estimate) -> VllmShare | None:
    """What vLLM takes of each GPU; None where none runs there.

    vLLM 0.11, v1/worker/gpu_worker.py: its weights, its cache and what a forward pass of it needs
    have `gpu_memory_utilization` of the GPU's whole memory. trl 1.16, generation/
    vllm_generation.py: with sleep mode it holds that while it generates alone, for level 2 discards
    weights and cache.
    """
    fraction = workload.vllm_memory_fraction
    total_bytes = machine.total_bytes
    if not fraction or total_bytes is None or machine.accelerator is Accelerator.CPU:
        return None
    return VllmShare(
        share_bytes=int(fraction * total_bytes),
        sleeps=workload.vllm_sleeps,
        resting_bytes=_resting_bytes(predicted),
    )


def _resting_bytes(predicted: Estimate) -> int:
    """What a rank holds between two steps."""
    return max(
        moment_bytes(each for each in moment if each.kind not in OF_A_MICRO_STEP)
        for moment in predicted.moments[Phase.FORWARD]
    )
