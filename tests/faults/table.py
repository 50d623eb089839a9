"""A function table of NVML that fails where it is told to: over a recording, under pynvml."""

import ctypes
import random
from collections.abc import Callable
from typing import Any

from recorded import CallWatch, outputs

Fault = Callable[[tuple[Any, ...]], int]
"""What a call does instead of its own: its outputs are the arguments'; it returns a code."""


def fault_table(library: object, symbol: str, fault: Fault, gpu: str | None = "gpu1") -> CallWatch:
    """A table that calls another one, but for the calls of one function that are about one GPU.

    Args:
        library: What answers all other calls.
        symbol: The C function that fails.
        fault: What it does instead.
        gpu: The GPU for which it fails, as recordings name it; None for each.
    """
    faulty = _Faulty(library, symbol, fault, gpu)
    return CallWatch(faulty, faulty.begin)


class _Faulty:
    """The other table and the fault; a `CallWatch` before it names each call."""

    def __init__(self, library: object, symbol: str, fault: Fault, gpu: str | None) -> None:
        self._library, self._symbol, self._fault, self._gpu = library, symbol, fault, gpu
        self._call = ""

    def begin(self, call: str) -> None:
        """Hear which call comes next."""
        self._call = call

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function: Callable[..., Any] = getattr(self._library, symbol)
        if symbol != self._symbol:
            return function
        return lambda *args: self._fault(args) if self._is_about() else function(*args)

    def _is_about(self) -> bool:
        """Whether the call is about the GPU: by its handle, or by its index alone."""
        words = self._call.partition("(")[2].removesuffix(")").split(", ")
        gpu = self._gpu
        return gpu is None or gpu in words or [gpu.removeprefix("gpu")] == words


def error(code: int) -> Fault:
    """The call returns an error."""
    return lambda _args: code


def garbage(seed: int) -> Fault:
    """The call succeeds, and leaves random bytes in its outputs; pointers stay as they were."""
    source = random.Random(seed)  # noqa: S311 - the same bytes each time

    def fill(args: tuple[Any, ...]) -> int:
        for target in outputs(args):
            if not isinstance(target, ctypes._Pointer):
                size = ctypes.sizeof(target)
                # A count of a list must stay one that fits into its buffer.
                is_number = isinstance(target, ctypes._SimpleCData)
                wild = source.randbytes(1 if is_number else size).ljust(size, b"\0")
                ctypes.memmove(ctypes.addressof(target), wild, size)
        return 0

    return fill
