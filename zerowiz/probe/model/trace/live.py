"""Log every storage that is made and freed while a model runs, to ask afterwards what was live."""
# ruff: noqa: ANN401, SLF001 -- torch need not be here, so it has no types; a storage without data
# has no other name than `_cdata`.

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

# torch/c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
_ROUNDED_TO_BYTES = 512


class Log:
    """Storages in the order in which they came and went; a moment is a place in that order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        """The number of a storage, and 1 where it came or -1 where it went."""
        self._sizes_bytes: list[int] = []
        self._gradients: set[int] = set()
        self._numbers: dict[int, int | None] = {}
        self._watched: list[weakref.ref[Any]] = []

    @property
    def now(self) -> int:
        """This moment."""
        return len(self.events)

    def leave_out(self, tensor: Any) -> None:
        """This tensor is a parameter or a buffer, which the ledger counts for itself."""
        self._numbers[tensor.untyped_storage()._cdata] = None

    def _come(self, size_bytes: int) -> int:
        number = len(self._sizes_bytes)
        self._sizes_bytes.append(-(-size_bytes // _ROUNDED_TO_BYTES) * _ROUNDED_TO_BYTES)
        self.events.append((number, 1))
        return number

    @contextmanager
    def scratch(self, size_bytes: int) -> Iterator[None]:
        """A kernel works in memory that it hands to nobody."""
        number = self._come(size_bytes)
        yield
        self.events.append((number, -1))

    def see(self, tensor: Any) -> None:
        """A kernel returned this tensor; only a storage that is new counts."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        number = self._numbers[key] = self._come(storage.nbytes())

        def gone(_: object) -> None:
            del self._numbers[key]
            self.events.append((number, -1))

        self._watched.append(weakref.ref(storage, gone))

    def set_aside(self, tensor: Any) -> None:
        """This tensor is the gradient of a parameter, which the ledger counts for itself."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is not None:
            self._gradients.add(number)

    def live_bytes(self, *, made_before: int | None = None) -> list[int]:
        """What was live at every moment, gradients aside.

        Args:
            made_before: Counts only what came before this moment; None counts all.
        """
        made = {number for number, step in self.events[:made_before] if step == 1}
        counted = made - self._gradients
        sizes_bytes = self._sizes_bytes
        steps = (step * sizes_bytes[n] if n in counted else 0 for n, step in self.events)
        return list(accumulate(steps, initial=0))

    def kept_bytes(self, begin: int, end: int, until: int) -> int:
        """What came from `begin` to `end` and was live at `until`."""
        came = {number for number, step in self.events[begin:end] if step == 1}
        came -= {number for number, step in self.events[begin:until] if step == -1}
        return sum(self._sizes_bytes[number] for number in came - self._gradients)


def watching(log: Log) -> Any:
    """A mode under which every tensor that a kernel returns is logged."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    # aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: `tmp = grad * output`
    # (acts-043 of tests/measured/h200.jsonl).
    scratching = {torch.ops.aten._softmax_backward_data.default}

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            works = func in scratching
            with log.scratch(args[0].nbytes) if works else nullcontext():
                returned = func(*args, **(kwargs or {}))
                for leaf in tree_leaves(returned):
                    if isinstance(leaf, torch.Tensor):
                        log.see(leaf)
            return returned

    return Watching()
