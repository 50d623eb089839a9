"""Compute what a job takes on a device beyond its tensors, and which margin it needs.

Measured on H200s (tests/measured), six models at four stages under caps: with expandable_segments
at 1.01, 1.02, 1.03 and 1.07 x their allocated peak, without it at 1.07 and 1.16 x (g1 and g2 runs);
Llama-2-7B at 1.00, 1.03 and 1.10 x (d4-015 to d4-026).
"""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.workload.workload import Workload


class Margin(Struct, frozen=True, kw_only=True):
    """Fractions of the predicted peak, above it."""

    slack_fraction: float
    """With less headroom than this a run runs out of memory."""
    sure_fraction: float
    """With this much headroom none ran out of memory."""
    tight_fraction: float
    """With this much headroom it runs as fast as with all memory."""


# With expandable segments all ran out at 1.00 x (two runs), two of 24 at 1.01 x and none above;
# steady steps were more than 5 % slower in 14 of 24 at 1.02 x, in 14 at 1.07 x and, at ZeRO-3, even
# at 1.10 x. Without them one of two ran out at 1.03 x, none of one at 1.06 x, 14 of 24 at 1.07 x,
# two of 24 at 1.16 x. Neither band is wider than a tenth of a budget in which the run starts: 0.100
# and 0.105 of the peak, which is at most 0.995 and 0.948 of it.
# Sure is asked of the upper bound of a prediction, which is 0.8 % above it at least.
_EXPANDABLE = Margin(slack_fraction=0.005, sure_fraction=0.005, tight_fraction=0.105)
_FIXED = Margin(slack_fraction=0.055, sure_fraction=0.16, tight_fraction=0.16)

# CUDA context, library handles, and NCCL where there are other ranks: the most of
# device_used_outside_allocator_bytes in tests/measured. hpZ opens groups of its own (h1-027).
_OUTSIDE_ALONE_BYTES = 1_810_000_000
_OUTSIDE_BYTES = 2_250_000_000
_HPZ_GROUPS_BYTES = 510_000_000
# On the CPU accelerator: the resident interpreter with torch, DeepSpeed and transformers, before
# the model; 371 MB under templates/train_deepspeed.py, 353 MB under train_hf.py without the engine.
_CPU_OUTSIDE_BYTES = 400_000_000


def margin(*, expandable_segments: bool) -> Margin:
    """How close to the budget a run may come under this allocator."""
    return _EXPANDABLE if expandable_segments else _FIXED


def outside_bytes(machine: Machine, buffers: Buffers) -> int:
    """What a rank takes on its device outside torch's allocator."""
    if machine.accelerator is Accelerator.CPU:
        return _CPU_OUTSIDE_BYTES
    if machine.world_size == 1:
        return _OUTSIDE_ALONE_BYTES
    return _OUTSIDE_BYTES + (_HPZ_GROUPS_BYTES if buffers.hpz_partition_size > 1 else 0)


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The variable of torch's allocator on CUDA, by the name that every release reads."""


def shares_with_sleeping_vllm(workload: Workload) -> bool:
    """Whether a vLLM that sleeps while the step trains is in the same process."""
    return bool(workload.vllm_memory_fraction) and workload.vllm_sleeps


def without_expansion(environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps expandable_segments off, where the caller's environment does not say.

    vLLM's sleep mode has a memory pool that refuses to start with them (vLLM 0.8 to 0.20,
    device_allocator/cumem.py; later releases switch them off for that pool).
    """
    if "PYTORCH_ALLOC_CONF" in environ or ALLOCATOR in environ:
        return {}
    return {ALLOCATOR: "expandable_segments:False"}


def expands_segments(environ: Mapping[str, str]) -> bool:
    """Whether a job started here gets expandable_segments: the launch sets it unless the user did.

    Source: torch's notes on CUDA semantics; `PYTORCH_ALLOC_CONF` wins where both are set.
    """
    names = ("PYTORCH_ALLOC_CONF", ALLOCATOR)
    setting = next((environ[name] for name in names if name in environ), None)
    return setting is None or "expandable_segments:true" in setting.replace(" ", "").lower()
