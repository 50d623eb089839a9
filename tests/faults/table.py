"""A function table of NVML that fails where it is told to: over a recording, under pynvml."""

import ctypes
import random
from collections.abc import Callable
from typing import Any

from zerowiz.probe.recording.tape import Replay, _address, _Handles, _inputs, _name_call, _targets

Fault = Callable[[tuple[Any, ...]], int]
"""What a call does instead of its own: its outputs are the arguments'; it returns a code."""


class FaultTable:
    """Calls another table, but for the calls of one function that are about one GPU.

    Args:
        library: What answers all other calls.
        symbol: The C function that fails.
        fault: What it does instead.
        gpu: The GPU for which it fails, as recordings name it; None for each.
    """

    def __init__(
        self, library: Replay, symbol: str, fault: Fault, gpu: str | None = "gpu1"
    ) -> None:
        self._library, self._symbol, self._fault, self._gpu = library, symbol, fault, gpu
        self._handles = _Handles()

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """The C function of this name, as ctypes finds it."""
        function = getattr(self._library, symbol)
        if symbol == "nvmlErrorString":
            return function  # type: ignore[no-any-return]

        def called(*args: Any) -> int:
            words = _inputs(args, self._handles)
            named = _name_call(symbol, words)
            about = self._gpu is None or self._gpu in words or named.endswith(f"({self._gpu[3:]})")
            if symbol == self._symbol and about:
                return self._fault(args)
            code = int(function(*args))
            targets = _targets(args)
            if not code and targets and isinstance(targets[0], ctypes._Pointer):
                self._handles.learn(f"gpu{words[0]}", _address(targets[0]) or 0)
            return code

        return called


def error(code: int) -> Fault:
    """The call returns an error."""
    return lambda _args: code


def garbage(seed: int) -> Fault:
    """The call succeeds, and leaves random bytes in its outputs; pointers stay as they were."""
    source = random.Random(seed)  # noqa: S311 - the same bytes each time

    def fill(args: tuple[Any, ...]) -> int:
        for target in _targets(args):
            if not isinstance(target, ctypes._Pointer):
                size = ctypes.sizeof(target)
                # A count of a list must stay one that fits into its buffer.
                is_number = isinstance(target, ctypes._SimpleCData)
                wild = source.randbytes(1 if is_number else size).ljust(size, b"\0")
                ctypes.memmove(ctypes.addressof(target), wild, size)
        return 0

    return fill
