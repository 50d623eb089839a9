"""Tell from the last lines of a rank whether it died for want of memory, and of which."""

import re
import signal
from collections.abc import Sequence

from zerowiz.core.observed import Memory

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
_TRACEBACK = "Traceback (most recent call last)"
_UNCAUGHT = re.compile(rf"{re.escape(_TRACEBACK)}|^terminate called after")
# One that came of another says so, and the other was the reason (traceback.py of Python).
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
# Whoever dies of these was ended from outside, whatever it had said before.
_FROM_OUTSIDE = {128 + each for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)} | {129}


def last_error(lines: Sequence[str]) -> tuple[str, ...]:
    """The last uncaught error with those that it came of; empty where none shows."""
    start: int | None = None
    chained = False
    for place, line in enumerate(lines):
        if _CHAINED.search(line):
            chained = True
        elif _UNCAUGHT.search(line):
            start = place if start is None or not chained else start
            chained = False
    return () if start is None else tuple(lines[start:])


def is_pythons(error: Sequence[str]) -> bool:
    """Whether an error of `last_error` is one of Python's."""
    return any(_TRACEBACK in line for line in error[:1])


def died_for(lines: Sequence[str], status: int, *, on_cpu: bool) -> Memory | None:
    """Which memory the error that a rank died of was about.

    Args:
        lines: The last of its stderr.
        status: Its exit status, 128 and more for a signal.
        on_cpu: Whether host memory is its accelerator's.
    """
    if status == 0 or status in _FROM_OUTSIDE:
        return None
    error = last_error(lines)
    if any(_DEVICE.search(line) for line in error):
        return Memory.GPU
    if any(_CPU.search(line) for line in error):
        return Memory.GPU if on_cpu else Memory.HOST
    return Memory.HOST if any(_HOST.search(line) for line in error) else None
