"""Tell from the last lines of a rank whether it died for want of memory, and of which."""

import re
from collections.abc import Sequence

from zerowiz.core.decision.oom_history import MemoryKind

# torch/csrc/cuda/Module.cpp and c10/cuda/CUDACachingAllocator.cpp; what CUDA, cuBLAS, cuDNN and
# NCCL say when they allocate themselves (torch 2.13).
_DEVICE = re.compile(
    r"torch\.(cuda\.)?OutOfMemoryError|(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory"
    r"|Cuda failure[ \d]*'?out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
# c10/core/impl/alloc_cpu.cpp: the device itself, on the CPU accelerator.
_CPU = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
_HOST = re.compile(r"^(\[rank\d+\]: *)?MemoryError\b|Cannot allocate memory")

# An error that nobody caught opens so, in Python and in C++; being "called without an active
# exception" is no error, but a thread that still ran when Python had ended for its own.
_PYTHONS = re.compile(r"Traceback \(most recent call last\)")
_UNCAUGHT = re.compile(rf"{_PYTHONS.pattern}|^terminate called after")
# What Python says of errors that end nothing, as of those of a thread, or while it takes down.
_ENDS_NOTHING = re.compile(
    r"Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|^Process \S+:$"
)
# One that came of another says so, and the other was the reason (traceback.py of Python).
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)


def last_error(lines: Sequence[str], *, pythons: bool = False) -> tuple[str, ...]:
    """The last uncaught error with those that it came of; empty where none shows.

    Args:
        lines: The last of a rank's stderr.
        pythons: Whether only Python's count, as that of C++ came of the end.
    """
    opens = _PYTHONS if pythons else _UNCAUGHT
    start: int | None = None
    chained = False
    for place, line in enumerate(lines):
        if _CHAINED.search(line):
            chained = True
        elif opens.search(line):
            if start is not None and _ENDS_NOTHING.search(lines[place - 1]):
                continue
            start = place if start is None or not chained else start
            chained = False
    return () if start is None else tuple(lines[start:])


def died_for(error: Sequence[str], *, on_cpu: bool) -> MemoryKind | None:
    """Which memory an error is about.

    Args:
        error: That a rank died of, of `last_error`.
        on_cpu: Whether host memory is its accelerator's.
    """
    if any(_DEVICE.search(line) for line in error):
        return MemoryKind.GPU
    if any(_CPU.search(line) for line in error):
        return MemoryKind.GPU if on_cpu else MemoryKind.HOST
    return MemoryKind.HOST if any(_HOST.search(line) for line in error) else None
