"""Train a tiny model for three steps as each config says, on CPU ranks that meet over gloo.

Run as `python train_ranks.py QUESTIONS ANSWERS`. Every rank is forked when the libraries are
loaded already; what rank 0 saw is the answer.
"""

import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerowiz.probe.preflight.read_facts import find_free_port

PATIENCE_SECONDS = 280
STEPS = 3
TOKENS, SEQUENCES, WORDS = 8, 2, 16
LEARNING_RATE = 0.01


def ask_ranks(question: Mapping[str, Any]) -> dict[str, Any]:
    """What became of it: an error, or the losses and the weights."""
    port = str(find_free_port())
    with tempfile.TemporaryDirectory() as folder:
        ranks = range(question["ranks"])
        processes = [_fork(question, rank, port, Path(folder)) for rank in ranks]
        for process in processes:
            os.waitpid(process, 0)
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
            buffer.unlink(missing_ok=True)
        answered = [Path(folder) / f"answer{rank}" for rank in ranks]
        heard = [json.loads(path.read_text()) for path in answered if path.is_file()]
    # The rank that failed first knows why; the others only miss it.
    said = next((answer for answer in heard if "raised" in answer), heard[0] if heard else {})
    return {"id": question["id"], "raised": None} | said


def _fork(question: Mapping[str, Any], rank: int, port: str, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    # A rank whose partner died waits for it; the alarm ends that.
    signal.alarm(PATIENCE_SECONDS)
    world = str(question["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    os.environ |= {"LOCAL_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    try:
        answer = _train(question, rank, folder)
    except BaseException as error:  # noqa: BLE001 (the error is the answer)
        answer = {"raised": f"{type(error).__name__}: {error}"}
    partial = folder / f"partial{rank}"
    partial.write_text(json.dumps(answer))
    partial.replace(folder / f"answer{rank}")
    # gloo's threads abort one exit in ten otherwise.
    os._exit(0)


def _train(question: Mapping[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    import torch
    from deepspeed.accelerator import get_accelerator

    torch.set_num_threads(1)
    # A CPU without half precision stands in for a GPU, which has it.
    get_accelerator().is_fp16_supported = lambda: True
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=question["ranks"],
    )
    answer = TRAINED_BY[question["by"]](question, rank)
    torch.distributed.barrier()
    return answer


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


def main() -> None:
    """Load the libraries once, then train one config after the other."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from accelerate import Accelerator  # noqa: F401
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero import stage3  # noqa: F401

    # DeepSpeed loads it at the first optimizer, and torch's compiler with it: 3 s a process.
    from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401

    get_accelerator().create_op_builder("CPUAdamBuilder").load()
    gc.freeze()
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = [ask_ranks(question) for question in questions]
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
