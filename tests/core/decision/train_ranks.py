"""Train a tiny model for three steps as each config says, on CPU ranks that meet over gloo.

`ranks/forked.py` asks it.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ranks.forked import answer

STEPS = 3
TOKENS, SEQUENCES, WORDS = 8, 2, 16
LEARNING_RATE = 0.01


def train(question: Mapping[str, Any], _folder: Path) -> dict[str, Any]:
    """The losses and the weights of this rank."""
    return TRAINED_BY[question["by"]](question, int(os.environ["RANK"]))


def by_deepspeed(question: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A plain loop."""
    import deepspeed

    model = _model(question)
    optimizer = _optimizer(question, model)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        model_parameters=None if optimizer else list(model.parameters()),
        config=question["config"],
    )
    return _seen(engine, _losses(engine, rank, engine.backward, engine.step))


def by_accelerate(question: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A loop of Accelerate's own."""
    from accelerate import Accelerator, DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config=question["config"])
    accelerator = Accelerator(deepspeed_plugins=plugin)
    model = _model(question)
    engine, optimizer = accelerator.prepare(model, _optimizer(question, model))
    return _seen(engine, _losses(engine, rank, accelerator.backward, optimizer.step))


def _losses(
    engine: Any, rank: int, backward: Callable[[Any], object], step: Callable[[], object]
) -> list[float]:
    """Train, and tell the loss of each step."""
    losses = []
    for _ in range(STEPS):
        words = _words(rank)
        loss = engine(input_ids=words, labels=words).loss
        backward(loss)
        step()
        losses.append(float(loss.detach()))
    return losses


def by_trainer(question: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The Trainer, whose data are the same on every rank."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / f"config{rank}.json"
        config.write_text(json.dumps(question["config"]))
        arguments = TrainingArguments(
            output_dir=folder,
            deepspeed=str(config),
            max_steps=STEPS,
            per_device_train_batch_size=SEQUENCES,
            learning_rate=LEARNING_RATE,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            **question["arguments"],
        )
        rows = [{"input_ids": row, "labels": row} for row in _words(0)] * 32
        trainer = Trainer(model=_model(question), args=arguments, train_dataset=rows)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return _seen(trainer.model_wrapped, losses)


TRAINED_BY: Mapping[str, Callable[[Mapping[str, Any], int], dict[str, Any]]] = {
    "deepspeed": by_deepspeed,
    "accelerate": by_accelerate,
    "hf": by_trainer,
}


def _model(question: Mapping[str, Any]) -> Any:
    """A tiny Llama."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    width = question["width"]
    config = AutoConfig.for_model(
        "llama",
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=2,
        num_attention_heads=1,
        vocab_size=4 * WORDS,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _optimizer(question: Mapping[str, Any], model: Any) -> Any:
    import torch
    import transformers

    parameters = list(model.parameters())
    builders: Mapping[str, Callable[[], Any]] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=LEARNING_RATE),
        "sgd": lambda: torch.optim.SGD(parameters, lr=LEARNING_RATE),
        "adafactor": lambda: transformers.Adafactor(
            parameters, lr=LEARNING_RATE, scale_parameter=False, relative_step=False
        ),
    }
    name = question["optimizer"]
    if name == "adamw_8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=LEARNING_RATE)
    return builders[name]() if name else None


def _words(rank: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, WORDS, (SEQUENCES, TOKENS), generator=generator)


def _seen(engine: Any, losses: list[float]) -> dict[str, Any]:
    """The losses, and enough of the weights to tell one training from another."""
    import deepspeed

    weights = list(engine.module.parameters())
    sharded = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(weights, enabled=sharded):
        total = sum(float(weight.data.double().abs().sum()) for weight in weights)
    return {
        "losses": losses,
        "weights": total,
        "steps_with": type(engine.basic_optimizer).__name__,
    }


if __name__ == "__main__":
    answer(train)
