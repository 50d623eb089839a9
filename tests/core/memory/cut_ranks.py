"""Let real ZeRO-1 and ZeRO-2 cut tiny models on CPU ranks, and say what each rank holds.

Each runs one forward and backward; `ranks/forked.py` asks it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers
from ranks.forked import answer

TOKENS = 8


class Watch:
    """What an optimizer does while one backward runs."""

    def __init__(self, optimizer: Any, names: Mapping[int, str]) -> None:
        """Step between its methods."""
        self.optimizer, self.names = optimizer, names
        self.appeared: str | None = None
        self.grads_in_partition = self.copied = self.whole = 0
        self._coming: str | None = None
        self._wrap("process_gradients", self._comes)
        self._wrap("copy_grads_in_partition", self._is_kept)
        self._wrap("allreduce_bucket", self._is_flattened)

    def _wrap(self, method: str, see: Callable[..., None]) -> None:
        original = getattr(self.optimizer, method)

        def seen(*args: Any, **kwargs: Any) -> Any:
            see(*args)
            done = original(*args, **kwargs)
            if method == "process_gradients":
                self.whole = max(self.whole, self._elements_in_gradients())
            return done

        setattr(self.optimizer, method, seen)

    def _comes(self, param: Any, _group: int) -> None:
        self._coming = self.names[id(param)]

    def _is_kept(self, *_: Any) -> None:
        if not self.grads_in_partition:
            self.appeared = self._coming
            groups = self.optimizer.params_in_partition
            self.grads_in_partition = sum(p.numel() for group in groups for p in group)

    def _is_flattened(self, bucket: Any, *_: Any) -> None:
        if len(bucket) > 1:
            self.copied = max(self.copied, sum(part.numel() for part in bucket))

    def _elements_in_gradients(self) -> int:
        """Of gradients that have memory of their own."""
        shared = [b for each in self.optimizer.ipg_buckets.values() for b in each.buffer]
        shared += [self.optimizer.grads_in_partition]
        known = {t.untyped_storage().data_ptr() for t in shared if t is not None}
        grads = [p.grad for group in self.optimizer.bit16_groups for p in group]
        return sum(
            grad.numel()
            for grad in grads
            if grad is not None and grad.untyped_storage().data_ptr() not in known
        )


def backward(question: Mapping[str, Any], _folder: Path) -> dict[str, Any]:
    """What this rank holds."""
    model = _model(question["config"])
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(_groups(model, apart=question["decay_apart"]), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": question["zero_optimization"],
        },
    )
    optimizer = engine.optimizer
    names = {id(param): name for name, param in model.named_parameters()}
    watch = Watch(optimizer, names)
    words = torch.zeros((1, TOKENS), dtype=torch.long)
    engine.backward(engine(input_ids=words, labels=words).loss)
    kept = [grad for grads in optimizer.averaged_gradients.values() for grad in grads]
    return {
        "held": watch.grads_in_partition,
        "largest_slice": max(g.numel() for g in kept if not getattr(g, "_zero_padding", False)),
        "appeared": watch.appeared,
        "copied": watch.copied,
        "whole": watch.whole,
    }


def _model(config: Mapping[str, Any]) -> Any:
    keys = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **keys)
    return transformers.AutoModelForCausalLM.from_config(made)


def _groups(model: Any, *, apart: bool) -> list[dict[str, Any]]:
    """The parameters as the Trainer groups them, or all in one group."""
    if not apart:
        return [{"params": list(model.parameters())}]
    # It reads nothing of the Trainer itself.
    decaying = set(transformers.Trainer.get_decay_parameter_names(None, model))
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if (name in decaying) is decays]}
        for decays in (True, False)
    ]


if __name__ == "__main__":
    answer(backward)
