"""Run one micro-step of a model without data, and tell what it held."""
# ruff: noqa: ANN401 -- torch need not be here, so it has no types

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from zerowiz.core.memory.forward.activations import Activations
from zerowiz.probe.model.trace.kernels import fused_kernels
from zerowiz.probe.model.trace.live import Log, watching


class MicroStep:
    """Forward, loss and backward; the moments of the log that matter are marked on the way."""

    def __init__(self) -> None:
        self.log = Log()
        self.entered: list[int] = []
        """Where each block's forward began, in the order in which they ran."""
        self.left: list[int] = []
        """Where it ended."""
        self.turns: list[int] = []
        """Where each block's backward began: the last block is the first."""
        self.forward_end: int | None = None

    def run(self, model: Any, blocks: list[Any], inputs: Mapping[str, Any]) -> None:
        """Take the step; a fake mode is on."""
        import torch

        for tensor in (*model.parameters(), *model.buffers()):
            self.log.leave_out(tensor)
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._watch_parameter(parameter)
        for block in blocks:
            self._watch_block(block)
        with _one_sequence_a_row(), fused_kernels(), watching(self.log):
            output = model(**inputs)
            loss = output.loss if getattr(output, "loss", None) is not None else output[0].sum()
            del output
            self.forward_end = self.log.now
            torch.autograd.backward([loss])

    def _watch_parameter(self, parameter: Any) -> None:
        def arrived(parameter: Any) -> None:
            self.log.set_aside(parameter.grad)
            parameter.grad = None

        parameter.register_hook(self.log.set_aside)
        parameter.register_post_accumulate_grad_hook(arrived)

    def _watch_block(self, block: Any) -> None:
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        # After forward these run in recomputations, which are part of backward.
        def opens(*_: object) -> None:
            if self.forward_end is None:
                self.entered.append(self.log.now)

        def closes(_block: object, _inputs: object, output: object) -> None:
            if self.forward_end is not None:
                return
            self.left.append(self.log.now)
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.requires_grad:
                    leaf.register_hook(lambda _: self.turns.append(self.log.now))
                    return

        block.register_forward_pre_hook(opens)
        block.register_forward_hook(closes)

    @property
    def _end(self) -> int:
        return self.log.now if self.forward_end is None else self.forward_end

    def activations(self) -> Activations:
        """What was live, at the moments that the ledger asks for."""
        end, log = self._end, self.log
        live = log.live_bytes()
        of_forward = log.live_bytes(made_before=end)
        last = self.left[-1] if self.left else end
        turns = [*(self.turns or [end]), log.now]
        over_saved = [
            max(live[turn : following + 1]) - of_forward[turn]
            for turn, following in pairwise(turns)
        ]
        return Activations(
            saved_bytes=log.kept_bytes(0, last, end),
            saved_formula=f"traced: {len(self.left)} blocks and what is in front of them",
            head_bytes=log.kept_bytes(last, end, end),
            head_formula="traced: behind the last block",
            loss_forward_bytes=max(live[: end + 1]) - live[end],
            loss_backward_bytes=max(live[end : turns[0] + 1]) - live[end],
            block_bytes=max(0, *over_saved),
        )

    def saved_by_block_bytes(self) -> tuple[int, ...]:
        """What each block made that was live as forward ended."""
        spans = zip(self.entered, self.left, strict=True)
        return tuple(self.log.kept_bytes(begin, end, self._end) for begin, end in spans)


@contextmanager
def _one_sequence_a_row() -> Iterator[None]:
    """Keep transformers from looking for packed sequences: without data it would find some."""
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
