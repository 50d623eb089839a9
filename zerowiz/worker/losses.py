"""Replace the loss of a model, as a trainer does before training starts."""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

from zerowiz.worker.errors import MissingLibraryError

# TRL's value when its `chunked_nll` was new (trl/trainer/sft_trainer.py).
CHUNK_TOKENS = 256


def _chunk(model: Any) -> None:  # noqa: ANN401 - untyped libraries
    """Compute head and loss for CHUNK_TOKENS tokens at a time, and again in backward."""
    model.forward = MethodType(_forward_in_chunks, model)


def _forward_in_chunks(model: Any, labels: torch.Tensor, **inputs: Any) -> CausalLMOutput:  # noqa: ANN401
    hidden = model.base_model(**inputs).last_hidden_state[:, :-1].flatten(0, 1)
    wanted = labels[:, 1:].flatten()
    head = model.get_output_embeddings()
    softcap = getattr(model.config, "final_logit_softcapping", None)

    def sum_of(states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = head(states)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return functional.cross_entropy(logits.float(), tokens, reduction="sum")

    chunks = zip(hidden.split(CHUNK_TOKENS), wanted.split(CHUNK_TOKENS), strict=True)
    sums = [checkpoint(sum_of, *chunk, use_reentrant=False) for chunk in chunks]
    return CausalLMOutput(loss=torch.stack(sums).sum() / wanted.numel())


def _liger(model: Any) -> None:  # noqa: ANN401
    """Do what `TrainingArguments(use_liger_kernel=True)` does."""
    try:
        from liger_kernel.transformers import (  # noqa: PLC0415 - only this loss needs it
            _apply_liger_kernel_to_instance,
        )
    except ImportError as error:
        raise MissingLibraryError(f"liger-kernel cannot be loaded: {error}") from error
    _apply_liger_kernel_to_instance(model=model)


LOSSES: Mapping[str, Callable[[Any], None]] = {
    "plain": lambda _: None,
    "chunked": _chunk,
    "liger": _liger,
}


def replace_loss(model: Any, name: str) -> None:  # noqa: ANN401
    """Give the model the loss of this name; `plain` is the model's own."""
    LOSSES[name](model)
