"""Ask DeepSpeed, the Trainer and Accelerate what they make of configs: train one step with each.

Run as `python ask.py QUESTIONS ANSWERS`. Every question has a process of its own, forked when the
libraries are already loaded. Each trains a tiny model on one CPU rank. A question with `configs` asks
for many of them, one after the other in that process, and only whether each raises.
"""

import json
import math
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120
STEPS = 2
WIDTH = 8
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """What happened: the error, what DeepSpeed read out of the config, and the loss of each step."""
    if "configs" in question:
        return {"id": question["id"], "raised": dict(_raised(question))}
    signal.alarm(PATIENCE_SECONDS)
    said = _listen()
    heard: dict[str, Any] = {"id": question["id"], "raised": None, "facts": {}}
    try:
        heard["facts"] = ASKED[question["asked"]](question)
    except BaseException as error:  # noqa: BLE001 (the error is the answer)
        heard["raised"] = f"{type(error).__name__}: {error}"
    return heard | {"warned": [line for line in said if "eprecated" in line]}


def _raised(question: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Whether each of many configs is refused, or fails in its steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        for name, text in question["configs"].items():
            path.write_text(text, encoding="utf-8")
            yield name, answer({**_without(question), "path": str(path)})["raised"]
            _forget()


def _without(question: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in question.items() if name != "configs"}


def _forget() -> None:
    """Make libraries forget a config."""
    from accelerate.state import AcceleratorState, PartialState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    AcceleratorState._reset_state()
    PartialState._reset_state()
    unset_hf_deepspeed_config()


def of_config_class(question: Mapping[str, Any]) -> dict[str, object]:
    """DeepSpeed's config class alone, in a world of any size."""
    from types import SimpleNamespace

    from deepspeed.runtime import config

    world_size = question["world_size"]
    config.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: world_size)
    return dict(_facts(config.DeepSpeedConfig(question["path"])))


def of_deepspeed(question: Mapping[str, Any]) -> dict[str, object]:
    """A plain loop; it has an optimizer when the config has none, and a scheduler when told so."""
    import deepspeed
    import torch
    from deepspeed.runtime.config import hjson

    _join_world(question)
    config = hjson.loads(Path(question["path"]).read_text(encoding="utf-8"))
    model = _model_of_experts() if "expert_parallel" in config else _model()
    optimizer = scheduler = None
    if question["own"] or "optimizer" not in config:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    if question["own"]:
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        model_parameters=None if optimizer else list(model.parameters()),
        config=question["path"],
    )
    if engine._config.compile_config.deepcompile:
        engine.compile()
    losses = [_step(engine) for _ in range(STEPS * engine.gradient_accumulation_steps())]
    found = {
        "losses": losses,
        "finite": all(map(math.isfinite, losses)),
        "falls": losses[-1] < losses[0],
    }
    return dict(_facts(engine._config)) | _trained(engine) | found


def of_trainer(question: Mapping[str, Any]) -> dict[str, object]:
    """The Trainer, as it is without DeepSpeed's launcher."""
    from transformers import Trainer, TrainingArguments

    _join_world(question)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            deepspeed=question["path"],
            max_steps=STEPS,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
            **question["arguments"],
        )
        trainer = Trainer(model=_model(), args=arguments, train_dataset=_examples())
        trainer.train()
        engine = trainer.model_wrapped
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return dict(_facts(engine._config)) | _trained(engine) | {"losses": losses}


def of_accelerate(question: Mapping[str, Any]) -> dict[str, object]:
    """A loop of Accelerate's own, with the stand-ins that its documentation asks for."""
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DummyOptim, DummyScheduler

    _join_world(question)
    plugin = DeepSpeedPlugin(hf_ds_config=question["path"])
    accelerator = Accelerator(deepspeed_plugins=plugin)
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    model = _model()
    named = DummyOptim if "optimizer" in config else torch.optim.AdamW
    optimizer = named(model.parameters(), lr=0.001)
    parts = [model, optimizer, torch.utils.data.DataLoader(_examples(), batch_size=2)]
    if "scheduler" in config:
        parts.append(DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=1))
    engine = accelerator.prepare(*parts)[0]
    losses = [_step(engine) for _ in range(STEPS * engine.gradient_accumulation_steps())]
    return dict(_facts(engine._config)) | _trained(engine) | {"losses": losses}


