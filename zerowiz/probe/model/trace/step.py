"""Run one micro-step of a model on tensors without data, and count the activations it held."""
# ruff: noqa: ANN401 -- torch need not be installed, so it has no types

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from zerowiz.core.memory.forward.activations import Activations
from zerowiz.probe.model.trace.kernels import fused_kernels
from zerowiz.probe.model.trace.live import StorageLog, logging_mode


class MicroStep:
    """One forward, loss and backward; a moment is an index in the log of storages."""

    def __init__(self) -> None:
        self.log = StorageLog()
        self.forward_begins: list[int] = []
        """The moments at which the forward of each block began, in the order in which they ran."""
        self.forward_ends: list[int] = []
        """The moments at which it ended."""
        self.backward_begins: list[int] = []
        """The moments at which the backward of each block began; the last block comes first."""
        self.forward_end: int | None = None
        """The moment at which the forward of the model ended."""

    def run(self, model: Any, blocks: list[Any], inputs: Mapping[str, Any]) -> None:
        """Take the step; a fake mode must be active."""
        import torch

        for tensor in (*model.parameters(), *model.buffers()):
            self.log.leave_out(tensor)
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._watch_parameter(parameter)
        for block in blocks:
            self._watch_block(block)
        with _without_packing(), fused_kernels(), logging_mode(self.log):
            output = model(**inputs)
            loss = output.loss if getattr(output, "loss", None) is not None else output[0].sum()
            del output
            self.forward_end = self.log.now
            torch.autograd.backward([loss])

    def _watch_parameter(self, parameter: Any) -> None:
        def accumulated(parameter: Any) -> None:
            self.log.set_aside(parameter.grad)
            parameter.grad = None

        parameter.register_hook(self.log.set_aside)
        parameter.register_post_accumulate_grad_hook(accumulated)

    def _watch_block(self, block: Any) -> None:
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        # With checkpointing these hooks run again in backward, where they do not count.
        def begins(*_: object) -> None:
            if self.forward_end is None:
                self.forward_begins.append(self.log.now)

        def ends(_block: object, _inputs: object, output: object) -> None:
            if self.forward_end is not None:
                return
            self.forward_ends.append(self.log.now)
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.requires_grad:
                    leaf.register_hook(lambda _: self.backward_begins.append(self.log.now))
                    return

        block.register_forward_pre_hook(begins)
        block.register_forward_hook(ends)

    @property
    def _end(self) -> int:
        return self.log.now if self.forward_end is None else self.forward_end

    def activations(self) -> Activations:
        """The live bytes at the moments that the ledger has lines for."""
        end, log = self._end, self.log
        live = log.live_bytes()
        of_forward = log.live_bytes(made_before=end)
        last = self.forward_ends[-1] if self.forward_ends else end
        begins = [*(self.backward_begins or [end]), log.now]
        over_saved = [
            max(live[begin : following + 1]) - of_forward[begin]
            for begin, following in pairwise(begins)
        ]
        return Activations(
            saved_bytes=log.kept_bytes(0, last, end),
            saved_formula=f"traced: {len(self.forward_ends)} blocks and what is in front of them",
            head_bytes=log.kept_bytes(last, end, end),
            head_formula="traced: behind the last block",
            loss_forward_bytes=max(live[: end + 1]) - live[end],
            loss_backward_bytes=max(live[end : begins[0] + 1]) - live[end],
            block_bytes=max(0, *over_saved),
        )

    def saved_by_block_bytes(self) -> tuple[int, ...]:
        """The bytes that each block allocated and that were live when the forward ended."""
        spans = zip(self.forward_begins, self.forward_ends, strict=True)
        return tuple(self.log.kept_bytes(begin, end, self._end) for begin, end in spans)


@contextmanager
def _without_packing() -> Iterator[None]:
    """Keep transformers from looking for packed sequences, which it would find without data."""
    from transformers import masking_utils

    name = "find_packed_sequence_indices"
    own = getattr(masking_utils, name, None)
    try:
        if own is not None:
            setattr(masking_utils, name, lambda *_: None)
        yield
    finally:
        if own is not None:
            setattr(masking_utils, name, own)
