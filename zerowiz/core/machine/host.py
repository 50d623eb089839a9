"""The memory, cores, limits and disk of one node."""

from collections.abc import Set as AbstractSet

from msgspec import Struct

from zerowiz.core.values import Count
from zerowiz.errors import UsageError
from zerowiz.words import _

# Linux, include/uapi/asm-generic/resource.h: RLIM_INFINITY means no limit.
UNLIMITED_BYTES = 2**64 - 1

# Linux, arch/x86/include/asm/cpufeatures.h and arch/arm64/kernel/cpuinfo.c: the flags of
# instructions that multiply in bf16. AVX-NE-CONVERT only converts.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
# ideep/utils.hpp, has_fp16_type_support: avx512_core_fp16, or avx2_vnni_2, of which this is a part.
_FP16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "avx_ne_convert"})
# Every x86 that torch runs on has it.
_X86_FLAG = "sse2"

# oneDNN, "CPU Dispatcher Control": the values of ONEDNN_MAX_CPU_ISA that stop short of products in
# 16 bits; a value that it does not know limits nothing. torch sends those products to oneDNN, so
# ATEN_CPU_CAPABILITY changes none of them (measured, docs/guides/machines.md).
_ISAS_WITHOUT_FP16 = frozenset(
    {"sse41", "avx", "avx2", "avx2_vnni", "avx512_core", "avx512_core_vnni", "avx512_core_bf16"}
)
_ISAS_WITHOUT_BF16 = _ISAS_WITHOUT_FP16 - {"avx512_core_bf16"} | {"avx2_vnni_2"}


class Disk(Struct, frozen=True, kw_only=True):
    """The file system that holds a folder."""

    total_bytes: Count
    """Its size."""
    free_bytes: Count
    """For a process that is not root."""
    is_nvme: bool | None = None
    """Whether all its drives are NVMe; `None` where the device is not known (overlay, NFS)."""


class Host(Struct, frozen=True, kw_only=True):
    """One node's memory, cores and limits; `None` where a value is not known."""

    total_bytes: Count | None = None
    """The memory of the node."""
    available_bytes: Count | None = None
    """What a job could still take: the smallest of all limits."""
    available_by: str | None = None
    """The limit that decides it: `MemAvailable`, `cgroup v2`, `cgroup v1`, `SLURM` ..."""
    cores: Count | None = None
    """Those that this process may run on: by its affinity, and whole cores of a cgroup's quota."""
    python_call_seconds: float | None = None
    """What a call takes in Python: it launches the GPU's work. Read beside GPUs alone."""
    numa_nodes: Count | None = None
    """Those with cores; on a Grace machine the memory of a GPU is a NUMA node without cores."""
    shm_bytes: Count | None = None
    """The size of /dev/shm."""
    memlock_bytes: Count | None = None
    """How much memory may be locked (pinned); `UNLIMITED_BYTES` where there is no limit."""
    disk: Disk | None = None
    """The file system of the job's folder."""
    computes_bf16: bool | None = None
    """Whether the CPU multiplies in bf16; else torch emulates it. Read for CPU ranks alone."""
    computes_fp16: bool | None = None
    """The same of fp16, which DeepSpeed refuses where the CPU does not."""

    def __post_init__(self) -> None:
        """Refuse a host whose Python runs in no time, or in none that can be."""
        call_seconds = self.python_call_seconds
        # What is no number is between no two.
        if call_seconds is not None and not 0 < call_seconds < 1:
            raise UsageError(
                _(
                    "`python_call_seconds` must be more than 0 and less than 1, not {call_seconds}",
                    call_seconds=call_seconds,
                )
            )


def computes_bf16(flags: AbstractSet[str], max_isa: str) -> bool:
    """Whether torch multiplies bf16 natively on a CPU with these flags.

    Args:
        flags: As /proc/cpuinfo has them.
        max_isa: The instruction set that oneDNN is held to; empty where it is held to none.
    """
    return not _BF16_FLAGS.isdisjoint(flags) and max_isa.lower() not in _ISAS_WITHOUT_BF16


def computes_fp16(flags: AbstractSet[str], max_isa: str) -> bool | None:
    """The same of fp16; not known beside x86."""
    if _X86_FLAG not in flags:
        return None
    return not _FP16_FLAGS.isdisjoint(flags) and max_isa.lower() not in _ISAS_WITHOUT_FP16
