"""Log what DeepSpeed's real coordinator of stage 3 has gathered, on two ranks of the CPU.

Of each question it says the most elements that were whole in each block's forward and backward, and as
forward ended, in the last micro-step, and of three passes after it. `forked.py` asks it.
"""

import json
import os
import re
from pathlib import Path
from types import MethodType
from typing import Any

import deepspeed
import torch
import transformers
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from ranks.forked import Answer, Question, answer
from torch.nn import functional
from transformers.integrations import HfDeepSpeedConfig
from transformers.modeling_outputs import CausalLMOutput

_BLOCK = re.compile(r"layers\.(\d+)")


class Log:
    """The largest sums, by the phase and the block."""

    def __init__(self, model: Any) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.parameters = list(model.parameters())
        self.phase, self.loss = "", 0
        self.most: dict[tuple[str, int], int] = {}

    @property
    def live(self) -> int:
        whole = (p for p in self.parameters if p.ds_status != ZeroParamStatus.NOT_AVAILABLE)
        return sum(parameter.ds_numel for parameter in whole)

    def note(self, module: Any) -> None:
        block = _BLOCK.search(self.names.get(id(module), ""))
        if block:
            key = (self.phase, int(block[1]))
            self.most[key] = max(self.most.get(key, 0), self.live)

    def watch(self, name: str) -> None:
        own = getattr(PartitionedParameterCoordinator, name)

        def noted(coordinator: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            own(coordinator, module, *args, **kwargs)
            self.note(module)

        setattr(PartitionedParameterCoordinator, name, noted)

    def blocks(self, phase: str) -> list[int]:
        return [size for (when, _), size in sorted(self.most.items()) if when == phase]


def forward_without_head(model: Any, input_ids: Any, labels: Any) -> CausalLMOutput:
    """As Liger's loss does: the head's weight is read, and the head does not run."""
    hidden = model.model(input_ids=input_ids).last_hidden_state
    logits = functional.linear(hidden[0], model.lm_head.weight)
    return CausalLMOutput(loss=functional.cross_entropy(logits.float(), labels[0]))


def train(case: Question, folder: Path) -> Answer:
    zero = {"stage": 3, "overlap_comm": True, **case["zero"]}
    steps = case["accumulation_steps"]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": steps,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    keep_alive = HfDeepSpeedConfig(dict(config))
    here = folder / os.environ["RANK"]
    here.mkdir()
    (here / "config.json").write_text(json.dumps(case["config"]))
    built = transformers.AutoConfig.from_pretrained(here)
    built.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(built, dtype=torch.bfloat16).train()
    if case["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case["fused"]:
        model.forward = MethodType(forward_without_head, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    assert keep_alive
    log = Log(model)
    log.watch("fetch_sub_module")
    log.watch("release_sub_module")
    tokens = torch.zeros(1, 16, dtype=torch.long)
    for _ in range(2 * steps):
        log.most.clear()
        log.phase = "forward"
        loss = engine(input_ids=tokens, labels=tokens).loss
        log.loss, log.phase = log.live, "backward"
        engine.backward(loss)
        engine.step()
    log.phase = "evaluate"
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            engine(input_ids=tokens, labels=tokens)
    return {
        "evaluate": log.blocks("evaluate"),
        "forward": log.blocks("forward"),
        "loss": log.loss,
        "backward": log.blocks("backward")[::-1],
    }


if __name__ == "__main__":
    answer(train)
