"""What calls do at a ZeRO stage, in jobs of each integration on two ranks.

`python stage_ranks.py FOLDER KIND:STAGE...`: KIND is a function of this file. What rank 0 of each job
saw is in FOLDER/KIND:STAGE/seen.json. The libraries are loaded once: every rank is forked from there.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import peft  # noqa: F401 - loaded for the ranks, as the two below
import torch
from deepspeed.ops import __compatible_ops__
from deepspeed.runtime.zero import stage3  # noqa: F401
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from zerowiz.probe.preflight.read_facts import find_free_port
from zerowiz.worker.measured_script import refuse_empty

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
# What nobody answers would take longer.
WAIT_S = 10.0
PATIENCE_S = 200
# Most wait for a partner, or for WAIT_S.
AT_ONCE = 5


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


def fork(asked: str, number: int, port: int, folder: Path) -> int:
    """A rank of a job; its process."""
    process = os.fork()
    if process:
        return process
    # A thread may wait for ever, and a rank for one that is gone.
    signal.alarm(PATIENCE_S)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        kind, stage = asked.split(":")
        seen = JOBS[kind](int(stage), folder)
        if number == 0:
            (folder / "partial").write_text(json.dumps(seen))
            (folder / "partial").replace(folder / "seen.json")
        # A rank that leaves would end what waits for it.
        while not (folder / "seen.json").exists():
            time.sleep(0.1)
    except BaseException:  # noqa: BLE001 - nothing of this process may go on
        traceback.print_exc()
    finally:
        os._exit(0)


JOBS = {job.__name__: job for job in (trainer, adapters, accelerate, unprepared, engine)}

if __name__ == "__main__":
    # gloo alone: the op for shared memory takes 69 MB of it from each rank.
    __compatible_ops__["deepspeed_shm_comm"] = False
    gc.freeze()
    root, every = Path(sys.argv[1]), sys.argv[2:]
    for start in range(0, len(every), AT_ONCE):
        ranks = []
        for asked in every[start : start + AT_ONCE]:
            (root / asked).mkdir()
            port = find_free_port()
            ranks += [fork(asked, number, port, root / asked) for number in range(2)]
        for process in ranks:
            os.waitpid(process, 0)
