"""Find in the last lines of a rank whether it ran out of memory, and of which memory."""

import re
from collections.abc import Sequence

from zerowiz.core.memory.ledger import MemoryKind

# torch/csrc/cuda/Module.cpp and c10/cuda/CUDACachingAllocator.cpp; the texts of CUDA, cuBLAS, cuDNN
# and NCCL for their own allocations (torch 2.13).
_DEVICE = re.compile(
    r"torch\.(cuda\.)?OutOfMemoryError|(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory"
    r"|Cuda failure[ \d]*'?out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
# c10/core/impl/alloc_cpu.cpp: on the CPU accelerator this is the device's own memory.
_CPU = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
_HOST = re.compile(r"^(\[rank\d+\]: *)?MemoryError\b|Cannot allocate memory")

# How an uncaught error begins, in Python and in C++. "terminate called without an active exception"
# is not one: a thread still ran when Python had ended, for a reason of its own.
TRACEBACK = "Traceback (most recent call last)"
_PYTHONS = re.compile(re.escape(TRACEBACK))
_UNCAUGHT = re.compile(rf"{_PYTHONS.pattern}|^terminate called after")
# Above an error that ends nothing Python prints one of these: in a thread, in a child process of
# multiprocessing, or while the interpreter shuts down. worker/rank.py repeats it.
ENDS_NOTHING = re.compile(
    r"Exception ignored |Exception in thread |Error in atexit|--- Logging error ---|^Process \S+:$"
)
# Stands between an error and the one that it caused (traceback.py of Python).
_HANDLED = re.compile(r"During handling of the above exception")
_CHAINED = re.compile(rf"{_HANDLED.pattern}|The above exception was the direct cause")
# What torch and NCCL raise when a GPU or a connection fails: where a rank that is out of memory
# still cleans up, such an error follows. Any other is a mistake of its own.
_CLEANING_UP = re.compile(r"(\[rank\d+\]: )?(RuntimeError|torch\.[\w.]+)\b")
# The frames of a traceback, as Python, torch's hook of a rank, a group of errors and rich print
# them: they quote the script, whatever it says.
_FRAME = re.compile(r"(\[rank\d+\]: )?( *\| )?( {2}File | {4})|[│╰]")


def last_error(lines: Sequence[str], *, pythons: bool = False) -> tuple[str, ...]:
    """The lines from the last uncaught error on, with the errors that caused it; empty for none.

    Args:
        lines: The last lines of a rank's stderr.
        pythons: Whether only Python's errors count; one of C++ is then a result of the end.
    """
    opens = _PYTHONS if pythons else _UNCAUGHT
    start: int | None = None
    chained = False
    for number, line in enumerate(lines):
        if _CHAINED.search(line):
            chained = True
        elif opens.search(line):
            if start is not None and ENDS_NOTHING.search(lines[number - 1]):
                continue
            start = number if start is None or not chained else start
            chained = False
    return () if start is None else tuple(lines[start:])


def died_for(error: Sequence[str], *, on_cpu: bool) -> MemoryKind | None:
    """Which memory an error says was too small; None where it says nothing of memory.

    Args:
        error: The error that ended the rank, of `last_error`.
        on_cpu: Whether the accelerator is the CPU, whose memory is the host's.
    """
    lines = _reasons([line for line in error if not _FRAME.match(line)])
    if any(_DEVICE.search(line) for line in lines):
        return MemoryKind.GPU
    if any(_CPU.search(line) for line in lines):
        return MemoryKind.GPU if on_cpu else MemoryKind.HOST
    return MemoryKind.HOST if any(_HOST.search(line) for line in lines) else None


def _reasons(lines: Sequence[str]) -> Sequence[str]:
    """The last error and its causes, without one that the script handled before."""
    opened = max((n for n, line in enumerate(lines) if _UNCAUGHT.search(line)), default=0)
    if any(_CLEANING_UP.match(line) for line in lines[opened + 1 : opened + 2]):
        return lines
    return lines[max((n for n, line in enumerate(lines) if _HANDLED.search(line)), default=0) :]
