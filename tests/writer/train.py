"""Train one optimizer step as each config says, on 2 CPU ranks, and say what the ranks found.

Run as `python train.py QUESTIONS ANSWERS`. The libraries and DeepSpeed's ops are loaded once, and
every rank of every config is a process forked from there, which ends with its step.
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

# A rank that waits for one that is gone hangs: then the alarm ends it, and it has no answer.
PATIENCE_SECONDS = 60
RANKS = 2

Question = Mapping[str, Any]
Answer = dict[str, Any]


def ask_ranks(question: Question) -> list[Answer]:
    """What each rank says."""
    port = str(find_free_port())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [_fork(question, rank, port, folder) for rank in range(RANKS)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [_read_answer(folder, rank, end) for rank, end in enumerate(ends)]


def _read_answer(folder: Path, rank: int, end: int) -> Answer:
    path = folder / f"rank{rank}.json"
    log = (folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
    if not path.is_file():
        return {"raised": f"no answer, exit status {end}", "log": log}
    answer: Answer = json.loads(path.read_text(encoding="utf-8"))
    return {"log": log, **answer} if answer["raised"] else answer


def _fork(question: Question, rank: int, port: str, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _be_rank(question, rank, port, folder)
    finally:
        # gloo's threads abort one exit in ten otherwise.
        os._exit(0)


def _be_rank(question: Question, rank: int, port: str, folder: Path) -> None:
    signal.alarm(PATIENCE_SECONDS)
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ranks = str(RANKS)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
    os.environ |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "LOCAL_SIZE": ranks}
    try:
        answer = _train(question)
    except BaseException as error:  # noqa: BLE001 (the error is the answer)
        answer = {"raised": f"{type(error).__name__}: {error}"}
    partial = folder / f"partial{rank}"
    partial.write_text(json.dumps(answer), encoding="utf-8")
    partial.replace(folder / f"rank{rank}.json")


def _train(question: Question) -> Answer:
    import torch
    from deepspeed.accelerator import get_accelerator

    torch.set_num_threads(1)
    # A CPU without half precision stands in for a GPU, which has it.
    get_accelerator().is_fp16_supported = lambda: True
    model = _model(question["model"])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    engine = TRAINED_BY[question["by"]](question, model)
    answer = {"raised": None, **_found(engine), "changed": _changed(engine, before)}
    torch.distributed.barrier()
    return answer


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
    import torch

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
    import torch
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
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    read = AutoConfig.for_model(**config)
    return AutoModelForCausalLM.from_config(read, dtype=torch.float32)


def _words(question: Question) -> Any:
    import torch

    return torch.randint(0, question["model"]["vocab_size"], question["shape"])


def _changed(engine: Any, before: list[Any]) -> bool:
    import deepspeed

    weights = list(engine.module.parameters())
    sharded = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(weights, enabled=sharded):
        pairs = zip(before, weights, strict=True)
        return any(bool((old.to(new.dtype) != new.data).any()) for old, new in pairs)


def main() -> None:
    """Load once, then train one config after the other."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1"}
    from accelerate import Accelerator  # noqa: F401
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import __compatible_ops__
    from deepspeed.runtime.zero import stage3  # noqa: F401

    # DeepSpeed loads it when it first sees an optimizer, and torch's compiler with it: 3 s a rank.
    from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401

    # gloo alone: the op for shared memory takes 69 MB of it from each rank.
    __compatible_ops__["deepspeed_shm_comm"] = False
    get_accelerator().create_op_builder("CPUAdamBuilder").load()
    # What is loaded by now stays: no rank has to look for garbage in it.
    gc.freeze()
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = [ask_ranks(question) for question in questions]
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