ASKED: Mapping[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    "config": of_config_class,
    "deepspeed": of_deepspeed,
    "hf": of_trainer,
    "accelerate": of_accelerate,
}


def _listen() -> list[str]:
    """Every line that DeepSpeed logs from now on."""
    import logging

    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("DeepSpeed").addHandler(Listener())
    return lines


def _join_world(question: Mapping[str, Any]) -> None:
    """A world of one, or the last rank of a larger one, whose others never answer."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.manual_seed(0)
    if torch.distributed.is_initialized():
        return
    ranks = question["world_size"]
    os.environ |= {"RANK": str(ranks - 1), "WORLD_SIZE": str(ranks)}
    torch.distributed.init_process_group(
        "gloo" if ranks == 1 else "fake",
        store=torch.distributed.HashStore() if ranks == 1 else FakeStore(),
        rank=ranks - 1,
        world_size=ranks,
    )
    # A CPU without half precision stands in for a GPU, which has it unless it is an old one.
    takes_fp16 = _takes_fp16(tuple(question["compute_capability"] or (9, 0)))
    get_accelerator().is_fp16_supported = lambda: takes_fp16


def _takes_fp16(capability: tuple[int, int]) -> bool:
    """What DeepSpeed says on a GPU of this compute capability."""
    from unittest import mock

    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    with mock.patch.multiple(
        "torch.cuda", is_available=lambda: True, get_device_capability=lambda: capability
    ):
        return bool(CUDA_Accelerator.is_fp16_supported(None))


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=1,
        vocab_size=16,
    )
    return LlamaForCausalLM(config)


def _model_of_experts() -> Any:
    # DeepSpeed 0.19.8 cannot replace Mixtral's experts under transformers 5.23: it hands the
    # registry of recorded outputs a default.
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=1,
        first_k_dense_replace=0,
        num_attention_heads=1,
        num_key_value_heads=1,
        n_routed_experts=2,
        n_shared_experts=1,
        num_experts_per_tok=1,
        kv_lora_rank=WIDTH,
        q_lora_rank=None,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=WIDTH,
        vocab_size=16,
    )
    return DeepseekV2ForCausalLM(config)


def _examples() -> list[dict[str, Any]]:
    import torch

    words = torch.tensor([1, 2, 3, 4])
    return [{"input_ids": words, "labels": words}] * 64


def _step(engine: Any) -> float:
    import torch

    words = torch.tensor([[1, 2, 3, 4]] * 2)
    loss = engine(input_ids=words, labels=words).loss
    engine.backward(loss)
    engine.step()
    return float(loss)


def _trained(engine: Any) -> dict[str, object]:
    """What the engine built out of the config."""
    return {
        "wrapper": type(engine.optimizer).__name__,
        "basic_optimizer": type(engine.basic_optimizer).__name__,
        "scheduler": type(engine.lr_scheduler).__name__,
        "warmup_type": getattr(engine.lr_scheduler, "warmup_type", None),
        "dtype": str(engine.get_data_types()[0]),
    }


def _facts(value: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """What DeepSpeed's config object holds, flat, by dotted names of its attributes."""
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if inner is None or path.count(".") > 3 or hasattr(value, "value"):
        is_plain = isinstance(value, (bool, int, float, str, type(None)))
        yield path, value if is_plain else _ADDRESS.sub("", str(value))
        return
    for name, each in inner.items():
        if name != "_param_dict":
            yield from _facts(each, f"{path}.{name}".lstrip("."))


def main(questions: Path, answers: Path) -> None:
    """Answer every question of a file."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    import accelerate  # noqa: F401 (loaded once, before the forks)
    import deepspeed  # noqa: F401
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed loads it at the first optimizer, and torch's compiler with it: 3 s a process.
    from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401
    from transformers import LlamaForCausalLM, Trainer  # noqa: F401

    # An alarm in a build would leave torch's lock on it, and everybody else waiting for that.
    for operation in ("ShareMemComm", "FusedAdam", "CPUAdam", "CPUAdagrad", "CPULion"):
        get_accelerator().create_op_builder(f"{operation}Builder").load(verbose=False)
    asked = json.loads(questions.read_text(encoding="utf-8"))
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        found = pool.map_async(answer, asked, chunksize=1).get(PATIENCE_SECONDS * 30)
    answers.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
