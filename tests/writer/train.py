"""Train one optimizer step as each config says, on 2 CPU ranks, and say what the ranks found.

`ranks/forked.py` asks it.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from ranks.forked import Answer, Question, answer


def train(question: Question, _folder: Path) -> Answer:
    """What this rank found."""
    model = _model(question["model"])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    engine = TRAINED_BY[question["by"]](question, model)
    return {**_found(engine), "changed": _changed(engine, before)}


def _found(engine: Any) -> Answer:
    """What the engine is, by what lies in its memory."""
    from ranks.sitecustomize import describe

    autocast = engine.torch_autocast_enabled()
    found = describe(engine)
    return {
        **found,
        "steps_with": found["optimizer_classes"][-1],
        "autocast": str(engine.torch_autocast_dtype()).split(".")[-1] if autocast else None,
    }


def by_deepspeed(question: Question, model: Any) -> Any:
    """A plain loop, with an optimizer of its own when it is said to have one."""
    import deepspeed

    parameters = list(model.parameters())
    own = torch.optim.AdamW(parameters, lr=0.01) if question["own_optimizer"] else None
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=own,
        model_parameters=None if own else parameters,
        config=question["config"],
    )
    for _ in range(engine.gradient_accumulation_steps()):
        words = _words(question)
        engine.backward(engine(input_ids=words, labels=words).loss)
        engine.step()
    return engine


def by_accelerate(question: Question, model: Any) -> Any:
    """A loop of Accelerate's own, which finds the config in its environment."""
    from accelerate import Accelerator

    os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true"}
    os.environ |= {"ACCELERATE_DEEPSPEED_CONFIG_FILE": question["config"]}
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(accelerator.gradient_accumulation_steps):
        with accelerator.accumulate(engine):
            words = _words(question)
            accelerator.backward(engine(input_ids=words, labels=words).loss)
            optimizer.step()
            optimizer.zero_grad()
    return engine


def by_trainer(question: Question, model: Any) -> Any:
    """The Trainer, whose arguments are those that the plan was made with."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            deepspeed=question["config"],
            max_steps=1,
            learning_rate=0.01,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            **question["arguments"],
        )
        rows = [{"input_ids": row, "labels": row} for row in _words(question)] * 8
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        return trainer.model_wrapped


TRAINED_BY: Mapping[str, Callable[[Question, Any], Any]] = {
    "deepspeed": by_deepspeed,
    "accelerate": by_accelerate,
    "hf": by_trainer,
}


def _model(config: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    read = AutoConfig.for_model(**config)
    return AutoModelForCausalLM.from_config(read, dtype=torch.float32)


def _words(question: Question) -> Any:
    return torch.randint(0, question["model"]["vocab_size"], question["shape"])


def _changed(engine: Any, before: list[Any]) -> bool:
    import deepspeed

    weights = list(engine.module.parameters())
    sharded = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(weights, enabled=sharded):
        pairs = zip(before, weights, strict=True)
        return any(bool((old.to(new.dtype) != new.data).any()) for old, new in pairs)


if __name__ == "__main__":
    answer(train)
