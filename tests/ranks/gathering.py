"""Log what DeepSpeed's real coordinator of stage 3 has gathered, on two ranks of the CPU.

Reads a list of cases as JSON from a file; writes for each the most elements that were whole in each
block's forward and backward, and as forward ended, in the last micro-step, and of three passes after it.
"""

import json
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from types import MethodType
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}

import deepspeed
import torch
import transformers
from deepspeed.ops import __compatible_ops__

# DeepSpeed loads it when it first sees an optimizer, and torch's compiler with it: 3 s a rank.
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from torch.nn import functional
from transformers.integrations import HfDeepSpeedConfig
from transformers.modeling_outputs import CausalLMOutput

RANKS = 2
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


def train(case: dict[str, Any]) -> dict[str, Any]:
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
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        built = transformers.AutoConfig.from_pretrained(folder)
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


def run(case: dict[str, Any]) -> dict[str, Any]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                os.environ |= where | own | {"WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS)}
                # stdout is for the answer alone.
                os.dup2(2, 1)
                status = 1
                try:
                    deepspeed.init_distributed("gloo")
                    Path(folder, str(rank)).write_text(json.dumps(train(case)))
                    status = 0
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        said: dict[str, Any] = json.loads(Path(folder, "0").read_text())
        return said


torch.set_num_threads(1)
# gloo alone: the op for shared memory takes 69 MB of it from each rank.
__compatible_ops__["deepspeed_shm_comm"] = False
asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
sys.stdout.write(json.dumps([run(case) for case in asked]) + "\n")
