"""Train a tiny Llama with the Trainer; each rank says how many tokens it has, and what it learns."""

import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

TOKENS, WORDS = 32, 64
SEEN: list[int] = []
"""The tokens of each micro-step of this rank."""
EVALUATED: list[int] = []
"""Those of each batch that it evaluates."""
# On CPU ranks the Trainer opens torch's groups alone, and Ulysses asks DeepSpeed for its own.
deepspeed.init_distributed("gloo")


class Sequences(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random tokens, the same in each run."""

    def __init__(self, count: int, shorter: int = 0) -> None:
        """So many sequences, of which each is so many tokens shorter than the one before."""
        self.count, self.shorter = count, shorter

    def __len__(self) -> int:
        """As many as were asked for."""
        return self.count

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        """A sequence that is its own labels."""
        seed, length = torch.Generator().manual_seed(place), TOKENS - self.shorter * place
        tokens = torch.randint(0, WORDS, (length,), generator=seed)
        return {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(length)}


class Watched(Trainer):  # type: ignore[misc]
    """A Trainer that notes the tokens of each micro-step."""

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        """As it is."""
        (SEEN if model.training else EVALUATED).append(inputs["input_ids"].numel())
        return super().compute_loss(model, inputs, *args, **kwargs)


def main() -> None:
    """Train, then report."""
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=WORDS, num_attention_heads=4, num_key_value_heads=4, **sizes)
    data = {"train_dataset": Sequences(64), "eval_dataset": Sequences(4, shorter=6)}
    trainer = Watched(model=LlamaForCausalLM(config), args=args, **data)
    trainer.train()
    engine, history = trainer.deepspeed, trainer.state.log_history
    report = {
        "tokens": SEEN,
        "evaluated": EVALUATED,
        "eval_losses": [logged["eval_loss"] for logged in history if "eval_loss" in logged],
        "train_batch_size": engine.train_batch_size(),
        "shared_by": engine.sequence_parallel_size,
        "losses": [logged["loss"] for logged in history if "loss" in logged],
        "norms": [logged["grad_norm"] for logged in history if "grad_norm" in logged],
    }
    Path(f"rank-{os.environ['RANK']}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
