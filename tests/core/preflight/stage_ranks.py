"""What calls do at a ZeRO stage, in jobs of each integration on two ranks.

Each kind of job is a function of this file; `ranks/forked.py` asks it.
"""

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
from ranks.forked import Answer, Question, answer
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from zerowiz.worker.measured_script import refuse_empty

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
# What nobody answers would take longer.
WAIT_S = 10.0


def config(stage: int) -> dict[str, Any]:
    """A config whose stage 3 leaves no weight whole."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": 0,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def rank() -> int:
    """Of this process."""
    return int(os.environ["RANK"])


def outcome(call: Callable[[], object]) -> str:
    """What a call does on all ranks: `done`, or the error that it raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return type(error).__name__
    return "done"


def alone(call: Callable[[], object]) -> str:
    """What a call does on rank 0 alone: `done`, or `waits`."""
    if rank():
        return ""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return "waits" if thread.is_alive() else "done"


def saved_bytes(folder: Path) -> int:
    """Of the weights in a folder."""
    names = {"model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "x.bin"}
    return sum(path.stat().st_size for path in folder.iterdir() if path.name in names)


class Rows(torch.utils.data.Dataset[Mapping[str, torch.Tensor]]):  # type: ignore[misc]
    """A few sequences."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Mapping[str, torch.Tensor]:
        ids = torch.arange(8) + index
        return {"input_ids": ids, "labels": ids}


def trainer(stage: int, folder: Path) -> dict[str, object]:
    """The Trainer's own ways, and the script's."""
    start = folder / f"start{rank()}"
    LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).save_pretrained(start)
    seen: dict[str, object] = {}
    for name, more in _REFUSED.items():
        args = _arguments(stage, folder, **{name: True, **more})
        seen[name] = outcome(partial(Trainer, torch.nn.Linear(1, 1), args, eval_dataset=Rows()))
    args = _arguments(stage, folder)
    net = LlamaForCausalLM.from_pretrained(start)
    seen["rows"] = len(net.get_input_embeddings().weight)
    seen["evaluate first"] = outcome(Trainer(net, args, eval_dataset=Rows()).evaluate)
    seen["second trainer"] = outcome(partial(Trainer, torch.nn.Linear(1, 1), args))
    args = _arguments(stage, folder)
    net = LlamaForCausalLM.from_pretrained(start)
    trained = Trainer(net, args, train_dataset=Rows())
    trained.train()
    if rank() == 0:
        net.save_pretrained(folder / "itself")
    refuse_empty(net, set())
    trained.save_model(str(folder / "gathered"))
    if rank() == 0:
        seen["guarded"] = outcome(lambda: net.save_pretrained(folder / "guarded"))
        seen["itself"] = saved_bytes(folder / "itself")
        seen["gathered"] = saved_bytes(folder / "gathered")
    return seen | {"save_model alone": alone(lambda: trained.save_model(str(folder / "alone")))}


_REFUSED: Mapping[str, Mapping[str, Any]] = {
    "save_only_model": {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 500,
    },
    "auto_find_batch_size": {},
}


def _arguments(stage: int, folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder / "run"),
        use_cpu=True,
        bf16=True,
        max_steps=1,
        save_strategy="steps" if more else "no",
        per_device_train_batch_size=1,
        report_to=[],
        deepspeed=config(stage) | {"train_micro_batch_size_per_gpu": "auto"},
        **more,
    )


def adapters(stage: int, folder: Path) -> dict[str, object]:
    """Adapters of peft that are larger than what stays whole."""
    from peft import LoraConfig, get_peft_model

    args = _arguments(stage, folder)
    net = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    net = get_peft_model(net, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    trained = Trainer(model=net, args=args, train_dataset=Rows())
    trained.train()
    refuse_empty(net, set())
    trained.save_model(str(folder / "gathered"))
    if rank() == 0:
        net.save_pretrained(folder / "itself")
    merged = net.merge_and_unload().model.layers[0].self_attn.q_proj.weight
    return {
        "merged": merged.numel(),
        "itself": saved_bytes(folder / "itself") if rank() == 0 else 0,
        "gathered": saved_bytes(folder / "gathered") if rank() == 0 else 0,
    }


def accelerate(stage: int, folder: Path) -> dict[str, object]:
    """A loop with Accelerate."""
    from accelerate import Accelerator, DeepSpeedPlugin

    acc = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(stage)))
    net = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    net, optimizer = acc.prepare(net, torch.optim.AdamW(net.parameters(), fused=True))
    batch = {name: value[None] for name, value in Rows()[0].items()}
    acc.backward(net(**batch).loss)
    optimizer.step()
    bare, main = acc.unwrap_model(net), acc.is_main_process
    seen: dict[str, object] = {
        "clip_grad_value_": outcome(lambda: acc.clip_grad_value_(net.parameters(), 1.0)),
        "no_sync": outcome(lambda: net.no_sync().__enter__()),
        "two models": outcome(lambda: acc.prepare(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))),
    }
    if main:
        bare.save_pretrained(folder / "itself")
    refuse_empty(bare, set())
    # What `doctor --fix` writes, on all ranks.
    bare.save_pretrained(
        folder / "gathered", state_dict=acc.get_state_dict(net), is_main_process=main
    )
    if main:
        seen["guarded"] = outcome(lambda: bare.save_pretrained(folder / "guarded"))
        seen["itself"] = saved_bytes(folder / "itself")
        seen["gathered"] = saved_bytes(folder / "gathered")
    # Only the last call may leave rank 0 waiting: which one is its own job.
    seen["get_state_dict alone"] = alone(lambda: acc.get_state_dict(net))
    return seen


def unprepared(stage: int, _folder: Path) -> dict[str, object]:
    """A loop with Accelerate that prepares the model, and then its optimizer."""
    from accelerate import Accelerator, DeepSpeedPlugin

    acc = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(stage)))
    net = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    optimizer = torch.optim.AdamW(net.parameters())
    batch = {name: value[None] for name, value in Rows()[0].items()}

    def step() -> None:
        whole = acc.prepare(net)
        acc.prepare(optimizer)
        acc.backward(whole(**batch).loss)

    return {"step": outcome(step)}


def engine(stage: int, folder: Path) -> dict[str, object]:
    """A loop over DeepSpeed's engine."""
    net = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))
    averaged = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters())
    run, *_ = deepspeed.initialize(
        model=net,
        optimizer=optimizer,
        config=config(stage) | {"zero_allow_untested_optimizer": True},
    )
    batch = {name: value[None] for name, value in Rows()[0].items()}
    run.backward(run(**batch).loss)
    run.step()

    def average() -> None:
        for old, new in zip(averaged.parameters(), net.parameters(), strict=True):
            old.data.mul_(0.9).add_(new.data, alpha=0.1)

    seen: dict[str, object] = {"average": outcome(average)}
    seen["no_sync"] = outcome(lambda: run.no_sync().__enter__())
    (folder / "itself").mkdir(exist_ok=True)
    if rank() == 0:
        torch.save(net.state_dict(), folder / "itself" / "x.bin")
    refuse_empty(net, set())
    seen["save_checkpoint"] = outcome(lambda: run.save_checkpoint(str(folder / "checkpoint")))
    run.save_16bit_model(str(folder / "gathered"))
    if rank() == 0:
        whole = {"step": 1, "model": net.state_dict()}
        seen["guarded"] = outcome(lambda: torch.save(whole, folder / "guarded.bin"))
        seen["itself"] = saved_bytes(folder / "itself")
        seen["gathered"] = saved_bytes(folder / "gathered")
    seen["save_16bit_model alone"] = alone(lambda: run.save_16bit_model(str(folder / "alone")))
    if seen["save_16bit_model alone"] != "waits":
        seen["forward alone"] = alone(lambda: run.module(**batch))
        seen["save_checkpoint alone"] = alone(lambda: run.save_checkpoint(str(folder / "alone")))
    return seen


def see(question: Question, folder: Path) -> Answer:
    """What a rank sees of a job."""
    return JOBS[question["kind"]](question["stage"], folder)


JOBS = {job.__name__: job for job in (trainer, adapters, accelerate, unprepared, engine)}

if __name__ == "__main__":
    # Most wait for a partner, or for WAIT_S.
    answer(see, at_once=5)
