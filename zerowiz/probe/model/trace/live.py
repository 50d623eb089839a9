"""Log every storage that is made and freed while a model runs; the log says what was live when."""
# ruff: noqa: ANN401, SLF001 -- torch need not be installed, so it has no types; only `_cdata`
# identifies a storage without data.

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

# torch/c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
_ROUNDED_TO_BYTES = 512


class StorageLog:
    """The allocations and frees of storages, in order; a moment is an index in that order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        """The number of a storage, and 1 for its allocation or -1 for its free."""
        self._sizes_bytes: list[int] = []
        self._gradients: set[int] = set()
        self._numbers: dict[int, int | None] = {}
        self._watched: list[weakref.ref[Any]] = []

    @property
    def now(self) -> int:
        """The present moment."""
        return len(self.events)

    def leave_out(self, tensor: Any) -> None:
        """Do not log this tensor: the ledger has lines of its own for parameters and buffers."""
        self._numbers[tensor.untyped_storage()._cdata] = None

    def _allocate(self, size_bytes: int) -> int:
        number = len(self._sizes_bytes)
        self._sizes_bytes.append(-(-size_bytes // _ROUNDED_TO_BYTES) * _ROUNDED_TO_BYTES)
        self.events.append((number, 1))
        return number

    @contextmanager
    def scratch(self, size_bytes: int) -> Iterator[None]:
        """Log temporary memory of a kernel, for the length of the block."""
        number = self._allocate(size_bytes)
        yield
        self.events.append((number, -1))

    def add(self, tensor: Any) -> None:
        """Log a tensor that a kernel returned, unless its storage is logged already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        number = self._numbers[key] = self._allocate(storage.nbytes())

        def freed(_: object) -> None:
            del self._numbers[key]
            self.events.append((number, -1))

        self._watched.append(weakref.ref(storage, freed))

    def set_aside(self, tensor: Any) -> None:
        """Do not count this gradient of a parameter: the ledger has a line of its own for them."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is not None:
            self._gradients.add(number)

    def live_bytes(self, *, made_before: int | None = None) -> list[int]:
        """The live bytes at every moment, without the gradients of parameters.

        Args:
            made_before: Counts only storages that were allocated before this moment; None counts
                all.
        """
        made = {number for number, step in self.events[:made_before] if step == 1}
        counted = made - self._gradients
        sizes_bytes = self._sizes_bytes
        steps = (step * sizes_bytes[n] if n in counted else 0 for n, step in self.events)
        return list(accumulate(steps, initial=0))

    def kept_bytes(self, begin: int, end: int, until: int) -> int:
        """The bytes that were allocated from `begin` to `end` and live at `until`."""
        kept = {number for number, step in self.events[begin:end] if step == 1}
        kept -= {number for number, step in self.events[begin:until] if step == -1}
        return sum(self._sizes_bytes[number] for number in kept - self._gradients)


def logging_mode(log: StorageLog) -> Any:
    """A dispatch mode of torch that logs every tensor that a kernel returns."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    # aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: `tmp = grad * output`
    # (acts-043 of tests/measured/h200.jsonl).
    with_scratch = {torch.ops.aten._softmax_backward_data.default}

    class LoggingMode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            with log.scratch(args[0].nbytes) if func in with_scratch else nullcontext():
                returned = func(*args, **(kwargs or {}))
                for leaf in tree_leaves(returned):
                    if isinstance(leaf, torch.Tensor):
                        log.add(leaf)
            return returned

    return LoggingMode()
